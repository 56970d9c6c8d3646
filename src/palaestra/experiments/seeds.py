"""Several seeds side by side: a process for each, a bounded number at a time, in one group directory."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments.build import make_learner
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.curves import curves_of, mean_interval, terminal_plot
from palaestra.experiments.records import num_cores, provenance
from palaestra.experiments.run_directory import RunDirectory, find_runs, new_directory
from palaestra.training import StopSignals

__all__ = ["GroupResult", "SeedResult", "group_summary", "resume_seeds", "train_seeds"]

_TAIL_BYTES = 16_384


class SeedRow:
    """The newest row of metrics of a run, read from its file.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.seed = directory.config.run.seed
        self.metrics: dict[str, Any] = {}
        self._size = -1

    def refresh(self) -> None:
        """Looks whether there is a newer row."""
        path = self.directory.path / "metrics.jsonl"
        try:
            size = path.stat().st_size
            if size == self._size:
                return
            with path.open("rb") as file:
                file.seek(max(0, size - _TAIL_BYTES))
                lines = file.read().split(b"\n")
            self.metrics, self._size = json.loads(lines[-2]), size
        except (OSError, ValueError, IndexError):
            return

    @property
    def env_steps(self) -> int:
        """Env steps at the newest row."""
        return int(self.metrics.get("env_steps", 0))


class SeedsPanel:
    """A live table on a terminal, a line whenever a seed's state changes elsewhere, and the joint curve at the end.

    Args:
        title: of the panel.
        config: of the runs.
        enabled: whether to show anything.
        console: where to write.
    """

    def __init__(
        self, title: str, config: ExperimentConfig, *, enabled: bool = True, console: Console | None = None
    ) -> None:
        self._title, self._total, self._enabled = title, config.trainer.total_env_steps, enabled
        self._console = console or Console()
        self._live: Live | None = None
        self._states: dict[int, str] = {}
        self._rows: Sequence[SeedRow] = ()
        self._last_line_s = float("-inf")

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._enabled and self._rows:
            try:
                curves = curves_of([row.directory for row in self._rows])
                self._console.print(terminal_plot(curves, width=min(100, self._console.width)))
            except CheckpointError:
                return  # none has logged an episode

    def show(self, rows: Sequence[SeedRow], states: Mapping[int, str]) -> None:
        """Shows how the seeds are doing.

        Args:
            rows: of all seeds, in order.
            states: what each is doing, by seed.
        """
        for row in rows:
            row.refresh()
        self._rows = rows
        if not self._enabled:
            return
        if self._live is not None:
            self._live.update(self._panel(rows, states))
            return
        tick = time.monotonic() - self._last_line_s > 5.0
        for row in rows:
            if self._states.get(row.seed) != states[row.seed] or (tick and states[row.seed] == "running"):
                self._console.print(_line(row, states[row.seed], self._total), highlight=False, soft_wrap=True)
        self._states = dict(states)
        self._last_line_s = time.monotonic() if tick else self._last_line_s

    def _panel(self, rows: Sequence[SeedRow], states: Mapping[int, str]) -> Panel:
        table = Table("seed", "", "env steps", "return", "evaluation", "steps/s", box=None, padding=(0, 2))
        for row in rows:
            state, metrics = states[row.seed], row.metrics
            style = {"running": "cyan", "done": "green", "failed": "red", "killed": "red"}.get(state, "dim")
            table.add_row(
                str(row.seed),
                f"[{style}]{state}[/]",
                f"{row.env_steps:,} of {self._total:,}",
                _number(metrics.get("return_mean")),
                _number(metrics.get("eval/return_mean")),
                _number(metrics.get("time/env_steps_per_s"), "{:,.0f}"),
            )
        return Panel(table, title=self._title, expand=False)


def _line(row: SeedRow, state: str, total: int) -> str:
    returns = _number(row.metrics.get("return_mean"))
    return f"seed {row.seed:<4} {state:<11} {row.env_steps:>9,} / {total:,} env steps  return {returns}"


def _number(value: float | None, form: str = "{:.1f}") -> str:
    return "–" if value is None else form.format(value)


_PROCESS = "import sys; from palaestra.experiments.run import seed_process; sys.exit(seed_process(*sys.argv[1:]))"
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
    learner.load_data()  # what does not fit is said here, once
    path = new_directory(config, f"{len(chosen)}seeds")
    (path / "group.json").write_text(json.dumps({"format": 1, "seeds": chosen, **provenance()}, indent=2) + "\n")
    threads = learner.num_threads(side_by_side=min(len(chosen), num_cores()))
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
                [sys.executable, "-c", _PROCESS, str(self.directory.path), *filter(None, sys.path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

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
