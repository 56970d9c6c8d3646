"""Several seeds side by side: a process for each, a bounded number at a time, in one group directory."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from palaestra.analysis.curves import curves_of, terminal_plot
from palaestra.config.config import ExperimentConfig
from palaestra.core import CheckpointError, ConfigError, left_as_found, readable
from palaestra.core.computing import num_cores
from palaestra.core.files import replace_text
from palaestra.core.importing import GIVEN, trusts
from palaestra.core.reading import NewLines, last_line, parse_json, read_json, read_text
from palaestra.runs.build import make_learner
from palaestra.runs.folders import new_folder
from palaestra.runs.lineage import begin_from, for_new_run
from palaestra.runs.records import pass_on, provenance
from palaestra.runs.run_directory import RunDirectory, find_runs
from palaestra.runs.together import member_configs
from palaestra.runtime.messages import require_guard
from palaestra.training import STOP_CODES, DrawnInPlace, RunStatus, StopSignals
from palaestra.training.console import PipedConsole

__all__ = ["GroupResult", "SeedResult", "resume_seeds", "train_seeds"]

_LEAST_TOGETHER = 4
"""Members of a process, before there is another one."""

_START = "import sys; sys.path[:] = sys.argv[2:]; from palaestra.experiments.together import "
_PROCESS = _START + "seed_process as p; sys.exit(p(*sys.argv[1:]))"
_TOGETHER = _START + "members_process as p; sys.exit(p(*sys.argv[1:]))"
_POLL_S = 0.1
_LEAVES_S = 40.0
"""How long after `trainer.grace_s` a seed that was asked to stop may still be there before it is ended."""


@dataclass(frozen=True)
class SeedResult:
    """How one seed of a group ended."""

    seed: int
    """The run seed."""
    directory: Path
    """Its run directory, inside the group's."""
    status: RunStatus
    """`done`, `stopped`, `interrupted`, `failed`, `killed`, `crashed`, or `created` if it never began."""
    exit_code: int
    """0, or what the command line would have ended with."""
    env_steps: int
    """Env steps taken."""
    best_return: float | None
    """Mean return of the evaluation by which its policy was chosen, so no estimate of what that earns."""
    error: str | None
    """What went wrong, or why it stopped before its budget was used."""


@dataclass(frozen=True)
class GroupResult:
    """How the seeds of a group ended."""

    directory: Path
    """The group directory."""
    seeds: tuple[SeedResult, ...]
    """Each of them, in order."""

    @property
    def exit_code(self) -> int:
        """That of the first seed that was broken off; 0 if none was."""
        return next((seed.exit_code for seed in self.seeds if seed.exit_code), 0)


def train_seeds(
    config: ExperimentConfig,
    seeds: int | Sequence[int],
    *,
    progress: bool = False,
    on_start: Callable[[Path], None] | None = None,
    ended: Callable[[], bool] | None = None,
) -> GroupResult:
    """Trains a configuration with several seeds side by side, each in a process of its own.

    As many run at a time as there are cores; the next begins when one has ended. A signal (Ctrl-C, SIGTERM,
    SIGHUP) reaches all of them: they save and end. A seed that fails is named, and the others continue.

    Args:
        config: of every run, apart from the seed.
        seeds: how many, counted up from `run.seed`; or which.
        progress: whether to show a line for each seed.
        on_start: called with the group directory once it exists.
        ended: asked several times a second; once it is true, the seeds save and end as after SIGTERM.

    Raises:
        ConfigError: the settings do not fit together, or a new process imports the script; nothing has been started
            then.
    """
    require_guard()
    chosen = seeds_of(config, seeds)
    if config.run.together:
        return train_members([config], [chosen], progress=progress, on_start=on_start, ended=ended)[0]
    path = _new_group(config, chosen)
    if on_start is not None:
        on_start(path)
    return resume_seeds(path, progress=progress, ended=ended)


