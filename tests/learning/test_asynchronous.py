"""Learning from actors that wait for nobody, one of which is slow."""

import pytest

from palaestra import NetworkConfig, Trainer, TrainerConfig, evaluate
from palaestra.algorithms import Algorithm
from palaestra.envs import EnvConfig
from tests.algorithms.parts import environment
from tests.distributed.actors import Overtaken, make_algorithm, server

CATCH = EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 5}, num_envs=16)
ON_POLICY = {"learning_rate": 3e-3, "unroll_length": 20, "num_epochs": 1, "mini_batch_sequences": None}
SETTINGS = {
    "impala": (ON_POLICY, {}, 45_000),
    "ppo": ({**ON_POLICY, "num_epochs": 2, "mini_batch_size": 80}, {"max_lag": 4}, 45_000),
    "dqn": (
        {"learning_rate": 1e-3, "mini_batch_size": 64, "capacity": 20_000, "target_period": 100, "gradient_steps": 16,
         "unroll_length": 4, "learning_starts": 500},
        {},
        25_000,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_it_learns_to_catch_from_actors_of_different_speeds(name):
    """MARO-10, MARO-12: random play returns about -0.6, the best play 1; the slow actor's data is many versions old."""
    settings, asynchronous, env_steps = SETTINGS[name]
    algorithm: Algorithm = make_algorithm(name, CATCH, network=NetworkConfig(hidden_sizes=(32,)), **settings)
    with Overtaken("actor-1", every=8) as runtime:
        collect = server(runtime, algorithm, CATCH, **asynchronous)
        Trainer(collect, algorithm, TrainerConfig(total_env_steps=env_steps)).run()
    assert max(collect.lags) > 2
    with environment(CATCH, 16, 9) as env:
        assert evaluate(algorithm.policy, env, episodes=200).return_mean > 0.7
