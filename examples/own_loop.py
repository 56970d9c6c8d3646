"""PPO put together by hand: environments, algorithm, collector, and a loop of your own around them."""

from collections import deque

import torch

from palaestra import PPO, Collector, EnvConfig, Linear, PPOConfig, RunSeeds, create_environment, evaluate

TOTAL_ENV_STEPS = 40_000


def main() -> None:
    torch.set_num_threads(1)  # networks this small are slower with more
    env = create_environment(EnvConfig(name="CartPole-v1", num_envs=8), seed=0)
    eval_env = create_environment(EnvConfig(name="CartPole-v1", num_envs=4), seed=1)

    config = PPOConfig(
        learning_rate=Linear(1e-3, 0.0), clip=Linear(0.2, 0.0), num_epochs=20, gamma=0.98, gae_lambda=0.8
    )
    algorithm = PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)  # with the buffer that PPO's plan asks for
    returns: deque[float] = deque(maxlen=50)

    with env, eval_env:
        while collector.env_steps < TOTAL_ENV_STEPS:
            collected = collector.collect(n_step=256)  # at least so many, over all environments
            update = algorithm.update(collector.buffer)
            algorithm.set_progress(min(1.0, collector.env_steps / TOTAL_ENV_STEPS))  # moves the schedules

            returns.extend(episode.episode_return for episode in collected.episodes)
            if algorithm.policy_version % 30 == 0:
                metrics = update.metrics  # means over the update's gradient steps
                print(
                    f"{collector.env_steps:>7,} env steps   return {sum(returns) / len(returns):6.1f}   "
                    f"kl {metrics['kl']:.4f}   entropy {metrics['entropy']:.2f}"
                )
        print("evaluation:", evaluate(algorithm.policy, eval_env, episodes=20))


if __name__ == "__main__":
    main()
