"""Tests of the wrappers that change rewards: `ClipReward`, `ScaleReward`, `SparseReward`, `NormalizeReward`."""

import numpy as np
import pytest

from palaestra.core import BoundedSpec, ConfigError, SpecError
from palaestra.envs.wrappers import ClipReward, NormalizeReward, ScaleReward, SparseReward
from tests.envs.wrappers.worlds import episode, script

REWARDS = (3.0, -0.5, -7.0, 0.0)


def rewards(env, count=4):
    return [time_step.reward for time_step in episode(env, count)]


def test_rewards_are_clipped_to_their_signs():
    assert rewards(ClipReward(script(*REWARDS))) == [0.0, 1.0, -0.5, -1.0, 0.0]


def test_the_reward_of_a_first_step_stays_0_whatever_the_bounds():
    """ALF-15; clipping it like the others would make 1 of it."""
    env = ClipReward(script(*REWARDS), minimum=1.0, maximum=2.0)
    assert rewards(env, 2) == [0.0, 2.0, 1.0]
    assert (env.reward_spec.minimum, env.reward_spec.maximum) == (0.0, 2.0)


def test_rewards_are_scaled_and_their_bounds_too():
    env = ScaleReward(ClipReward(script(*REWARDS)), scale=0.5)
    assert rewards(env) == [0.0, 0.5, -0.25, -0.5, 0.0]
    assert (env.reward_spec.minimum, env.reward_spec.maximum) == (-0.5, 0.5)
    assert not isinstance(ScaleReward(script(1.0), scale=2).reward_spec, BoundedSpec)


def test_a_sparse_reward_pays_for_success_alone():
    """ALF-37: above 0 becomes 1, anything else 0."""
    env = SparseReward(script(*REWARDS))
    assert rewards(env) == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert (env.reward_spec.minimum, env.reward_spec.maximum) == (0.0, 1.0)


@pytest.mark.parametrize("wrapper", [ClipReward, SparseReward])
def test_vector_rewards_stay_vectors(wrapper):
    env = wrapper(script(np.array([5.0, -5.0]), np.array([0.0, 0.5])))
    first, second, third = (time_step.reward for time_step in episode(env, 2))
    assert first.tolist() == [0.0, 0.0]
    assert second.tolist() == ([1.0, -1.0] if wrapper is ClipReward else [1.0, 0.0])
    assert third.tolist() == ([0.0, 0.5] if wrapper is ClipReward else [0.0, 1.0])
    assert env.reward_spec.shape == (2,)
    assert third.dtype == np.float32


def test_a_normalised_reward_is_divided_by_the_deviation_of_the_discounted_return():
    # gamma = 0.5: returns 2, then 0.5 * 2 + 3 = 4; their population deviations are 0, then 1
    env = NormalizeReward(script(2.0, 3.0, 3.0), gamma=0.5, clip=100.0)
    first, one, two = rewards(env, 2)
    assert first == 0.0
    assert one == 100.0  # one return has no deviation; 2 / sqrt(1e-8) is clipped
    assert two == pytest.approx(3.0 / np.sqrt(1 + 1e-8), rel=1e-12)


def test_returns_are_discounted_by_099_and_clipped_at_10_by_default():
    # returns 2, then 0.99 * 2 + 3 = 4.98: their deviation is half of what lies between them
    first, one, two = rewards(NormalizeReward(script(2.0, 3.0, 3.0)), 2)
    assert (first, one) == (0.0, 10.0) and two == pytest.approx(3.0 / 1.49, rel=1e-6)


def test_the_discounted_return_starts_anew_and_the_statistics_do_not():
    # two episodes of one reward: returns 2 and 2 again; carried over, the second would be 0.5 * 2 + 2 = 3
    env = NormalizeReward(script(2.0), gamma=0.5, clip=1e9)
    assert rewards(env, 1)[1] == pytest.approx(2 / 1e-4)
    assert rewards(env, 1)[1] == pytest.approx(2 / 1e-4)
    other = NormalizeReward(script(2.0, 4.0), gamma=0.5, clip=1e9)
    episode(other, 2)  # returns 2 and 5
    assert rewards(other, 1)[1] == pytest.approx(2 / np.sqrt(2.0))  # of 2, 5, 2: mean 3, variance 2


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda env: ClipReward(env, 1.0, 1.0), ConfigError, "minimum must be below"),
        (lambda env: ScaleReward(env, 0.0), ConfigError, "above 0"),
        (lambda env: ScaleReward(env, np.inf), ConfigError, "finite"),
        (lambda env: NormalizeReward(env, gamma=1.1), ConfigError, r"gamma is in \[0, 1\]"),
        (lambda env: NormalizeReward(env, clip=0.0), ConfigError, "clip above 0"),
        (
            lambda env: NormalizeReward(script(np.zeros(2)), 0.9),
            SpecError,
            r"scalar reward, .* shape \(2,\)",
        ),
    ],
)
def test_impossible_settings_are_refused(make, kind, words):
    """F27."""
    with pytest.raises(kind, match=words):
        make(script(1.0))
