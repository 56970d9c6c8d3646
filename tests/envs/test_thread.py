"""Tests of `envs.stepping.thread`. Its stream is in the contract, its faults in `faults/test_environments.py`."""

import functools
import io
import multiprocessing
import os
import pdb
import signal
import sys
import threading
import time

import pytest
import torch

from palaestra.core import EnvError, SpecError
from palaestra.envs import FaultPolicy, GymEnvironment, LaneEnvironment, ProcessDriver, SerialDriver, ThreadDriver
from palaestra.runtime import CLOCK, supervision
from tests.envs.worlds import Counter, counter, faulty, layered

ZERO = torch.zeros(1, dtype=torch.int64)


class Where(Counter):
    """Reports the thread it is stepped in."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"thread": threading.get_ident(), "pid": os.getpid()}


def where():
    return GymEnvironment(Where())


def test_one_environment_runs_in_a_thread_of_this_process(wait_until):
    """ALF-48."""
    before = threading.active_count()
    with LaneEnvironment(ThreadDriver(where), lane_seeds=[1]) as env:
        env.reset()
        info = env.step(ZERO).env_info
        assert env.batch_size == 1
        assert int(info.pid) == os.getpid()
        assert int(info.thread) != threading.get_ident()
        assert not multiprocessing.active_children()
    wait_until(lambda: threading.active_count() <= before)  # the watchdog's ends a moment after the last environment


class Debugged(Counter):
    """Its step stops at a debugger's prompt until what `prompt` reads there."""

    prompt = None

    def step(self, action):
        pdb.Pdb(stdin=self.prompt, stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()
        return super().step(action)


def test_the_prompt_of_a_debugger_may_take_as_long_as_it_likes(monkeypatch, wait_until):
    """ALF-01: `breakpoint()` in a step is no hang."""

    class Prompt(io.StringIO):
        def readline(self, size=-1):
            begin = time.monotonic()
            wait_until(lambda: time.monotonic() - begin > 0.5)  # the time was over several times
            return "continue\n"

    monkeypatch.setattr(Debugged, "prompt", Prompt())
    faults, trace = FaultPolicy(timeout_s=0.1), sys.gettrace()
    with LaneEnvironment(SerialDriver([lambda: GymEnvironment(Debugged())], faults=faults), lane_seeds=[1]) as env:
        env.reset()
        assert env.step(ZERO).step_type.tolist() == [1]
    sys.settrace(trace)


@pytest.mark.parametrize(("driver", "given"), [(ThreadDriver, counter), (ProcessDriver, [counter])])
@pytest.mark.parametrize(("before_s", "meanwhile_s"), [(0.0, 3600.0), (3600.0, 0.0)])
def test_a_step_in_which_all_was_stopped_is_no_hang(driver, given, before_s, meanwhile_s, monkeypatch):
    """F4: Ctrl-Z; the environment is stopped with the process that waits for it, and answers after it goes on."""
    true, wait, stopped_s = time.monotonic, supervision.StoppableClock.wait, []

    def stops(self, waits, *deadline):
        return wait(self, waits if stopped_s[1:] else lambda _: stopped_s.append(meanwhile_s), *deadline)

    with LaneEnvironment(driver(given), lane_seeds=[1]) as env:
        env.reset()
        for seconds in ("_stopped_s", "_counted_s"):
            monkeypatch.setattr(CLOCK, seconds, 0.0)
        monkeypatch.setattr(time, "monotonic", lambda: true() + sum(stopped_s))
        monkeypatch.setattr(supervision, "spin_acquire", lambda semaphore: False)
        monkeypatch.setattr(supervision.StoppableClock, "wait", stops)
        env.send(ZERO)
        stopped_s.append(before_s)
        assert env.recv().step_type.tolist() == [1]
        assert stopped_s == [before_s, meanwhile_s]
        assert not env.faults


def test_ctrl_c_interrupts_the_wait_and_the_environment_can_be_closed():
    """ALF-48: it interrupts cleanly."""
    env = LaneEnvironment(ThreadDriver(functools.partial(faulty, "hang", 1)), lane_seeds=[1])
    env.reset()
    env.send(ZERO)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):  # not the error of the deadline, a minute later
        env.recv()


def test_after_an_interruption_a_new_episode_begins(monkeypatch):
    env = LaneEnvironment(ThreadDriver(counter), lane_seeds=[1])
    env.reset()
    env.send(ZERO)
    with monkeypatch.context() as patch:
        patch.setattr(env.driver, "collect", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.recv()
    assert env.step(ZERO).step_type.tolist() == [0]
    assert env.step(ZERO).observation[0, 0] == 1
    env.close()


def _interrupted():
    raise KeyboardInterrupt


def test_pictures_come_from_the_thread_and_a_closed_one_says_so():
    env = LaneEnvironment(ThreadDriver(functools.partial(layered, "Drawing")))
    env.step(ZERO)
    env.step(ZERO)
    assert int(env.render().mean()) == 1
    env.close()
    env.close()
    with pytest.raises(EnvError, match="was closed"):
        env.step(ZERO)


def test_an_environment_that_cannot_be_made_says_why():
    with pytest.raises(EnvError, match=r"environment 0 could not be made: it raised KeyError.*wheel") as failed:
        LaneEnvironment(ThreadDriver(functools.partial(faulty, "raise", -1)))
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises(EnvError, match=r"(?s)not made within 0.2 s.*misbehave"):
        LaneEnvironment(ThreadDriver(functools.partial(faulty, "hang", -1), faults=FaultPolicy(reset_timeout_s=0.2)))
    with pytest.raises(SpecError, match="give a function"):
        LaneEnvironment(ThreadDriver(counter()))
