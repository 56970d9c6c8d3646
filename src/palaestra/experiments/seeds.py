"""Several seeds side by side: a process for each, a bounded number at a time, in one group directory."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments.build import choose_threads, make_learner
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.curves import mean_interval
from palaestra.experiments.offline import load_data
from palaestra.experiments.provenance import num_cores, provenance
from palaestra.experiments.run_directory import RunDirectory, find_runs, new_directory
from palaestra.experiments.seeds_panel import SeedRow, SeedsPanel
from palaestra.experiments.updating import algorithms_of
from palaestra.training import StopSignals

__all__ = ["GroupResult", "SeedResult", "resume_seeds", "train_seeds"]

_POLL_S = 0.2
_GRACE_S = 60.0
"""How long a seed may take to save after Ctrl-C before it is ended."""


@dataclass(frozen=True)
class SeedResult:
    """How one seed of a group ended."""

    seed: int
    """The run seed."""
    directory: Path
    """Its run directory, inside the group's."""
    status: str
    """`done`, `interrupted`, `failed`, `killed`, or `created` if it never began."""
    exit_code: int
    """0, or what the command line would have ended with."""
    env_steps: int
    """Env steps taken."""
    best_return: float | None
    """Best mean return of its evaluations."""
    error: str | None
    """What went wrong."""


@dataclass(frozen=True)
class GroupResult:
    """How the seeds of a group ended."""

    directory: Path
    """The group directory."""
    seeds: tuple[SeedResult, ...]
    """Each of them, in order."""

    @property
    def exit_code(self) -> int:
        """That of the first seed that did not come to its end; 0 if all did."""
        return next((seed.exit_code for seed in self.seeds if seed.exit_code), 0)

    @property
    def best_return_ci95(self) -> tuple[float, float] | None:
        """95% interval of the mean over seeds of their best returns; `None` where fewer than two were evaluated."""
        values = [seed.best_return for seed in self.seeds if seed.best_return is not None]
        return mean_interval(values) if len(values) > 1 else None


