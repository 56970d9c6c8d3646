"""What a trainer keeps count of while it learns: whose turn it is, averages of metrics, skipped updates."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from palaestra.algorithms import Algorithm, UpdateInfo
from palaestra.core import ConfigError, DataSource, NonFiniteError, ShapeError, save_tensors, scheduled_values
from palaestra.core.files import split_state
from palaestra.rollout import CollectInfo, Evaluation
from palaestra.runtime import keep_freed_memory
from palaestra.training.parts import DataCollector, PolicyManager, SelfPaced, Updated, part_name, policy_folder

__all__ = ["Averages", "LearningRecord", "RunStatus", "TrainResult", "ask_for_episodes"]

RunStatus: TypeAlias = Literal[
    "created", "running", "done", "interrupted", "stopped", "failed", "killed", "crashed", "unknown"
]
"""How a run is doing, or how it ended."""

# Values of a metric that wait at most. Every value is a small tensor of its own: thousands of them, kept alive between
# the large ones of the gradient steps that made them, split the heap until each step needs fresh pages.
_MOST_WAITING = 32


class Averages:
    """Running sums in float64, added up in order, so that stopping in between changes no digit.

    Examples:
        >>> averages = Averages()
        >>> averages.add([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
        >>> averages.take()
        {'loss': 1.5}
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, list[Tensor]] = {}
        self._held = 0

    def add(self, records: Iterable[Mapping[str, Tensor]]) -> None:
        """Takes records; they are added up when there are some dozens.

        Args:
            records: 0-dim tensors by name.
        """
        for record in records:
            self._held += 1
            for name, value in record.items():
                self._waiting.setdefault(name, []).append(value)
        if self._held >= _MOST_WAITING:
            self._settle()

    def take(self) -> dict[str, float]:
        """The mean of everything since the last call."""
        self._settle()
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def _settle(self) -> None:
        for name, values in self._waiting.items():
            total = self._sums.get(name, 0.0)
            if len({value.device for value in values}) > 1:  # eager updates on a GPU leave them there
                values = [value.cpu() for value in values]
            for value in torch.stack(values).tolist():
                total += value
            self._sums[name] = total
            self._counts[name] = self._counts.get(name, 0) + len(values)
        self._waiting, self._held = {}, 0

    def state(self) -> dict[str, Any]:
        """Sums and counts, as JSON values."""
        self._settle()
        return {"sums": self._sums, "counts": self._counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: from `state`.
        """
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._waiting, self._held = {}, 0


_log = logging.getLogger(__name__)
_MAX_DUMPS = 3


class PolicyRecord:
    """Counts what one policy learned, and the updates that were not applied; writes what these were made of.

    Args:
        algorithm: of the policy.
        most_skipped: updates in a row that may be skipped.
        directory: where to write `non_finite_<gradient steps>_<number>/`; `None` writes nothing.
    """

    def __init__(self, algorithm: Algorithm[Any, Any], most_skipped: int, directory: Path | None) -> None:
        self._algorithm, self._most_skipped, self._directory = algorithm, most_skipped, directory
        self.averages = Averages()
        self._rows: int | Tensor = 0  # on a GPU where they were counted there
        self._begun: tuple[UpdateInfo, int] | None = None  # with the env steps of then
        self.skipped_in_a_row = 0
        """Since the last update that was applied."""
        self.skipped = 0
        """Of the run."""
        self.acts_randomly: bool | None = None
        """In this unroll; `None` where nothing was said yet."""

    @property
    def rows_trained(self) -> int:
        """Rows learned from so far, each counted as often as it was used."""
        return int(self._rows)

    def add(self, update: UpdateInfo, env_steps: int) -> None:
        """An update was made, or has begun on a GPU.

        Args:
            update: what it did.
            env_steps: when.

        Raises:
            NonFiniteError: see `settle`.
        """
        self.settle()
        self._begun = update, env_steps
        if update.awaited is None:
            self.settle()

    def settle(self) -> None:
        """Counts an update that had only begun, when it is over.

        Raises:
            NonFiniteError: it was not finite, and there were too many in a row.
        """
        if self._begun is None:
            return
        (update, env_steps), self._begun = self._begun, None
        try:
            update.require_finite()
        except NonFiniteError as error:
            self.skip(error, env_steps)
            return
        self.skipped_in_a_row = 0
        self.averages.add(update.records)
        # a number stays one: to make tensors of it takes longer than all else here
        self._rows = self._rows + (update.rows.long() if isinstance(update.rows, Tensor) else update.rows)

    def skip(self, error: NonFiniteError, env_steps: int) -> None:
        """An update was not applied.

        Args:
            error: that says why; its `batch` and `state` are kept, and without the latter what the algorithm has now.
            env_steps: when.

        Raises:
            NonFiniteError: there were too many in a row.
        """
        self.settle()
        self.skipped_in_a_row += 1
        self.skipped += 1
        kept = self._dump(error, env_steps) if self.skipped <= _MAX_DUMPS else None
        held = "batch and the parameters" if error.batch is not None else "parameters of now, but no batch,"
        text = f"{error}; the {held} are in {kept}" if kept else f"{error}"
        if self.skipped_in_a_row > self._most_skipped:
            raise NonFiniteError(
                f"{text}. {self.skipped_in_a_row} update(s) in a row were not finite and "
                f"trainer.max_skipped_updates is {self._most_skipped}"
            ) from error
        in_a_row = self.skipped_in_a_row
        _log.warning("an update was skipped (%d in a row of at most %d): %s", in_a_row, self._most_skipped, text)

    def _dump(self, error: NonFiniteError, env_steps: int) -> Path | None:
        algorithm = self._algorithm
        if self._directory is None:
            return None
        path = self._directory / f"non_finite_{algorithm.num_gradient_steps:010d}_{self.skipped}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            values: dict[str, Any] = {}
            for name, part in {"algorithm": error.state or algorithm.state_tensors(), "batch": error.batch}.items():
                values[name], tensors = split_state(part)
                save_tensors(path / f"{name}.safetensors", tensors)
            fault = {
                "error": str(error),
                "env_steps": env_steps,
                "gradient_steps": algorithm.num_gradient_steps,
                "policy_version": algorithm.policy_version,
                "state": values,
            }
            (path / "fault.json").write_text(json.dumps(fault, indent=2) + "\n")
        except OSError as failure:  # the fault itself matters more than its copy
            _log.warning("the batch of a non-finite update cannot be kept in %s: %s", path, failure)
            return None
        return path

    def state(self) -> dict[str, Any]:
        """Counts and averages, as JSON values, with what had only begun.

        Raises:
            NonFiniteError: see `settle`.
        """
        self.settle()
        skipped = [self.skipped_in_a_row, self.skipped]
        counts = {"rows_trained": self.rows_trained, "skipped": skipped, "acts_randomly": self.acts_randomly}
        return {"averages": self.averages.state(), **counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: from `state`.
        """
        self.averages.load_state(state["averages"])
        self._rows, self._begun = state["rows_trained"], None
        self.skipped_in_a_row, self.skipped = state["skipped"]
        self.acts_randomly = state["acts_randomly"]


class LearningRecord:
    """Says which policies learn in a training iteration, and keeps count of what they learned.

    Args:
        manager: of the policies.
        max_skipped: updates in a row of one policy that may fail for a gradient that is not finite.
        faults: where to keep what such an update was made of; `None` keeps nothing.

    Raises:
        ConfigError: the plans of the policies cannot be followed in one run.
    """

    def __init__(self, manager: PolicyManager, max_skipped: int, faults: Path | None) -> None:
        algorithms = self._algorithms = manager.algorithms
        self.self_paced = isinstance(manager, SelfPaced)
        self.unroll_length = manager.unroll_length if isinstance(manager, SelfPaced) else _unroll_length(algorithms)
        """Time steps from every environment in a training iteration."""
        self._records = {
            name: PolicyRecord(one, max_skipped, None if faults is None else policy_folder(faults, name))
            for name, one in algorithms.items()
        }
        self._warm_ups = {
            name: getattr(algorithm.plan, "learning_starts", 0)
            for name, algorithm in algorithms.items()
            if not algorithm.stored_fields
        }
        self._drawn: set[str] = set()

    def acts_randomly(self, env_steps: int, *, goes_on: bool) -> frozenset[str]:
        """Policies that act at random in an unroll: they have learned nothing yet, and chance explores best.

        Args:
            env_steps: taken so far.
            goes_on: whether a part of the unroll was made; what was said at its begin holds.
        """
        for name, end in self._warm_ups.items():
            record = self._records[name]
            if not goes_on or record.acts_randomly is None:
                record.acts_randomly = env_steps < end
        return frozenset(name for name in self._warm_ups if self._records[name].acts_randomly)

    def sources(self, collector: DataCollector, info: CollectInfo, progress: float) -> dict[str, DataSource]:
        """What each policy learns from that has the data for an update.

        Args:
            collector: has the data.
            info: of the unroll before.
            progress: that schedules of algorithms are at, in [0, 1]; those of samplers go with them.
        """
        if self.self_paced:
            return {}
        found: dict[str, DataSource] = {}
        updates = getattr(collector, "updates_made", 0)  # on loaded data alone, counted as env steps
        taken = collector.env_steps - updates
        for name, algorithm in self._algorithms.items():
            new_rows = info.rows_of.get(name, info.rows)
            ready = algorithm.plan.may_learn(env_steps=taken, new_rows=new_rows, num_lanes=collector.num_lanes)
            if (name in info.rows_of and not new_rows) or not (ready or (updates and not taken)):
                continue
            source = collector.sources[name]
            whole = algorithm.plan.data == "replay" and _of_whole_episodes(source)
            if (name in info.rows_of or whole) and not self._can_draw(name, source):
                continue
            found[name] = source
            if (follow := getattr(source, "set_progress", None)) is not None:  # a sampler may follow schedules
                follow(progress)
        return found

    def _can_draw(self, name: str, source: DataSource) -> bool:
        """Whether any row can be learned from: there are few of agents that act seldom, or of episodes that ended."""
        plan, starts = self._algorithms[name].plan, getattr(source, "starts", None)
        if name in self._drawn or starts is None:
            return True
        try:
            starts(plan.window)
        except ShapeError:
            return False
        if plan.data != "on-policy":  # a buffer that is kept has rows from now on
            self._drawn.add(name)
        return True

    def add(self, results: Mapping[str, Updated | Sequence[Updated]], env_steps: int) -> dict[str, UpdateInfo]:
        """Counts what updates did.

        Args:
            results: see `PolicyManager.update`.
            env_steps: of the run.

        Returns:
            What was learned, by policy; several updates of one as one.

        Raises:
            NonFiniteError: too many updates of a policy in a row were not finite.
        """
        learned: dict[str, UpdateInfo] = {}
        for name, result in results.items():
            for one in result if isinstance(result, Sequence) else (result,):
                if isinstance(one, NonFiniteError):
                    self._records[name].skip(one, env_steps)
                else:
                    self._records[name].add(one, env_steps)
                    learned[name] = one if name not in learned else _joined(learned[name], one)
        return learned

    def metrics(self, progress: float) -> dict[str, float]:
        """For a row of metrics: `learning/...` since the last call, or `learning/<policy>/...` of several policies.

        Settings that follow a schedule are among them, as they are at this `progress`.

        Raises:
            NonFiniteError: too many updates of a policy in a row were not finite.
        """
        for record in self._records.values():
            record.settle()
        algorithms = {id(one): one for one in self._algorithms.values()}.values()  # tasks of a robot may share one
        row: dict[str, float] = {
            "policy_version": max(algorithm.policy_version for algorithm in algorithms),
            "gradient_steps": sum(algorithm.num_gradient_steps for algorithm in algorithms),
            "rows_trained": sum(record.rows_trained for record in self._records.values()),
            "updates_skipped": sum(record.skipped for record in self._records.values()),
        }
        for policy, record in self._records.items():
            prefix = part_name("learning", policy, "/")
            found = scheduled_values(self._algorithms[policy].config, progress) | record.averages.take()
            row |= {f"{prefix}/{name}": value for name, value in found.items()}
        return row

    def state(self) -> dict[str, Any]:
        """Counts and averages by policy, as JSON values.

        Raises:
            NonFiniteError: too many updates of a policy in a row were not finite.
        """
        return {name: record.state() for name, record in self._records.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a run with the same policies.
        """
        for name, saved in state.items():
            self._records[name].load_state(saved)


def _joined(first: UpdateInfo, then: UpdateInfo) -> UpdateInfo:
    steps, rows = first.gradient_steps + then.gradient_steps, first.rows + then.rows
    return UpdateInfo(then.policy_version, steps, rows, [*first.records, *then.records])


def _unroll_length(algorithms: Mapping[str, Algorithm[Any, Any]]) -> float:
    """That of the on-policy plans, which must agree; else that of the others; none is collected offline."""
    lengths: dict[str, dict[str, float]] = {}
    for name, algorithm in algorithms.items():
        lengths.setdefault(algorithm.plan.data, {})[name] = getattr(algorithm.plan, "unroll_length", 0.0)
    if (offline := lengths.get("offline")) and len(lengths) > 1:
        raise ConfigError(f"{', '.join(offline)} learns offline, where nothing is collected for the other policies")
    chosen = lengths.get("on-policy") or next(iter(lengths.values()))
    if len(set(chosen.values())) > 1:
        given = ", ".join(f"{name}: {length:g}" for name, length in chosen.items())
        raise ConfigError(f"all policies of a run learn from the same unrolls, but their unroll_length is {given}")
    return float(next(iter(chosen.values())))


@runtime_checkable
class _WholeEpisodes(Protocol):
    episodes: int | None
    num_lanes: int


def ask_for_episodes(collector: DataCollector, number: int | None) -> None:
    """Lets unrolls be whole episodes, as many of each environment.

    Args:
        collector: of the run.
        number: of episodes in an unroll, over all environments; `None` leaves unrolls as they are.

    Raises:
        ConfigError: the collector collects time steps only, or the environments cannot share the episodes evenly.
    """
    if number is None:
        return
    if not isinstance(collector, _WholeEpisodes):
        raise ConfigError(
            f"trainer.episodes_per_iteration is {number}, but a {type(collector).__name__} cannot collect whole "
            "episodes, which is for one policy that acts in environments or in workers; leave it out"
        )
    collector.episodes = episodes_of_each(number, collector.num_lanes)


def episodes_of_each(number: int, num_lanes: int) -> int:
    """How many episodes of an unroll each environment plays.

    Args:
        number: of episodes in an unroll.
        num_lanes: environments.

    Raises:
        ConfigError: they cannot share the episodes evenly.
    """
    if number % num_lanes:
        raise ConfigError(
            f"trainer.episodes_per_iteration is {number}, which {num_lanes} environments cannot share evenly: were the "
            f"first to end counted, short episodes would come too often. Give a multiple of {num_lanes}, or another "
            "env.num_envs"
        )
    return number // num_lanes


def _of_whole_episodes(source: Any) -> bool:
    return bool(getattr(source, "options", {}).get("complete_episodes_only"))


def is_best(
    evaluation: Evaluation, before: float | None, best_at: int | None, algorithms: Mapping[str, Algorithm[Any, Any]]
) -> bool:
    """Whether an evaluation counts as the best. With constraints the newest does: returns do not tell how they are met.

    Where its policies played those of the best before it, the winner does; where they played others, for another one
    became the best while they did, the best stays. Of returns that are equal but for rounding the newest does.

    Args:
        evaluation: that was made.
        before: return of the best before it.
        best_at: env steps of that, where known.
        algorithms: that learn, by policy name.
    """
    constrained = any(one.rewards is not None and one.rewards.learns for one in algorithms.values())
    if constrained or before is None or math.isnan(before):
        return True
    won = evaluation.against_best
    if won is not None and best_at is not None and evaluation.rival_at != best_at:
        return False
    return won > 0.5 if won not in (None, 0.5) else evaluation.return_mean >= before - 1e-9 * abs(before) - 1e-12


@contextmanager
def computing_at_speed() -> Iterator[None]:
    """Freed memory is kept, and tiny numbers are 0: moments of resting weights become such, and CPUs slow with them."""
    keep_freed_memory()
    before = torch.finfo(torch.float64).tiny / 2 == 0  # which nothing else tells
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@dataclass(frozen=True)
class TrainResult:
    """Result of a run."""

    status: RunStatus
    """`done`: the budget was used; `stopped`: something asked for the end before; `interrupted`: a signal came."""
    exit_code: int
    """0, or after a signal one of `STOP_CODES`."""
    env_steps: int
    """Env steps taken in all."""
    train_s: float
    """Seconds of collecting and learning, without evaluation and checkpoints."""
    evaluation: Evaluation | None
    """The last one."""
    best_return: float | None = None
    """The best mean return of all of them."""
    reason: str = ""
    """Why it stopped before its budget was used."""
    not_logged: tuple[str, ...] = ()
    """What loggers missed, a sentence for each."""
