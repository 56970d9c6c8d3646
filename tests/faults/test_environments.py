"""What happens when an environment fails: every fault, in this process, in a thread and in worker processes.

F1 to F8 of the fault matrix. The faults are real: processes are killed, threads hang, observations are corrupted.
"""

import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch

from palaestra.core import EnvError, NonFiniteError, SpecError, StepType, check_time_step, episode_seed
from palaestra.envs import (
    ChaosEnv,
    Environment,
    FaultPolicy,
    GymEnvironment,
    LaneEnvironment,
    ProcessDriver,
    SerialDriver,
    ThreadDriver,
    load,
)
from palaestra.envs.wrappers import NormalizeReward
from tests.envs.worlds import Nested, counter

pytestmark = pytest.mark.fault

SIZE, BROKEN = 3, 1
QUICK = {"timeout_s": 0.5, "reset_timeout_s": 10.0, "backoff_s": 0.0}


def chaotic(rules: str, env_id: int = BROKEN):
    env = counter()
    env.env_id = env_id
    return ChaosEnv(env, rules)


def batch(kind: str, rules: str, **policy) -> Environment:
    """Three environments, the second of which misbehaves; a thread has only that one."""
    factories = [functools.partial(chaotic, f"{rules}#{BROKEN}", lane) for lane in range(SIZE)]
    faults = FaultPolicy(**QUICK | policy)
    if kind == "thread":
        return LaneEnvironment(ThreadDriver(factories[BROKEN], faults=faults), lane_seeds=[2])
    if kind == "serial":
        return LaneEnvironment(SerialDriver(factories, faults=faults), lane_seeds=[1, 2, 3])
    return LaneEnvironment(ProcessDriver(factories, num_workers=2, faults=faults), lane_seeds=[1, 2, 3])


def play(env: Environment, steps: int):
    ones = torch.ones(env.batch_size, dtype=torch.int64)
    stream = [env.reset()]
    for _ in range(steps):
        stream.append(env.step(ones))
        check_time_step(stream[-1])
    return stream


def no_orphans() -> bool:
    return not multiprocessing.active_children()


def shared_blocks() -> int:
    """Open files of this process that are blocks shared with workers; other processes on the machine do not count."""
    folder = "/proc/self/fd"
    found = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(FileNotFoundError):
            found += "memfd:palaestra" in os.readlink(f"{folder}/{name}")
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = shared_blocks()
    yield
    assert no_orphans()
    gc.collect()  # a caught exception refers to the frames that hold the environment
    assert shared_blocks() <= before


SOFT = {
    "raise": "raised ValueError",
    "unpicklable": "raised UnpicklableError",
    "nan": r"emitted observation\[0\] = nan",
    "inf": r"emitted observation\[0\] = inf",
    "nan_reward": "emitted reward = nan",
    "shape": r"emitted another observation .*shape \(3,\), expected \(2,\)",
    "dtype": r"emitted another observation .*dtype <U",
    "key": "emitted another observation",
}
HARD = {
    "kill": r"lost its worker process .*signal 9 \(SIGKILL\)",
    "exit": "lost its worker process .*exited with code 0",
    "hang": "did not answer in time",
}


@pytest.mark.parametrize("kind", ["serial", "thread", "process"])
@pytest.mark.parametrize("fault", SOFT)
def test_a_fault_stops_the_run_and_is_named(kind, fault):
    """F1, F2, F5, F7: environment, episode, seed, step and action, and the cause; the error is one line away."""
    lane = 0 if kind == "thread" else BROKEN
    with batch(kind, f"{fault}@4") as env:
        expected = NonFiniteError if fault in ("nan", "inf", "nan_reward") else EnvError
        with pytest.raises(expected, match=rf"(?s)environment {lane} {SOFT[fault].replace('.*', '.*?')}") as caught:
            play(env, 6)
        assert "in episode 0 (seed " in str(caught.value)
        assert "at step 4 with action 1" in str(caught.value)
        (fault_record,) = env.faults
        assert (fault_record.env_id, fault_record.step, fault_record.handled) == (lane, 4, "raise")
        assert fault_record.to_json()["what"] == fault_record.what


