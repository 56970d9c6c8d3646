"""Tests of `palaestra.policies.exploration`."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ConfigError, Linear, Piecewise
from palaestra.policies import EpsilonGreedy, Exploration, GaussianNoise, UniformNoise

MANY = 20_000
BOUNDS = {"minimum": -1.0, "maximum": np.array([1.0, 2.0])}
KINDS = {
    "epsilon": lambda: EpsilonGreedy(num_actions=50, epsilon=1.0),
    "uniform": lambda: UniformNoise(-1.0, 1.0),
    "gaussian": lambda: GaussianNoise(std=1.0),
}


def frequencies(actions, num_actions):
    return torch.bincount(torch.as_tensor(actions), minlength=num_actions) / len(actions)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_an_exploration_with_its_own_reproducible_noise(kind):
    """MARO-44."""
    one, two = KINDS[kind](), KINDS[kind]()
    assert isinstance(one, Exploration)
    action = np.zeros(20, np.int64 if kind == "epsilon" else np.float32)
    first = one(action)
    assert np.array_equal(first, two(action))
    assert not np.array_equal(one(action), first)
    assert not action.any()  # the given actions are left alone


@pytest.mark.parametrize("kind", KINDS)
def test_another_generator_can_be_used(kind):
    exploration = KINDS[kind]()
    own = exploration.generator.get_state()
    action = torch.zeros(20, dtype=torch.int64 if kind == "epsilon" else torch.float32)
    results = [exploration(action, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*results)
    assert torch.equal(exploration.generator.get_state(), own)


@pytest.mark.parametrize(
    "action",
    [
        3,
        np.int64(3),
        np.array(3),
        np.array([1, 2]),
        np.array([[1], [2]], np.int32),
        torch.tensor(3),
        torch.zeros(2, 3).long(),
    ],
    ids=["int", "int64", "0-dim", "array", "int32", "0-dim tensor", "tensor"],
)
def test_epsilon_0_changes_nothing_and_keeps_the_kind(action):
    """MARO-45."""
    result = EpsilonGreedy(num_actions=10, epsilon=0.0)(action)
    assert type(result) is type(action)
    assert np.array_equal(result, action)
    changed = EpsilonGreedy(num_actions=10, epsilon=1.0)(action)
    assert type(changed) is type(action)
    assert np.shape(changed) == np.shape(action)
    assert getattr(changed, "dtype", None) == getattr(action, "dtype", None)


def test_epsilon_1_is_uniform():
    """MARO-45."""
    result = EpsilonGreedy(num_actions=4, epsilon=1.0)(np.full(MANY, 3))
    assert_close(frequencies(result, 4), torch.full((4,), 0.25), atol=0.015, rtol=0)


def test_epsilon_is_the_probability_of_a_uniform_action():
    result = EpsilonGreedy(num_actions=4, epsilon=0.2)(np.full(MANY, 3))
    assert_close(frequencies(result, 4), torch.tensor([0.05, 0.05, 0.05, 0.85]), atol=0.01, rtol=0)


def test_few_rows_explore_as_often_as_many():
    # one row at a time takes the short cut
    exploration = EpsilonGreedy(num_actions=4, epsilon=0.2)
    result = [exploration(3) for _ in range(MANY // 4)]
    assert_close(frequencies(result, 4), torch.tensor([0.05, 0.05, 0.05, 0.85]), atol=0.02, rtol=0)


@pytest.mark.parametrize("lanes", [2, 16, 17])
def test_each_of_few_lanes_explores_by_itself(lanes):
    exploration = EpsilonGreedy(num_actions=4, epsilon=0.2)
    result = torch.stack([exploration(torch.full((lanes,), 3)) for _ in range(MANY // 4)])
    for lane in range(lanes):
        assert_close(frequencies(result[:, lane], 4), torch.tensor([0.05, 0.05, 0.05, 0.85]), atol=0.02, rtol=0)
    alone = ((result != 3).sum(-1) == 1).float().mean().item()
    assert alone == pytest.approx(lanes * 0.15 * 0.85 ** (lanes - 1), abs=0.02)


def test_epsilon_greedy_explores_among_allowed_actions_only():
    """MARO-46."""
    mask = np.tile([True, False, True, True], (MANY, 1))
    result = EpsilonGreedy(num_actions=4, epsilon=0.5)(np.full(MANY, 2), mask=mask)
    assert_close(frequencies(result, 4), torch.tensor([1 / 6, 0, 4 / 6, 1 / 6]), atol=0.015, rtol=0)


def test_an_epsilon_below_every_draw_does_not_overflow():
    assert EpsilonGreedy(num_actions=4, epsilon=1e-30)(np.full(1000, 3)).tolist() == [3] * 1000


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (0.3, [0.3, 0.3, 0.3]),
        (Linear(1.0, 0.0, fraction=0.5), [1.0, 0.5, 0.0]),
        (Piecewise(((0.0, 1.0), (0.5, 0.2), (1.0, 0.0))), [1.0, 0.6, 0.0]),
    ],
    ids=["constant", "linear", "phases"],
)
def test_schedules_follow_the_run(schedule, values):
    """MARO-46."""
    exploration = EpsilonGreedy(num_actions=4, epsilon=schedule)
    for progress, value in zip([0.0, 0.25, 1.0], values, strict=True):
        exploration.set_progress(progress)
        assert exploration.strength == pytest.approx(value)
    exploration.set_progress(0.0)
    changed = (exploration(np.full(MANY, 3)) != 3).mean()
    assert changed == pytest.approx(values[0] * 3 / 4, abs=0.015)


def test_epsilon_may_be_set_and_holds():
    """MARO-46: for the rest of the schedule; what leaves [0, 1] is refused, and changes nothing."""
    exploration = EpsilonGreedy(num_actions=4, epsilon=Linear(1.0, 0.0))
    exploration.set_progress(0.5)
    assert exploration.epsilon == 0.5
    exploration.epsilon = 0.0
    for progress in (0.5, 0.6):
        assert exploration.epsilon == 0.0 and exploration(np.full(100, 3)).tolist() == [3] * 100
        exploration.set_progress(progress)
    exploration.epsilon = Linear(0.0, 1.0)
    assert exploration.epsilon == pytest.approx(0.6)
    with pytest.raises(ConfigError, match=r"given epsilon=2; it must stay in \[0, 1\]"):
        exploration.epsilon = 2
    assert exploration.epsilon == pytest.approx(0.6)


def test_uniform_noise_lies_between_its_bounds():
    """MARO-44."""
    noise = UniformNoise(np.array([-1.0, 2.0]), np.array([1.0, 4.0]))(torch.zeros(MANY, 2))
    assert_close(noise.amin(0), torch.tensor([-1.0, 2.0]), atol=0.01, rtol=0)
    assert_close(noise.amax(0), torch.tensor([1.0, 4.0]), atol=0.01, rtol=0)
    assert_close(noise.mean(0), torch.tensor([0.0, 3.0]), atol=0.03, rtol=0)


def test_gaussian_noise_has_its_standard_deviation():
    """MARO-44, MARO-46."""
    exploration = GaussianNoise(std=Linear(0.5, 0.0))
    assert exploration(torch.ones(MANY)).std().item() == pytest.approx(0.5, abs=0.01)
    exploration.set_progress(1.0)
    assert torch.equal(exploration(torch.ones(3)), torch.ones(3))


def test_relative_noise_grows_with_the_action():
    """MARO-46."""
    action = torch.tensor([0.0, 1.0, 10.0]).repeat(MANY, 1)
    spread = GaussianNoise(std=0.1, relative=True)(action).std(0)
    assert_close(spread, torch.tensor([0.0, 0.1, 1.0]), atol=0.02, rtol=0)


@pytest.mark.parametrize("noise", [UniformNoise(-5.0, 5.0, **BOUNDS), GaussianNoise(5.0, **BOUNDS)])
def test_noisy_actions_are_clipped(noise):
    """MARO-46."""
    action = noise(np.zeros((1000, 2), np.float32))
    assert action.dtype == np.float32
    assert action.min(0).tolist() == [-1.0, -1.0]
    assert action.max(0).tolist() == [1.0, 2.0]


def test_a_python_number_stays_one():
    assert type(GaussianNoise(std=1.0)(0.5)) is float
    assert type(EpsilonGreedy(4, 1.0)(2)) is int


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpsilonGreedy(0), "num_actions=0; it must be at least 1"),
        (lambda: EpsilonGreedy(3, 1.5), r"epsilon=1.5; it must stay in \[0, 1\]"),
        (lambda: EpsilonGreedy(3, Linear(1.0, -0.1)), r"it must stay in \[0, 1\]"),
        (lambda: EpsilonGreedy(3, Linear(0.5, 1.1)), r"it must stay in \[0, 1\]"),
        (lambda: EpsilonGreedy(3, Piecewise(((0.0, 0.5), (0.05, 2.0), (0.1, 0.5)))), r"it must stay in \[0, 1\]"),
        (lambda: EpsilonGreedy(3, float("nan")), r"epsilon=nan; it must stay in \[0, 1\]"),
        (lambda: UniformNoise(1.0, -1.0), "low must not be above high"),
        (lambda: GaussianNoise(-1.0), "GaussianNoise was given noise of strength -1.0; it must not be negative"),
        (lambda: GaussianNoise(float("nan")), "of strength nan"),
        (lambda: GaussianNoise(1.0, minimum=1.0, maximum=0.0), "minimum=1.0 and maximum=0.0; exchange them"),
    ],
    ids=["actions", "epsilon", "falling", "rising", "peak", "nan", "bounds", "negative", "no number", "exchanged"],
)
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("noise", [GaussianNoise(1.0), UniformNoise(-1, 1)])
@pytest.mark.parametrize("action", [2, np.array([1, 2]), torch.tensor([1, 2])])
def test_noise_on_whole_numbers_is_refused(noise, action):
    with pytest.raises(ConfigError, match="floating point"):
        noise(action)
