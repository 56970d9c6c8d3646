"""PPO with a memory: the first observation shows a cue, and four steps later it has to be named."""

import torch

import palaestra
from palaestra import PPO, Collector, EnvConfig, NetworkConfig, PPOConfig, RunSeeds, create_environment

RECALL = EnvConfig(name="palaestra.envs.tiny:Recall", kwargs={"num_cues": 2, "delay": 4}, num_envs=4)
TOTAL_ENV_STEPS = 6_000


def main() -> None:
    torch.set_num_threads(1)  # networks this small are slower with more
    env, eval_env = create_environment(RECALL, seed=0), create_environment(RECALL, seed=1)
    for recurrent in (None, "gru"):
        config = PPOConfig(
            learning_rate=1e-2,
            unroll_length=32,
            mini_batch_size=64,
            mini_batch_length=8,  # gradients go back through eight steps
            gae_lambda=0.9,
            gamma=0.9,
            network=NetworkConfig(hidden_sizes=(16,), recurrent=recurrent, recurrent_size=16),
        )
        algorithm = PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
        collector = Collector.of(env, algorithm)
        while collector.env_steps < TOTAL_ENV_STEPS:
            collector.unroll(32)
            algorithm.update(collector.buffer)
        evaluation = palaestra.evaluate(algorithm.policy, eval_env, episodes=40)
        print(f"memory {recurrent}: {evaluation}   state {algorithm.policy.state_spec}")

    # a loop of your own hands the state back; rows where an episode begins start anew by themselves
    policy = algorithm.policy
    time_step, state = eval_env.reset(), policy.initial_state(4)
    for _ in range(5):
        step = policy.act(time_step, state, phase=palaestra.policies.Phase.EVAL, deterministic=True)
        time_step, state = eval_env.step(policy.env_action(step.action)), step.state
    print("rewards for four answers:", time_step.reward.tolist())


if __name__ == "__main__":
    main()
