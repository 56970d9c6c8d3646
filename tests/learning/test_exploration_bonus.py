"""A reward that chance hardly finds: with an exploration bonus it is found each time."""

import gymnasium
import numpy as np
import pytest

from palaestra import EnvConfig, NetworkConfig
from palaestra.algorithms import BonusConfig
from palaestra.envs.tiny import Chain
from tests.learning.parts import evaluated, learned

# 20 steps to the right in a row of at most 25: a uniform policy does that once in thirty thousand episodes.
CHAIN = EnvConfig(name="palaestra.envs.tiny:Chain", kwargs={"num_states": 20}, max_episode_steps=25)
SETTINGS = {
    "learning_rate": 1e-2,
    "unroll_length": 64,
    "num_epochs": 4,
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


class Walked(gymnasium.Wrapper):
    """The chain of 20 states, counting how often each was entered and the end was reached; serial environments only."""

    entered = np.zeros(20, np.int64)
    ends = 0

    def __init__(self) -> None:
        super().__init__(Chain(20))

    def step(self, action):
        observation, reward, *rest = super().step(action)
        Walked.entered[observation.argmax()] += 1
        Walked.ends += int(reward)
        return observation, reward, *rest


def explored(kind: str | None, seed: int) -> tuple[float, int]:
    """Share of 10,000 env steps that led into the far half of the chain, and how often its end was reached."""
    Walked.entered, Walked.ends = np.zeros(20, np.int64), 0
    walked = EnvConfig(name=f"{__name__}:Walked", vectorization="serial", max_episode_steps=25)
    bonus = BonusConfig(kind=kind, learning_rate=3e-3)
    learned("ppo", walked, 10_000, seed=seed, bonus=bonus, **{**SETTINGS, "num_epochs": 8})
    return Walked.entered[10:].sum() / Walked.entered.sum(), Walked.ends


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_curiosity_walks_the_whole_way(seed):
    """What can be foreseen bores it, so it goes on to the end of a chain whose start chance does not leave."""
    far, ends = explored("icm", seed)
    assert far > 0.2
    assert ends >= 3


@pytest.mark.slow
def test_without_curiosity_it_stays_near_the_start():
    """The mutant: of three seeds one may be led on by luck."""
    assert sorted(explored(None, seed)[0] for seed in range(3))[1] < 0.05
