"""PPO on workers: the same loop as in one process, with a `RolloutManager` instead of the collector.

Every part is also one command: `palaestra train ppo CartPole-v1 --runtime process --num-workers 2`.
"""

import functools

from palaestra import PPO, EnvConfig, PPOConfig, RunSeeds, Trainer, TrainerConfig, create_environment, evaluate
from palaestra.distributed import CollectorFactory, DistributedConfig, RolloutManager, WorkersView
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import ProcessRuntime


def main() -> None:
    env = EnvConfig(name="CartPole-v1", num_envs=8)  # of the whole run: four for each worker
    observation_spec, action_spec, reward_spec = probe_specs(env)

    # workers make their own copy of the algorithm, so what makes it has to travel: a class and its arguments
    make = functools.partial(PPO, observation_spec, action_spec, PPOConfig(unroll_length=64), RunSeeds(0))
    ppo = make()
    buffer = buffer_for(ppo, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    config = DistributedConfig(runtime="process", num_workers=2)
    workers = CollectorFactory(env=env, algorithm=make, num_workers=config.num_workers)

    with ProcessRuntime() as runtime:  # or LocalRuntime(), or RayRuntime(address="auto")
        manager = RolloutManager(runtime, workers, {"policy": ppo.policy}, {"policy": buffer}, config)
        trainer = Trainer(manager, ppo, TrainerConfig(total_env_steps=5_000), callbacks=[WorkersView(manager)])
        trainer.run()
        for worker, status in runtime.status().items():
            print(f"{worker}: {status.state}, {status.calls} calls answered, incarnation {status.incarnation}")

    print(f"{manager.metrics()['workers/fragments']} fragments, dropped: {manager.dropped.total}")
    with create_environment(env) as fresh:
        print(evaluate(ppo.policy, fresh, episodes=8))


if __name__ == "__main__":  # each worker imports this file
    main()
