"""Replay in shards: rows lie in workers, and one sampler here draws from all of them as from one buffer."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from palaestra.algorithms import Algorithm
from palaestra.buffers import MainMemory, ReplayBuffer, RowOptions, Sampler, Unroll, Windows, sampler_of
from palaestra.buffers.drawn import OVER_TIME, row_index
from palaestra.buffers.saving import fields_of, shards_of
from palaestra.buffers.streams import index_options, index_rows
from palaestra.core import Batch, CheckpointError, ConfigError, Plan, Replay, RowsLostError, ShapeError, files
from palaestra.core.tree import tree_map
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.replay_shard import ReplayShard, ShardMap, ShardPart, in_order, index_state
from palaestra.distributed.worker_group import WorkerFault, WorkersLostError
from palaestra.envs import EventLog
from palaestra.runtime import Call, Parcel, Runtime, WorkerDiedError

__all__ = ["ReplayShards", "ShardedReplay"]

_log = logging.getLogger(__name__)
_UNANSWERED = 4  # calls that a shard, with its copy, may not have answered yet


class ReplayShards:
    """The shards of a run: workers that keep rows. One that ends takes its rows along; an empty one takes its place.

    With copies, each shard is two workers that are told the same, and one of them is asked. Where one ends, the other
    is asked from then on, and fills the one in its place: nothing is lost unless both end.

    Args:
        runtime: where they live.
        algorithms: of the policies, by name; those that replay have their rows here.
        templates: by policy, buffers of any size with the lanes and options of the run.
        config: how many shards, and how long to wait for them.
    """

    def __init__(
        self,
        runtime: Runtime,
        algorithms: Mapping[str, Algorithm[Any, Any]],
        templates: Mapping[str, ReplayBuffer],
        config: DistributedConfig,
    ) -> None:
        count = config.replay_shards or 1
        together = 1 if config.address else count * (1 + config.replay_copies)
        self._runtime, self._timeout_s = runtime, config.timeout_s
        plans = {name: one.plan for name, one in algorithms.items() if isinstance(one.plan, Replay)}
        lanes = {name: templates[name].num_lanes for name in plans}
        self.map = ShardMap({name: tuple(n * lanes[name] // count for n in range(count + 1)) for name in plans})
        """Where which lanes lie."""
        self.faults = EventLog()
        """Ends of shards; a manager puts its own list here."""
        self.lost_rows = 0
        """Rows that were lost with shards, or on their way to one, over all policies."""
        self.lost_shards = self.losses = 0
        self.replays = {name: ShardedReplay(self, name, plan, templates[name]) for name, plan in plans.items()}
        """What each policy learns from."""
        self._pending: list[Call] = []
        self._ids: list[list[str]] = []  # of each shard: who is asked, and its copy
        self._empty = set[str]()  # copies that have yet to be filled
        wishes = {} if config.num_cpus is None else {"CPU": config.num_cpus}
        for number in range(count):
            parts = {name: replay.part(number, together) for name, replay in self.replays.items()}
            make = functools.partial(ReplayShard, parts)
            roles = {f"replay-{number}": f"replay shard {number + 1} of {count}"}
            if config.replay_copies:
                roles[f"replay-{number}-copy"] = f"copy of replay shard {number + 1} of {count}"
            more: dict[str, Any] = {"resources": wishes, "parcels": int(config.replay_copies)}
            self._ids.append([runtime.start(make, name=name, role=role, **more) for name, role in roles.items()])
            self.tell(number, "place", self._positions(number))
        self._hear()

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, parcels: Mapping[int, Parcel], policies: Sequence[str]) -> None:
        """Passes on rows; the indices know them already.

        Args:
            parcels: of one fragment, by shard.
            policies: whose rows are used.
        """
        for number, parcel in parcels.items():
            self.tell(number, "extend", parcel, policies)

    def keep_up(self) -> None:
        """Waits where shards are far behind. One that was lost has then lost all that the indices know of it."""
        if len(self._pending) > _UNANSWERED * len(self._ids):
            self._hear(at_least=len(self._pending) - 2 * len(self._ids))

    def tell(self, number: int, method: str, *args: Any) -> None:
        """Calls a method whose answer says nothing.

        Args:
            args: of it.
        """
        self._pending += [self._runtime.call(worker, method, *args) for worker in self._ids[number]]

    def ask(self, asked: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Calls methods of several shards at once, and waits.

        Args:
            asked: method and arguments, by shard.

        Returns:
            What each answered; a shard that was lost meanwhile, with its copy, is left out.

        Raises:
            RemoteError: a method raised.
            WorkersLostError: a shard was lost too often.
        """
        answers, losses = dict[int, Any](), self.losses
        while (left := asked.keys() - answers.keys()) and self.losses == losses:
            calls = {self.begin(number, *asked[number]): number for number in sorted(left)}
            values = self._hear(list(calls))
            answers |= {number: values[call] for call, number in calls.items() if call in values}
        return {number: answers[number] for number in asked if number in answers}

    def begin(self, number: int, method: str, *args: Any) -> Call:
        """Calls a method of a shard, for `finish`.

        Args:
            args: of it.
        """
        return self._runtime.call(self._ids[number][0], method, *args)

    def finish(self, call: Call) -> Any:
        """What a method answered.

        Raises:
            CheckpointError: the shard was lost.
        """
        values = self._hear([call])
        if call not in values:
            raise CheckpointError(f"{call.worker} was lost while its rows were saved")
        return values[call]

    def _hear(self, calls: Sequence[Call] = (), *, at_least: int | None = None) -> dict[Call, Any]:
        """Results of calls, and of those that nobody waited for."""
        waiting = [*self._pending, *calls]
        values, lost, rest = dict[Call, Any](), dict[Call, str](), set(waiting)
        for result in self._runtime.wait(waiting, at_least=at_least, timeout_s=self._timeout_s):
            rest.discard(result.call)
            if isinstance(result.error, WorkerDiedError):
                lost[result.call] = str(result.error)
                continue
            values[result.call] = result.unwrap()
            if result.call.method == "extend" and values[result.call] is not None:
                self._drop(result.call, *values[result.call])
        self._pending = [call for call in waiting if call in rest]
        if at_least is None or len(waiting) - len(rest) < at_least:  # the time is over
            late = f"did not answer within {self._timeout_s:g} s"
            lost |= {call: f"{self._runtime.status()[call.worker].name} {late}" for call in rest}
        for number in sorted({self._number(call.worker) for call in lost}):
            self._lose(number, lost)
        return values

    def _drop(self, call: Call, why: str, missing: Sequence[tuple[str, list[int], np.ndarray]]) -> None:
        """Notes that rows are lost which an index knows already; their shard has what it had."""
        number, rows = self._number(call.worker), 0
        for name, lanes, places in missing:
            self.replays[name].lose(number, lanes, places)
            rows += places.size
        what = f"{rows:,} rows of a fragment were lost on their way to a shard of replay: {why}"
        self.losses += 1
        self._note(WorkerFault(self._runtime.status()[call.worker].name, call.incarnation, what, "drop"), rows)

    def _note(self, fault: WorkerFault, rows: int) -> None:
        self.lost_rows += rows
        self.faults.append(fault)
        if fault.handled != "raise":
            _log.warning("%s", fault)

    def _number(self, worker: str) -> int:
        return next(number for number, workers in enumerate(self._ids) if worker in workers)

    def _lose(self, number: int, failed: Mapping[Call, str]) -> None:
        """Puts others instead of workers of a shard that have ended, and says what was lost.

        Args:
            failed: why, by call; those of incarnations that were replaced meanwhile say nothing.
        """
        now, ids = self._runtime.status(), self._ids[number]
        ended = {call.worker: why for call, why in failed.items() if call.incarnation == now[call.worker].incarnation}
        ended = {worker: ended[worker] for worker in ids if worker in ended}
        if not ended:
            return
        left, rows = [worker for worker in ids if worker not in ended and worker not in self._empty], 0
        what = "a shard of replay was lost, and is filled again by its copy"
        if not left:
            rows = sum(replay.forget(number) for replay in self.replays.values())
            self.losses += 1
            what = f"a shard of replay was lost, and with it the {rows:,} rows that it held"
        for worker, why in ended.items():
            fault = WorkerFault(now[worker].name, now[worker].incarnation, f"{why}: {what}", "restart")
            self._restart(worker, fault, rows)
            rows = 0
        self._ids[number] = [*left, *(worker for worker in ids if worker not in left)]
        if left:
            self.copy(number)
        else:
            self.tell(number, "place", self._positions(number))

    def _restart(self, worker: str, fault: WorkerFault, rows: int) -> None:
        """Puts an empty worker instead of one that has ended."""
        self.lost_shards += 1
        try:
            self._runtime.restart(worker, f"was ended: {fault.what}")
        except WorkerDiedError as error:
            self._note(replace(fault, what=f"{fault.what}; {error}", handled="raise"), rows)
            raise WorkersLostError(f"{fault.what}; {error}") from error
        self._note(fault, rows)
        mine = [call for call in self._pending if call.worker == worker]
        self._runtime.wait(mine, timeout_s=0.0)  # they have failed
        self._pending = [call for call in self._pending if call.worker != worker]

    def copy(self, number: int) -> None:
        """Fills the copy of a shard with what the shard has, if there is one."""
        for worker in self._ids[number][1:]:
            self._empty.add(worker)
            call = self.begin(number, "copied")
            made = self._hear([call]).get(call)
            self._empty.discard(worker)
            # without it the shard was lost meanwhile, and both begin empty
            self._pending += [] if made is None else [self._runtime.call(worker, "fill", made)]

    def _positions(self, number: int) -> dict[str, Any]:
        return {name: replay.positions_of(number) for name, replay in self.replays.items()}

    def metrics(self) -> dict[str, float]:
        """What was lost, for a row of metrics."""
        return {"replay/shards": len(self), "replay/lost_shards": self.lost_shards, "replay/lost_rows": self.lost_rows}


