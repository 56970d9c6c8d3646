"""Environments that crash this process, or hold Python's lock for ever, in a process of the default kind."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from palaestra.envs import EnvConfig, LaneEnvironment, create_environment
from palaestra.envs.contract.episodes import EpisodeLog
from palaestra.envs.supervision import guard as guard_program
from palaestra.envs.supervision.places import lane_calls, place_of, places_kept
from tests.envs.test_endless import ENDLESS
from tests.faults import broken

STACKS = (
    'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "<lanes>", line {}'
)


def made(num_envs: int = 3, **options) -> LaneEnvironment:
    env = create_environment(EnvConfig(name=ENDLESS, num_envs=num_envs, **options), seed=5)
    assert isinstance(env, LaneEnvironment)
    return env


def places(path, lanes: int) -> list[dict]:
    return [place_of(path, STACKS.format(lane + 2)) for lane in range(lanes)]


def expected(env: LaneEnvironment) -> list[dict]:
    found = [(lane, env._log.place(lane)) for lane in range(env.batch_size)]
    return [{"env_id": lane, "episode": p[0], "seed": p[1], "step": p[2]} for lane, p in found]


def test_the_file_says_at_any_time_where_every_lane_is(tmp_path):
    """D2: through episodes that end, resets, restored states, and more steps than arrays had room for."""
    path = tmp_path / "places"
    with places_kept(path), made(max_episode_steps=7) as env, made(2) as other:
        env.reset()
        for number in range(150):
            env.step(torch.zeros(3, dtype=torch.int64))
            assert places(path, 3) == expected(env), number
        other.reset()
        other.step(torch.zeros(2, dtype=torch.int64))
        assert places(path, 3) == [*expected(other), {}]  # the batch that was stepped last, which has two lanes
        state = env.state_dict()
        env.reset()
        assert places(path, 3) == expected(env)
        env.load_state_dict(state)
        env.step(torch.zeros(3, dtype=torch.int64))
        assert places(path, 3) == expected(env)
    assert not path.exists()


def test_episodes_that_are_forgotten_are_counted_on(tmp_path, monkeypatch):
    """D2, D10."""
    monkeypatch.setattr("palaestra.envs.contract.episodes.MOST_STEPS", 100)
    with places_kept(tmp_path / "places"), made(1) as env:
        env.reset()
        for _ in range(1000):
            env.step(torch.zeros(1, dtype=torch.int64))
        assert places(tmp_path / "places", 1) == expected(env)
        assert expected(env)[0]["step"] == 1000


def test_batches_that_come_and_go_need_no_more_room(tmp_path):
    """D2: an evaluation makes its environments anew each time."""
    path = tmp_path / "places"
    with places_kept(path):
        spec = made(1).specs.action
        logs = [EpisodeLog(range(1, 9), spec) for _ in range(6_000)]  # more than there is room for
        del logs
        with made(8) as env:
            env.reset()
            assert places(path, 8) == expected(env)


@pytest.mark.parametrize(
    ("stacks", "content"),
    [
        ("", None),
        (STACKS.format(2), None),
        (STACKS.format(2), b""),
        (STACKS.format(2), bytes(1 << 20)),
        (STACKS.format(2), b"\xff" * (1 << 20)),
        (STACKS.format(900), np.array([1 << 40, 3] + [0] * ((1 << 17) - 2)).tobytes()),
        ('Current thread 0x1:\n  File "main.py", line 2', bytes(1 << 20)),
    ],
)
def test_a_file_that_is_not_there_or_damaged_says_nothing(stacks, content, tmp_path):
    """D2, F12: a stranger's file does no harm."""
    if content is not None:
        (tmp_path / "places").write_bytes(content)
    assert place_of(tmp_path / "places", stacks) == {}


