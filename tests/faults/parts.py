"""Real processes, and the environments and comparisons that tests of faults need."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from palaestra.training import CheckpointStore

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "from palaestra.cli import main; main()"
# A terminal of its own, as a shell gives it: Ctrl-C reaches every process of the group.
ON_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {COMMAND}"
TIMEOUT_S = 300.0


class Gate(gymnasium.Env[np.ndarray, np.int64]):
    """Pays 1 a step; waits in its step while the file `closed` exists, and counts its waiting in the file `waited`."""

    def __init__(self, folder: str) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        count = 0
        while (self._folder / "closed").exists():
            count += 1
            (self._folder / "waited").write_text(str(count))
            select.select([], [], [], 0.01)
        return np.zeros(1, np.float32), 1.0, bool(self.np_random.random() < 0.05), False, {}


def child_environment() -> dict[str, str]:
    """Of a child process: it imports this checkout, the tests included, and draws on nobody's screen."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "xterm"}


def command(*arguments: str, folder: Path, program: str = COMMAND, check: int | None = 0) -> str:
    """Runs the command line in a child process; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if check is not None:
        assert done.returncode == check, f"{arguments} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


class Terminal:
    """The command line on a terminal, as a person has it in front of them."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self._master, slave = pty.openpty()
        self._text = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *arguments],
            cwd=folder,
            env=child_environment(),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Presses keys; `\\x03` is Ctrl-C."""
        os.write(self._master, text.encode())

    def hang_up(self) -> None:
        """Closes it, as a lost connection does."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)

    def read(self) -> str:
        """Everything that the screen was sent so far."""
        while select.select([self._master], [], [], 0.0)[0]:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # Linux says so when the last writer is gone
                break
            if not part:
                break
            self._text += part
        return self._text.decode(errors="replace")

    def ended(self) -> bool:
        """Whether the process has ended; the screen is read on the way, so that it never blocks."""
        self.read()
        return self.process.poll() is not None

    def orphans(self) -> bool:
        """Whether any process of the group is left."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def logged(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics that a run has written so far."""
    path = run / "metrics.jsonl"
    return (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if (path.exists())
        else []
    )


def steps_of(run: Path) -> list[int]:
    """The env steps of a run's checkpoints."""
    return [int(path.name.removeprefix("step_")) for path in CheckpointStore(run / "checkpoints").steps()]


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two nests are not bit-equal."""
    if isinstance(a, torch.Tensor | np.ndarray):
        same = (
            type(a) is type(b)
            and a.dtype == b.dtype
            and bytes(memoryview(np.asarray(a)).cast("B")) == bytes(memoryview(np.asarray(b)).cast("B"))
            if np.asarray(a).size
            else np.asarray(a).shape == np.asarray(b).shape
        )
        return [] if same else [path]
    if hasattr(a, "items") and hasattr(b, "items"):
        if set(a.keys()) != set(b.keys()):
            return [f"{path}: {sorted(set(a.keys()) ^ set(b.keys()))}"]
        keys = [key for key in list(a.keys()) if key != "segments"]  # names of files, other ones in every process
        return [where for key in keys for where in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} entries"]
        return [where for i, (x, y) in enumerate(zip(a, b, strict=True)) for where in differences(x, y, f"{path}.{i}")]
    return [] if a == b or (a != a and b != b) else [f"{path}: {a!r} and {b!r}"]


def run_contents(run: Path) -> dict[str, Any]:
    """Everything that two equal runs must have in common."""
    step, state = CheckpointStore(run / "checkpoints").load_newest()
    del state["trainer"]["seconds"]
    metrics = [{key: value for key, value in row.items() if not key.startswith("time/")} for row in logged(run)]
    files = [run / "episodes.csv", run / "policy" / "weights.safetensors"]
    evaluations = {
        path.name: json.loads(path.read_text()) | {"run": None, "resumes": None} for path in (run / "evals").iterdir()
    }
    return {
        "step": step,
        "state": state,
        "metrics": metrics,
        "evaluations": evaluations,
        "files": {str(path.relative_to(run)): path.read_bytes().hex() for path in files},
    }
