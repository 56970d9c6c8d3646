"""A receipt for a run: its last iterations computed again from a checkpoint, and every bit compared."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.buffers.saving import without_leftovers
from palaestra.core import CheckpointError, ConfigError, PackedRows, PalaestraError, left_as_found, refuses
from palaestra.core.files import temporary_folder
from palaestra.experiments.run import active
from palaestra.runs import RunDirectory, find_run, make_learner
from palaestra.runs.computed import computed_by, differences, sessions
from palaestra.runs.lineage import copy_results
from palaestra.training import StoppedError, StopSignals, Trainer
from palaestra.training.checkpoints import step_of
from palaestra.training.learning import computing_at_speed

__all__ = ["Receipt", "verify_run"]

_OF_THE_CLOCK = {"seconds", "callbacks"}
_OF_THE_END = {
    *("position", "metrics", "next", "evaluation", "evaluations", "evaluation_broken_off"),
    *("best", "finished", "stopping"),
}
"""Of a trainer's state, what the last evaluation and the last row of metrics change where a run was stopped."""


@dataclass(frozen=True)
class Receipt:
    """What computing the last iterations of a run again has come to."""

    run: str
    """Its directory."""
    begins: int
    """Env steps of the checkpoint that was gone on from; 0 where all was trained again."""
    ends: int
    """Env steps of the last checkpoint that was compared."""
    iterations: int
    """Training iterations between them, as metrics count them. The last time step of an episode takes a row of an
    unroll and is no env step, so there are some more than env steps by the size of an unroll."""
    compared: tuple[int, ...]
    """Env steps of the checkpoints that were compared."""
    other_bits: tuple[str, ...]
    """Entries of the run's state whose bits differ, with the env steps; the first twenty. None in a good receipt."""
    machine: Mapping[str, tuple[Any, Any]]
    """Versions, processor and threads that differ, by name: then, and here."""
    unit: str
    """What the run counts; `env steps` are updates where it is `updates`."""

    @property
    def ok(self) -> bool:
        """Whether every bit is the same."""
        return not self.other_bits

    def __str__(self) -> str:
        lines = [f"other bits  {one}" for one in self.other_bits]
        lines += [f"machine     {name}: {old} then, {new} here" for name, (old, new) in self.machine.items()]
        what = f"{self.iterations:,} iterations, {self.unit} {self.begins:,} to {self.ends:,}"
        if self.ok:
            said = "verified: weights, optimizers, buffers, random streams and environments are the same, bit for bit"
        elif self.machine:
            said = "not verified: what computed it is named above, and its sums may round otherwise; try the same"
        else:
            said = "not verified: the machine is of the same kind, and the bits are others; has the code changed since?"
        return "\n".join([*lines, f"replayed    {what}", f"{self.run}  {said}"])

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, and `ok`."""
        return {**vars(self), "ok": self.ok}


def verify_run(
    name: str | Path,
    *,
    iterations: int | None = None,
    from_start: bool = False,
    root: str | Path = "runs",
    on_start: Callable[[int, int], None] | None = None,
) -> Receipt:
    """Computes the last iterations of a run again, from one of its checkpoints, and compares all later ones with them.

    Nothing is written into the run's directory. What is compared is everything that the rest of the run depends on:
    weights, optimizers, replay buffers, random streams, environments, normalisers, counters, schedules.

    Args:
        name: path or name of the run, or `last`.
        iterations: so many at least; by default those since the checkpoint before the newest.
        from_start: trains the whole run again instead.
        on_start: called with the env steps (or updates) at which the replay begins and ends.

    Raises:
        CheckpointError: there is no such run, or no checkpoint that is far enough back; the message says what to do.
        ConfigError: the run cannot be replayed: it still trains, settings changed on the way, or it did not resume
            exactly.
        StoppedError: a signal ended the replay.
    """
    if iterations is not None and iterations < 1:
        raise ConfigError(f"iterations is {iterations}; give at least 1")
    if from_start and iterations is not None:
        raise ConfigError(f"iterations is {iterations}, and from_start replays all; give one of the two")
    run = find_run(name, root)
    if run.in_use:
        raise ConfigError(
            f"{run.path} still trains, and deletes the checkpoints that a replay is compared with; wait until it has "
            "ended, or stop it"
        )
    begin, targets = _span(run, iterations, from_start=from_start)
    last = max(targets)
    fewer = "leave out --from-start" if from_start else "" if iterations is None else "give fewer --iterations"
    _require_unchanged(run, begin, last, f"{fewer}, or " * bool(fewer))
    if on_start is not None:
        on_start(begin, last)
    with temporary_folder("verification") as folder:
        try:
            found, here = _replayed(run, folder, begin, targets)
        except PalaestraError as error:
            error.__notes__ = []  # what to look at and to resume in a folder that is gone
            raise
    if not found:
        raise CheckpointError(
            f"the checkpoints of {run.path} at {', '.join(map(str, targets))} {run.config.unit} are of a signal in "
            "the middle of an unroll, where no replay stops; give more --iterations, or resume the run to its next one"
        )
    others = [f"{path} at {step:,} {run.config.unit}" for step, paths in found.items() for path in paths][:20]
    machine = {name: pair for one in _of_span(run, begin, last) for name, pair in differences(one, here).items()}
    count = _iterations(run, max(found)) - (_iterations(run, begin) if begin else 0)
    return Receipt(str(run.path), begin, max(found), count, tuple(found), tuple(others), machine, run.config.unit)


def _span(run: RunDirectory, iterations: int | None, *, from_start: bool) -> tuple[int, list[int]]:
    """Env steps at which the replay begins, and of the checkpoints after that."""
    steps = [step_of(path) for path in run.checkpoints().steps()]
    steps = [step for step in steps if step]  # one of the initial state says nothing that the seed does not
    if from_start and steps:
        return 0, steps
    if from_start:
        raise CheckpointError(f"{run.path} has no checkpoint that a replay could be compared with")
    if len(steps) < 2:
        again = "--from-start trains it again from its seed, and " if steps else ""
        raise CheckpointError(
            f"{run.path} has {'one checkpoint' if steps else 'no checkpoint'}, so there is nothing to replay from to "
            f"another; {again}--trainer.checkpoint-every-steps saves more often"
        )
    reached = {step: _iterations(run, step) for step in steps}
    wanted = 1 if iterations is None else iterations
    far = [step for step in steps[:-1] if reached[steps[-1]] - reached[step] >= wanted]
    if not far:
        most = reached[steps[-1]] - reached[steps[0]]
        raise CheckpointError(
            f"{run.path} keeps {len(steps)} checkpoints, of which the oldest is {most:,} iterations before the newest, "
            f"and --iterations is {wanted:,}; give at most {most:,}, or --from-start, or train with a larger "
            "--trainer.keep-checkpoints"
        )
    return far[-1], steps[steps.index(far[-1]) + 1 :]


def _iterations(run: RunDirectory, step: int) -> int:
    return int(_state(run, step)["trainer"]["iterations"])


def _state(run: RunDirectory, step: int) -> dict[str, Any]:
    store = run.checkpoints()
    return store.load(store.directory / f"step_{step:010d}")[1]


def _of_span(run: RunDirectory, begin: int, end: int) -> list[dict[str, Any]]:
    """The sessions that computed what lies between."""
    known = sessions(run.info)
    ends = [*(one["env_steps"] for one in known[1:]), end]
    return [one for one, until in zip(known, ends, strict=True) if until > begin and one["env_steps"] < end]


@refuses(ConfigError)
def _require_unchanged(run: RunDirectory, begin: int, end: int, fewer: str) -> Iterator[str]:
    """Refuses what one configuration does not compute.

    Args:
        fewer: what to do to replay less, if anything.

    Raises:
        ConfigError: settings changed since the beginning, or what was resumed between was not put back.
    """
    workers, of_some = run.config.distributed, run.config.env.num_ready is not None
    if workers.mode == "async" or of_some or workers.min_finished_workers not in (None, workers.num_workers):
        yield (
            f"{run.path} learned from whatever came first (mode=async, min_finished_workers, num_ready), which is in "
            "another order each time, so nothing can be replayed; leave these out in a run that is to be verified"
        )
    if run.edited:
        yield f"{run.path}/config.yaml was edited by hand, so nobody knows what the run was computed with"
    for entry in run.info.get("overrides", []):
        if entry["env_steps"] > begin:
            yield (
                f"settings of {run.path} changed at {entry['env_steps']:,} env steps ({', '.join(entry['changes'])}), "
                f"and the replay would begin at {begin:,}, before that; {fewer}train on to the next checkpoint"
            )
    for one in _of_span(run, begin, end):
        whys = _whys(one)
        if one["env_steps"] > begin and one.get("resume") == "statistical" and whys:
            yield (
                f"{run.path} went on at {one['env_steps']:,} env steps {', and '.join(whys)}, so that nothing that "
                f"begins before can be replayed; {fewer}train on"
            )


def _whys(session: Mapping[str, Any]) -> list[str]:
    """Why a session went on otherwise, but for callbacks without a state that it lacked, which may do nothing."""
    return [why for why in session.get("resume_reasons") or ["otherwise"] if "(without a state)" not in why]


@left_as_found()
def _replayed(
    run: RunDirectory, folder: Path, begin: int, targets: list[int]
) -> tuple[dict[int, list[str]], dict[str, Any]]:
    """What differs, at each checkpoint that was come to; and what the replay was computed by."""
    config = run.config
    own = dataclasses.replace(config.run, directory=str(folder), name="replay", tensorboard=False, loggers=())
    trainer_config = dataclasses.replace(config.trainer, time_limit_s=None)
    copy = RunDirectory(folder / "replay")
    copy.begin(dataclasses.replace(config, run=own, trainer=trainer_config))
    if begin:
        copy_results(run, copy, begin)
    # threads as they were; other versions and hardware are said in the receipt
    taken = {name: value for name, value in run.info.items() if name in ("threads", "onednn", "began_from")}
    now = computed_by(config.env.name, device=config.run.device)
    copy.write_info({"best_return": None, "sessions": [], "resume": None, "resume_reasons": [], **now, **taken})
    learner = make_learner(copy.config)
    found: dict[int, list[str]] = {}
    with active(copy, learner, learner.load_data(), resumed=begin > 0) as trainer:
        if copy.info["resume"] == "statistical" and _whys(copy.info):
            raise ConfigError(
                f"{run.path} cannot be replayed from {begin:,} env steps, for it would go on "
                f"{', and '.join(copy.info['resume_reasons'])}; --from-start trains it again from its seed"
            )
        stopped = run.info.get("status") == "stopped"
        for step in _boundaries(trainer, max(targets), stops=stopped):
            if step in targets:
                found[step] = _differing(run, copy, step, trainer.state())
    reached = trainer.collector.env_steps
    if reached in targets and trainer.result is not None:  # the end of the run, evaluated and saved
        found[reached] = _differing(run, copy, reached, None)
    return found, copy.info


def _boundaries(trainer: Trainer, last: int, *, stops: bool) -> Iterator[int]:
    """Trains until some env step, where the run may have been stopped; halts where iterations end."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(computing_at_speed())
        stop = stack.enter_context(StopSignals(trainer.asked_to_stop, grace_s=trainer.config.grace_s))
        for _ in stack.enter_context(contextlib.closing(trainer.running(stop))):
            if not trainer.collector.unfinished:
                yield trainer.collector.env_steps
                if trainer.collector.env_steps >= last:
                    return
            trainer.train_iter()
            if stops and trainer.collector.env_steps >= last and not trainer.collector.unfinished:
                trainer.stop("the run was")  # evaluated, logged and saved
    if stop.received is not None:
        raise StoppedError("the replay is not whole, so it says nothing", stop.exit_code)