@pytest.mark.parametrize("kind", ["serial", "thread", "process"])
@pytest.mark.parametrize("fault", [*SOFT, *HARD])
def test_a_restarted_environment_goes_on_with_its_next_episode(kind, fault):
    """F1 to F5: the unfinished episode ends as MID followed by FIRST, and no other environment notices."""
    if fault in HARD and kind != "process" and not (kind == "thread" and fault == "hang"):
        pytest.skip("it ends this process")
    lane = 0 if kind == "thread" else BROKEN
    with batch(kind, f"{fault}@4", on_fault="restart") as env:
        stream = play(env, 9)
        kinds = torch.stack([step.step_type for step in stream])[:, lane].tolist()
        assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]
        seen = torch.stack([step.observation for step in stream])[:, lane, 0].tolist()
        assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
        assert all(torch.isfinite(step.observation).all() and torch.isfinite(step.reward).all() for step in stream)
        broken = stream[4]
        assert (broken.reward[lane], broken.discount[lane], broken.prev_action[lane]) == (0, 1, 0)
        if kind != "thread":
            assert [step.step_type[0].item() for step in stream] == [0] + [1] * 9
            assert [step.observation[0, 0].item() for step in stream] == list(range(10))
        assert [record.episode for record in env.faults] == [0, 1]
        assert all(record.handled == "restart" for record in env.faults)


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_a_restarted_environment_gets_the_episode_seeds_that_it_would_have_had(kind):
    """F3, ALF-56: episode k of a lane has the same seed, whether or not episode k - 1 broke off."""
    with batch(kind, "raise@4", on_fault="restart") as env:
        play(env, 9)
        assert env.state_dict()["episode"].tolist() == [0, 2, 0]
        lane_seed = 2
        assert [fault.seed for fault in env.faults] == [episode_seed(lane_seed, 0), episode_seed(lane_seed, 1)]


@pytest.mark.parametrize("kind", ["serial", "process"])
@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_a_dropped_environment_shows_first_steps_and_the_others_go_on(kind, fault):
    """F1, F3: FIRST followed by FIRST is no start of a transition, so nothing is learned from it."""
    if (kind, fault) == ("serial", "kill"):
        pytest.skip("it ends this process")
    with batch(kind, f"{fault}@4", on_fault="drop") as env:
        stream = play(env, 9)
        kinds = torch.stack([step.step_type for step in stream])
        assert kinds[:, BROKEN].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
        assert kinds[:, 0].tolist() == [0] + [1] * 9
        dropped = [BROKEN, 2] if fault == "kill" else [BROKEN]
        assert not torch.stack([step.reward for step in stream[4:]])[:, dropped].any()
        assert not torch.stack([step.prev_action for step in stream[4:]])[:, dropped].any()
        assert len(env.faults) == 1
        # what was dropped is stepped again by a run that is resumed
        state = env.state_dict()
    with batch(kind, "slow:0") as again:
        again.load_state_dict(state)
        assert again.step(torch.ones(SIZE, dtype=torch.int64)).step_type[BROKEN] == StepType.FIRST


@pytest.mark.parametrize("kind", ["serial", "thread", "process"])
def test_a_run_without_any_environment_left_stops_with_the_first_cause(kind):
    factories = [functools.partial(chaotic, f"raise@{2 + lane}", lane) for lane in range(2)]
    faults = FaultPolicy(on_fault="drop")
    if kind == "thread":
        env: Environment = LaneEnvironment(ThreadDriver(factories[0], faults=faults))
    else:
        env = LaneEnvironment((SerialDriver if kind == "serial" else ProcessDriver)(factories, faults=faults))
    with env, pytest.raises(EnvError, match=r"(?s)last environment was dropped.*environment 0 raised"):
        play(env, 5)


def counted(rules: str):
    return NormalizeReward(chaotic(rules))


@pytest.mark.parametrize(("kind", "fault"), [("process", "kill"), ("thread", "hang")])
def test_statistics_that_are_gone_with_a_worker_are_named_once(kind, fault, caplog):
    factory, faults = functools.partial(counted, f"{fault}@2"), FaultPolicy(**QUICK, on_fault="restart")
    made = {
        "process": lambda: LaneEnvironment(ProcessDriver([factory], faults=faults)),
        "thread": lambda: LaneEnvironment(ThreadDriver(factory, faults=faults)),
    }
    with made[kind]() as env:
        play(env, 4)
        assert len(env.faults) == 2
    said = [record for record in caplog.records if "what NormalizeReward carried from earlier" in record.message]
    assert len(said) == 1


@pytest.mark.parametrize("kind", ["serial", "process"])
@pytest.mark.parametrize("where", ["raise@2", "reset"])
def test_a_spent_budget_stops_the_run_with_the_first_cause(kind, where):
    """Restarts are counted for every environment; a reset that always fails does not go on for ever."""
    started = time.monotonic()
    with batch(kind, where, on_fault="restart", max_restarts=3) as env:
        with pytest.raises(EnvError, match=r"(?s)environment 1 failed 4 times .*max_restarts.*episode 0"):
            play(env, 40)
        assert len(env.faults) == 4
        with pytest.raises(EnvError, match="has ended"):
            env.step(torch.ones(SIZE, dtype=torch.int64))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("number", range(4))
