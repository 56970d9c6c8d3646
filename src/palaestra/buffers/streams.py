"""What a writer and a reader share: the streams of many lanes, their storage and their write positions."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Required, Self, TypedDict

import numpy as np
import torch

from palaestra.buffers.lane_storage import EXTRA_FIELDS, LaneStorage
from palaestra.buffers.storage import Storage, require_memory
from palaestra.core import Batch, CheckpointError, ConfigError, SpecTree, TensorSpec, spec_leaves

__all__ = ["RowOptions", "WritePositions", "index_options", "index_rows"]

_ALL = np.iinfo(np.int64).max
_COUNT_BITS, _MOST_OLDER = 27, 31  # of the number that stands for a lane in mapped files
_ARRAYS = ("opened", "unfinished", "kept", "furthest")  # of write positions, besides those of `_place`
_FIRST_ROWS = 128  # of every lane, where the buffer grows


class RowOptions(TypedDict, total=False):
    """What a row consists of; every buffer takes these by name."""

    observation_spec: Required[SpecTree]
    """Spec of one time step's observation, before any normalisation."""
    action_spec: Required[SpecTree]
    """Spec of one action as rows keep it: raw, as the policy samples it, where a policy acts."""
    executed_spec: SpecTree | None
    """Spec of one action as the environment executes it, which says whether kept ones are raw; `None` if unknown."""
    info_spec: Mapping[str, TensorSpec] | None
    """Specs of what the policy's `behaviour` returns, by name."""
    reward_spec: TensorSpec | None
    """Spec of one reward; float32 without dimensions by default."""
    env_info_spec: Mapping[str, TensorSpec] | None
    """Entries of the environment's `info` that rows keep, by name, each a float32 number; none by default."""
    untransformed_spec: Mapping[str, SpecTree] | None
    """`observation` and `reward` before wrappers changed them, where rows keep these too."""
    state_spec: Mapping[str, TensorSpec] | None
    """The hidden state of a recurrent policy, by name; `None` where it has none."""
    state_period: int
    """A hidden state is kept with every row of a lane whose place is a multiple of this; 1, the default, is all."""
    stack_num: int
    """Observations are read as stacks `[stack_num, ...]` of this row's and the ones before in its episode, the newest
    last; before the first one it is repeated. 1, the default, is no stack. Nothing is stored twice."""
    sample_avail: bool
    """Whether draws begin only where the whole stack lies in the episode."""
    storage: Storage | None
    """Where rows lie; main memory by default, or `MappedFiles(directory)`, or `DeviceMemory("cuda")`."""
    compression: Literal["none", "lz4"]
    """Whether observations that are pictures (uint8 or bool, two dimensions or more) are compressed, without loss, in
    blocks of a few rows; `lz4` needs the extra `compression`. A buffer that grows keeps them as they are."""
    complete_episodes_only: bool
    """Whether only rows of episodes that have ended are learned from (Tianshou's rule for several environments); rows
    of a stream that breaks off are dropped."""


def index_options(options: RowOptions) -> RowOptions:
    """What a row of an index consists of: all that decides which rows can be drawn, and nothing else; 12 bytes.

    Args:
        options: of the buffer whose rows are elsewhere.
    """
    empty, frames = TensorSpec((0,), torch.uint8), _frames(options["observation_spec"])
    made: RowOptions = {"observation_spec": empty, "action_spec": empty, "reward_spec": empty}
    if frames > 1:
        made["observation_spec"] = TensorSpec((frames, 0), torch.uint8, stacked=frames)
    if options.get("state_spec"):
        made["state_spec"] = {"state": TensorSpec((), torch.uint8)}
    rest: Any = {name: one for name, one in options.items() if name in ("state_period", "stack_num", "sample_avail")}
    made.update(rest)
    return made


def index_rows(rows: Batch, options: RowOptions) -> Batch:
    """What an index is told of a fragment.

    Args:
        rows: as `ReplayBuffer.extend` takes them, or what this function made of them.
        options: from `index_options`.
    """
    steps, lanes = rows["step_type"].shape
    acted, specs = (steps - 1, lanes), dict[str, Any](options)
    fields = {
        "step_type": rows["step_type"],
        "discount": rows["discount"],
        "reward": specs["reward_spec"].zeros(steps, lanes),
        "observation": specs["observation_spec"].zeros(steps, lanes),
        "action": specs["action_spec"].zeros(*acted),
    }
    if "policy_version" in rows:
        fields["policy_version"] = rows["policy_version"]
    if "state_spec" in options:
        fields["state"] = Batch.of({"state": torch.zeros(acted, dtype=torch.uint8)})
    return Batch.of(fields)