def train_seeds(
    config: ExperimentConfig,
    seeds: int | Sequence[int],
    *,
    progress: bool = False,
    on_start: Callable[[Path], None] | None = None,
) -> GroupResult:
    """Trains a configuration with several seeds side by side, each in a process of its own.

    As many run at a time as there are cores; the next begins when one has ended. Ctrl-C or SIGTERM reaches all of
    them: they save and end. A seed that fails is named, and the others go on.

    Args:
        config: of every run, apart from the seed.
        seeds: how many, counted up from `run.seed`; or which.
        progress: whether to show a line for each seed.
        on_start: called with the group directory once it exists.

    Raises:
        ConfigError: the settings do not fit together; nothing has been started then.
    """
    chosen = list(range(config.run.seed, config.run.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise ConfigError(f"seeds is {seeds}; give a number of at least 1, or different seeds of at least 0")
    learner = make_learner(config)
    load_data(config, learner)  # what does not fit is said here, once
    path = new_directory(config, f"{len(chosen)}seeds")
    (path / "group.json").write_text(json.dumps({"format": 1, "seeds": chosen, **provenance()}, indent=2) + "\n")
    side_by_side = min(len(chosen), num_cores())
    threads = max(
        choose_threads(config, one.policy.observation_spec, side_by_side=side_by_side)
        for one in algorithms_of(learner).values()
    )
    for seed in chosen:
        run = dataclasses.replace(config.run, seed=seed, directory=str(path), name=f"seed_{seed}", num_threads=threads)
        RunDirectory.create(dataclasses.replace(config, run=run))
    if on_start is not None:
        on_start(path)
    return resume_seeds(path, progress=progress)


def resume_seeds(name: str | Path, *, root: str | Path = "runs", progress: bool = False) -> GroupResult:
    """Goes on with every seed of a group that has not come to its end.

    Args:
        name: path or name of the group, or `last`.
        root: where runs are.
        progress: whether to show a line for each seed.

    Raises:
        CheckpointError: there is no such group.
        ConfigError: it is a single run.
    """
    directories = find_runs([name], root)
    if not directories:
        raise CheckpointError(f"the group {name} has no runs left in it")
    group = directories[0].path.parent
    if not (group / "group.json").is_file():
        raise ConfigError(f"{name} is a single run, no group of seeds; continue it with `palaestra resume {name}`")
    with SeedsPanel(str(group), directories[0].config, enabled=progress) as panel, StopSignals() as stop:
        children = [_Child(directory) for directory in directories]
        try:
            _supervise(children, stop, panel)
        finally:
            for child in children:
                child.kill()
    return GroupResult(group, tuple(child.result() for child in children))


class _Child:
    """One seed and its process."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.seed = directory.config.run.seed
        self.process: subprocess.Popen[bytes] | None = None
        self.asked_to_stop = False
        self.finished = directory.status == "done"
        self.row = SeedRow(directory)

    def start(self) -> Self:
        # A group of its own: Ctrl-C on the terminal reaches only us, and we pass it on, once.
        # The pipe to its stdin ends when we do, however we end; the child then saves and ends as well.
        with (self.directory.path / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "palaestra.experiments.seed_process", *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def _arguments(self) -> list[str]:
        return [str(self.directory.path), *(entry for entry in sys.path if entry)]

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, number: int) -> None:
        if self.running and not self.asked_to_stop and self.process is not None:
            self.process.send_signal(number)
            self.asked_to_stop = True

    def kill(self) -> None:
        if self.process is not None:
            if self.running:
                self.process.kill()
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()

    def result(self) -> SeedResult:
        info, code = self.directory.info, self.process.returncode if self.process else 0
        status, error = self.directory.status, info.get("error")
        if code and status == "created":
            status, error = "failed", _last_line(self.directory.path / "output.txt")
        if code < 0:
            status, error = "killed", f"ended by signal {-code} ({signal.Signals(-code).name})"
        exit_code = 128 - code if code < 0 else code or (0 if self.finished or status == "done" else 130)
        steps = int(info.get("env_steps") or self.row.env_steps)
        return SeedResult(self.seed, self.directory.path, status, exit_code, steps, info.get("best_return"), error)


def _supervise(children: Sequence[_Child], stop: StopSignals, panel: SeedsPanel) -> None:
    """Keeps as many processes running as there are cores until all seeds have ended, or a signal ends them."""
    waiting = [child for child in children if not child.finished]
    most = max(1, num_cores() // (children[0].directory.config.run.num_threads or 1))
    deadline_s = float("inf")
    while True:
        running = [child for child in children if child.running]
        if stop.received is None:
            while waiting and len(running) < most:
                running.append(waiting.pop(0).start())
        else:
            deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
            for child in running:
                child.stop(stop.received)
        panel.show([child.row for child in children], {child.seed: _state(child, stop) for child in children})
        if not running and (not waiting or stop.received is not None):
            return
        if time.monotonic() > deadline_s:
            return  # those that are left are ended by the caller
        _wait(running)


def _wait(running: Sequence[_Child]) -> None:
    """Until one of them ends, or it is time to look again."""
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < _POLL_S and all(child.running for child in running):
        time.sleep(0.02)


def _state(child: _Child, stop: StopSignals) -> str:
    if child.running:
        return "stopping" if stop.received is not None else "running"
    if child.process is None:
        return "done" if child.finished else "waiting" if stop.received is None else "not begun"
    return child.result().status


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it ended without a word"


def group_summary(done: GroupResult) -> list[str]:
    """What to say about a group that has ended: one line for each seed that did not come to its end.

    Args:
        done: from `train_seeds`.
    """
    lines: list[str] = []
    for seed in done.seeds:
        if seed.status != "done":
            detail: Any = f": {seed.error}" if seed.error else ""
            status = (
                "has not begun" if seed.status == "created" else f"{seed.status} after {seed.env_steps:,} env steps"
            )
            lines.append(f"seed {seed.seed} {status}{detail}")
    best = [seed.best_return for seed in done.seeds if seed.best_return is not None]
    if best:
        interval = done.best_return_ci95
        tail = f", 95% interval {interval[0]:.1f} to {interval[1]:.1f} over seeds" if interval else ""
        lines.append(f"best return {sum(best) / len(best):.1f}{tail} ({len(best)} of {len(done.seeds)} seeds)")
    return lines
