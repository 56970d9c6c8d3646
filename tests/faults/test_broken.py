"""Broken environments in every way of stepping: each is named with its episode, step and cause, within its limit."""

import json
import signal
import subprocess
import sys
import time
import weakref

import pytest
import torch

from palaestra.core import EnvError, PalaestraError
from palaestra.envs import (
    Environment,
    FaultPolicy,
    LaneEnvironment,
    ProcessDriver,
    SerialDriver,
    ThreadDriver,
)
from palaestra.envs.supervision import watchdog
from tests.faults import broken

QUICK = {"timeout_s": 0.2, "reset_timeout_s": 0.3}
PATIENT = {"timeout_s": 2.0, "reset_timeout_s": 20.0}


def batch(kind: str, mode: str, **policy) -> Environment:
    """Two environments, the second broken; a thread has only that one."""
    faults = FaultPolicy(**policy)
    if kind == "thread":
        return LaneEnvironment(ThreadDriver(broken.factories(mode, size=1)[0], faults=faults), lane_seeds=[2])
    driver = SerialDriver if kind == "serial" else ProcessDriver
    return LaneEnvironment(driver(broken.factories(mode), faults=faults), lane_seeds=[1, 2])


def play(kind: str, mode: str, steps: int = 6, **policy) -> list[PalaestraError]:
    """Steps a batch and draws it; returns what it ended with."""
    try:
        with batch(kind, mode, **policy) as env:
            env.reset()
            for _ in range(steps):
                env.step(torch.zeros(env.batch_size, dtype=torch.int64))
            if mode == "render_raises":
                env.driver.envs[0] = env.driver.envs[-1]  # pictures are of the first
                env.render()
    except PalaestraError as error:
        return [error]
    return []


def require_named(kind: str, errors: list[PalaestraError], words: str, step: int = broken.STEP) -> None:
    """Requires an error with environment, episode, step and cause."""
    (error,) = errors
    assert f"environment {int(kind != 'thread')} " in str(error)
    assert "in episode 0 (seed " in str(error)
    assert f"at step {step} with action 0" in str(error)
    assert words in str(error)
    assert error.exit_code in (3, 4)


@pytest.mark.parametrize("kind", ["serial", "thread"])
@pytest.mark.parametrize("mode", broken.RAISES)
def test_what_a_step_raises_is_named(kind, mode, no_ctrl_c):
    """D12: exceptions whose text cannot be read, and those that pass every `except Exception`."""
    require_named(kind, play(kind, mode), broken.RAISES[mode][1])


@pytest.mark.parametrize("kind", ["serial", "thread"])
@pytest.mark.parametrize("mode", broken.RETURNS)
def test_what_a_step_returns_is_named(kind, mode):
    """D16: flags that are no bool, and whatever else cannot be learned from."""
    require_named(kind, play(kind, mode), broken.RETURNS[mode][1])


@pytest.mark.parametrize("kind", ["serial", "thread"])
@pytest.mark.parametrize("status", [0, 1])
def test_an_environment_that_ends_the_process_fails_instead(kind, status):
    """D2: `os._exit` in this process, also with the code of success."""
    require_named(kind, play(kind, f"os_exit_{status}"), f"called os._exit({status}), which would have ended")


@pytest.mark.parametrize(
    ("kind", "mode"), [("serial", "sleep"), ("serial", "wait"), ("serial", "busy"), ("thread", "sleep")]
)
def test_a_hang_in_this_process_is_named_with_its_stack(kind, mode):
    """D2: the default stepping has a deadline, too."""
    started = time.monotonic()
    errors = play(kind, mode, **QUICK)
    require_named(kind, errors, "did not answer in time")
    assert broken.__file__ in str(errors[0])
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("on_fault", "kinds"), [("restart", [0, 1, 1, 0, 1, 1, 0]), ("drop", [0, 1, 1, 0, 0, 0, 0])])
def test_after_a_hang_the_run_goes_on(on_fault, kinds):
    """D2: an environment that could be interrupted is made again, or left out; the other one does not notice."""
    with batch("serial", "sleep", on_fault=on_fault, backoff_s=0.0, **QUICK) as env:
        steps = [env.reset(), *(env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(6))]
        assert torch.stack([step.step_type for step in steps])[:, 1].tolist() == kinds
        assert torch.stack([step.step_type for step in steps])[:, 0].tolist() == [0] + [1] * 6
        assert {fault.kind for fault in env.faults} == {"timeout"}


