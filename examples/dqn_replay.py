"""DQN put together by hand: fill a replay buffer, learn from it, evaluate, and keep the best policy."""

import torch

import palaestra
from palaestra import DQN, Collector, DQNConfig, EnvConfig, Linear, NetworkConfig, RunSeeds, create_environment

TOTAL_ENV_STEPS = 10_000


def main() -> None:
    torch.set_num_threads(1)  # networks this small are slower with more
    env = create_environment(EnvConfig(name="CartPole-v1"), seed=0)
    eval_env = create_environment(EnvConfig(name="CartPole-v1", num_envs=4), seed=1)
    config = DQNConfig(
        learning_rate=2e-3,
        gradient_steps=128,
        mini_batch_size=64,
        n_step=3,
        target_period=128,
        epsilon=Linear(1.0, 0.04, 0.2),
        network=NetworkConfig(hidden_sizes=(64, 64)),
    )
    algorithm = DQN(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)
    buffer, best = collector.buffer, float("-inf")

    with env, eval_env:
        collector.collect(n_step=1_000)  # epsilon is 1: random actions
        print(f"{len(buffer):,} rows in the buffer, which takes {buffer.size_bytes / 1e6:.1f} MB when full")
        while collector.env_steps < TOTAL_ENV_STEPS:
            collector.collect(n_step=256)
            update = algorithm.update(buffer)  # one sample, cut into 128 minibatches of 64 transitions
            algorithm.set_progress(min(1.0, collector.env_steps / TOTAL_ENV_STEPS))  # moves epsilon

            if algorithm.policy_version % 8 == 0:
                evaluation = palaestra.evaluate(algorithm.policy, eval_env, episodes=10)
                print(
                    f"{collector.env_steps:>7,} env steps   q {update.metrics['q_mean']:6.1f}   "
                    f"epsilon {algorithm.policy.exploration.strength:.2f}   evaluation {evaluation}"
                )
                if evaluation.return_mean > best:
                    best = evaluation.return_mean
                    palaestra.save_policy(algorithm.policy, "best_policy")
        policy = palaestra.load_policy("best_policy")
        print("best policy, new episodes:", palaestra.evaluate(policy, eval_env, episodes=40))


if __name__ == "__main__":
    main()
