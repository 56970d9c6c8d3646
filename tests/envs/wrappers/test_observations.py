"""Tests of the wrappers that change observations."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.core import BoundedSpec, ConfigError, EnvError, NonFiniteError, spec_leaves
from palaestra.envs import GymEnvironment, load
from palaestra.envs.wrappers import (
    ActionMask,
    CheckFinite,
    ClipObservation,
    FrameStack,
    GrayscaleResize,
    NormalizeObservation,
    NormalizeReward,
    RewardMap,
    SelectEntries,
    SparseReward,
)
from tests.envs.worlds import Nested
from tests.envs.wrappers.worlds import Camera, Masked, episode, script

NUMBERS = [np.array([value], np.float32) for value in (1.0, 3.0, -300.0, 0.5)]
BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def numbers():
    return script(0.0, 0.0, 0.0, observations=NUMBERS, space=BOX)


def seen(env, count=3):
    return [np.asarray(time_step.observation).tolist() for time_step in episode(env, count)]


def nested():
    return GymEnvironment(Nested())


# -- SelectEntries


def test_only_the_entries_that_were_named_are_observed():
    inner, env = load("Pendulum-v1"), SelectEntries(load("Pendulum-v1"), entries=[1, 0])
    raw, left = (layer.begin_episode(5) for layer in (inner, env))
    assert left.observation.tolist() == raw.observation[[1, 0]].tolist()
    assert left.untransformed.observation.tolist() == raw.observation.tolist()
    assert env.observation_spec == BoundedSpec((2,), torch.float32, minimum=np.array(-1.0), maximum=np.array(1.0))
    velocity = SelectEntries(load("Pendulum-v1"), entries=[-1]).observation_spec
    assert (velocity.minimum.tolist(), velocity.maximum.tolist()) == ([-8.0], [8.0])


def test_entries_of_a_nest_are_taken_along_the_last_axis():
    inner, env = nested(), SelectEntries(nested(), entries=[1], keys=["body"])
    raw, left = (layer.begin_episode(5).observation for layer in (inner, env))
    assert left["body"].tolist() == raw["body"][:, [1]].tolist()
    assert left["mode"] == raw["mode"]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], "give whole numbers"),
        ([0.5], "give whole numbers"),
        ([0, 3], "the entry 3; the observation has 3, counted"),
    ],
)
def test_entries_that_are_not_there_are_refused(entries, told):
    with pytest.raises(ConfigError, match=told):
        SelectEntries(load("Pendulum-v1"), entries=entries)


# -- ClipObservation


def test_observations_are_clipped_with_the_documented_defaults():
    """ALF-38."""
    env = ClipObservation(numbers())
    assert seen(env) == [[1.0], [3.0], [-200.0], [0.5]]
    assert (env.observation_spec.minimum.item(), env.observation_spec.maximum.item()) == (-200.0, 200.0)


def test_nested_observations_are_clipped_leaf_by_leaf():
    """ALF-38: numbers are, categories and pixels are not."""
    inner, env = nested(), ClipObservation(nested(), minimum=-0.5, maximum=0.25)
    raw, clipped = (layer.begin_episode(5).observation for layer in (inner, env))
    assert np.array_equal(clipped["body"], np.clip(raw["body"], -0.5, 0.25))
    assert not np.array_equal(clipped["body"], raw["body"])
    assert clipped["mode"] == raw["mode"]
    assert np.array_equal(clipped["pair"][0], raw["pair"][0])
    specs = spec_leaves(env.observation_spec)
    assert (specs["body"].minimum.min(), specs["body"].maximum.max()) == (-0.5, 0.25)
    assert specs["pair.0"].maximum.max() == 255


def test_tighter_bounds_of_the_inner_layer_are_kept():
    box = spaces.Box(np.array([-1, -900], np.float32), np.array([1, 900], np.float32))
    env = ClipObservation(script(0.0, observations=[np.zeros(2, np.float32)] * 2, space=box))
    assert env.observation_spec.minimum.tolist() == [-1, -200]
    assert env.observation_spec.maximum.tolist() == [1, 200]


# -- FrameStack


def test_the_newest_frames_are_stacked_newest_last_after_zeros():
    """ALF-36."""
    env = FrameStack(numbers(), num_frames=2)
    assert seen(env) == [[[0.0], [1.0]], [[1.0], [3.0]], [[3.0], [-300.0]], [[-300.0], [0.5]]]
    assert (env.observation_spec.shape, env.observation_spec.stacked) == ((2, 1), 2)


def test_a_new_episode_forgets_the_frames_before():
    env = FrameStack(numbers(), num_frames=3)
    episode(env, 2)
    assert seen(env, 1) == [[[0.0], [0.0], [1.0]], [[0.0], [1.0], [3.0]]]


def test_only_the_named_leaves_are_stacked_and_bounds_let_zeros_in():
    low, high = np.float32(2), np.float32(5)
    space = spaces.Dict({"a": spaces.Box(low, high, (1,), np.float32), "b": spaces.Box(low, high, (1,), np.float32)})
    observation = {"a": np.full(1, 3, np.float32), "b": np.full(1, 4, np.float32)}
    env = FrameStack(script(0.0, observations=[observation] * 2, space=space), num_frames=2, keys=("b",))
    first = env.begin_episode(0).observation
    assert first["a"].tolist() == [3.0]
    assert first["b"].tolist() == [[0.0], [4.0]]
    specs = env.observation_spec
    assert (specs["a"].stacked, specs["b"].stacked) == (1, 2)
    assert (specs["b"].minimum.min(), specs["b"].maximum.max()) == (0, 5)


class Sparse(FrameStack):
    """Observes another stack than the newest frames."""

    def leaf(self, value, path, first):
        return super().leaf(value, path, first) / 2


class Repeated(RewardMap):
    """Also leaves steps out."""

    def map(self, reward):
        return reward

    def advance(self, action):
        super().advance(action)
        return super().advance(action)


def test_a_subclass_that_changes_frames_does_not_inherit_that_they_are_those_of_the_steps_before():
    assert Sparse(numbers(), num_frames=2).observation_spec.stacked == 1
    assert Repeated(FrameStack(numbers())).observation_spec.stacked == 1
    for layer in (SparseReward, NormalizeReward):
        assert layer(FrameStack(numbers(), num_frames=2)).observation_spec.stacked == 2


def test_a_stack_that_was_returned_is_not_written_to():
    env = FrameStack(numbers(), num_frames=2)
    first = env.begin_episode(0).observation
    copy = first.copy()
    env.advance(0)
    assert np.array_equal(first, copy)


# -- NormalizeObservation


def test_observations_are_normalised_by_what_was_seen_so_far():
    # after 1 and 3: mean 2, deviation 1; after -300 too: mean -296/3, variance of the three by hand
    env = NormalizeObservation(numbers(), clip=10.0)
    (zero,), (one,), (third,), _ = seen(env)
    values = np.array([1.0, 3.0, -300.0])
    assert zero == 0.0
    assert one == pytest.approx(1.0, abs=1e-6)
    assert third == pytest.approx((-300 - values.mean()) / values.std(), rel=1e-6)
    assert (env.observation_spec.minimum.item(), env.observation_spec.maximum.item()) == (-10.0, 10.0)


def test_statistics_go_on_over_episodes_and_outliers_are_clipped():
    env = NormalizeObservation(numbers(), clip=0.5)
    assert seen(env, 1) == [[0.0], [0.5]]  # the second would be 1
    # the third number is 1 again: of 1, 3, 1 the mean is 5/3 and the deviation 0.94, so it would be -0.707
    assert seen(env, 0) == [[-0.5]]


# -- GrayscaleResize


def test_a_picture_becomes_gray_by_the_weights_of_the_standard():
    colours = np.eye(3, dtype=np.uint8)[None] * 200  # [1, 3, 3]: a red, a green and a blue pixel
    space = spaces.Box(0, 255, (1, 3, 3), np.uint8)
    env = GrayscaleResize(script(0.0, observations=[colours] * 2, space=space), height=1, width=3)
    assert env.begin_episode(0).observation.tolist() == [[60, 117, 23]]  # 0.299, 0.587, 0.114 of 200, rounded


@pytest.mark.parametrize("shape", [(210, 160), (21, 16, 3)])
def test_gray_pixels_are_those_of_exact_arithmetic(shape):
    """Means of exactly one half were rounded by how many threads multiply, so that workers saw other pictures."""
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    space = spaces.Box(0, 255, shape, np.uint8)
    env = GrayscaleResize(script(0.0, observations=[picture] * 2, space=space), height=84, width=84)
    gray = picture.astype(np.int64) * 1000 if len(shape) == 2 else picture.astype(np.int64) @ np.array([299, 587, 114])
    fine = gray.repeat(84, 0).repeat(84, 1)  # each pixel in parts, of which a new one has as many as there were pixels
    sums = fine.reshape(84, shape[0], 84, shape[1]).sum((1, 3))
    whole = 1000 * shape[0] * shape[1]
    below, rest = sums // whole, 2 * (sums % whole)
    expected = below + (rest > whole) + ((rest == whole) & (below % 2 == 1))
    assert env.begin_episode(0).observation.tolist() == expected.tolist()


def test_every_pixel_is_the_mean_of_the_area_that_it_covers():
    picture = np.array([[0, 30, 60], [90, 120, 150]], np.uint8)
    space = spaces.Box(0, 255, (2, 3), np.uint8)

    def shrunk(height, width):
        env = GrayscaleResize(script(0.0, observations=[picture] * 2, space=space), height=height, width=width)
        assert env.observation_spec == BoundedSpec(
            (height, width), torch.uint8, minimum=np.array(0), maximum=np.array(255)
        )
        return env.begin_episode(0).observation.tolist()

    assert shrunk(1, 1) == [[75]]
    # each half covers one and a half columns: (0 + 0.5 * 30) / 1.5 = 10, (0.5 * 30 + 60) / 1.5 = 50
    assert shrunk(2, 2) == [[10, 50], [100, 140]]
    assert shrunk(2, 3) == picture.tolist()


# -- ActionMask


def test_the_mask_moves_from_the_info_into_the_observation():
    env = ActionMask(GymEnvironment(Masked()), key="allowed")
    first, second = env.begin_episode(0), env.advance(np.int64(2))
    assert first.observation["action_mask"].tolist() == [1, 1, 1]
    assert second.observation["action_mask"].tolist() == [1, 0, 1]
    assert second.observation["observation"].tolist() == [1.0]
    assert env.observation_spec["action_mask"].shape == (3,)


def test_a_forbidden_action_is_refused_by_name():
    env = ActionMask(GymEnvironment(Masked()), key="allowed")
    env.begin_episode(0)
    env.advance(np.int64(3))
    with pytest.raises(EnvError, match=r"action 3 is forbidden by the mask; allowed are \[1, 2\]"):
        env.advance(np.int64(3))


def test_of_several_choices_the_allowed_ones_of_each_are_named():
    class Both(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([3, 2, 4])

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {"allowed": np.array([0, 1, 1, 1, 0, 1, 0, 0, 1], np.int8)}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, self.reset()[1]

    env = ActionMask(GymEnvironment(Both()), key="allowed")
    env.begin_episode(0)
    env.advance(np.array([2, 0, 3]))
    with pytest.raises(EnvError, match=r"forbidden by the mask; allowed are \[\[1, 2\], \[0\], \[0, 3\]\]"):
        env.advance(np.array([2, 1, 3]))


@pytest.mark.parametrize(
    ("length", "key", "words"),
    [(4, "allowed", r"shape \(4,\), and there are 3 actions"), (3, "mask", r"no 'mask', only \['allowed'\]")],
)
def test_a_mask_that_does_not_fit_is_refused(length, key, words):
    with pytest.raises(EnvError, match=words):
        ActionMask(GymEnvironment(Masked(length)), key=key).begin_episode(0)


# -- CheckFinite


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(value):
    """F5: with the layer, the leaf and the index."""
    space = spaces.Dict({"a": BOX, "b": spaces.Box(-np.inf, np.inf, (2,), np.float32)})
    good = {"a": np.zeros(1, np.float32), "b": np.zeros(2, np.float32)}
    bad = {**good, "b": np.array([0, value], np.float32)}
    env = CheckFinite(script(0.0, 0.0, observations=[good, good, bad], space=space))
    env.begin_episode(0)
    env.advance(0)
    with pytest.raises(NonFiniteError, match=rf"GymEnvironment .* observation 'b' with {value} at index \[1\]"):
        env.advance(0)


def test_a_reward_that_is_not_finite_is_named():
    env = CheckFinite(script(1.0, float("nan")))
    env.begin_episode(0)
    env.advance(0)
    with pytest.raises(NonFiniteError, match="the reward with nan"):
        env.advance(0)


# -- what all of them refuse


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClipObservation(numbers(), minimum=1.0, maximum=1.0), "minimum must be below"),
        (lambda: ClipObservation(nested(), keys=("bdy",)), "no leaf 'bdy' — did you mean 'body'"),
        (lambda: ClipObservation(nested(), keys=("mode",)), "cannot change the observation's leaf 'mode'"),
        (lambda: FrameStack(numbers(), num_frames=0), "integer of at least 1"),
        (lambda: FrameStack(numbers(), num_frames=2.0), r"num_frames=2\.0"),
        (lambda: NormalizeObservation(numbers(), clip=0.0), "above 0"),
        (lambda: GrayscaleResize(numbers()), "nothing to change in the observation"),
        (lambda: GrayscaleResize(GymEnvironment(Camera()), height=0), "at least 1"),
        (lambda: GrayscaleResize(GymEnvironment(Camera()), width=2.5), "integers of at least 1"),
        (lambda: ActionMask(ActionMask(GymEnvironment(Masked()), key="allowed")), "already"),
    ],
)
def test_impossible_settings_are_refused(make, words):
    """F27."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_mask_of_floats_is_no_number_to_be_normalised():
    class Floats(Masked):
        def __init__(self):
            super().__init__()
            box = spaces.Box(0, 1, (3,), np.float32)
            self.observation_space = spaces.Dict({"x": box, "action_mask": box})

    assert NormalizeObservation(GymEnvironment(Floats())).changed_paths == ["x"]
