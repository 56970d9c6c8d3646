"""Values at the ends of episodes are right, and a learner that mistakes a time limit for an end is caught."""

import pytest
import torch

from palaestra import EnvConfig, Linear
from palaestra.algorithms import GradientAlgorithm
from tests.learning.parts import TruncationAsTermination, learned

GAMMA = 0.9
EXACT = 1 / (1 - GAMMA)  # reward 1 forever; every state, every action
TOLERANCE = 0.05

# An episode is cut off after 5 steps, so 0.9^5, more than half, of what its first state is worth lies beyond.
ENDLESS = EnvConfig(name="palaestra.envs.tiny:Endless", max_episode_steps=5, kwargs={"random": True})
MUTANT = EnvConfig(
    name="palaestra.envs.tiny:Endless",
    max_episode_steps=5,
    kwargs={"random": True},
    wrappers=(TruncationAsTermination,),
)

SETTINGS = {
    "ppo": {"unroll_length": 32, "num_epochs": 4, "mini_batch_size": 64, "value_cost": 1.0, "max_grad_norm": 10.0},
    "dqn": {
        "unroll_length": 4,
        "gradient_steps": 2,
        "mini_batch_size": 64,
        "capacity": 4000,
        "learning_starts": 100,
        "target_period": 25,
        "huber_delta": 100.0,  # a mean of targets, not a median, so that a fifth of wrong ones counts
    },
}


def values(algorithm: GradientAlgorithm) -> torch.Tensor:
    observation = torch.linspace(0, 1, 11)[:, None]
    with torch.no_grad():
        if hasattr(algorithm, "value"):
            return algorithm.value(observation)
        return algorithm.policy.q_values(observation)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_values_do_not_see_a_time_limit(name):
    """ALF-26, ALF-28, TS-22: within 5% of 1 / (1 - gamma) everywhere."""
    found = values(learned(name, ENDLESS, 12_000, gamma=GAMMA, learning_rate=Linear(1e-2, 0.0), **SETTINGS[name]))
    assert (found / EXACT - 1).abs().max() < TOLERANCE, found


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_mutant_that_takes_truncation_for_termination_is_far_off(name):
    """ALF-26: so the test above would see a learner with that mistake."""
    found = values(learned(name, MUTANT, 12_000, gamma=GAMMA, learning_rate=Linear(1e-2, 0.0), **SETTINGS[name]))
    assert (1 - found / EXACT).min() > 10 * TOLERANCE, found
