"""`StreamReader`: what is read from the streams of many lanes."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.drawn import Unroll, Windows, all_valid, given_rows, numbers_like, offsets, row_index
from palaestra.buffers.lane_storage import FIRST, LAST
from palaestra.buffers.streams import Streams, WritePositions
from palaestra.core import Batch, ConfigError, ShapeError, did_you_mean
from palaestra.ops import remembered_starts, valid_starts

__all__ = ["StreamReader"]

_STRIDE = 64  # rows that `_walk` looks ahead at once
_ACTED = ("action", "policy_info", "policy_version")


class Field:
    """One field of all rows: `field[i]` takes rows as `buffer[i]` does, `field.camera` is a part of a nest.

    Args:
        reader: of the buffer.
        name: path of the field.
    """

    __slots__ = ("_name", "_reader")

    def __init__(self, reader: "StreamReader", name: str) -> None:
        self._reader, self._name = reader, name

    def __getitem__(self, index: Any) -> Any:
        rows = self._reader.numbers(index)
        taken = self._reader.take(self._name, np.atleast_1d(rows))
        return taken if rows.ndim else taken[0]

    def __getattr__(self, key: str) -> "Field":
        parts = self._reader.parts(self._name)
        if key not in parts:
            raise AttributeError(f"{self._name} has no part {key!r}{did_you_mean(key, parts)}")
        return Field(self._reader, f"{self._name}.{key}")


class StreamReader:
    """Reads rows by age, by row number and in time order; samplers choose rows with it.

    Args:
        streams: to read from.
        fixed: see the attribute.
        raw: whether observations are read as they are stored, without `stack_num`.
    """

    def __init__(self, streams: Streams, *, fixed: bool = False, raw: bool = False) -> None:
        self._streams, self._storage = streams, streams.storage
        self.parts = streams.storage.parts
        self._stacks = streams.stack_num > 1 and not raw
        self.fetch = self._take_stacks if self._stacks else streams.storage.take
        """What reads one field at row numbers; another one where rows lie elsewhere."""
        self.fixed = fixed
        """Whether these are data that stay. Then a draw of n steps may also begin with the last rows of a lane whose
        episode has ended, which no n rows will ever follow; while rows are written, those wait until n rows do."""
        self.positions: WritePositions = streams.positions
        """Where each lane is written next, and which rows it holds; to be read only."""
        self.num_lanes = streams.num_lanes

    def __len__(self) -> int:
        return int(self.positions.counts.sum())

    def held(self) -> str:
        """How many rows the lanes hold, in words."""
        return f"the lanes hold {self.positions.counts.tolist()} rows"

    # -- the newest rows

    def newest(self, rows: int) -> Unroll:
        """The newest complete rows of every lane in time order, and the open row after them.

        Args:
            rows: T, at most the rows that every lane has.

        Returns:
            An `Unroll` of `[T+1, B]`; views of the storage where the rows lie together.

        Raises:
            ShapeError: a lane has fewer rows.
        """
        if not 0 < rows <= self.positions.counts.min():
            raise ShapeError(f"{rows} rows were asked for, but {self.held()}")
        return self._unroll(*(self.positions.newest(rows, and_open=open_too) for open_too in (True, False)))

    def recent(self, name: str, rows: int) -> Any:
        """One field of the newest complete rows of every lane, in time order.

        Args:
            rows: T; a lane that holds fewer repeats its oldest one in front.

        Returns:
            [T, B, ...]; a view where the rows lie together.
        """
        return self._get(name, self.positions.newest(rows, and_open=False))

    def everything(self) -> Unroll:
        """All complete rows as one unroll; behind the open row of a shorter lane come rows that are not valid.

        They are copies of it, and FIRST unless it is LAST: what lies before does not go on in them.

        Raises:
            ShapeError: there is no row.
        """
        positions, rows = self.positions, int(self.positions.counts.max())
        if rows == 0:
            raise ShapeError("the buffer holds no rows; collect before learning")
        if positions.lockstep:
            unroll = self.newest(rows)
        else:
            places, complete, behind = positions.side_by_side()
            unroll = self._unroll(places, complete)
            kinds = unroll.step_type
            kinds = kinds.masked_fill(torch.from_numpy(behind).to(kinds.device) & (kinds != LAST), FIRST)
            unroll = unroll.replace(step_type=kinds, valid=self._valid(kinds))
        if self._streams.complete_only:
            learned = positions.counts - np.arange(rows)[:, None] > positions.unfinished
            unroll = unroll.replace(valid=unroll.valid * torch.from_numpy(learned).to(unroll.valid.device))
        return unroll

    def _unroll(self, places: slice | np.ndarray, complete: slice | np.ndarray) -> Unroll:
        fields = self._fields(self._get, places, complete)
        if self._streams.states is not None and self._streams.state_period == 1:
            fields["state"] = self._get("state", complete)
        return Unroll.of({**fields, "valid": self._valid(fields["step_type"])})

    def _valid(self, kinds: Tensor) -> Tensor:
        starts = valid_starts if self._streams.states is None else remembered_starts
        return starts(kinds).to(torch.float32)

    def _fields(self, read: Callable[[str, Any], Any], rows: Any, complete: Any) -> dict[str, Any]:
        """The fields of time steps at rows, and what was done on the complete ones of them."""
        fields = {name: read(name, rows) for name in self._storage.step_fields}
        return fields | {name: read(name, complete) for name in _ACTED}

    def _get(self, name: str, places: slice | np.ndarray) -> Any:
        """A field at places of all lanes; hidden states where every row keeps one."""
        storage = self._streams.states if name == "state" else self._storage
        assert storage is not None
        if name == "observation" and self._stacks:
            places = np.arange(places.start, places.stop)[:, None] if isinstance(places, slice) else places
            return self._take_stacks(name, self.positions.numbers_at(places))
        if isinstance(places, slice):
            return storage.view(name, places)
        return storage.take(name, self.positions.numbers_at(places))

    def _take_stacks(self, name: str, index: np.ndarray) -> Any:
        """Reads as `LaneStorage.take` does; of observations the stacks that end with each row."""
        if name.partition(".")[0] != "observation":
            return self._storage.take(name, index)
        index = index % (self.positions.ring_size * self.num_lanes)
        reach = self._reach(index.reshape(-1)).reshape(*index.shape, 1)
        back = np.minimum(np.arange(self._streams.stack_num - 1, -1, -1), reach)
        return self._storage.take(name, self.after(index[..., None], -back))

    def _reach(self, index: np.ndarray) -> np.ndarray:
        """[N] how many rows of its episode lie before a row, at most those of a stack; overwritten ones still lie."""
        most = self._streams.stack_num - 1
        before = self.ages(index) + self._streams.older(most)[index % self.num_lanes]
        return self._walk(index, np.minimum(before, most), -1)

    # -- rows by number

    def __getitem__(self, index: Any) -> Batch:
        rows = self.numbers(index)
        return Batch.of({name: self.field(name)[rows] for name in self._storage.specs})

    def complete(self) -> np.ndarray:
        """Row numbers of all complete rows: lane by lane, in time order."""
        return np.concatenate([self.in_time_order(lane)[:-1] for lane in range(self.num_lanes)])

    def numbers(self, index: Any) -> np.ndarray:
        """The row numbers that an index means.

        Args:
            index: see `ReplayBuffer.__getitem__`.

        Raises:
            IndexError: no row is there, or a slice could mean two things.
        """
        if index is Ellipsis or isinstance(index, slice):
            return self._sliced(slice(None) if index is Ellipsis else index)
        rows = given_rows(index)
        if rows.dtype.kind == "i" and rows.size and (lowest := rows.min()) < 0:
            order = self.complete()
            if lowest < -len(order):
                raise IndexError(f"{lowest} counts back from the newest row, but {self.held()}")
            rows = np.where(rows < 0, order[np.minimum(rows, -1)], rows)
        self._require_rows(rows)
        return rows

    def _sliced(self, index: slice) -> np.ndarray:
        """From number to number where both ends are numbers; in time order where none is."""
        order, given = self.complete(), [end for end in (index.start, index.stop) if end is not None]
        if all(end < 0 for end in given):
            return order[index]
        if index.stop is None or min(given) < 0:
            if np.array_equal(order, np.arange(len(order))):
                return order[index]
            raise IndexError(
                f"[{index.start}:{index.stop}] goes from a row number to a place in time order, and these differ here: "
                "rows were overwritten, or there are several lanes. Give two numbers, or count from the newest row, as "
                "in buffer[-3:]; buffer[...] is all rows in time order"
            )
        numbers = np.arange(self.positions.ring_size * self.num_lanes)[index]
        held = numbers[np.isin(numbers, order)]
        if len(numbers) and not len(held):
            raise IndexError(f"no row has a number in [{index.start}:{index.stop}]; {self.held()}")
        return held

    def field(self, name: str) -> Field:
        """One field of all rows: `buffer.observation[i]` is `buffer[i].observation`, and nothing else is read.

        Args:
            name: of the field; `buffer.reward` is short for `buffer.field("reward")`. It takes the same numbers as
                `buffer[...]`, and raises the same `IndexError`.
        """
        return Field(self, name)

    def take(self, name: str, index: np.ndarray | Tensor) -> Any:
        """A copy of one field at row numbers.

        Args:
            index: row numbers such as those of `Windows.index`, of any shape.

        Returns:
            [*index.shape, ...].
        """
        return self.fetch(name, given_rows(index))

    def next(self, index: Any) -> Any:
        """The rows one step later; a row that no step of its own episode follows stays where it is.

        Args:
            index: [N] row numbers, or one.

        Returns:
            [N] row numbers, of the type given.

        Raises:
            IndexError: no row is there.
        """
        rows = given_rows(index)
        self._require_rows(rows)
        stays = (rows == self.positions.numbers(rows % self.num_lanes)) | ~self.is_start(rows)
        return numbers_like(index, np.where(stays, rows, self.after(rows, 1)))

    def following(self, index: Any, steps: int) -> Any:
        """The rows so many steps later, by `next`: one that fewer steps of its own episode follow ends at the last.

        Args:
            index: [N] row numbers, or one.
            steps: at least 0.

        Returns:
            [N] row numbers, of the type given.

        Raises:
            IndexError: no row is there.
        """
        rows = given_rows(index)
        for _ in range(steps):
            rows = self.next(rows)
        return numbers_like(index, rows)

    def prev(self, index: Any) -> Any:
        """The rows one step earlier; the first row of an episode, or of what is left of it, stays where it is.

        Args:
            index: [N] row numbers, or one.

        Returns:
            [N] row numbers, of the type given.

        Raises:
            IndexError: no row is there.
        """
        rows = given_rows(index)
        self._require_rows(rows)
        before = self.after(rows, -1)
        stays = (self.ages(rows) == 0) | ~self.is_start(before)
        return numbers_like(index, np.where(stays, rows, before))

    def after(self, index: np.ndarray, steps: np.ndarray | int) -> np.ndarray:
        """Row numbers so many steps later in the lanes, whatever lies between.

        Args:
            index: [N] row numbers.
            steps: of a shape that fits; negative ones lie before.
        """
        return (np.asarray(index) + self.num_lanes * np.asarray(steps)) % (self.positions.ring_size * self.num_lanes)

    def ages(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its lane are older than a row.

        Args:
            index: [N] row numbers.
        """
        oldest, index = self.positions.cursors - self.positions.counts, np.asarray(index)
        return (index // self.num_lanes - oldest[index % self.num_lanes]) % self.positions.ring_size

    def _followers(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its lane are newer than a row, with the open one."""
        return self.positions.counts[np.asarray(index) % self.num_lanes] - self.ages(index)

    def _require_rows(self, rows: np.ndarray) -> None:
        size = self.positions.ring_size * self.num_lanes
        if rows.dtype.kind not in "iu" or (rows.size and not 0 <= rows.min() <= rows.max() < size):
            raise IndexError(f"row numbers are integers from 0 to {size - 1}; given was {rows}")
        missing = ~self.positions.opened[rows % self.num_lanes] | (self._followers(rows) < 0)
        if missing.any():
            raise IndexError(f"no row has the number {rows[missing].flat[0]}; {self.held()}")

    # -- episodes

    def in_time_order(self, lane: int, *, frames: int = 0) -> np.ndarray:
        """Row numbers of all rows of a lane, the oldest first and the open one last.

        Args:
            lane: its number.
            frames: so many overwritten rows come before them, of those that still lie there for the oldest stacks.
        """
        positions, count = self.positions, self.positions.counts[lane]
        older = self._streams.older(frames)[lane] if frames else 0
        rows = np.arange(-older, count + 1 if positions.opened[lane] else -older)
        return (positions.cursors[lane] - count + rows) % positions.ring_size * self.num_lanes + lane

    def episodes(self) -> list[np.ndarray]:
        """Row numbers of the complete episodes, from FIRST to LAST; those of lane 0 come first, in time order."""
        found: list[np.ndarray] = []
        for lane in range(self.num_lanes):
            rows = self.in_time_order(lane)
            kinds = self._storage.step_types[rows]
            ends, firsts = np.flatnonzero(kinds == LAST), np.flatnonzero(kinds == FIRST)
            begins = np.searchsorted(firsts, ends) - 1
            for end, begin, before in zip(ends, begins, [-1, *ends], strict=False):
                if begin >= 0 and firsts[begin] > before:
                    found.append(rows[firsts[begin] : end + 1])
        return found

    def unfinished(self) -> np.ndarray:
        """Row numbers of the open rows whose episodes are still running: at most one of each lane."""
        rows = self.positions.numbers(np.arange(self.num_lanes))
        return rows[self.positions.opened & (self._storage.step_types[rows] != LAST)]

    def steps_to_end(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its episode follow a row, up to the newest one.

        Args:
            index: [N] row numbers.
        """
        return self._walk(index, self._followers(index), +1)

    def steps_from_begin(self, index: np.ndarray) -> np.ndarray:
        """How many rows of its episode come before a row, from the oldest one on.

        Args:
            index: [N] row numbers.
        """
        return self._walk(index, self.ages(index), -1)

    def _walk(self, index: np.ndarray, most: np.ndarray, direction: int) -> np.ndarray:
        """Steps that can be gone without leaving the episode, up to a limit."""
        steps, going = np.zeros_like(index), np.arange(len(index))
        stride = np.clip(most.max(initial=1), 1, _STRIDE)
        while len(going):
            ahead = np.arange(stride)[:, None] + steps[going] + (direction < 0)
            between = self.is_start(self.after(index[going], direction * ahead))  # [stride, N] row and its successor
            far = np.where(between.all(0), stride, between.argmin(0))
            steps[going] = np.minimum(steps[going] + far, most[going])
            going = going[(far == stride) & (steps[going] < most[going])]
        return steps

    # -- which rows a draw may begin with: `usable` rows of each lane (`candidates`), where `may_begin` holds

    def is_start(self, index: np.ndarray) -> np.ndarray:
        """Whether rows may be learned from: `ops.valid_starts` at row numbers.

        Args:
            index: [N] of rows that others follow.
        """
        kinds = self._storage.step_types
        return (kinds.take(index) != LAST) & (kinds.take(index + self.num_lanes, None, None, "wrap") != FIRST)

    def ends_with_next(self, index: np.ndarray) -> np.ndarray:
        """Whether the action of a row ended its episode.

        Args:
            index: [N] of rows that others follow.
        """
        return self._storage.step_types.take(index + self.num_lanes, mode="wrap") == LAST

    def usable(self, length: int) -> np.ndarray | int:
        """How many of the oldest rows of each lane have what a draw needs.

        Args:
            length: rows that follow; in `fixed` data fewer, where the episode has ended.

        Returns:
            [B], or one number for all where they are equal.
        """
        positions, short = self.positions, length - 1
        running: Any = self._running(short) if self.fixed and short and not self._streams.aligned(length) else short
        if self._streams.complete_only:
            running = np.maximum(running, positions.unfinished)
        if running is short and positions.lockstep:
            return max(positions.count - short, 0)
        return np.maximum(positions.counts - running, 0)

    def _running(self, most: int) -> np.ndarray:
        """[B] how many of the newest complete rows belong to an episode that has not ended, at most so many."""
        places = (self.positions.cursors - np.arange(most + 1)[:, None]) % self.positions.ring_size  # the newest first
        kinds = self._storage.step_types[self.positions.numbers_at(places)]
        follows = (kinds[1:] != LAST) & (kinds[:-1] != FIRST)
        return np.logical_and.accumulate(follows, axis=0).sum(0) * (kinds[0] != LAST)

    def candidates(self, length: int) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
        """The `usable` rows, whether they may be learned from or not; with hidden states, those that keep one.

        Args:
            length: rows that follow.

        Returns:
            How many there are, and the function from numbers below that to row numbers; the oldest of a lane come
            first.

        Raises:
            ConfigError: a lane has no room for so many rows, and these are not `fixed` data.
            ShapeError: there is none.
        """
        positions, streams = self.positions, self._streams
        if length > positions.rows and not (streams.growing or self.fixed):
            raise ConfigError(f"{length} steps in a row do not fit into a lane of {positions.rows}; raise the capacity")
        usable = self.usable(length)
        if streams.states is not None and streams.state_period > 1:
            _, before, after = positions.aligned(usable, streams.state_period)
            total = int(before.sum() + after.sum())
            pick = functools.partial(positions.pick_aligned, usable, streams.state_period)
        else:
            total = usable * self.num_lanes if isinstance(usable, int) else int(usable.sum())
            pick = functools.partial(positions.pick, usable)
        if total == 0:
            raise ShapeError(f"no row can be learned from yet: {length} rows must follow it; {self.held()}")
        return total, pick

    def may_begin(self, index: np.ndarray, length: int) -> np.ndarray:
        """Whether draws may begin with candidates: with rows that may be learned from.

        A stack of `stack_num` must be whole, or go back to the first step of its episode: not so at the beginning of a
        stream that began in the middle of one.

        Where only every `state_period`-th row has a hidden state, sequences also begin at the end of an episode, and
        the next one is learned from: episodes of a fixed length may have their ends at all of those rows.

        Args:
            index: [N] row numbers of `candidates(length)`.
            length: rows that follow.
        """
        kinds, streams, begins = self._storage.step_types, self._streams, self.is_start(index)
        if streams.aligned(length) and not streams.sample_avail:
            begins = (kinds.take(index) == LAST) | (kinds.take(index + self.num_lanes, mode="wrap") != FIRST)
        if streams.stack_num > 1:
            reach = self._reach(index)
            from_first = (kinds.take(self.after(index, -reach)) == FIRST) & (not streams.sample_avail)
            begins &= from_first | (reach == streams.stack_num - 1)
        return begins

    def keeps_state(self, places: np.ndarray) -> np.ndarray:
        """Whether draws may begin at places, as far as hidden states are concerned.

        Args:
            places: [N] in the ring of any lane.
        """
        return (places % self._streams.state_period == 0) | (self._streams.states is None)

    def stamp(self, length: int) -> tuple[int, ...]:
        """Changes whenever `starts` may.

        Args:
            length: see `starts`.
        """
        return (*self.positions.stamp, -length if self.fixed else length)

    def starts(self, length: int) -> np.ndarray:
        """All rows that a draw may begin with, those of a lane in time order.

        Args:
            length: so many rows must follow in the lane; see `usable`.

        Returns:
            [N] row numbers.

        Raises:
            ConfigError: a lane has no room for so many rows.
            ShapeError: there is none.
        """
        total, pick = self.candidates(length)
        rows = pick(np.arange(total))
        rows = rows[self.may_begin(rows, length)]
        if not len(rows):
            raise ShapeError(f"no row can be learned from: episodes end at once, or no stack is whole; {self.held()}")
        return rows

    # -- windows and sequences

    def windows(self, index: np.ndarray, n_step: int, *, all_actions: bool = False) -> Windows:
        """The n-step windows that start at given rows.

        Args:
            index: [N] row numbers of `starts(n_step)`.
            n_step: n.
            all_actions: whether they have the field `actions`.
        """
        index = given_rows(index)
        take, rows = self.fetch, index + offsets(n_step, self.num_lanes)  # [n+1, N]
        bootstrap = rows[1]
        kinds = self._storage.step_types.take(rows, None, None, "wrap")
        if n_step > 1:  # `ops.n_step_end`
            bootstrap = index + self.num_lanes * np.maximum(all_valid(kinds).sum(0), 1)
        if n_step > 1 or self._stacks:
            observation, after = take("observation", index), take("observation", bootstrap)
        else:
            observation, after = self._storage.take_pair("observation", rows)
        fields = {
            "observation": observation,
            "action": take("action", index),
            "next_observation": after,
            "reward": take("reward", rows),
            "discount": take("discount", rows),
            "step_type": torch.from_numpy(kinds),
            "policy_info": take("policy_info", index) if self._streams.info_fields else Batch.of({}),
            "index": row_index(index),
        }
        if all_actions:
            fields["actions"] = take("action", rows[:-1])
        return Windows.of(fields | {name: take(name, rows) for name in self._storage.extras})

    def sequences(self, index: np.ndarray, length: int, burn_in: int) -> Unroll:
        """The sequences that start at given rows; behind the newest row of a lane they repeat it.

        Args:
            index: [N] row numbers of `starts(length)`.
            length: steps with an action.
            burn_in: so many of them are not valid.
        """
        take = self.fetch
        rows = index + np.minimum(offsets(length, self.num_lanes), self.num_lanes * self._followers(index))  # [L+1, N]
        fields = self._fields(take, rows, rows[:-1])
        if self._streams.states is not None:
            fields["state"] = self._streams.states.take("state", self._streams.state_slots(index)[1][None])
        # what lies after the end of the first episode that can be learned from is another episode's
        kinds = self._storage.step_types.take(rows, mode="wrap")
        unbroken, after_end = all_valid(kinds), (kinds[0] == LAST) & (kinds[1] == FIRST)
        unbroken[1:, after_end] = all_valid(kinds[1:, after_end])
        valid = unbroken.astype(np.float32)
        valid[:burn_in] = 0
        return Unroll.of({**fields, "valid": torch.from_numpy(valid), "index": row_index(index)})

    # -- whole streams

    def pieces(self, at_most: int | None = None, *, frames: int = 0) -> Iterator[tuple[list[int], Batch]]:
        """What the streams hold as `extend` takes it: in one piece where lanes are in lockstep, else lane by lane.

        Args:
            at_most: complete rows of a piece, where it shall not be larger; lanes are read one by one then.
            frames: of stacks, whose overwritten rows come along; see `in_time_order`.

        Yields:
            Lanes, and their rows in time order.

        Raises:
            ShapeError: hidden states are missing, for only some rows keep one.
        """
        positions, streams = self.positions, self._streams
        reader = StreamReader(streams, raw=True) if self._stacks else self
        together = not (at_most or streams.older(frames).any())
        if together and positions.lockstep and positions.all_open and positions.count:
            yield list(range(self.num_lanes)), reader.newest(positions.count)
            return
        if streams.states is not None and streams.state_period > 1:
            raise ShapeError("a buffer that keeps a hidden state with some rows only cannot be appended to another")
        for lane in np.flatnonzero(positions.opened).tolist():
            stream = self.in_time_order(lane, frames=frames)
            size = at_most or len(stream)
            for begin in range(0, max(len(stream) - 1, 1), size):
                rows = stream[begin : begin + size + 1, None]
                fields = reader._fields(reader.take, rows, rows[:-1])
                if streams.states is not None:
                    fields["state"] = streams.states.take("state", rows[:-1])
                yield [lane], Batch.of(fields)
