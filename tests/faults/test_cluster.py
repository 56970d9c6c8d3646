"""What happens to a run when Ray's own processes fail: its node, its head, its object store."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.experiments import RunDirectory
from tests.distributed.test_processes import descendants
from tests.faults.parts import COMMAND, TIMEOUT_S, child_environment, command, logged, steps_of

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'palaestra[ray]'"
    ),
]

RUN = (
    *("train", "ppo", "CartPole-v1", "--env.num-envs", "2", "--distributed.runtime", "ray"),
    *("--trainer.checkpoint-every-steps", "200", "--trainer.log-every-steps", "50", "--trainer.eval-every-steps", "0"),
    *("--algorithm.unroll-length", "8", "--algorithm.network.hidden-sizes", "8", "--run.no-tensorboard"),
    *("--trainer.total-env-steps", "50000000", "--run.name", "run"),
)


def processes_of(run: subprocess.Popen[Any], name: str) -> list[int]:
    """Processes that a run has started, by a part of the name of their program."""
    found = []
    for pid in descendants(run.pid):
        with contextlib.suppress(OSError):
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            found += [pid] * (name in program)
    return found


@pytest.fixture
def training(tmp_path: Path, wait_until: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Begins a run in a process of its own, and waits until it has saved."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", COMMAND, *RUN, *options]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        run = subprocess.Popen(program, cwd=tmp_path, env=child_environment(), start_new_session=True, **pipes)
        begun.append(run)
        wait_until(lambda: run.poll() is not None or steps_of(tmp_path / "runs/run"), TIMEOUT_S, what="a checkpoint")
        assert run.poll() is None, run.communicate()[0]
        return run

    yield begin
    for run in begun:
        for pid in [run.pid, *processes_of(run, "")] if run.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        run.communicate()


def check_lost(run: subprocess.Popen[str], directory: Path, words: str) -> str:
    """One message, a record, exit code 3, and the way to go on."""
    text, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 3, text
    assert text.count("ClusterLostError") == 1
    assert words in text
    assert "Traceback" not in text
    assert "palaestra resume runs/run" in text
    assert RunDirectory(directory).status == "failed"
    (record,) = (json.loads(path.read_text()) for path in (directory / "faults").glob("*.json"))
    assert words in json.dumps(record)
    return text


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_d11_a_run_whose_node_is_lost_says_so_and_goes_on_elsewhere(mode, training, tmp_path):
    """F15, F16: the raylet of this machine is killed; afterwards a new Ray takes the run on from its checkpoint."""
    run, directory = training("--distributed.mode", mode), tmp_path / "runs/run"
    (raylet,) = processes_of(run, "raylet")
    os.kill(raylet, signal.SIGKILL)
    check_lost(run, directory, "the Ray node of this machine has ended")
    saved = steps_of(directory)[-1]
    command("resume", "runs/run", "--until", str(saved + 500), folder=tmp_path)
    assert logged(directory)[-1]["env_steps"] >= saved + 500