def _differing(run: RunDirectory, copy: RunDirectory, step: int, state: Mapping[str, Any] | None) -> list[str]:
    """Entries of a checkpoint that have other bits in the replay."""
    if state is not None:  # saved and read, as that of the run was
        copy.checkpoints().save(step, state, replace=True)
    here, then = _state(copy, step), _state(run, step)
    made = [one["trainer"].get("evaluation") or {} for one in (here, then)]
    for one in made:  # from the returns; its formula was another before 0.2
        one.pop("return_ci95", None)
    played = any(one.get("against_best") is not None for one in made)  # against whom, a replay cannot know
    ignored = _OF_THE_CLOCK | (_OF_THE_END if state is not None else {"best", "evaluation"} if played else set())
    for one in (here, then):
        one["trainer"] = {name: value for name, value in one["trainer"].items() if name not in ignored}
    return _other_bits(then, here, "")


def _other_bits(then: Any, here: Any, path: str) -> list[str]:
    if isinstance(then, torch.Tensor | np.ndarray):
        a, b = np.asarray(then), np.asarray(here)
        return [] if (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) else [path]
    if isinstance(then, PackedRows):
        return [] if then == here else [path]
    if hasattr(then, "items") and hasattr(here, "items"):
        then, here = (without_leftovers(one) if {"head", "field.step_type"} <= {*one} else one for one in (then, here))
        names = [name for name in {**then, **here} if name != "segments"]  # names of files, other ones each time
        lacking = [f"{path}.{name}" for name in names if name not in here]  # what later versions add is no other bit
        both = [name for name in names if name in then and name in here]
        return [*lacking, *(one for name in both for one in _other_bits(then[name], here[name], f"{path}.{name}"))]
    if isinstance(then, list | tuple) and isinstance(here, list | tuple) and len(then) == len(here):
        pairs = enumerate(zip(then, here, strict=True))
        return [one for number, (a, b) in pairs for one in _other_bits(a, b, f"{path}.{number}")]
    return [] if json.dumps(then, default=repr) == json.dumps(here, default=repr) else [path]
