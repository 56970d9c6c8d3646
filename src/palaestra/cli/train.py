"""`palaestra train` and `resume`."""

import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from palaestra import experiments
from palaestra.cli.options import ExperimentOptions, JsonOptions, parse, typed_settings
from palaestra.config.config import as_yaml
from palaestra.core import ConfigError, readable, require_ranges
from palaestra.training.console import silence_stdout

_log = logging.getLogger(__name__)
begun = list[Path]()
"""Directories of runs that this process has begun."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand(ExperimentOptions):
    """All settings of a run, and what `palaestra train` itself can be told."""

    MOST_SET: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "how long": ("trainer.total_env_steps", "trainer.time_limit_s", "trainer.eval_every_steps", "seeds"),
        "how it learns": (
            "algorithm.learning_rate",
            "algorithm.gamma",
            "algorithm.network.hidden_sizes",
            "algorithm.network.cnn",
            "algorithm.",
        ),
        "the environment": ("env.num_envs", "env.vectorization", "env.kwargs"),
        "where": ("run.seed", "run.name", "run.device", "config", "print_config", "dry_run"),
    }
    """What people set most, by group; with a dot at the end the numbers of a group."""

    config: str | None = None
    """A YAML file with settings; what it leaves out comes from the preset, options here are put on top."""
    print_config: bool = False
    """Print all settings as YAML and start nothing."""
    dry_run: bool = False
    """Build everything, learn for about a second, say how much time and memory it will take; leave nothing behind."""
    seeds: tuple[int, ...] = ()
    """Train several seeds side by side: one number is how many, counted up from --seed (`--seeds 3`); several are
    which (`--seeds 3,7,9`)."""
    json: bool = False
    """Print JSON: how the run ended, or what --dry-run found out. What else is printed goes to stderr."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_ranges(self, "--", self._misuses())

    def _misuses(self) -> Iterator[str]:
        if self.json and self.print_config:
            yield "--print-config prints YAML; leave out --json"
        if len(self.seeds) == 1 and self.seeds[0] < 1:
            yield f"--seeds is {self.seeds[0]}; it must be at least 1"

    @classmethod
    def defaults(cls, arguments: Sequence[str], options: Mapping[str, list[str]]) -> Self:
        """The preset of the pair, or what a file says."""
        file = (options.get("config") or [None])[0]
        if file is None:
            return super().defaults(arguments, options)
        base = experiments.preset(*arguments) if any(arguments) else None
        return cls(**vars(experiments.load_config(file, base=base)))


def train(algorithm: str, environment: str, options: TrainCommand) -> int:
    """Trains an agent. Schedules are a number, or 'linear(start, end)'."""
    config = options.experiment()
    if algorithm:
        experiments.require_same_task(config, algorithm, environment)
    seeds = options.seeds[0] if len(options.seeds) == 1 else options.seeds
    if options.print_config:
        sys.stdout.write(as_yaml(config))
        return 0
    if options.dry_run:
        alone = replace(config, run=replace(config.run, together=config.run.together and not seeds))
        with options.told():
            estimate = experiments.dry_run(alone)
        count = seeds if isinstance(seeds, int) else len(seeds)
        each = f"\nseeds       all of this for each of {count}" if count else ""
        options.show(asdict(estimate), f"{estimate}{each}")
        return 0

    def announce(path: Path) -> None:
        begun.append(path)
        _say(f"run         {os.path.relpath(path)}")

    with options.told():
        if seeds:
            done = experiments.train_seeds(config, seeds, progress=True, on_start=announce)
        else:
            done = experiments.run(config, progress=True, on_start=announce)
    return _report(done, options)


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(JsonOptions):
    """Options of `palaestra resume`."""

    until: int | None = None
    """Go on to so many env steps in all; short for --override trainer.total_env_steps=N. Of a group, in
    one run at a time."""
    override: tuple[str, ...] = ()
    """PATH=VALUE of settings to continue with, such as algorithm.learning_rate=1e-4; `run.json` records them."""
    fork: bool = False
    """Go on in a new run directory, and leave the old one as it is."""
    name: str | None = None
    """With --fork: name of the new run directory."""
    root: str = "runs"
    """Where runs are; and where a fork goes if nothing can be written beside the run."""
    json: bool = False
    """Print JSON: how the run ended. What else is printed goes to stderr."""


def resume(name: str, options: ResumeOptions) -> int:
    """Goes on with a run, or with all seeds of a group."""
    if options.name is not None and not options.fork:
        raise ConfigError("--name names the new run of --fork; give both, or neither")
    typed = _overrides(options)
    directories = experiments.find_runs([name], options.root)
    is_run = directories[0].path in (Path(name), Path(options.root) / name)
    if (directories[0].path.parent / "group.json").is_file() and not is_run:
        if typed or options.fork:
            raise ConfigError(_one_at_a_time(name, experiments.best_run(directories).path, options))
        with options.told():
            _say(f"resuming {directories[0].path.parent}")
            group = experiments.resume_seeds(directories[0].path.parent, progress=True)
        return _report(group, options)
    (directory,) = directories
    before = directory.config
    config = parse(before, typed)
    changes = experiments.changes_between(before, config)
    nothing_left = directory.status == "done" and not changes

    def announce(path: Path) -> None:
        lines = [f"forking {directory.path} into {path}" if options.fork else f"resuming {path}"]
        if nothing_left:
            lines.append("nothing left to do; `--until N` trains on")
        lines += [f"changed     {changed}: {old} -> {new}" for changed, (old, new) in changes.items()]
        _say(*lines)

    with options.told():
        done = experiments.resume(
            directory.path,
            root=options.root,
            fork=options.fork and (True if options.name is None else options.name),
            progress=True,
            on_start=announce,
            **typed_settings(before, typed),
        )
    return _report(done, options)


