"""Discrete SAC and evolution strategies on environments with discrete actions, against their best returns."""

import pytest

from palaestra import NetworkConfig
from tests.learning.parts import evaluated, learned
from tests.learning.test_continuous import OFF_POLICY
from tests.learning.test_tiny import CATCH, CHAIN

# A high temperature would make a long life worth more than the reward at the end.
SOFT = {
    **OFF_POLICY,
    "gradient_steps": 2,
    "learning_rate": 5e-3,
    "initial_temperature": 0.05,
    "temperature_learning_rate": 3e-3,
    "target_entropy_share": 0.2,
}
EVOLUTION = {
    "network": NetworkConfig(hidden_sizes=(16,)),
    "learning_rate": 0.1,
    "unroll_length": 41,
    "noise_std": 0.5,
    "num_envs": 32,
}
every_seed = pytest.mark.parametrize("seed", [0, 1, 2])


@pytest.mark.slow
@every_seed
@pytest.mark.parametrize(
    ("name", "steps", "settings"), [("discrete_sac", 2_000, SOFT), ("evolution_strategies", 20_000, EVOLUTION)]
)
def test_the_end_of_the_chain_is_found_by_the_shortest_way(name, steps, settings, seed):
    """The best return is 1, after 4 steps."""
    evaluation = evaluated(learned(name, CHAIN, steps, seed=seed, **settings), CHAIN)
    assert (evaluation.return_mean, evaluation.length_mean) == (1.0, 4.0)


@pytest.mark.slow
@every_seed
def test_discrete_sac_catches_every_ball(seed):
    """The best return is 1; a paddle that never moves gets -1/3."""
    assert evaluated(learned("discrete_sac", CATCH, 2_500, seed=seed, **SOFT), CATCH).return_mean == 1.0
