"""IMPALA learns Catch from actors that do not wait for each other, in two processes."""

import copy
import functools

from palaestra import EnvConfig, NetworkConfig, RunSeeds, Trainer, TrainerConfig, create_environment, evaluate
from palaestra.algorithms import IMPALA, IMPALAConfig
from palaestra.distributed import AsynchronousConfig, CollectorFactory, DistributedConfig, PolicyServer
from palaestra.envs import probe_specs
from palaestra.rollout import buffer_for
from palaestra.runtime import ProcessRuntime


def main() -> None:
    """Trains for 5,000 env steps and says what was learned, and how stale the data was."""
    env = EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3}, num_envs=16)
    observation_spec, action_spec, reward_spec = probe_specs(env)
    config = IMPALAConfig(learning_rate=3e-3, network=NetworkConfig(hidden_sizes=(32,)))
    impala = IMPALA(observation_spec, action_spec, config, RunSeeds(0))
    buffer = buffer_for(impala, env.num_envs, observation_spec=observation_spec, reward_spec=reward_spec)
    actors = CollectorFactory(env=env, algorithm=functools.partial(copy.deepcopy, impala), num_workers=2)
    with ProcessRuntime() as runtime:
        server = PolicyServer(
            runtime,
            actors,
            {"policy": impala},
            {"policy": buffer},
            DistributedConfig(runtime="process", num_workers=2),
            AsynchronousConfig(max_lag=8),
        )
        Trainer(server, impala, TrainerConfig(total_env_steps=5_000)).run()
    with create_environment(env) as balls:
        caught = evaluate(impala.policy, balls, episodes=100)
    print(f"{impala.policy_version} updates on {server.env_steps:,} env steps; mean return {caught.return_mean}")
    print(f"fragments by lag: {dict(sorted(server.lags.items()))}, dropped: {server.dropped.total}")


if __name__ == "__main__":
    main()
