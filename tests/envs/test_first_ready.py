"""Tests of `palaestra.envs.stepping.first_ready`."""

import multiprocessing
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra import PPO, Collector
from palaestra.core import ConfigError, EnvError, SpecError
from palaestra.envs import EnvConfig, EnvironmentWrapper, LaneEnvironment, SerialDriver, create_environment
from tests.envs.worlds import counter

LANES = [5, 6, 7, 8]


def make(num_ready=2, workers=2, chaos=""):
    config = EnvConfig(
        name="tests.envs.worlds:Counter",
        kwargs={"noisy": True},
        num_envs=4,
        vectorization="process",
        num_workers=workers,
        num_ready=num_ready,
        chaos=chaos,
    )
    return create_environment(config, lane_seeds=LANES)


class Fussy(EnvironmentWrapper):
    """Cannot be put around environment 3."""

    def __init__(self, env):
        super().__init__(env)
        if env.env_id == 3:
            raise KeyError("the third wheel")


def test_an_environment_that_cannot_be_made_is_named_by_its_number():
    wrappers = ("tests.envs.test_first_ready:Fussy",)
    config = EnvConfig(num_envs=4, vectorization="process", num_workers=2, num_ready=2, wrappers=wrappers)
    with pytest.raises(EnvError, match=r"^environment 3 could not be made: KeyError: 'the third wheel'"):
        create_environment(config)


def actions(lanes: torch.Tensor, steps: dict[int, int]) -> torch.Tensor:
    return torch.tensor([(lane + steps[lane]) % 3 for lane in lanes.tolist()])


def test_fast_environments_do_not_wait_for_a_slow_one():
    """F18: the slow group is stepped rarely, the fast one all the time."""
    with make(chaos="slow#3") as env:
        assert env.num_ready == 2
        first = env.reset()
        assert first.env_id.tolist() == [0, 1, 2, 3]
        env.send(torch.zeros(4, dtype=torch.int64))
        seen = []
        for _ in range(20):
            step = env.recv()
            seen.append(step.env_id.tolist())
            env.send(torch.zeros(2, dtype=torch.int64))
        assert seen.count([0, 1]) > 15
        assert all(lanes in ([0, 1], [2, 3]) for lanes in seen)


def test_every_lane_gives_the_stream_that_it_gives_alone():
    """The interleaving depends on the clock, the streams do not."""
    streams: dict[int, list[tuple]] = {lane: [] for lane in range(4)}
    steps = dict.fromkeys(range(4), 0)
    with make(num_ready=1, workers=4) as env:
        time_step = env.reset()
        while min(len(stream) for stream in streams.values()) < 8:
            for row, lane in enumerate(time_step.env_id.tolist()):
                streams[lane].append((time_step.observation[row].tolist(), float(time_step.reward[row])))
            env.send(actions(time_step.env_id, steps), time_step.env_id)
            for lane in time_step.env_id.tolist():
                steps[lane] += 1
            time_step = env.recv()
    with LaneEnvironment(SerialDriver([counter(noisy=True) for _ in range(4)]), lane_seeds=LANES) as env:
        lanes, count = torch.arange(4), dict.fromkeys(range(4), 0)
        stream = [env.reset()]
        for _ in range(7):
            stream.append(env.step(actions(lanes, count)))
            count = {lane: number + 1 for lane, number in count.items()}
    for lane, seen in streams.items():
        expected = [(step.observation[lane].tolist(), float(step.reward[lane])) for step in stream]
        assert seen[:8] == expected


def test_an_environment_can_be_given_no_second_action_before_its_answer():
    with make() as env:
        env.reset()
        env.send(torch.zeros(4, dtype=torch.int64))
        with pytest.raises(EnvError, match="twice without recv"):
            env.send(torch.zeros(2, dtype=torch.int64), torch.tensor([2, 3]))
        env.recv()
        env.recv()
        with pytest.raises(EnvError, match="recv waits for 2 environments and 0"):
            env.recv()
        with pytest.raises(SpecError, match="send back the env_id"):
            env.send(torch.zeros(2, dtype=torch.int64), torch.tensor([1, 2]))


def test_a_restored_environment_begins_new_episodes_with_the_next_seeds():
    with make() as env:
        env.reset()
        state = env.state_dict()
        expected = env.reset()
        env.load_state_dict(state)
        found = env.step(torch.zeros(4, dtype=torch.int64))
        assert found.step_type.tolist() == [0, 0]
        rows = found.env_id
        assert torch.equal(found.observation, expected.observation[rows])


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"one of \[2, 4\]"):
        make(num_ready=3)
    with pytest.raises(ConfigError, match="each needs as many"):
        make(num_ready=1, workers=3)
    with pytest.raises(ConfigError, match="only vectorization=process"):
        EnvConfig(num_envs=4, num_ready=2)
    assert not multiprocessing.active_children()


@pytest.mark.fault
def test_a_worker_that_dies_is_named_with_its_environment():
    """F3."""
    started = time.monotonic()
    with make(num_ready=1, workers=4, chaos="kill@2#2") as env:
        env.reset()
        with pytest.raises(EnvError, match=r"environment 2 lost its worker .*SIGKILL"):
            go_on(env, 5)
        assert [fault.env_id for fault in env.faults] == [2]
    assert time.monotonic() - started < 60


def go_on(env, timeout_s):
    env.send(torch.zeros(4, dtype=torch.int64))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        env.send(torch.zeros(len(env.recv().env_id), dtype=torch.int64))


def test_a_send_that_is_refused_has_reached_no_environment():
    """The same actions, corrected, are taken."""
    with make(num_ready=4) as env:
        env.reset()
        with pytest.raises(SpecError, match="environment 2 has value 7"):
            env.send(torch.tensor([0, 0, 7, 0]))
        with pytest.raises(SpecError, match=r"4 environments were sent \[7\] actions"):
            env.send(torch.zeros(7, dtype=torch.int64))
        env.send(torch.zeros(4, dtype=torch.int64))
        assert env.recv().step_type.tolist() == [1, 1, 1, 1]


def test_a_restored_one_starts_new_episodes_everywhere():
    with make() as env:
        env.reset()
        env.send(torch.zeros(4, dtype=torch.int64))
        env.recv()
        env.load_state_dict(env.state_dict())
        env.send(torch.zeros(4, dtype=torch.int64))
        seen = [env.recv(), env.recv()]
    assert sorted(lane for step in seen for lane in step.env_id.tolist()) == [0, 1, 2, 3]
    assert all(step.first.all() for step in seen)


class Hollow(gymnasium.Env):
    """A part of what it shows has no entries."""

    observation_space = spaces.Dict({"nothing": spaces.Dict({}), "x": spaces.Box(0, 1, (1,), np.float32)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"nothing": {}, "x": np.zeros(1, np.float32)}, {}

    def step(self, action):
        return {"nothing": {}, "x": np.ones(1, np.float32)}, 0.0, False, False, {}


def test_observations_with_an_empty_part_are_collected():
    config = EnvConfig(
        name="tests.envs.test_first_ready:Hollow", num_envs=2, vectorization="process", num_workers=2, num_ready=1
    )
    with create_environment(config, seed=0) as env:
        collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
        assert collector.collect(n_step=4).env_steps >= 4
