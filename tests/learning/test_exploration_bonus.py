"""A reward that chance does not find: with an exploration bonus it is found, without it is not."""

import pytest

from palaestra import EnvConfig, NetworkConfig
from palaestra.algorithms import BonusConfig
from tests.learning.parts import evaluated, learned

# 20 steps to the right in a row of at most 25: a uniform policy does that once in thirty thousand episodes.
CHAIN = EnvConfig(name="palaestra.envs.tiny:Chain", kwargs={"num_states": 20}, max_episode_steps=25)
SETTINGS = {
    "learning_rate": 1e-2,
    "unroll_length": 64,
    "num_updates": 4,
    "mini_batch_size": 64,
    "gamma": 0.98,
    "entropy_cost": 0.03,
    "network": NetworkConfig(hidden_sizes=(32,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("bonus", ["rnd", None])
def test_a_bonus_for_novelty_finds_a_reward_at_the_end_of_a_long_way(bonus, seed):
    """The best return is 1, and 0 is that of a policy that never got there: the mutant has no bonus."""
    algorithm = learned("ppo", CHAIN, 10_000, seed=seed, bonus=BonusConfig(kind=bonus), **SETTINGS)
    assert evaluated(algorithm, CHAIN).return_mean == (0.0 if bonus is None else 1.0)