def _one_at_a_time(name: str, run: Path, options: ResumeOptions) -> str:
    """Why a group goes on with the settings that it has, and how its runs get others."""
    words = [] if options.until is None else ["--until", str(options.until)]
    words += [word for override in options.override for word in ("--override", override)]
    one, every = shlex.quote(str(run)), shlex.quote(str(run.parent))
    rest = shlex.join([*words, *["--fork"] * options.fork])
    return (
        f"{name} is a group; settings can change, and forks begin, in one of its runs at a time: palaestra resume "
        f'{one} {rest}; in all of them: for run in {every}/seed_*; do palaestra resume "$run" {rest}; done'
    )


def _overrides(options: ResumeOptions) -> list[str]:
    """`--override a.b=1` and `--until N` as options of a configuration."""
    typed = [] if options.until is None else ["--trainer.total-env-steps", str(options.until)]
    overrides: list[str] = []
    for word in options.override:
        if "=" in word or not overrides:
            overrides.append(word)
        else:
            overrides[-1] += f",{word}"  # it was cut at the commas of a list
    for override in overrides:
        path, equals, value = override.partition("=")
        if options.until is not None and path.removeprefix("--").replace("-", "_") == "trainer.total_env_steps":
            raise ConfigError(f"--until {options.until} and --override {override} both say how long; leave out one")
        if not equals or not value:
            raise ConfigError(f"--override was given {override!r}; give PATH=VALUE, such as algorithm.gamma=0.9")
        typed.append(f"--{path.removeprefix('--')}={value}")
    return typed


def _say(*lines: str) -> None:
    """Prints; a reader that has left, or a disk that is full, ends no run."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        silence_stdout()
        _log.warning("what was printed is lost (%s); the run is not", error)


def _report(done: experiments.RunResult | experiments.GroupResult, options: JsonOptions) -> int:
    """Says how a run or a group has ended, and gives the exit code."""
    lines, record = _of_group(done) if isinstance(done, experiments.GroupResult) else _of_run(done)
    with options.told():
        _say(*lines)
    if options.json:
        _say(json.dumps({"directory": str(done.directory), **record}))
    return record["exit_code"]


def _of_run(done: experiments.RunResult) -> tuple[list[str], dict[str, Any]]:
    """How it ended, for people and for programs."""
    result, run = done.result, shlex.quote(os.path.relpath(done.directory))
    directory = experiments.RunDirectory(done.directory)
    info = directory.info
    lines = [] if result.evaluation is None else [f"evaluation  {result.evaluation}"]
    if result.best_return is not None:
        played = result.evaluation is not None and result.evaluation.against_best is not None
        best = "the winner against those before it" if played else readable(result.best_return)
        lines.append(f"best        {best}: the policy that eval and play use")
    if "resume" in info:
        why = ", and ".join(info.get("resume_reasons", []))
        how = {"exact": "exact, as if it had never stopped"}.get(info["resume"], f"{info['resume']}: {why}")
        changed = "; with other settings since" if info.get("overrides") else ""
        lines.append(f"resumed     at {info['resumed_at']:,} {directory.config.unit}, {how}{changed}")
    lines += [f"not logged  {missing}" for missing in result.not_logged]
    if result.status in ("stopped", "interrupted"):
        why = f": {result.reason}" if result.reason else "; saved"
        lines.append(f"stopped after {result.env_steps:,} {directory.config.unit}{why}")
    lines.append(f"run         {run}   ({result.train_s:.1f} s of training)")
    if result.status == "interrupted":
        lines.append(f"next        palaestra resume {run}")
    else:
        which = "" if result.best_return is not None else " --which last"  # nothing was evaluated
        lines.append(f"next        palaestra play {run}{which}")
        lines.append(f"            palaestra eval {run} --episodes 100{which}")
        if (done.directory / "tensorboard").is_dir():
            lines.append(f"            tensorboard --logdir {shlex.quote(os.path.relpath(done.directory.parent))}")
    if (done.directory / "report.html").is_file():
        lines.append(f"report      {run}/report.html")
    names = ("status", "reason", "exit_code", "env_steps", "best_return")
    record = {name: getattr(result, name) for name in names}
    evaluation = result.evaluation and asdict(result.evaluation)
    return lines, {**record, "unit": done.unit, "evaluation": evaluation}


def _of_group(done: experiments.GroupResult) -> tuple[list[str], dict[str, Any]]:
    """How it ended, for people and for programs."""
    group = shlex.quote(os.path.relpath(done.directory))
    lines = [*experiments.group_summary(done), f"group       {group}"]
    if done.exit_code:
        lines.append(f"next        palaestra resume {group}")
    else:
        lines.append(f"next        palaestra plot {group}")
        lines += [f"            palaestra {verb} {group}" for verb in ("eval", "report")]
    unit = experiments.RunDirectory(done.seeds[0].directory).config.unit
    parts = [{**asdict(seed), "directory": str(seed.directory), "unit": unit} for seed in done.seeds]
    return lines, {"exit_code": done.exit_code, "seeds": parts}
