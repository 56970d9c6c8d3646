"""`train_together`: runs that differ in their seeds and numbers only, as a population in one graph.

And the processes in which the runs of groups train, one by one or together.
"""

import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.config.presets import AlgorithmOrName
from palaestra.core import CheckpointError, ConfigError, PalaestraError, readable, trust
from palaestra.core.files import read_json
from palaestra.experiments.pbt import Exploit, PbtMember, Selection
from palaestra.experiments.run import active, asked_config, ended
from palaestra.experiments.seeds import GroupResult, seeds_of, train_members
from palaestra.runs import RunDirectory, make_learner
from palaestra.runs.together import as_member, population
from palaestra.training import StopSignals, run_together
from palaestra.training.checkpoints import step_of

__all__ = ["group_summary", "train_together"]


def train_together(
    algorithm: AlgorithmOrName,
    env: Any,
    /,
    *,
    config: ExperimentConfig | None = None,
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
        config: see `train`.
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
    config = asked_config(algorithm, env, config, {**settings, "run__together": True})
    if not members or isinstance(members, Mapping):
        raise ConfigError(f"members is {members!r}; give a list with a mapping of settings for each, or leave it out")
    configs = [config_from_mapping(ExperimentConfig, dict(one), base=config) for one in members]
    return train_members(configs, [seeds_of(config, seeds)] * len(configs), progress=progress)


def seed_process(asked: str, *path: str) -> int:
    """Trains one seed of a group, or continues it, in a process of its own; returns the exit code.

    Args:
        asked: its run directory, which exists, and whether it was trusted, as for `members_process`.
        path: the Python path of the parent; the user's environment may lie there.
    """
    given = json.loads(asked)

    def train_it(directory: RunDirectory) -> int:
        learner, resumed = make_learner(directory.config), directory.status != "created"
        with active(directory, learner, learner.load_data(), resumed=resumed) as trainer:
            return ended(directory, trainer, trainer.run()).result.exit_code

    return child_process(lambda: train_it(RunDirectory(Path(given["runs"][0]))), given["trusted"], path)


def child_process(train_them: Callable[[], int], trusted: Sequence[str], path: Sequence[str]) -> int:
    """A process that trains runs for its parent, from the beginning to the exit code.

    Args:
        train_them: returns the exit code.
        trusted: run directories that the parent trusts; others are refused here as there.
        path: the Python path of the parent.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s  %(message)s")
    sys.path[:] = path
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for run in trusted:
        trust(run)
    for number in (signal.SIGTTIN, signal.SIGTTOU):  # a terminal stops what reads it and is not in its foreground
        signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals(second_ends=False):  # the parent passes on what everybody may have been sent
            return train_them()
    except PalaestraError as error:
        sys.stderr.write(f"{type(error).__name__}  {error}\n")
        return error.exit_code
    except KeyboardInterrupt as error:
        return getattr(error, "exit_code", 130)


def _end_with_parent() -> None:
    """The pipe from the parent ends when the parent does; what has been learned is saved then."""
    with suppress(OSError):
        while os.read(0, 4096):  # not `sys.stdin`, whose lock would be held when the interpreter ends
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def members_process(asked: str, *path: str) -> int:
    """Trains runs of a group together, or goes on with them, in a process of their own; returns the exit code.

    Args:
        asked: as JSON, their run directories, which exist; those that the parent trusts; and the selection of
            population-based training or none.
        path: the Python path of the parent.
    """
    given = json.loads(asked)
    selection = given["selection"] and Selection.from_json(given["selection"])

    def train_them() -> int:
        return train_directories([RunDirectory(Path(run)) for run in given["runs"]], selection)

    return child_process(train_them, given["trusted"], path)


def train_directories(runs: Sequence[RunDirectory], selection: Selection | None = None) -> int:
    """Trains runs together, or goes on with them; returns the highest exit code.

    Args:
        runs: their directories; those that failed, or ended before their budget was used, stay as they are.
        selection: of population-based training.

    Raises:
        CheckpointError: they have no checkpoints of one iteration to go on from.
    """
    resumed = any(run.status != "created" for run in runs)
    left = [run for run in runs if not run.info.get("reason")] if resumed else runs
    directories = [run for run in left if run.status != "failed"] or left  # all of them failed by what they share
    going_on = [run for run in directories if run.status != "done"] if resumed else []
    _level(going_on)
    learners = [make_learner(directory.config) for directory in directories]
    for learner in learners:
        as_member(learner, len(learners))
    lineages = [PbtMember(directory, selection) for directory in directories] if selection else []
    stacks = [ExitStack() for _ in directories]
    codes: list[int] = []
    with ExitStack() as rest:  # where all break off, each run is told so
        for stack in stacks:
            rest.push(stack)
        trainers = [
            stack.enter_context(
                active(directory, learner, learner.load_data(), resumed=resumed, callbacks=lineages[place : place + 1])
            )
            for place, (stack, directory, learner) in enumerate(zip(stacks, directories, learners, strict=True))
        ]
        if len({max(_saved(run), default=0) for run in going_on}) > 1:
            raise CheckpointError("checkpoints of a population are damaged; train its members anew")
        together, unroll = population(learners, trainers)
        exploit = [Exploit(selection, trainers, lineages, together)] if selection else []
        ends = run_together(trainers, together, unroll, *exploit)
        for directory, trainer, stack, end in reversed(list(zip(directories, trainers, stacks, ends, strict=True))):
            if isinstance(end, PalaestraError):
                codes.append(end.exit_code)
                try:
                    stack.__exit__(type(end), end, end.__traceback__)
                except PalaestraError as error:
                    sys.stderr.write(f"{directory.path}: {type(error).__name__}  {error}\n")
            else:
                codes.append(ended(directory, trainer, end).result.exit_code)
    return max(codes)


def _level(directories: Sequence[RunDirectory]) -> None:
    """Takes away checkpoints that not all of the runs have, which were made last where a process was killed."""
    saved = [_saved(directory) for directory in directories]
    newest = max(set.intersection(*map(set, saved)), default=-1) if saved else -1
    for directory, own in zip(directories, saved, strict=True):
        for iteration, path in own.items():
            if iteration > newest:
                shutil.rmtree(path)
        if own and newest < 0:
            logging.getLogger(__name__).warning(
                "%s begins anew: its population has no checkpoints of one iteration", directory.path
            )
            directory.write_info({"saved": False, "resumed_at": None, "env_steps": None})


def _saved(directory: RunDirectory) -> dict[int, Path]:
    """Whole checkpoints by their iteration: env steps of an iteration differ where some rows only begin episodes."""
    found: dict[int, Path] = {}
    for path in directory.checkpoints().steps():
        if (path / "manifest.json").is_file():
            with suppress(CheckpointError):  # a damaged one counts as none
                trainer = read_json(path / "state.json")["trainer"]
                found[trainer.get("iterations", step_of(path))] = path
    return found


def group_summary(done: GroupResult) -> list[str]:
    """What to say about a group that has ended: one line for each seed that did not come to its end.

    Args:
        done: from `train_seeds`.
    """
    lines: list[str] = []
    for seed in done.seeds:
        if seed.status != "done":
            steps = f"{seed.status} after {seed.env_steps:,} {RunDirectory(seed.directory).config.unit}"
            status, detail = "has not begun" if seed.status == "created" else steps, seed.error and f": {seed.error}"
            lines.append(f"seed {seed.seed} {status}{detail or ''}")
    best = [seed.best_return for seed in done.seeds if seed.best_return is not None]
    if best:
        mean = f"{readable(sum(best) / len(best))}, mean of {len(best)} of {len(done.seeds)} seeds"
        lines.append(f"highest evaluation, by which the policy was chosen: {mean}")
    return lines
