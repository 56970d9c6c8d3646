"""Tests of `palaestra.envs.wrappers.base`: layers on layers, the raw time step, carried state."""

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, EnvError, SpecError, TimeStep
from palaestra.envs import EnvironmentWrapper, GymEnvironment, LaneEnvironment, SerialDriver, load
from palaestra.envs.wrappers import (
    ActionRepeat,
    ClipObservation,
    ClipReward,
    FireReset,
    FrameStack,
    NormalizeObservation,
    NormalizeReward,
    RandomNoop,
    ScaleReward,
    StatefulWrapper,
    TimeLimit,
)
from tests.envs.worlds import Reusing, StepRecorder
from tests.envs.wrappers.worlds import Game, episode, script

OBSERVATIONS = [np.array([value], np.float32) for value in (5.0, 50.0, -500.0)]


def test_the_untransformed_time_step_is_the_raw_one_through_any_number_of_transforms():
    """ALF-19: observation, reward, step type and discount from before the innermost transform."""
    inner = script(7.0, -9.0, observations=OBSERVATIONS)
    env = FrameStack(ScaleReward(ClipReward(NormalizeObservation(TimeLimit(inner, 2))), scale=10.0), num_frames=2)
    first, second, third = episode(env, 2)
    for time_step, observation, reward in ((first, 5.0, 0.0), (second, 50.0, 7.0), (third, -500.0, -9.0)):
        raw = time_step.untransformed
        assert isinstance(raw, TimeStep)
        assert (raw.observation.tolist(), raw.reward) == ([observation], reward)
        assert raw.untransformed == ()
        assert (raw.step_type, raw.discount) == (time_step.step_type, time_step.discount)
        assert time_step.observation.shape == (2, 1)
    assert (second.reward, third.reward) == (10.0, -10.0)


@pytest.mark.parametrize("transform", [ClipObservation, ClipReward, NormalizeReward, FrameStack])
def test_one_transform_is_enough_and_none_leaves_it_empty(transform):
    """ALF-19."""
    assert script(1.0).reset().untransformed == ()
    assert TimeLimit(script(1.0), 3).reset().untransformed == ()
    assert isinstance(transform(script(1.0)).reset().untransformed, TimeStep)


@pytest.mark.parametrize("name", ["step", "reset"])
def test_a_layer_that_defines_what_nobody_calls_is_refused(name):
    """Gymnasium's wrappers define these; here they did nothing."""
    with pytest.raises(ConfigError, match=f"nobody calls {{'{name}'}} of Own; define advance and begin_episode"):
        type("Own", (EnvironmentWrapper,), {name: lambda self, action=None: None})


def test_the_raw_observation_is_a_copy():
    """The simulator may write into its array again."""
    env = ClipObservation(GymEnvironment(Reusing()))
    before = env.reset().untransformed.observation
    kept = before.copy()
    env.step(np.int64(0))
    assert np.array_equal(before, kept)


def test_the_raw_step_begins_an_episode_where_the_transformed_one_does():
    """ALF-19 with layers that play on before the agent sees the episode."""
    for env in (RandomNoop(ClipReward(script(*[3.0] * 40))), FireReset(ClipReward(GymEnvironment(Game())))):
        raw = env.reset().untransformed
        assert (raw.step_type, raw.reward, raw.discount) == (0, 0.0, 1.0)


def test_actions_pass_down_and_time_steps_up_through_every_layer():
    """ALF-34, ALF-43: with layers that call the inner one several times, and with one that changes nothing."""
    notes: list[str] = []
    env = ActionRepeat(StepRecorder(script(*[1.0] * 9), "inner", notes), repeat=2)
    env = StepRecorder(EnvironmentWrapper(env), "outer", notes)
    env.reset()
    env.step(np.int64(0))
    assert notes == ["outer down", "inner down", "inner up", "inner down", "inner up", "outer up"]


def test_standard_gymnasium_wrappers_stack_below_our_own():
    """ALF-35, ALF-36: unchanged, in list order; their specs are seen through all layers."""
    env = load(
        "Pendulum-v1",
        gym_wrappers=("FrameStackObservation(stack_size=3)", "ClipReward(min_reward=-0.5, max_reward=-0.25)"),
        wrappers=("ClipObservation(minimum=-0.25, maximum=0.25)", "ScaleReward(scale=0.5)"),
    )
    assert env.observation_spec.shape == (3, 3)
    assert env.observation_spec.maximum.max() == 0.25
    env.reset()
    for _ in range(20):
        time_step = env.step(np.zeros(1, np.float32))
        assert -0.25 <= time_step.reward <= -0.125
        raw = time_step.untransformed
        assert raw.reward == 2 * time_step.reward
        assert np.array_equal(time_step.observation, np.clip(raw.observation, -0.25, 0.25))
    assert np.abs(raw.observation).max() > 0.25


