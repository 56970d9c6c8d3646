"""A reward that chance hardly finds: with an exploration bonus it is found each time."""

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


def return_of(bonus: str | None, seed: int) -> float:
    algorithm = learned("ppo", CHAIN, 10_000, seed=seed, bonus=BonusConfig(kind=bonus), **SETTINGS)
    return evaluated(algorithm, CHAIN).return_mean


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_bonus_for_novelty_finds_a_reward_at_the_end_of_a_long_way(seed):
    """The best return is 1, and 0 is that of a policy that never got there."""
    assert return_of("rnd", seed) == 1.0


@pytest.mark.slow
def test_without_a_bonus_the_reward_is_found_by_luck_at_most():
    """The mutant: of three seeds one may stumble over it."""
    assert sum(return_of(None, seed) for seed in range(3)) <= 1.0
