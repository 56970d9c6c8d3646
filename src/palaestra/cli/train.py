"""`palaestra train`, `resume` and `eval`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from palaestra.cli.options import parse, positional
from palaestra.core import ConfigError
from palaestra.experiments import (
    ExperimentConfig,
    RunResult,
    config_to_mapping,
    evaluate_run,
    find_run,
    load_config,
    preset,
    require_same_task,
)
from palaestra.experiments import resume as resume_run
from palaestra.experiments import run as run_experiment
from palaestra.training import ConsoleLogger

__all__ = ["evaluate", "resume", "train"]


def train(arguments: list[str]) -> int:
    """Trains an agent.

    Args:
        arguments: what was typed after the verb.
    """
    import yaml

    usage = "palaestra train ALGORITHM ENVIRONMENT [--config FILE] [--print-config] [options]"
    arguments, config_file = _take(arguments, "--config")
    print_config = "--print-config" in arguments
    arguments = [a for a in arguments if a != "--print-config"]
    if config_file is not None and (not arguments or arguments[0].startswith("-")):
        base, rest = load_config(config_file), arguments
    else:
        (algorithm, env), rest = positional(arguments, ("the algorithm", "the environment"), usage)
        base = preset(algorithm or "ppo", env or "CartPole-v1")
        if config_file is not None:
            base = load_config(config_file, base=base)
            require_same_task(base, algorithm, env)
    config = parse(
        ExperimentConfig,
        rest,
        prog=f"palaestra train {base.algorithm_name} {base.env.name}",
        default=base,
        description=f"{usage}. Schedules: a number, or 'linear(start, end)'.",
    )
    if print_config:
        sys.stdout.write(yaml.safe_dump(config_to_mapping(config), sort_keys=False))
        return 0
    console = Console()
    logger = ConsoleLogger(f"{config.algorithm_name} on {config.env.name}", config.trainer.total_env_steps, console)

    def announce(path: Path) -> None:
        console.print(f"run         {os.path.relpath(path)}", highlight=False, soft_wrap=True, markup=False)

    return _report(run_experiment(config, loggers=[logger], on_start=announce), console)


def _take(arguments: list[str], option: str) -> tuple[list[str], str | None]:
    """Takes one option with its value out of the arguments."""
    for i, argument in enumerate(arguments):
        if argument == option:
            if i + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value")
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
        if argument.startswith(f"{option}="):
            return arguments[:i] + arguments[i + 1 :], argument.split("=", 1)[1]
    return arguments, None


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Options of `palaestra resume`."""

    root: str = "runs"
    """Where runs are."""


def resume(arguments: list[str]) -> int:
    """Goes on with a run.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the run",), "palaestra resume RUN, or palaestra resume last")
    options = parse(ResumeOptions, rest, prog="palaestra resume RUN")
    directory = find_run(name, options.root)
    config, console = directory.config, Console()
    console.print(f"resuming {directory.path}", highlight=False, soft_wrap=True)
    logger = ConsoleLogger(f"{config.algorithm_name} on {config.env.name}", config.trainer.total_env_steps, console)
    return _report(resume_run(str(directory.path), loggers=[logger]), console)


def _report(done: RunResult, console: Console) -> int:
    result, run = done.result, shlex.quote(os.path.relpath(done.directory))
    lines = []
    if result.evaluation is not None:
        lines.append(f"evaluation  {result.evaluation}")
        lines.append(f"best        {result.best_return:.1f}: the policy that eval and play use")
    if result.status == "interrupted":
        lines.append(f"stopped after {result.env_steps:,} env steps; saved")
    lines.append(f"run         {run}   ({result.train_s:.1f} s of training)")
    if result.status == "interrupted":
        lines.append(f"next        palaestra resume {run}")
    else:
        lines.append(f"next        palaestra play {run}")
        lines.append(f"            palaestra eval {run} --episodes 100")
        lines.append(f"            tensorboard --logdir {shlex.quote(os.path.relpath(done.directory.parent))}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return result.exit_code


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `palaestra eval`."""

    episodes: int = 20
    """How many episodes."""
    seed: int | None = None
    """Seed of the environments; by default the run's own evaluation seeds."""
    stochastic: bool = False
    """Sample actions instead of taking the best."""
    json: bool = False
    """Print JSON."""
    root: str = "runs"
    """Where runs are."""


def evaluate(arguments: list[str]) -> int:
    """Evaluates the policy of a run.

    Args:
        arguments: what was typed after the verb.
    """
    (name,), rest = positional(arguments, ("the run",), "palaestra eval RUN [--episodes N]")
    options = parse(EvalOptions, rest, prog="palaestra eval RUN")
    if options.episodes < 1:
        raise ConfigError(f"--episodes is {options.episodes}; it must be at least 1")
    result = evaluate_run(
        name, root=options.root, episodes=options.episodes, seed=options.seed, deterministic=not options.stochastic
    )
    if options.json:
        sys.stdout.write(json.dumps({"run": str(find_run(name, options.root).path), **asdict(result)}) + "\n")
    else:
        sys.stdout.write(f"{find_run(name, options.root).path}  {result}\n")
    return 0