def test_layers_carry_state_as_one_word_that_names_them():
    """F25."""
    env = NormalizeReward(NormalizeObservation(script(2.0, observations=OBSERVATIONS[:2])))
    episode(env, 1)
    observation = env.begin(3).observation
    digest, _, carried = env.mark(observation, 0.0).partition(":")
    assert len(digest) == 33
    assert json.loads(carried) == {
        "0:NormalizeObservation": {"": [2, [27.5], [1012.5]]},  # of 5 and 50; not yet of the new episode's 5
        "1:NormalizeReward": [1, 2.0, 0.0],
    }
    assert " " not in carried


class Visits(StatefulWrapper):
    """Counts how often its episodes came to a number, by number; the reward says how often."""

    def __init__(self, env):
        super().__init__(env)
        self.counts: Any = {}

    def advance(self, action):
        time_step = self.env.advance(action)
        place = int(time_step.observation[0])
        self.counts = {**self.counts, place: self.counts.get(place, 0) + 1}
        return time_step._replace(reward=float(self.counts[place]))

    def snapshot(self):
        return self.counts, "a b"

    def restore(self, snapshot):
        self.counts, _ = snapshot


def test_what_is_carried_comes_back_as_it_was():
    """F25: keys that are numbers, tuples, blanks; arrays are refused by name."""
    one, two = (LaneEnvironment(SerialDriver([Visits(script(1.0))]), lane_seeds=[1]) for _ in range(2))
    action = torch.zeros(1, dtype=torch.int64)
    for _ in range(4):
        one.step(action)
    two.load_state_dict(one.state_dict())
    assert [one.step(action).reward.item() for _ in range(3)] == [two.step(action).reward.item() for _ in range(3)]
    env = Visits(script(1.0))
    env.counts = {"all": np.zeros(2)}
    env.reset()
    with pytest.raises(SpecError, match=r"has arrays, 0:Visits.0.all; let `snapshot` return numbers, .* array.tolist"):
        env.state_dict()


def test_a_stream_that_begins_anew_keeps_what_was_learned_and_nothing_else():
    env = Visits(NormalizeReward(script(1.0)))
    env.seed(1)
    episode(env, 3)
    before = env.env.snapshot()
    assert before[0] > 0
    env.seed(1)
    assert env.counts == {}
    assert env.env.snapshot() == before


def test_a_saved_state_of_other_layers_is_refused():
    """F12: resuming without the layer's part would go on with other numbers."""
    one = LaneEnvironment(SerialDriver([NormalizeObservation(script(1.0))]), lane_seeds=[1])
    two = LaneEnvironment(SerialDriver([NormalizeReward(script(1.0))]), lane_seeds=[1])
    one.reset()
    with pytest.raises(EnvError, match=r"nothing for the layer 0:NormalizeReward; it has \['0:NormalizeObservation'\]"):
        two.load_state_dict(one.state_dict())


@pytest.mark.parametrize("layer", ["EpisodicLife", "FireReset", "RandomNoop(maximum=5)"])
@pytest.mark.parametrize("inner", ["NormalizeObservation", "NormalizeReward"])
def test_what_is_carried_below_a_layer_that_plays_by_itself_is_restored(inner, layer):
    """F25: there the episode began before the outer one did, or more than one began in it."""
    made = functools.partial(load, "tests.envs.wrappers.worlds:Luck", wrappers=(inner, layer, "NormalizeReward"))
    draw = np.random.default_rng(0)
    with LaneEnvironment(SerialDriver([made]), lane_seeds=[4]) as env, LaneEnvironment(SerialDriver([made])) as other:
        env.reset()
        for _ in range(100):
            env.step([draw.integers(3)])
            other.load_state_dict(env.state_dict())
        for action in draw.integers(3, size=30):
            one, two = env.step([action]), other.step([action])
            assert torch.equal(one.observation, two.observation)
            assert torch.equal(one.reward, two.reward)
