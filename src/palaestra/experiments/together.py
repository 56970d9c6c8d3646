"""`train_together`: runs that differ in their seeds and numbers only, as a population in one graph."""

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.config.presets import algorithm_name, preset
from palaestra.core import ConfigError, PalaestraError, trust
from palaestra.envs.env_config import env_name
from palaestra.experiments.run import active, end_with_parent, ended, require_same_task
from palaestra.experiments.seeds import GroupResult, seeds_of, train_members
from palaestra.runs.build import make_learner
from palaestra.runs.run_directory import RunDirectory
from palaestra.runs.together import as_member, population
from palaestra.training import StopSignals, run_together

__all__ = ["train_together"]


def train_together(
    algorithm: str,
    env: str | Callable[..., Any],
    /,
    *,
    seeds: int | Sequence[int],
    members: Sequence[Mapping[str, Any]] = ({},),
    progress: bool = False,
    **settings: Any,
) -> list[GroupResult]:
    """Trains several seeds, and settings that are numbers, side by side in one graph.

    A run each, as `train(..., seeds=...)` makes them; each ends as it would alone, up to rounding. For environments
    that are tensors, on the CPU, and algorithms that state a loss.

    Args:
        algorithm: see `train`.
        env: see `train`.
        seeds: how many, counted up from `run.seed`; or which. Of each of `members`.
        members: numbers of the algorithm in which the runs differ, such as
            `[{"algorithm__learning_rate": 1e-3}, {"algorithm__learning_rate": 3e-4}]`.
        progress: see `train`.
        settings: of all runs, see `train`.

    Returns:
        For each of `members`, how its seeds ended: a group directory that `palaestra stats`, `eval` and `report` take.

    Raises:
        ConfigError: a setting is wrong, or a population cannot have it; nothing has been started then.
    """
    algorithm, name = algorithm_name(algorithm), env_name(env)
    base = settings.pop("config", None) or preset(algorithm, name)
    require_same_task(base, algorithm, name)
    config = config_from_mapping(ExperimentConfig, {**settings, "run__together": True}, base=base)
    if not members:
        raise ConfigError("members is empty; give a mapping of settings for each, or leave it out for seeds alone")
    configs = [config_from_mapping(ExperimentConfig, dict(one), base=config) for one in members]
    return train_members(configs, seeds_of(config, seeds), progress=progress)


def members_process(runs: str, *path: str) -> int:
    """Trains runs of a group together, in a process of their own; returns the exit code.

    Args:
        runs: their run directories, which exist: a JSON list.
        path: entries of the Python path that the parent had.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s  %(message)s")
    sys.path += [entry for entry in path if entry not in sys.path]
    threading.Thread(target=end_with_parent, daemon=True).start()
    folders = [Path(run) for run in json.loads(runs)]
    for folder in folders:
        trust(folder)  # the parent has read it
    try:
        with StopSignals(second_ends=False):  # the parent passes on what everybody may have been sent
            return _train([RunDirectory(folder) for folder in folders])
    except PalaestraError as error:
        sys.stderr.write(f"{type(error).__name__}  {error}\n")
        return error.exit_code
    except KeyboardInterrupt as error:
        return getattr(error, "exit_code", 130)


def _train(directories: Sequence[RunDirectory]) -> int:
    learners = [make_learner(directory.config) for directory in directories]
    for learner in learners:
        as_member(learner)
    runs = [ExitStack() for _ in directories]
    codes: list[int] = []
    with ExitStack() as rest:  # where all break off, each run is told so
        for run in runs:
            rest.push(run)
        trainers = [
            run.enter_context(active(directory, learner, learner.load_data()))
            for run, directory, learner in zip(runs, directories, learners, strict=True)
        ]
        together, unroll = population(learners, trainers)
        ends = run_together(trainers, together, unroll)
        for directory, trainer, run, end in reversed(list(zip(directories, trainers, runs, ends, strict=True))):
            if isinstance(end, PalaestraError):
                codes.append(end.exit_code)
                try:
                    run.__exit__(type(end), end, end.__traceback__)
                except PalaestraError as error:
                    sys.stderr.write(f"{directory.path}: {type(error).__name__}  {error}\n")
            else:
                codes.append(ended(directory, trainer, end).result.exit_code)
    return max(codes)
