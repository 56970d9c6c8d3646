"""The contract of wrappers: every one of the package, around an environment that it fits.

A row of `ROWS` enrols a wrapper: its value, and the environment it goes around.
"""

import functools
import inspect
import pickle

import pytest

import palaestra.envs.wrappers
from palaestra.buffers import ReplayBuffer
from palaestra.envs import EnvConfig, LaneEnvironment, SerialDriver, Wrap, load
from palaestra.envs.contract.nest import flatten
from palaestra.envs.wrappers import ObservationMap, RewardMap, StatefulWrapper, TimeStepMap
from palaestra.testing import EnvironmentContract
from palaestra.testing.environments import random_actions

HERE = "tests.envs.wrappers.worlds"
PENDULUM = functools.partial(load, "Pendulum-v1", max_episode_steps=9)
CARTPOLE = functools.partial(load, "CartPole-v1", max_episode_steps=25)
NESTED = functools.partial(load, "tests.envs.worlds:Nested", max_episode_steps=11)
CAMERA = functools.partial(load, f"{HERE}:Camera", max_episode_steps=11)
GAME = functools.partial(load, f"{HERE}:Game", max_episode_steps=30)
BASES = {ObservationMap, StatefulWrapper, RewardMap, TimeStepMap}

ROWS = {
    "ActionMask": (Wrap("ActionMask", key="allowed"), functools.partial(load, f"{HERE}:Unmasked", max_episode_steps=5)),
    "ActionRepeat": (Wrap("ActionRepeat", repeat=3, pool=2), PENDULUM),
    "CheckFinite": (Wrap("CheckFinite"), NESTED),
    "ClipObservation": (Wrap("ClipObservation", minimum=-0.5, maximum=0.5), NESTED),
    "ClipReward": (Wrap("ClipReward"), PENDULUM),
    "EpisodeStatistics": (Wrap("EpisodeStatistics"), CARTPOLE),
    "EpisodicLife": (Wrap("EpisodicLife"), GAME),
    "FireReset": (Wrap("FireReset"), GAME),
    "FrameStack": (Wrap("FrameStack", num_frames=3), CAMERA),
    "GrayscaleResize": (Wrap("GrayscaleResize", height=5, width=4), CAMERA),
    "NonEpisodic": (Wrap("NonEpisodic"), PENDULUM),
    "NormalizeAction": (Wrap("NormalizeAction"), NESTED),
    "NormalizeObservation": (Wrap("NormalizeObservation"), CAMERA),
    "NormalizeReward": (Wrap("NormalizeReward"), PENDULUM),
    "RandomNoop": (Wrap("RandomNoop", maximum=5), CARTPOLE),
    "RecordVideo": (Wrap("RecordVideo", directory="films", suffix="gif"), functools.partial(load, f"{HERE}:Drawn")),
    "ScaleReward": (Wrap("ScaleReward", scale=0.1), CARTPOLE),
    "SelectEntries": (Wrap("SelectEntries", entries=[0, -1]), PENDULUM),
    "SparseReward": (Wrap("SparseReward"), CAMERA),
    "TimeAwareDiscount": (Wrap("TimeAwareDiscount"), CARTPOLE),
    "TimeLimit": (Wrap("TimeLimit", duration=7), CARTPOLE),
}

IN_WORKERS = {"NormalizeObservation", "NormalizeReward", "EpisodicLife", "FrameStack"}
"""Those of which worker processes step some, too: what carries state is what may differ there."""
every_wrapper = pytest.mark.parametrize("name", ROWS)


def make(name, env_id=0, **kwargs):
    wrap, inner = ROWS[name]
    return inner(env_id=env_id, wrappers=(wrap,), **kwargs)


class InFolder:
    """A wrapper that writes does so in a folder of the test."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)


@every_wrapper
class TestWrappers(InFolder, EnvironmentContract):
    """ALF-15, ALF-38, ALF-43, ALF-47, ALF-50, F25: each keeps the contract that users can run on theirs, too."""

    @pytest.fixture(autouse=True)
    def _wrapper(self, name):
        self.name, self.processes = name, name in IN_WORKERS

    def make(self, env_id=0):
        return make(self.name, env_id=env_id)


@every_wrapper
def test_a_buffer_gives_back_the_stacks_that_a_layer_around_them_showed(name, tmp_path, monkeypatch):
    """TS-09: a layer that skips steps or changes frames does not say `stacked`, and whole stacks are stored."""
    monkeypatch.chdir(tmp_path)
    wrap, inner = ROWS[name]
    frames = Wrap("FrameStack", num_frames=3, **({"keys": ("speed",)} if name == "GrayscaleResize" else {}))
    with LaneEnvironment(SerialDriver([inner(wrappers=(frames, wrap))]), lane_seeds=[3]) as env:
        buffer = ReplayBuffer(100, 1, observation_spec=env.observation_spec, action_spec=env.action_spec)
        actions, seen = random_actions(env), [env.reset()]
        buffer.open(seen[0])
        for _ in range(60):
            action = next(actions)
            seen.append(env.step(action))
            buffer.append(action, seen[-1])
        given = buffer[buffer.in_time_order(0)].observation
        for number, time_step in enumerate(seen[:-1]):
            pairs = zip(
                flatten(given, env.observation_spec), flatten(time_step.observation, env.observation_spec), strict=True
            )
            assert all(ours[number].tolist() == theirs[0].tolist() for ours, theirs in pairs), number


def test_layers_that_keep_frames_leave_them_stored_once():
    wrappers = (
        Wrap("FrameStack", num_frames=3),
        "ClipReward",
        "ClipObservation",
        "NormalizeReward",
        "TimeLimit(duration=5)",
    )
    assert CARTPOLE(wrappers=wrappers).observation_spec.stacked == 3
    assert CARTPOLE(wrappers=(*wrappers, "ActionRepeat")).observation_spec.stacked == 1
    assert CARTPOLE(wrappers=(wrappers[0], "ClipObservation(minimum=1, maximum=2)")).observation_spec.stacked == 1


@every_wrapper
def test_a_wrapper_is_a_value_that_survives_text_and_another_process(name):
    """ALF-38, ALF-50."""
    wrap, _ = ROWS[name]
    assert Wrap.parse(wrap.text) == wrap
    config = EnvConfig(wrappers=(wrap,))
    assert EnvConfig(wrappers=(wrap.text,)) == config
    assert pickle.loads(pickle.dumps(config)) == config


@every_wrapper
def test_a_wrapper_is_small(name):
    lines, _ = inspect.getsourcelines(getattr(palaestra.envs.wrappers, name))
    assert len(lines) <= 110


def test_every_wrapper_of_the_package_is_enrolled():
    kinds = {kind for kind in vars(palaestra.envs.wrappers).values() if isinstance(kind, type)} - BASES
    names = {kind.__name__ for kind in kinds}
    assert set(ROWS) == names