def test_workers_killed_at_random_points_are_replaced(number):
    """F3: 4 x 25 kills, at random times, of random workers, from outside; the stream stays legal throughout."""
    random = np.random.default_rng(number)
    policy = FaultPolicy(on_fault="restart", max_restarts=100, backoff_s=0.0)
    ones = torch.ones(4, dtype=torch.int64)
    with LaneEnvironment(
        ProcessDriver([functools.partial(load, "CartPole-v1")] * 4, num_workers=2, faults=policy)
    ) as env:
        before = env.reset()
        broken = 0
        for _ in range(25):
            for _ in range(random.integers(1, 6)):
                env.send(ones)
                after = env.recv()
                broken += _legal(before, after)
                before = after
            env.send(ones)
            started = time.monotonic()
            os.kill(env.driver.worker_pids[random.integers(2)], signal.SIGKILL)
            after = env.recv()
            broken += _legal(before, after)
            before = after
            after = env.step(ones)
            assert time.monotonic() - started < 5
            broken += _legal(before, after)
            before = after
        assert len(env.faults) == 25
        assert all("SIGKILL" in fault.detail for fault in env.faults)
        assert all((fault.memory_bytes or 0) > 1 << 20 for fault in env.faults)
        assert broken > 10


def _legal(before, after) -> int:
    """Checks the order of step types; returns how many fragments broke off."""
    check_time_step(after)
    assert torch.isfinite(after.observation).all()
    assert not (before.last & ~after.first).any()
    assert not after.reward[after.first].any()
    return int((after.first & (before.step_type == StepType.MID)).sum())


def test_a_death_is_noticed_within_a_second():
    """F3."""
    env = batch("process", "kill@3")
    env.reset()
    ones = torch.ones(SIZE, dtype=torch.int64)
    env.step(ones)
    env.step(ones)
    started = time.monotonic()
    with pytest.raises(EnvError, match=r"environment 1 .*had used \d+ MiB"):
        env.step(ones)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("where", ["hang@2", "hang@0"])
def test_a_hang_ends_at_the_deadline_with_the_stack_of_the_worker(where):
    """F4."""
    started = time.monotonic()
    words = r"(?s)environment 1 did not answer in time.*in _disturb"
    with batch("process", where, reset_timeout_s=4.0) as env, pytest.raises(EnvError, match=words):
        play(env, 4)
    assert time.monotonic() - started < 12


def test_a_hanging_thread_is_left_behind_and_shows_its_stack():
    """F4."""
    with batch("thread", "hang@2") as env, pytest.raises(EnvError, match=r"(?s)environment 0 did not .*in _disturb"):
        play(env, 4)


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_a_flood_of_output_blocks_nobody(kind, capfd):
    with batch(kind, "flood") as env:
        play(env, 5)
        assert env.step(torch.zeros(env.batch_size, dtype=torch.int64)).observation.isfinite().all()
    capfd.readouterr()


def bounded(rules: str):
    return ChaosEnv(load("MountainCar-v0"), rules)


def test_observations_out_of_bounds_are_logged_once_with_counts(caplog):
    """F6."""
    env = LaneEnvironment(SerialDriver([bounded("out_of_bounds"), bounded("slow:0")]), lane_seeds=[1, 2])
    with caplog.at_level(logging.WARNING):
        env.reset()
        for _ in range(40):
            env.step(torch.ones(2, dtype=torch.int64))
    (record,) = caplog.records
    assert "environment 0 emitted observation[0] = " in record.getMessage()
    assert "2 of 4 values" in record.getMessage()


def test_observations_out_of_bounds_are_a_fault_where_that_is_strict():
    """F6."""
    env = LaneEnvironment(SerialDriver([bounded("out_of_bounds@3")], faults=FaultPolicy(strict=True)), lane_seeds=[1])
    with pytest.raises(EnvError, match=r"emitted observation\[0\] = .* outside \[.*at step 3"):
        play(env, 5)


class Surplus(Nested):
    """Emits a key that its space has not."""

    def _seen(self):
        return super()._seen() | {"surplus": np.zeros(1)}


def test_a_key_that_the_space_has_not_is_named():
    """F7."""
    with pytest.raises(EnvError, match=r"environment 0 .*'surplus'.*its space has not"):
        LaneEnvironment(SerialDriver([GymEnvironment(Surplus())])).reset()


@pytest.mark.parametrize("kind", ["serial", "process"])
@pytest.mark.parametrize(
    ("action", "words"), [(np.nan, "value nan"), (2.5, r"value 2.5.*\[-2"), (-np.inf, "value -inf")]
)
def test_a_bad_continuous_action_is_refused_before_any_environment_sees_it(kind, action, words):
    """F8."""
    factories = [functools.partial(load, "Pendulum-v1")] * 2
    make = SerialDriver if kind == "serial" else functools.partial(ProcessDriver, num_workers=1)
    with LaneEnvironment(make(factories), lane_seeds=[1, 2]) as env:
        env.reset()
        with pytest.raises(SpecError, match=rf"environment 1 has {words}.*episode 0, step 1"):
            env.step(torch.tensor([[0.0], [action]]))
        # nothing was executed: the streams go on as if nobody had asked
        assert env.step(torch.zeros(2, 1)).step_type.tolist() == [1, 1]