def test_the_time_of_a_step_is_up_for_all_lanes_at_once():
    """Each lane had the whole time: three that hang took three times as long, and their run ended then."""
    hangs = broken.factories("sleep", size=1) * 3
    with LaneEnvironment(SerialDriver(hangs, faults=FaultPolicy(timeout_s=2.0))) as env:
        for _ in range(broken.STEP):
            env.step([0, 0, 0])
        with pytest.raises(EnvError, match="environment 0 did not answer in time"):
            env.step([0, 0, 0])
        assert [fault.env_id for fault in env.faults] == [0]  # the others were not waited for
    started = time.monotonic()
    with LaneEnvironment(SerialDriver(hangs, faults=FaultPolicy(timeout_s=2.0, on_fault="restart"))) as env:
        for _ in range(broken.STEP + 1):
            env.step([0, 0, 0])
        assert [fault.env_id for fault in env.faults] == [0, 1, 2]
    assert time.monotonic() - started < 6  # 2 s, and a quarter for each of the others


@pytest.mark.parametrize("mode", ["reset_hangs", "close_hangs"])
def test_a_hang_outside_a_step_is_named(mode):
    """D2, D12."""
    (error,) = play("serial", mode, **QUICK)
    assert "environment 1 did not answer in time and was interrupted" in str(error)
    assert f'self._fault("{mode.partition("_")[0]}")' in str(error)


def test_making_an_environment_has_a_deadline():
    """D2."""
    with pytest.raises(EnvError, match=r"(?s)environment 1 could not be made: it did not answer in time"):
        batch("serial", "made_hangs", **QUICK)


@pytest.mark.parametrize("kind", ["serial", "thread"])
@pytest.mark.parametrize("mode", ["close_raises", "render_raises"])
def test_what_drawing_and_closing_raise_is_named(kind, mode):
    """D12."""
    if (kind, mode) == ("thread", "render_raises"):
        env = batch(kind, mode)
        env.reset()
        with pytest.raises(EnvError, match=r"(?s)environment 0 raised ValueError when it was drawn.*broken in render"):
            env.render()
        env.close()
        return
    (error,) = play(kind, mode)
    said = "closed" if mode == "close_raises" else "drawn"
    assert f"raised ValueError when it was {said} in episode 0" in str(error)


def test_the_first_error_is_not_hidden_by_one_of_closing(caplog):
    """D12: what closing raises after another error is logged."""
    env = batch("serial", "close_raises")
    with pytest.raises(KeyError, match="first"), env:
        raise KeyError("first")
    assert "when it was closed" in caplog.text


def test_the_watchdog_ends_with_the_last_environment(monkeypatch, wait_until):
    """D2: nothing is left behind; environments of other tests may still be open."""
    monkeypatch.setattr(watchdog, "_drivers", weakref.WeakSet())
    monkeypatch.setattr(watchdog, "_thread", None)
    env = batch("serial", "fine", **QUICK)
    thread = watchdog._thread
    assert thread is not None and thread.is_alive()
    env.close()
    wait_until(lambda: not thread.is_alive())


@pytest.mark.fault
@pytest.mark.parametrize("mode", [*broken.RAISES, *broken.RETURNS, *broken.HANGS, *broken.ENDS])
def test_a_worker_process_is_named_whatever_it_does(mode):
    """D2, D12, D16: the same environments where they cannot hurt this process."""
    started = time.monotonic()
    words = {
        **dict.fromkeys(broken.HANGS, "did not answer in time"),
        **dict.fromkeys(broken.ENDS, "lost its worker"),
    }
    said = words.get(mode) or (broken.RAISES | broken.RETURNS)[mode][1]
    require_named("process", play("process", mode, **PATIENT), said)
    assert time.monotonic() - started < 60


def palaestra(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "palaestra", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.fault
@pytest.mark.parametrize(
    ("world", "advice"),
    [("tests.faults.broken", "--env.vectorization process"), ("tests.multiagent.test_faults", "--runtime process")],
)
def test_a_hang_that_cannot_be_interrupted_ends_the_run_with_a_record(world, advice, tmp_path):
    """D2: exit code 3, the environment, its stack and the advice, in message and run; of many agents, too."""
    command = broken.command("swallow", "--run.directory", str(tmp_path), "--run.name", "run")
    done = palaestra(*(one.replace("tests.faults.broken", world) for one in command))
    assert done.returncode == 3
    assert "environment 0 did not answer in time in episode 0" in done.stderr
    assert f"`{advice}`" in done.stderr
    record = json.loads((tmp_path / "run" / "faults" / "0001.json").read_text())
    assert (record["kind"], record["details"]["step"]) == ("EnvError", broken.STEP)
    assert "_swallow" in record["message"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


@pytest.mark.fault
def test_a_crash_is_told_by_the_list_of_runs_and_at_the_next_start(tmp_path):
    """D2: a segmentation fault in this process; never a silent success."""
    done = palaestra(*broken.command("segfault", "--run.directory", str(tmp_path), "--run.name", "run"))
    assert done.returncode == -signal.SIGSEGV
    assert "crashed" in palaestra("list", "runs", "--root", str(tmp_path)).stdout
    again = palaestra("resume", str(tmp_path / "run"))
    assert again.returncode == -signal.SIGSEGV
    assert "its process crashed" in again.stderr
    assert "_segfault" in json.loads((tmp_path / "run" / "faults" / "0001.json").read_text())["trace"]