def seeds_of(config: ExperimentConfig, seeds: int | Sequence[int]) -> list[int]:
    """Which seeds are meant.

    Args:
        config: of every run.
        seeds: how many, or which.

    Raises:
        ConfigError: they are none, or other processes cannot have these settings.
    """
    several = isinstance(seeds, Sequence) and all(type(seed) is int for seed in seeds)
    if type(seeds) is not int and not several:
        raise ConfigError(f"seeds is {seeds!r}; give a whole number of them, or a list of whole numbers")
    if any(f"{module}:" in repr(config) for module in ("__main__", GIVEN)):
        raise ConfigError(
            "what the script that runs defines (__main__:...), or gives as an object, is not there in the processes in "
            "which seeds train; move it into a module, and import it"
        )
    chosen = list(range(config.run.seed, config.run.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise ConfigError(f"seeds is {seeds}; give a number of at least 1, or different seeds of at least 0")
    return chosen


def train_members(
    configs: Sequence[ExperimentConfig],
    seeds: Sequence[Sequence[int]],
    *,
    names: Sequence[str] | None = None,
    selection: Mapping[str, Any] | None = None,
    progress: bool = False,
    on_start: Callable[[Path], None] | None = None,
    ended: Callable[[], bool] | None = None,
) -> list[GroupResult]:
    """Trains configurations that differ in numbers of the algorithm only, as one population.

    Args:
        configs: of every run, apart from the seed; each gets a group directory of its own.
        seeds: of each of them.
        names: of the group directories.
        selection: `Selection.to_json` of population-based training, if it is that.
        progress: see `train_seeds`.
        on_start: called with each group directory.
        ended: see `train_seeds`.

    Raises:
        ConfigError: the settings do not fit together, or a population cannot have them; nothing has been started then.
    """
    paths, count = list[Path](), sum(map(len, seeds))
    for config, own in zip(member_configs(configs, count, names), seeds, strict=True):
        paths.append(_new_group(config, own, population=count))
        if on_start is not None:
            on_start(paths[-1])
    return resume_members(paths, selection=selection, progress=progress, ended=ended)


def resume_members(
    paths: Sequence[Path],
    *,
    selection: Mapping[str, Any] | None = None,
    progress: bool = False,
    ended: Callable[[], bool] | None = None,
) -> list[GroupResult]:
    """Goes on with a population, from the newest checkpoints that all of its members have.

    Args:
        paths: the group directories of `train_members`.
        selection: see `train_members`.
        progress: see `train_seeds`.
        ended: see `train_seeds`.
    """
    groups = [[SeedProcess(directory, selection) for directory in find_runs([path])] for path in paths]
    members = [seed for group in groups for seed in group]
    count = 1 if selection else max(1, min(num_cores(), len(members) // _LEAST_TOGETHER))  # who copies must be there
    parts = [members[len(members) * i // count : len(members) * (i + 1) // count] for i in range(count)]
    _train_parts(parts, ", ".join(map(str, paths)), progress=progress, ended=ended)
    return [GroupResult(path, tuple(one.result() for one in group)) for path, group in zip(paths, groups, strict=True)]


@left_as_found()
def _new_group(config: ExperimentConfig, seeds: Sequence[int], population: int = 1) -> Path:
    """A group directory with runs that have not begun, of so many that learn together."""
    learner = make_learner(config := for_new_run(config), population)
    origin = begin_from(learner)  # what does not fit is said here, once
    learner.load_data(new=True)
    threads = 1 if population > 1 else learner.num_threads(side_by_side=min(len(seeds), num_cores()))
    with new_folder(config, f"{len(seeds)}seeds") as (path, unfinished):
        group = {"format": 1, "seeds": list(seeds), **provenance()}
        replace_text(unfinished / "group.json", json.dumps(group, indent=2) + "\n")
        for seed in seeds:
            name = f"seed_{seed}"
            run = dataclasses.replace(config.run, seed=seed, directory=str(path), name=name, num_threads=threads)
            (directory := RunDirectory(unfinished / name)).begin(dataclasses.replace(config, run=run))
            directory.write_info({"began_from": origin} if origin else {})  # what it is now, and all have to begin with
    return path


def resume_seeds(
    name: str | Path, *, root: str | Path = "runs", progress: bool = False, ended: Callable[[], bool] | None = None
) -> GroupResult:
    """Goes on with every seed of a group that has not come to its end.

    Args:
        name: path or name of the group, or `last`.
        progress: whether to show a line for each seed.
        ended: see `train_seeds`.

    Raises:
        CheckpointError: there is no such group, or a seed of it is missing.
        ConfigError: it is a single run.
    """
    directories = find_runs([name], root)
    group = directories[0].path.parent
    if not (group / "group.json").is_file():
        raise ConfigError(f"{name} is a single run, no group of seeds; continue it with `palaestra resume {name}`")
    seeds = [SeedProcess(directory) for directory in directories]
    _require_all(group, seeds)
    _train_parts([[seed] for seed in seeds], str(group), progress=progress, ended=ended)
    return GroupResult(group, tuple(seed.result() for seed in seeds))


def _train_parts(
    parts: Sequence[Sequence["SeedProcess"]], title: str, *, progress: bool, ended: Callable[[], bool] | None
) -> None:
    """Trains each part in a process of its own."""
    seeds = [seed for part in parts for seed in part]
    panel = _Panel(title, seeds) if progress else None
    with StopSignals() as stop, contextlib.closing(panel) if panel else contextlib.nullcontext():
        try:
            _supervise(parts, stop, panel, ended)
        except Exception:
            stop.received = stop.received or signal.SIGTERM
            _supervise(parts, stop, None, None)  # what they have learned is saved
            raise
        finally:
            for seed in seeds:
                seed.kill()


def _require_all(group: Path, seeds: Sequence["SeedProcess"]) -> None:
    """Refuses a group that lacks a seed, which would count as trained to the end."""
    try:
        named = set(read_json(group / "group.json")["seeds"])
    except (CheckpointError, TypeError, KeyError) as error:
        raise CheckpointError(f"{group}/group.json says no more which seeds there are ({error!r}); mend it") from error
    if missing := sorted(named - {seed.number for seed in seeds}):
        raise CheckpointError(
            f"the group {group} has no runs any more of the seeds {', '.join(map(str, missing))}, which its group.json "
            "names; bring them back, or take their numbers out of group.json"
        )


class SeedProcess:
    """One seed of a group: its run, its process, and the newest row of its metrics."""

    def __init__(self, directory: RunDirectory, selection: Mapping[str, Any] | None = None) -> None:
        self.directory, self.selection = directory, selection
        self.number = directory.config.run.seed
        self.process: subprocess.Popen[bytes] | None = None
        self.asked_to_stop: int | None = None  # by which signal
        self.finished, self._ended_before = _is_finished(directory), directory.info.get("ended")
        self.metrics: dict[str, Any] = {}
        self.output = NewLines(directory.path / "output.txt")

    def start(self, others: Sequence["SeedProcess"] = ()) -> Self:
        """Starts its process, in which others train together with it."""
        # A group of its own: what a terminal sends (Ctrl-C, its end) reaches only us, and we pass it on, once.
        # The pipe to its stdin ends when we do, however we end; the child then saves and ends as well.
        with (self.directory.path / "output.txt").open("ab") as log:
            runs, code = [str(one.directory.path) for one in (self, *others)], _TOGETHER if others else _PROCESS
            asked = json.dumps({"runs": runs, "trusted": [*filter(trusts, runs)], "selection": self.selection})
            command = [sys.executable, "-P", "-c", code, asked, *(entry or str(Path.cwd()) for entry in sys.path)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0)
        for one in others:
            one.process = self.process
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, number: int) -> None:
        if self.process is not None and self.running and not self.asked_to_stop:
            self.process.send_signal(number)
        self.asked_to_stop = number

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()  # does nothing to one that has ended
            self.process.communicate()

    def refresh(self) -> None:
        """Reads the newest row of metrics, where there is one."""
        path = self.directory.path / "metrics.jsonl"
        with contextlib.suppress(CheckpointError, ValueError):
            self.metrics = parse_json(last_line(path))

    @property
    def env_steps(self) -> int:
        return int(self.metrics.get("env_steps", 0))

    @property
    def state(self) -> str:
        if self.running:
            return "stopping" if self.asked_to_stop else "running"
        if self.process is None:
            return "done" if self.finished else "not begun" if self.asked_to_stop else "waiting"
        return self.result().status

    def result(self) -> SeedResult:
        info, code = self.directory.info, self.process.returncode if self.process else 0
        status, error = self.directory.status, info.get("error")
        if code > 0 and code not in STOP_CODES and info.get("ended") == self._ended_before:  # it has not even begun
            status, error = "failed", _last_line(self.directory.path / "output.txt")
        if code < 0:
            status = "interrupted" if -code == self.asked_to_stop else "killed"  # before it could hear the signal
            error = f"ended by signal {-code} ({signal.Signals(-code).name})"
        unbegun = not (self.finished or self.process) and 128 + (self.asked_to_stop or signal.SIGINT)
        exit_code = 128 - code if code < 0 else code or unbegun or int(status == "failed")  # others of it may end well
        if code and _is_finished(self.directory):  # others of its process are not
            status, exit_code = self.directory.status, 0
        steps, why = int(info.get("env_steps") or self.env_steps), error or info.get("reason")
        return SeedResult(self.number, self.directory.path, status, exit_code, steps, self.directory.kept_return, why)


def _is_finished(directory: RunDirectory) -> bool:
    """Whether it has used its budget, reached its goal, or its time limit."""
    return directory.status == "done" or (directory.status == "stopped" and bool(directory.info.get("reason")))


class _Panel:
    """A live table on a terminal, a line whenever a seed's state changes elsewhere, and the joint curve at the end."""

    def __init__(self, title: str, seeds: Sequence[SeedProcess]) -> None:
        self._title, self._seeds, config = title, seeds, seeds[0].directory.config
        self._total, self._unit = config.trainer.total_env_steps, config.unit
        self._console = PipedConsole(emoji=False)
        self._place = DrawnInPlace(self._console)
        self._states: dict[int, str] = {}
        self._last_line_s = float("-inf")

    def show(self) -> None:
        """Shows how the seeds are doing."""
        states = {seed.number: seed.state for seed in self._seeds}
        if self._place.possible:
            if self._states != states or time.monotonic() - self._last_line_s > 0.5:
                self._place.draw(self._table(states))
                self._states, self._last_line_s = states, time.monotonic()
            return
        tick = time.monotonic() - self._last_line_s > 5.0
        for seed in self._seeds:
            state = states[seed.number]
            if self._states.get(seed.number) != state or (tick and state == "running"):
                steps, returns = f"{seed.env_steps:>9,} / {self._total:,}", _number(seed.metrics.get("return_mean"))
                line = f"seed {seed.number:<4} {state:<11} {steps} {self._unit}  return {returns}"
                self._console.print(line, highlight=False, soft_wrap=True)
        self._states = states
        self._last_line_s = time.monotonic() if tick else self._last_line_s

    def _table(self, states: Mapping[int, str]) -> Panel:
        table = Table("seed", "", self._unit, "return", "evaluation", "steps/s", box=None, padding=(0, 2))
        for seed in self._seeds:
            state, metrics = states[seed.number], seed.metrics
            style = {"running": "cyan", "done": "green", "failed": "red", "killed": "red"}.get(state, "dim")
            table.add_row(
                str(seed.number),
                f"[{style}]{state}[/]",
                f"{seed.env_steps:,} of {self._total:,}",
                _number(metrics.get("return_mean")),
                _number(metrics.get("eval/return_mean")),
                _number(metrics.get("time/env_steps_per_s"), "{:,.0f}".format),
            )
        return Panel(table, title=Text(self._title), expand=False)

    def close(self) -> None:
        """Ends the table, and draws the curve of those that have logged an episode."""
        if self._states and self._place.possible:
            self._place.draw(self._table({seed.number: seed.state for seed in self._seeds}))
        self._place.close()
        with contextlib.suppress(CheckpointError):  # none has
            curves = curves_of([seed.directory for seed in self._seeds])
            self._console.print(terminal_plot(curves, width=min(100, self._console.width)))


def _number(value: float | None, form: Callable[[float], str] = readable) -> str:
    return "–" if value is None else form(value)


def _supervise(
    parts: Sequence[Sequence[SeedProcess]], stop: StopSignals, panel: _Panel | None, ended: Callable[[], bool] | None
) -> None:
    """Keeps as many processes running as there are cores until all seeds have ended, or a signal ends them."""
    seeds = [seed for part in parts for seed in part]
    waiting = [part for part in parts if not all(seed.finished for seed in part)]
    config = seeds[0].directory.config
    most = max(1, num_cores() // (config.run.num_threads or 1))
    deadline_s, said = float("inf"), set[str]()
    while time.monotonic() <= deadline_s:  # those that are left after it are ended by the caller
        running = [part for part in parts if part[0].running]
        if stop.received is None and ended is not None and ended():
            stop.received = signal.SIGTERM
        if stop.received is None:
            while waiting and len(running) < most:
                first, *others = waiting.pop(0)
                first.start(others)
                running.append([first, *others])
        else:
            deadline_s = min(deadline_s, time.monotonic() + config.trainer.grace_s + _LEAVES_S)
            for seed in seeds:
                seed.stop(stop.received)
        for seed in seeds:
            seed.refresh()
            pass_on(seed.output, f"seed {seed.number}", said)
        if panel is not None:
            panel.show()
        if not running and (not waiting or stop.received is not None):
            return
        time.sleep(_POLL_S)


def _last_line(path: Path) -> str:
    lines = read_text(path, errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it ended without a word"