def _frames(spec: SpecTree) -> int:
    return max(leaf.stacked for leaf in spec_leaves(spec).values())


class WritePositions:
    """Where each lane of a ring of rows is written next, and which rows it holds.

    A lane is a stream whose rows are counted from 0 on. Row j lies at place `(origin + j) % ring_size` of its lane, and
    row `written` is the open one.

    Args:
        num_lanes: number of lanes.
        rows: complete rows that a lane can hold.
        spare: places behind the oldest row whose content stays; frames of its stack lie there.
        period: the first row of a stream lies at a multiple of this.
        first_place: of a stream that begins, where the spare places before it are not written; else it follows them.

    Raises:
        ConfigError: main memory has no room for so many lanes.
    """

    def __init__(
        self, num_lanes: int, rows: int, spare: int = 0, period: int = 1, first_place: int | None = None
    ) -> None:
        require_memory({"positions of lanes": ((7, num_lanes), torch.int64)})
        self.num_lanes, self.rows, self.spare = num_lanes, rows, spare
        self.ring_size = rows + spare + 1
        """Places of a ring: complete rows, spare ones, and the open row."""
        first = -(-spare // period) * period
        self.first_place = (first if first < self.ring_size else spare) if first_place is None else first_place
        """Place of the first row of a stream."""
        self.together = 0
        """Rows completed in all lanes at once; a number of its own, because `append` then writes no array."""
        self._apart = np.zeros(num_lanes, np.int64)  # rows completed in each lane besides
        self._oldest = np.zeros(num_lanes, np.int64)  # older rows are gone, even where the ring has room for them
        self._origin = np.full(num_lanes, self.first_place)
        self.lockstep = True
        """Whether all lanes are written together, so that a vector step is one contiguous row."""
        self.opened = np.zeros(num_lanes, bool)
        """[B] which lanes have an open row."""
        self.all_open = False
        """Whether every lane has one."""
        self.unfinished = np.zeros(num_lanes, np.int64)
        """[B] complete rows of the episode that is still running; kept only where the buffer asks for it."""
        self.restarts = 0
        """How often rows were forgotten or moved: row numbers from before mean other rows since."""
        self.exchanges = 0
        """How often rows were taken back, or open rows exchanged."""
        self.rewrites = 0
        """How often rows before the open ones were taken back or written again."""
        self.kept = np.full(num_lanes, _ALL)
        """[B] so many rows of each lane are what they were before rows were taken back or open rows exchanged."""
        self.furthest = np.zeros(num_lanes, np.int64)
        """[B] the highest number of rows that were taken back: what lay at their places is overwritten."""
        self.has_changes = False
        """Whether any row is not `kept`."""
        self.cursor = self.count = 0
        """Place of the open row of lane 0, and its complete rows: of all in lockstep, which `append` counts on."""
        self._find_lane_0()

    def _find_lane_0(self) -> None:
        written = self._apart.item(0) + self.together
        self.cursor = (self._origin.item(0) + written) % self.ring_size
        self.count = min(written - self._oldest.item(0), self.rows)

    @property
    def written(self) -> np.ndarray:
        """[B] rows completed in each lane since the last `restart`: the number in its stream of the open row."""
        return self._apart + self.together

    @property
    def cursors(self) -> np.ndarray:
        """[B] place of each lane's open row."""
        return (self._origin + self.written) % self.ring_size

    @property
    def counts(self) -> np.ndarray:
        """[B] complete rows of each lane."""
        return np.minimum(self.written - self._oldest, self.rows)

    @property
    def stamp(self) -> tuple[int, ...]:
        """Changes whenever a row does."""
        return (self.restarts, self.exchanges, int(self.written.sum()))

    # -- writing

    def open(self, lanes: np.ndarray) -> None:
        """Says that lanes have an open row from now on.

        Args:
            lanes: distinct.
        """
        self.opened[lanes] = True
        self.all_open = bool(self.opened.all())

    def advance(self, lanes: np.ndarray, rows: int = 1) -> None:
        """Completes rows of some lanes, which from now on need not be in lockstep; `append` itself does so for all.

        Args:
            lanes: distinct.
            rows: how many of each.
        """
        self._apart[lanes] += rows
        self.lockstep = self.lockstep and len(lanes) == self.num_lanes
        self._find_lane_0()

    def rewind(self, lanes: np.ndarray, rows: np.ndarray) -> None:
        """Takes the newest complete rows of some lanes back.

        Args:
            lanes: distinct.
            rows: how many of each; more than it holds are all that it holds.
        """
        counts, written = self.counts[lanes], self.written[lanes]
        self._oldest[lanes] = written - counts
        self.furthest[lanes] = np.maximum(self.furthest[lanes], written)
        self._apart[lanes] -= np.minimum(rows, counts)
        self.rewrites += 1
        self.lockstep = False
        self._find_lane_0()
        self.exchange(lanes)

    def exchange(self, lanes: np.ndarray) -> None:
        """Notes that the open rows of some lanes are others than they were.

        Args:
            lanes: distinct.
        """
        self.exchanges += 1
        self.kept[lanes] = np.minimum(self.kept[lanes], self.written[lanes])
        self.has_changes = bool((self.kept != _ALL).any())

    def forget_changes(self) -> None:
        """Begins to count anew what is `kept`, for a sampler that follows the changes."""
        self.kept[:], self.furthest[:] = _ALL, 0
        self.has_changes = False

    def keep(self, counts: np.ndarray) -> None:
        """Forgets all but the newest complete rows of each lane.

        Args:
            counts: [B] how many to keep.
        """
        if (self.counts <= counts).all():
            return
        self.restarts += 1
        self._oldest = self.written - np.minimum(self.counts, counts)
        self.lockstep = False
        self._find_lane_0()

    def grow(self, rows: int) -> None:
        """Adds room behind rows that all lie at the front of the rings, whose numbers stay what they are.

        Args:
            rows: what a lane can hold from now on.
        """
        self.rows, self.ring_size = rows, rows + self.spare + 1
        self._find_lane_0()

    def restart(self, counts: np.ndarray | int, rows: int | None = None) -> None:
        """Says that the complete rows lie at the front of the rings, behind the spare places.

        Args:
            counts: how many rows each lane holds.
            rows: what a lane can hold from now on.
        """
        self.restarts += 1
        self.rows = self.rows if rows is None else rows
        self.ring_size = self.rows + self.spare + 1
        self.together, self._apart[:] = 0, counts
        self._oldest[:], self._origin[:] = 0, self.first_place
        self.lockstep = bool((self._apart == self._apart[0]).all())
        self._find_lane_0()

    # -- places

    def newest(self, rows: int, *, and_open: bool) -> slice | np.ndarray:
        """Places of the newest complete rows in time order.

        Args:
            rows: T; a lane that holds fewer repeats its oldest one in front.
            and_open: whether the open row comes after them.

        Returns:
            A slice where the rows of all lanes lie together, else [T, B].
        """
        length = rows + and_open
        if self.lockstep and self.count >= rows and (start := self.cursor - rows) >= 0:
            return slice(start, start + length)
        age = np.minimum(np.arange(rows, rows - length, -1)[:, None], self.counts)  # [T, B] rows before the open one
        return (self.cursors - age) % self.ring_size

    def side_by_side(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places of all rows in time order, each lane from its oldest on.

        Returns:
            [T+1, B] places of complete rows and the open one, which a shorter lane repeats; [T, B] places of complete
            rows, of which a shorter lane repeats its newest; and [T+1, B] whether a row is such a repeated open one.
        """
        age = self.counts - np.arange(self.counts.max() + 1)[:, None]  # 0 for the open row, less behind it
        complete = np.maximum(age[:-1], np.minimum(self.counts, 1))
        return (self.cursors - np.maximum(age, 0)) % self.ring_size, (self.cursors - complete) % self.ring_size, age < 0

    def numbers(self, lanes: np.ndarray) -> np.ndarray:
        """Row numbers of open rows in `[rows * lanes]` storage.

        Args:
            lanes: which lanes.
        """
        return self.cursors[lanes] * self.num_lanes + lanes

    def before_open(self, rows: int, lanes: np.ndarray) -> np.ndarray:
        """Row numbers of so many rows before the open ones, and of these, in time order.

        Args:
            rows: T; those that a ring has no place for any more are of newer rows.
            lanes: [n] which lanes.

        Returns:
            [T+1, n].
        """
        return (self.cursors[lanes] - np.arange(rows, -1, -1)[:, None]) % self.ring_size * self.num_lanes + lanes

    def numbers_at(self, places: np.ndarray) -> np.ndarray:
        """Row numbers of places of all lanes.

        Args:
            places: [..., B].
        """
        return places * self.num_lanes + np.arange(self.num_lanes)

    def pick(self, usable: np.ndarray | int, number: np.ndarray) -> np.ndarray:
        """Row numbers of the n-th usable rows, counted over all lanes from the oldest on.

        Args:
            usable: how many of the oldest rows of each lane count; one number where all are in lockstep and equal.
            number: [N] below the sum over lanes.
        """
        places, lanes = self.ring_size, self.num_lanes
        if isinstance(usable, int):
            first, size = (self.cursor - self.count) % places * lanes, places * lanes
            return number + first if first + usable * lanes <= size else (number + first) % size
        ends = np.cumsum(usable)
        lane = np.searchsorted(ends, number, side="right")
        age = number - (ends - usable)[lane]
        return (self.cursors[lane] - self.counts[lane] + age) % places * lanes + lane

    def aligned(self, usable: np.ndarray | int, period: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where usable rows lie whose place is a multiple of a period.

        Args:
            usable: how many of the oldest rows of each lane count.
            period: at least 1.

        Returns:
            For each lane: the first such multiple from its oldest row on, how many there are up to the end of the ring,
            and how many after it.
        """
        oldest = (self.cursors - self.counts) % self.ring_size
        end = oldest + usable
        first = -(-oldest // period)
        before = np.maximum(-(-np.minimum(end, self.ring_size) // period) - first, 0)
        return first, before, -(-np.maximum(end - self.ring_size, 0) // period)

    def pick_aligned(self, usable: np.ndarray | int, period: int, number: np.ndarray) -> np.ndarray:
        """Row numbers of the n-th of the rows that `aligned` counts.

        Args:
            usable: how many of the oldest rows of each lane count.
            period: at least 1.
            number: [N] below their sum over lanes.
        """
        first, before, after = self.aligned(usable, period)
        ends = np.cumsum(before + after)
        lane = np.searchsorted(ends, number, side="right")
        order = number - (ends - before - after)[lane]
        multiple = np.where(order < before[lane], first[lane] + order, order - before[lane])
        return multiple * period * self.num_lanes + lane

    # -- files

    def write_to(self, log: np.ndarray, at_most: int | None = None) -> None:
        """Writes of every lane as one number: its place, how many older rows still lie there, and its rows.

        Args:
            log: [B] int64; lanes without an open row stay 0.
            at_most: so many rows of each lane outlive what is written next; `None` is all.
        """
        counts, lying = self.counts, np.minimum(self.written, self.rows + self.spare)
        if at_most is not None:
            counts, lying = np.minimum(counts, max(at_most, 0)), np.minimum(lying, max(at_most, 0))
        older = np.minimum(lying - counts, _MOST_OLDER) if self.ring_size < 1 << _COUNT_BITS else 0 * counts
        np.copyto(log, (self.cursors << 32) | (older << _COUNT_BITS) | counts, where=self.opened)

    def read_from(self, log: np.ndarray) -> None:
        """Takes over what `write_to` wrote; a lane without an entry was never opened.

        Args:
            log: [B] int64.
        """
        self.opened[:] = log != 0
        counts, older = log & 0xFFFFFFFF, np.zeros_like(log)
        if self.ring_size < 1 << _COUNT_BITS:
            counts, older = log & ((1 << _COUNT_BITS) - 1), (log >> _COUNT_BITS) & _MOST_OLDER
        self._place(np.where(self.opened, log >> 32, self.first_place), counts, counts + older)
        self.restarts += 1

    def _place(self, cursors: np.ndarray, counts: np.ndarray, written: np.ndarray) -> None:
        self.together, self._apart[:] = 0, written
        self._oldest, self._origin = self._apart - counts, (cursors - self._apart) % self.ring_size
        self.lockstep = bool((cursors == cursors[0]).all() and (counts == counts[0]).all())
        self.all_open = bool(self.opened.all())
        self._find_lane_0()

    def state(self) -> dict[str, Any]:
        """Everything by name, for a checkpoint."""
        return {
            "head": self.cursors,
            "count": self.counts,
            "written": self.written,
            "places": self.ring_size,
            **{name: getattr(self, name).copy() for name in _ARRAYS},
            **{name: getattr(self, name) for name in ("lockstep", "restarts", "exchanges")},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of as many lanes with rings of the same length.

        Raises:
            CheckpointError: something is missing, or belongs to another number of lanes.
        """
        try:
            state = {"furthest": np.zeros(self.num_lanes, np.int64), **state}  # which older ones lack
            saved = {name: np.asarray(state[name]) for name in ("head", "count", "written", *_ARRAYS)}
            if wrong := [array for array in saved.values() if array.shape != self.opened.shape]:
                raise CheckpointError(f"the saved buffer has {len(wrong[0])} lanes, but this one {self.num_lanes}")
            if state["places"] != self.ring_size:
                raise CheckpointError(
                    f"the rings of the saved buffer have {state['places']} places, but here {self.ring_size}: "
                    "memory, mapped files and stacks of frames need different ones"
                )
            self.restarts, self.exchanges = int(state["restarts"]), int(state["exchanges"])
        except KeyError as error:
            raise CheckpointError(f"the saved buffer has no {error}") from None
        for name in _ARRAYS:
            getattr(self, name)[:] = saved[name]
        self._place(saved["head"], saved["count"], saved["written"])
        self.lockstep = self.lockstep and bool(state.get("lockstep", True))  # which older ones lack
        self.has_changes = bool((self.kept != _ALL).any())


class RowLayout(NamedTuple):
    """What rows consist of, and how long the rings are in which they lie, as options ask for it."""

    rows: int
    """Complete rows that a lane can hold at first."""
    spare: int
    """Places behind the oldest row whose content stays."""
    specs: dict[str, Any]
    """Spec of every field, by name."""
    state_spec: dict[str, TensorSpec]
    """Spec of the hidden state, by name; empty without one."""

    @classmethod
    def of(cls, capacity: int | None, num_lanes: int, options: RowOptions) -> Self:
        """The layout of a buffer; knows no storage.

        Args:
            capacity: see `Streams`.
            num_lanes: see `Streams`.
            options: see `Streams`.

        Raises:
            ConfigError: see `Streams`.
            TypeError: see `Streams`.
        """
        growing = capacity is None
        if num_lanes < 1 or (capacity is not None and capacity < num_lanes):
            raise ConfigError(f"capacity {capacity} has no room for one row in each of {num_lanes} lanes")
        _require_options(options)
        if (period := options.get("state_period", 1)) < 1 or (growing and period > 1):
            raise ConfigError(f"state_period is {period}; it must be at least 1, and 1 where the buffer grows")
        # an unroll is handed out as it lies in memory, so a buffer that grows for it keeps whole stacks
        spare = 0 if growing else _frames(options["observation_spec"]) - 1
        if (stack_num := options.get("stack_num", 1)) < 1 or (stack_num > 1 and (growing or spare)):
            raise ConfigError(
                f"stack_num is {stack_num}; it must be at least 1, and 1 where the buffer grows (capacity=None), or "
                "where the spec says `stacked`, as with the wrapper FrameStack"
            )
        spare += stack_num - 1
        if (where := options.get("storage")) is not None and where.mapped:
            if growing or options.get("complete_episodes_only"):
                raise ConfigError("mapped files hold a buffer of fixed capacity without complete_episodes_only")
            spare += 1  # so that a row which is half written lies where none is counted
        extras = {name: options.get(f"{name}_spec") for name in EXTRA_FIELDS}
        specs: dict[str, Any] = {
            "step_type": TensorSpec((), torch.int32),
            "reward": options.get("reward_spec") or TensorSpec(()),
            "discount": TensorSpec(()),
            "observation": options["observation_spec"],
            "action": options["action_spec"],
            "policy_version": TensorSpec((), torch.int32),
            "policy_info": dict(options.get("info_spec") or {}),
            **{name: dict(spec) for name, spec in extras.items() if spec},
        }
        rows = _FIRST_ROWS if capacity is None else capacity // num_lanes
        return cls(rows, spare, specs, dict(options.get("state_spec") or {}))


class Streams:
    """The storage of rows and hidden states with the write positions of its lanes, as options describe them.

    Args:
        capacity: complete rows over all lanes; with `None` a full lane gets more room.
        num_lanes: streams side by side.
        options: what a row consists of.

    Raises:
        ConfigError: there is not room for one row in every lane, or the options do not fit together.
        TypeError: an option is unknown, or a spec is missing.
    """

    def __init__(self, capacity: int | None, num_lanes: int, options: RowOptions) -> None:
        layout, where = RowLayout.of(capacity, num_lanes, options), options.get("storage")
        self.options, self.num_lanes, self.growing = options, num_lanes, capacity is None
        self.complete_only = options.get("complete_episodes_only", False)
        self.info_fields, self.sample_avail = tuple(layout.specs["policy_info"]), options.get("sample_avail", False)
        self.state_period, self.stack_num = options.get("state_period", 1), options.get("stack_num", 1)
        period, first = self.state_period if layout.state_spec else 1, 0 if self.stack_num > 1 else None
        size, kind = layout.rows + layout.spare + 1, options.get("compression", "none")  # with an open row
        self.storage = LaneStorage(size, num_lanes, layout.specs, stacks=self.growing, compression=kind, storage=where)
        self.positions = WritePositions(num_lanes, layout.rows, layout.spare, period, first)
        self.states: LaneStorage | None = None
        """Hidden states; one for each of `state_period` places."""
        if layout.state_spec:
            slots, state = -(-size // self.state_period), {"state": layout.state_spec}
            self.states = LaneStorage(slots, num_lanes, state, name="states", storage=where)
        self.log: np.ndarray | None = None
        """Of mapped files: place and number of rows of each lane, as they are after the newest complete write."""
        if where is not None and where.mapped:  # "heads" is the name of the file since format 1
            self.log = where.allocate("heads", {"log": ((num_lanes,), torch.int64)})["log"].numpy()
            if self.log.any():
                self.positions.read_from(self.log)

    def write_log(self, at_most: int | None = None) -> None:
        """Writes the positions to mapped files, if rows are there.

        Args:
            at_most: so many rows of each lane outlive what is written next; `None` is all.
        """
        if self.log is not None:
            self.positions.write_to(self.log, at_most)

    def older(self, frames: int) -> np.ndarray:
        """How many overwritten rows of each lane still lie there for its oldest stacks.

        Args:
            frames: at most so many.

        Returns:
            [B].
        """
        return np.minimum(self.positions.written - self.positions.counts, min(frames, self.stack_num - 1))

    def aligned(self, length: int) -> bool:
        """Whether a draw is one of sequences that begin at the rows with a hidden state, a few of all.

        Args:
            length: rows that follow.
        """
        return length > 1 and self.states is not None and self.state_period > 1

    def state_slots(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some rows keep a hidden state, and the row numbers of these states.

        Args:
            numbers: [N] row numbers.
        """
        places, lanes = numbers // self.num_lanes, numbers % self.num_lanes
        kept = places % self.state_period == 0
        return kept, (places[kept] // self.state_period) * self.num_lanes + lanes[kept]

    def resize(self, rows: int, order: np.ndarray) -> None:
        """Makes room for another number of rows.

        Args:
            rows: complete ones of every lane.
            order: [n, B] places whose rows are moved to the front.
        """
        self.storage.resize(rows + 1, order)
        if self.states is not None:  # a buffer that grows keeps a state with every row
            self.states.resize(rows + 1, order)


def _require_options(options: RowOptions) -> None:
    missing = RowOptions.__required_keys__ - options.keys()
    unknown = options.keys() - RowOptions.__annotations__.keys()
    if unknown or missing:
        wrong = [f"needs {', '.join(sorted(missing))}"] if missing else []
        wrong += [f"does not know {', '.join(sorted(unknown))}"] if unknown else []
        raise TypeError(f"a buffer {' and '.join(wrong)}; its options are those of RowOptions")