def test_each_lane_is_called_in_a_line_of_its_own():
    """D2: what fails in lane 2 is in line 4; what was called before is there."""
    steps, seen = [lambda action: action + 1, lambda action: action * 2, lambda action: 1 // 0, str], []
    call = lane_calls(4)
    assert call is not None
    with pytest.raises(ZeroDivisionError) as caught:
        call(steps, [10, 20, 30, 40], seen.append)
    assert seen == [11, 40]
    assert [entry.lineno + 1 for entry in caught.traceback if str(entry.path).endswith("<lanes>")] == [4]
    assert lane_calls(100_000) is None


class Listener:
    """A process that does nothing, and the guard that was told to look after it."""

    def __init__(self, crash) -> None:
        command = [sys.executable, "-I", "-S", "-c", START.format(guard_program.__file__, str(crash))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


# the guard's parent is what it guards; quicker than the real one
START = """
import os, subprocess, sys, time
quick = "import runpy; g = runpy.run_path({0!r}); g['main'].__globals__.update(PERIOD_S=0.05, GRACE_S=0.1); "
quick += "g['main'](int(" + str(os.getpid()) + "), {1!r})"
guard = subprocess.Popen([sys.executable, "-I", "-S", "-c", quick], stdin=0)
time.sleep(1000)
"""


@pytest.mark.fault
def test_the_guard_ends_a_process_that_it_hears_nothing_of(tmp_path, wait_until):
    """D2: not before it was told a limit, and not while it is told again and again."""
    listener = Listener(tmp_path / "crash")
    try:
        for _ in range(8):
            listener.tell("0.5\n")
            listener.tell("0.5\n")
            select_s = time.monotonic() + 0.2
            wait_until(lambda end_s=select_s: time.monotonic() > end_s)
        assert listener.process.poll() is None
        wait_until(lambda: listener.process.poll() is not None)
        assert listener.process.returncode == -signal.SIGABRT
        assert "holds Python's lock" in (tmp_path / "crash").read_text()
    finally:
        listener.close()


@pytest.mark.fault
def test_a_process_that_is_stopped_has_lost_no_time(tmp_path, wait_until):
    """D2, F32: Ctrl-Z, for much longer than the limit."""
    listener = Listener(tmp_path / "crash")
    try:
        listener.tell("0.4\n")
        os.kill(listener.process.pid, signal.SIGSTOP)
        end_s = time.monotonic() + 2.5
        wait_until(lambda: time.monotonic() > end_s)
        os.kill(listener.process.pid, signal.SIGCONT)
        listener.tell("0\n")
        end_s = time.monotonic() + 1.0
        wait_until(lambda: time.monotonic() > end_s)
        assert listener.process.poll() is None
        assert not (tmp_path / "crash").exists()
    finally:
        listener.close()


def run(mode: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "palaestra", *broken.command(mode, *options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def told_at_next_start(folder) -> dict:
    """What a run that is continued has recorded about how it ended before."""
    again = [sys.executable, "-m", "palaestra", "resume", str(folder)]
    done = subprocess.run(again, capture_output=True, text=True, timeout=300, check=False)
    assert "its process crashed in environment" in done.stderr
    return json.loads((folder / "faults" / "0001.json").read_text())


@pytest.mark.fault
@pytest.mark.parametrize("mode", ["segfault", "abort"])
def test_a_crash_is_recorded_with_its_environment_episode_and_step(mode, tmp_path):
    """D2, F3: of three environments it is the third that crashes, in the third step of its first episode."""
    variants = ["{kwargs: {mode: fine}}", "{kwargs: {mode: fine}}", f"{{kwargs: {{mode: {mode}}}}}"]
    options = ("--env.num-envs", "3", "--env.variants", *variants)
    done = run("fine", *options, "--run.directory", str(tmp_path), "--run.name", "run")
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGABRT)
    record = told_at_next_start(tmp_path / "run")
    details = record["details"]
    assert (details["env_id"], details["episode"], details["step"]) == (2, 0, broken.STEP)
    assert "environment 2, in episode 0 (seed " in record["message"]


@pytest.mark.fault
def test_a_hang_that_holds_pythons_lock_ends_the_run_and_is_recorded(tmp_path):
    """D2, F4: the watchdog is a thread and cannot run; the message names the way out, the record the place."""
    started = time.monotonic()
    done = run("gil", "--run.directory", str(tmp_path), "--run.name", "run")
    assert done.returncode == -signal.SIGABRT
    assert time.monotonic() - started < 60
    assert "EnvError  an environment did not answer in time (4 s)" in done.stderr
    assert "--env.vectorization process" in done.stderr
    record = told_at_next_start(tmp_path / "run")
    assert (record["details"]["env_id"], record["details"]["step"]) == (0, broken.STEP)
    assert "_hang_with_gil" in record["trace"]
    assert "holds Python's lock" in record["trace"]
