"""The contract of wrappers: every one of the package, around an environment that it fits.

A row of `ROWS` enrols a wrapper: its value, and the environment it goes around.
"""

import functools
import inspect
import pickle

import numpy as np
import pytest

import palaestra.envs.wrappers
from palaestra.buffers import ReplayBuffer
from palaestra.core import check_time_step, load_tensors, save_tensors, spec_leaves
from palaestra.envs import EnvConfig, LaneEnvironment, ProcessDriver, SerialDriver, Wrap, check, load, space_from_spec
from palaestra.envs.contract.nest import flatten
from palaestra.envs.wrappers import ObservationMap, RewardMap, StatefulWrapper, TimeStepMap

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

every_wrapper = pytest.mark.parametrize("name", ROWS)


def make(name, env_id=0, **kwargs):
    wrap, inner = ROWS[name]
    return inner(env_id=env_id, wrappers=(wrap,), **kwargs)


def actions_for(env, seed=0):
    """An endless stream of batched random actions."""
    spaces = [space_from_spec(env.action_spec) for _ in range(env.batch_size)]
    for lane, space in enumerate(spaces):
        space.seed(1000 * seed + lane)
    while True:
        samples = [space.sample() for space in spaces]
        nested = isinstance(samples[0], dict)
        yield {key: _stack(samples, key) for key in samples[0]} if nested else np.stack(samples)


def _stack(samples, key):
    return np.stack([sample[key] for sample in samples])


def play(env, steps, seed=0):
    actions = actions_for(env, seed)
    return [env.reset(), *(env.step(next(actions)) for _ in range(steps))]


def assert_same(one, two, spec):
    for field in ("step_type", "reward", "discount"):
        assert getattr(one, field).tolist() == getattr(two, field).tolist(), field
    for ours, theirs in zip(flatten(one.observation, spec), flatten(two.observation, spec), strict=True):
        assert ours.tolist() == theirs.tolist()


@every_wrapper
def test_a_wrapped_environment_keeps_the_rules_of_environments(name, tmp_path, monkeypatch):
    """ALF-43: step types, specs, seeds, resets; what the checker looks at."""
    monkeypatch.chdir(tmp_path)
    report = check(functools.partial(make, name), steps=60)
    assert report.ok, report


@every_wrapper
def test_what_comes_out_fits_the_specs(name, tmp_path, monkeypatch):
    """ALF-43, ALF-15: dtypes and bounds exactly, rewards as well; FIRST rows carry zeros."""
    monkeypatch.chdir(tmp_path)
    env = make(name)
    env.seed(5)
    space = space_from_spec(env.action_spec)
    space.seed(1)
    for time_step in [env.reset(), *(env.step(space.sample()) for _ in range(50))]:
        check_time_step(time_step)
        for (path, spec), leaf in zip(
            spec_leaves(env.observation_spec).items(), flatten(time_step.observation, env.observation_spec), strict=True
        ):
            assert spec.problem(leaf) is None, path
        assert env.reward_spec.problem(np.asarray(time_step.reward, np.float32)) is None
        assert time_step.step_type != 0 or time_step.reward == 0


@every_wrapper
def test_a_run_is_resumed_exactly(name, tmp_path, monkeypatch):
    """F25: statistics, frame stacks, counters and lives take part, through a file."""
    monkeypatch.chdir(tmp_path)
    one = LaneEnvironment(SerialDriver([make(name), make(name, env_id=1)]), lane_seeds=[1, 2])
    for cut in (3, 40):
        play(one, cut, seed=cut)
        save_tensors(tmp_path / "state", one.state_dict())
        two = LaneEnvironment(SerialDriver([make(name), make(name, env_id=1)]), lane_seeds=[8, 9])
        two.load_state_dict(load_tensors(tmp_path / "state"))
        actions = actions_for(one, seed=7)
        for _ in range(30):
            action = next(actions)
            assert_same(one.step(action), two.step(action), one.observation_spec)
        two.close()
    one.close()


@every_wrapper
def test_a_buffer_gives_back_the_stacks_that_a_layer_around_them_showed(name, tmp_path, monkeypatch):
    """TS-09: a layer that skips steps or changes frames does not say `stacked`, and whole stacks are stored."""
    monkeypatch.chdir(tmp_path)
    wrap, inner = ROWS[name]
    frames = Wrap("FrameStack", num_frames=3, **({"keys": ("speed",)} if name == "GrayscaleResize" else {}))
    with LaneEnvironment(SerialDriver([inner(wrappers=(frames, wrap))]), lane_seeds=[3]) as env:
        buffer = ReplayBuffer(100, 1, observation_spec=env.observation_spec, action_spec=env.action_spec)
        actions, seen = actions_for(env), [env.reset()]
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


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward", "EpisodicLife", "FrameStack"])
def test_a_worker_process_gives_the_same_stream_and_state(name):
    """ALF-38, ALF-47, ALF-50: it gets the wrapper as a value; and what layers carry comes back from it."""
    serial = LaneEnvironment(SerialDriver([make(name), make(name, env_id=1)]), lane_seeds=[1, 2])
    factories = [functools.partial(make, name, env_id=lane) for lane in range(2)]
    with LaneEnvironment(ProcessDriver(factories, num_workers=2), lane_seeds=[1, 2]) as workers:
        for one, two in zip(play(serial, 30), play(workers, 30), strict=True):
            assert_same(one, two, serial.observation_spec)
        ours, theirs = serial.state_dict(), workers.state_dict()
        assert ours["digest"] == theirs["digest"]


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