@final
class ShardedReplay:
    """The rows of one policy in shards, as a data source: what is drawn has the bits that one buffer would give.

    Here is an index, a `ReplayBuffer` of 12 bytes a row: which rows there are, where episodes end, and what the sampler
    knows. It chooses; the shards read what it has chosen, all at once, and it is put together in the order of choice. A
    lane lies in one shard whole, so windows, stacks and sequences do, too.

    Args:
        shards: where the rows are.
        name: of the policy.
        plan: of its algorithm.
        template: a buffer of any size with as many lanes and the options of a row.
    """

    def __init__(self, shards: ReplayShards, name: str, plan: Replay, template: ReplayBuffer) -> None:
        self.shards = shards
        """Where the rows are."""
        self._name = name
        self.num_lanes, self.device = template.num_lanes, torch.device("cpu")
        self.options: RowOptions = {**template.options, "state_period": plan.mini_batch_length}
        """What a row consists of."""
        options = self._index_options = index_options(self.options)
        capacity = plan.capacity_for(self.num_lanes)
        self.index = ReplayBuffer(capacity, self.num_lanes, sampler=sampler_of(plan), **options)
        """Knows which rows there are."""
        self.index.reader.fetch = self.take
        self.positions, self.size_bytes = self.index.positions, self.index.size_bytes
        self._firsts = np.array(shards.map.firsts[name])
        self._lost = False  # whether rows were lost since something was drawn

    def __len__(self) -> int:
        """Complete rows over all lanes."""
        return len(self.index)

    def starts(self, length: int) -> np.ndarray:
        """All rows that a draw may begin with; see `StreamReader.starts`.

        Args:
            length: so many rows must follow.
        """
        return self.index.starts(length)

    @property
    def sampler(self) -> Sampler:
        """Who chooses the rows of a draw."""
        return self.index.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self.index.sampler = sampler

    # -- writing: rows are sent to the shards beside

    def extend(self, rows: Batch, env_id: Any = None) -> None:
        """Notes rows that are on their way to their shards.

        Args:
            rows: of the fragment, from `ShardMap.split`.
            env_id: which lanes.
        """
        self.index.extend(index_rows(rows, self._index_options), env_id)

    def end_streams(self, env_id: Any = None) -> None:
        """See `ReplayBuffer.end_streams`."""
        lanes = np.arange(self.num_lanes) if env_id is None else np.asarray(env_id)
        self.index.end_streams(lanes)
        for number, which in self._by_shard(lanes):
            self.shards.tell(number, "end_streams", self._name, (lanes[which] - self._firsts[number]).tolist())

    def forget(self, number: int) -> int:
        """Forgets the rows of a shard that is gone.

        Returns:
            How many there were.
        """
        lanes = self._lanes(number)
        rows = int(self.positions.counts[lanes].sum())
        self.index.forget(lanes)
        self._lost = self._lost or rows > 0
        return rows

    def lose(self, number: int, lanes: Sequence[int], places: np.ndarray) -> None:
        """Learns from some rows no more, nor across them.

        Args:
            number: of the shard that lacks them.
            places: [T, B] of the rows in their lanes.
        """
        for lane, column in zip(self._lanes(number)[lanes], places.T, strict=True):
            self.index.lose(column, [lane])
        self._lost = True

    # -- drawing

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            generator: source of the sampled rows.

        Raises:
            ConfigError: the plan is another one.
            ShapeError: there is nothing to draw; `RowsLostError` where shards were lost.
        """
        if not isinstance(plan, Replay):
            raise ConfigError(f"shards of replay were asked for {type(plan).__name__}; they are drawn from by Replay")
        drawn = None
        while drawn is None:
            try:
                index = self.index.chosen(plan, generator)
            except ShapeError as error:
                if not self._lost:
                    raise
                raise RowsLostError(f"a shard of replay was lost, and nothing can be drawn yet: {error}") from error
            drawn = self._read(plan, index)
        self._lost = False
        return self.sampler.finish(self.index.reader, drawn, generator)

    def _read(self, plan: Replay, index: np.ndarray) -> Batch | None:
        over = plan.mini_batch_length > 1
        parts = self._asked(index, "rows_of", plan)
        if parts is None:
            return None
        fields: dict[str, Any] = {}
        for name in parts[0][1].keys():  # noqa: SIM118
            dim = int(over or name in OVER_TIME)
            fields[name] = in_order([(which, part[name]) for which, part in parts], len(index), dim)
        fields["index"] = row_index(index)
        return (Unroll if over else Windows).of(fields)

    def take(self, name: str, index: np.ndarray | Tensor) -> Any:
        """A copy of one field at row numbers, such as `ReplayBuffer.take` gives.

        Args:
            name: of the field, as a row has it.
            index: row numbers, of any shape.

        Raises:
            RowsLostError: a shard was lost on the way.
        """
        rows = np.asarray(index)
        parts = self._asked(rows.reshape(-1) % (self.positions.ring_size * self.num_lanes), "take", name)
        if parts is None:
            raise RowsLostError("a shard of replay was lost while it was read")
        taken = in_order(parts, rows.size, 0)
        return tree_map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), taken)

    def _asked(self, index: np.ndarray, method: str, *args: Any) -> list[tuple[np.ndarray, Any]] | None:
        """What shards read, each with its places in the whole; nothing if rows were lost meanwhile."""
        places, lanes = np.divmod(index, self.num_lanes)
        asked, whose = dict[int, tuple[Any, ...]](), dict[int, np.ndarray]()
        for number, which in self._by_shard(lanes):
            first, end = self._firsts[number : number + 2]
            whose[number] = which
            asked[number] = (method, self._name, places[which] * (end - first) + lanes[which] - first, *args)
        lost, answers = self.shards.losses, self.shards.ask(asked)
        if self.shards.losses > lost:
            return None
        return [(whose[number], answer) for number, answer in answers.items()]

    def _by_shard(self, lanes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Which of some lanes each shard has."""
        shard = np.searchsorted(self._firsts, lanes, side="right") - 1
        for number in range(len(self._firsts) - 1):
            if len(which := np.flatnonzero(shard == number)):
                yield number, which

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Gives priorities of rows to the sampler.

        Args:
            indices: the batch's `index` field.
            priority: non-negative, one for each.
        """
        self.index.write_back(indices, priority)

    def set_progress(self, progress: float) -> None:
        """See `ReplayBuffer.set_progress`."""
        self.index.set_progress(progress)

    # -- shards

    def _lanes(self, number: int) -> np.ndarray:
        return np.arange(self._firsts[number], self._firsts[number + 1])

    def part(self, number: int, together: int) -> ShardPart:
        """What a shard is made with.

        Args:
            together: shards that share the memory of one machine.
        """
        lanes = len(self._lanes(number))
        options: RowOptions = {**self.options, "storage": MainMemory(together=together)}
        return ShardPart(self.index.rows_per_lane * lanes, lanes, options)

    def positions_of(self, number: int) -> dict[str, Any]:
        """Where the lanes of a shard are."""
        lanes = self._lanes(number)
        state = self.positions.state()
        return {name: value[lanes] if isinstance(value, np.ndarray) else value for name, value in state.items()}

    # -- checkpoints: the index here, and from each shard its rows, which it writes itself

    def state_tensors(self) -> dict[str, Any]:
        """Everything by name; the rows of shards stay where they are until they are written."""
        count, parts = len(self.shards), dict[int, Any]()
        while len(parts) < count:  # one that was lost meanwhile has another state
            parts = self.shards.ask(dict.fromkeys(range(count), ("state", self._name)))
        shards: dict[str, Any] = {}
        for number, (part, size_bytes) in parts.items():
            first, end = self._firsts[number : number + 2].tolist()
            about = {"lanes": [first, end], "places": self.positions.ring_size, "spare": self.positions.spare}
            write = functools.partial(self._write, number, (self.shards.losses, self.shards.lost_shards))
            shards[str(number)] = files.Elsewhere({**part, **about}, size_bytes, write)
        return {"index": self.index.state_tensors(), "shards": shards}

    def _write(self, number: int, losses: Any, directory: Path, new: Mapping[str, int]) -> Callable[[], None]:
        if (self.shards.losses, self.shards.lost_shards) != losses:  # the shard in its place has no state to be written
            raise CheckpointError("a shard of replay was lost while its state was saved")
        call = self.shards.begin(number, "write", self._name, str(directory), new)

        def wait() -> None:
            for file in self.shards.finish(call):  # the shard does not see this folder
                piece = self.shards.begin(number, "piece", self._name, new[file])
                files.save_tensors(directory / file, self.shards.finish(piece))

        return wait

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave, in any number of shards, or what one buffer gave.

        Args:
            tensors: as a checkpoint gives them back.

        Raises:
            CheckpointError: something is missing or does not fit.
            WorkersLostError: a shard was lost meanwhile, and has no copy.
        """
        saved, losses = shards_of(tensors), self.shards.losses
        self.index.load_state_tensors(tensors["index"] if "index" in tensors else index_state(self.index, tensors))
        for number in range(len(self.shards)):
            here = self._lanes(number).tolist()
            found = [(part, whose, [lane for lane in here if lane in whose]) for whose, part in saved]
            parts = [(part, [lane - whose.start for lane in mine]) for part, whose, mine in found if mine]
            lost = self._load(number, parts)
            for places, mine in zip(lost, [mine for *_, mine in found if mine], strict=True):
                self.index.lose(places, mine)
            self.shards.copy(number)
        if self.shards.losses != losses:
            raise WorkersLostError("a shard of replay was lost while rows were loaded; resume the run again")

    def _load(self, number: int, parts: Sequence[tuple[Mapping[str, Any], list[int]]]) -> list[np.ndarray]:
        """Lets a shard read its lanes, where it sees the files; else it is sent what is in them."""
        positions, seen = self.positions_of(number), all("directory" in part for part, _ in parts)
        if seen and (lost := self.shards.ask({number: ("load", self._name, parts, positions)}).get(number)) is not None:
            return lost
        read = [fields_of(part, lanes) for part, lanes in parts]
        sent = [(fields, list(range(len(lanes)))) for (fields, _), (_, lanes) in zip(read, parts, strict=True)]
        self.shards.ask({number: ("load", self._name, sent, positions)})
        return [one for _, one in read]
