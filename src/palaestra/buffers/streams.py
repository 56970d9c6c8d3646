"""`LaneStreams`: the streams of many lanes, stored once; what every buffer does before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Required, TypedDict, Unpack

import numpy as np
import torch

from palaestra.buffers.heads import WriteHeads
from palaestra.buffers.memory import Memory
from palaestra.buffers.segments import SegmentKeys
from palaestra.buffers.storage import LaneStorage
from palaestra.core import ConfigError, ShapeError, SpecTree, StepType, TensorSpec, TimeStep, as_array, spec_leaves

__all__ = ["LaneStreams", "RowOptions"]

FIRST, MID, LAST = (int(kind) for kind in StepType)
_WRITTEN = ("action", "step_type", "reward", "discount", "observation")
_FIRST_ROWS = 128  # of every lane, where the buffer grows


class RowOptions(TypedDict, total=False):
    """What a row consists of; every buffer takes these by name."""

    observation_spec: Required[SpecTree]
    """Of one time step, before any normalisation."""
    action_spec: Required[SpecTree]
    """Of one action as the policy samples it."""
    info_spec: Mapping[str, TensorSpec] | None
    """What the policy's `behaviour` returns, by name."""
    reward_spec: TensorSpec | None
    """Of one reward; float32 without dimensions by default."""
    state_spec: Mapping[str, TensorSpec] | None
    """The memory of a recurrent policy, by name; `None` where it has none."""
    state_period: int
    """A memory is kept with every so-manieth row of a lane; 1, the default, is with all."""
    storage: Memory | None
    """Where rows lie; main memory by default, or `MappedFiles(directory)`, or `DeviceMemory("cuda")`."""
    complete_episodes_only: bool
    """Whether only rows of episodes that have ended are learned from (Tianshou's rule for several environments); rows
    of a stream that breaks off are dropped."""


class LaneStreams:
    """The streams themselves: what is written, and where. `ReplayBuffer` adds what is read and drawn.

    Args:
        capacity: see `ReplayBuffer`.
        num_lanes: streams side by side.
        options: see `RowOptions`.

    Raises:
        ConfigError: there is not room for one row in every lane, or the options do not fit together.
        TypeError: an option is unknown, or a spec is missing.
    """

    step_fields: ClassVar[tuple[str, ...]] = ("step_type", "reward", "discount", "observation")
    """What a row keeps of its time step."""

    def __init__(self, capacity: int | None, num_lanes: int, **options: Unpack[RowOptions]) -> None:
        if num_lanes < 1 or (capacity is not None and capacity < num_lanes):
            raise ConfigError(f"capacity {capacity} has no room for one row in each of {num_lanes} lanes")
        unknown, missing = (
            options.keys() - RowOptions.__annotations__.keys(),
            RowOptions.__required_keys__ - options.keys(),
        )
        if unknown or missing:
            raise TypeError(f"{type(self).__name__} needs {sorted(missing)} and does not know {sorted(unknown)}")
        self.options = options
        """What a row consists of."""
        self._growing, self._complete_only = capacity is None, options.get("complete_episodes_only", False)
        info_spec, state_spec = options.get("info_spec") or {}, options.get("state_spec") or {}
        self.num_lanes, self.info_fields = num_lanes, tuple(info_spec)
        self.state_period = options.get("state_period", 1)
        """A policy's memory is kept with the rows whose place is a multiple of this."""
        if self.state_period < 1 or (self._growing and self.state_period > 1):
            raise ConfigError(
                f"state_period is {self.state_period}; it must be at least 1, and 1 where the buffer grows"
            )
        observation_spec = options["observation_spec"]
        # an unroll is handed out as it lies in memory, so a buffer that grows for it keeps whole stacks
        spare = 0 if capacity is None else max(leaf.stacked for leaf in spec_leaves(observation_spec).values()) - 1
        memory = options.get("storage")
        if memory is not None and memory.mapped:
            if self._growing or self._complete_only:
                raise ConfigError("mapped files hold a buffer of fixed capacity without complete_episodes_only")
            spare += 1  # so that a row which is half written lies where none is counted
        self._heads = WriteHeads(num_lanes, _FIRST_ROWS if capacity is None else capacity // num_lanes, spare)
        specs = {
            "step_type": TensorSpec((), torch.int32),
            "reward": options.get("reward_spec") or TensorSpec(()),
            "discount": TensorSpec(()),
            "observation": observation_spec,
            "action": options["action_spec"],
            "policy_version": TensorSpec((), torch.int32),
            "policy_info": dict(info_spec),
        }
        self._set_storage(LaneStorage(self._heads.places, num_lanes, specs, stacks=capacity is None, memory=memory))
        slots = -(-self._heads.places // self.state_period)
        self._states = (
            LaneStorage(slots, num_lanes, {"state": dict(state_spec)}, name="states", memory=memory)
            if state_spec
            else None
        )
        self._used = False
        self._keys: SegmentKeys | None = None
        self._info_rows = 0  # so many of the newest rows got their info since the buffer was last saved
        self._log: np.ndarray | None = None
        """Of mapped files: place and number of rows of each lane, as they are after the newest complete write."""
        if memory is not None and memory.mapped:
            self._log = memory.allocate("heads", {"log": ((num_lanes,), torch.int64)})["log"].numpy()
            if self._log.any():
                self._heads.read_from(self._log)

    @property
    def rows_per_lane(self) -> int:
        """Complete rows that one lane can hold at present."""
        return self._heads.rows

    @property
    def size_bytes(self) -> int:
        """Memory of the storage."""
        return self._storage.size_bytes

    @property
    def device(self) -> torch.device:
        """Where what is read lies."""
        return self._storage.device or torch.device("cpu")

    @property
    def keeps_states(self) -> bool:
        """Whether a policy's memory is stored."""
        return self._states is not None

    @property
    def heads(self) -> WriteHeads:
        """Where each lane is written next, and which rows it holds; to be read only."""
        return self._heads

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are written together, so that a vector step is one contiguous row."""
        return self._heads.together

    # -- writing

    def open(self, time_step: TimeStep, env_id: Any = None) -> None:
        """Starts or restarts streams: their open rows become these time steps, and no row is completed by an action.

        Args:
            time_step: one row per lane written.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for.
        """
        heads, which = self._heads, self._which(env_id)
        arrived = self._checked_step(time_step, len(which))
        if heads.spare:
            self._begin_stacks(time_step, which)
        going = which[heads.opened[which]]
        begins = as_array(time_step.step_type) != LAST  # a fragment may go on where the one before it ended
        ended = which[begins & heads.opened[which] & (self._kinds[heads.numbers(which)] == LAST)]
        if ended.size:  # the last step of an episode stays, as a row whose action does not count
            self._make_room(ended)
            self._storage.zero(("action", "policy_version", "policy_info"), heads.numbers(ended))
            if self._states is not None:
                self._states.zero(("state",), self._state_slots(heads.numbers(ended))[1])
            heads.advance_lanes(ended)
        if self._complete_only and going.size:
            heads.rewind(going, heads.unfinished[going])
            heads.unfinished[going] = 0
        heads.exchange(going)
        heads.open(which)
        self._storage.write(arrived, heads.numbers(which))
        if self._log is not None:
            heads.write_to(self._log)

    def append(
        self, action: Any, time_step: TimeStep, *, policy_version: int = 0, state: Any = None, env_id: Any = None
    ) -> None:
        """Completes the open row with its action and opens the next one with the time step that followed.

        A row that is refused leaves the buffer as it was.

        Args:
            action: what the policy sampled on the open row, one per lane written.
            time_step: what the environment answered.
            policy_version: the version that acted.
            state: the policy's memory before it saw the open row: a batch of `[B, ...]`, or `None` without memory.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for, or a lane was never opened.
        """
        heads = self._heads
        which = None if env_id is None else self._which(env_id)
        memory = () if state is None and self._states is None else self._checked_state(state, which)
        if which is not None and which.tolist() == list(range(self.num_lanes)):
            which = None
        if which is not None or not heads.together or not heads.all_open or self._complete_only:
            which = self._which(None) if which is None else which
            self._append_to(which, action, time_step, policy_version, memory)
            return
        if self._used:
            self._discard()
        if self._growing and heads.count == heads.rows:
            self._grow()
        head = heads.head
        after = 0 if head == heads.last_place else head + 1
        values = (action, time_step.step_type, time_step.reward, time_step.discount, time_step.observation)
        if not self._write_row(*values, head, after):
            self._storage.write_rows(_WRITTEN, values, (head, after, after, after, after))
        self._versions[head] = policy_version
        if memory:
            self._write_state(memory, heads.numbers(np.arange(self.num_lanes)))
        heads.advance()
        if self._log is not None:
            heads.write_to(self._log)

    def _append_to(self, lanes: np.ndarray, action: Any, time_step: TimeStep, version: int, memory: Any) -> None:
        heads = self._heads
        if not heads.all_open and not heads.opened[lanes].all():
            closed = lanes[~heads.opened[lanes]].tolist()
            raise ShapeError(f"the lanes {closed} have no open row to complete; call open(time_step, env_id) first")
        taken = self._storage.checked("action", action, len(lanes))
        arrived = self._checked_step(time_step, len(lanes))
        if self._used:
            self._discard()
        self._make_room(lanes)
        completed = heads.numbers(lanes)
        self._storage.write(taken, completed)
        self._versions.reshape(-1)[completed] = version
        if memory:
            self._write_state(memory, completed)
        heads.advance_lanes(lanes)
        self._storage.write(arrived, heads.numbers(lanes))
        if self._complete_only:
            self._note_ends(lanes, completed)
        if self._log is not None:
            heads.write_to(self._log)

    # -- the memory of recurrent policies

    def _checked_state(self, state: Any, lanes: np.ndarray | None) -> list[tuple[str, np.ndarray]]:
        if self._states is None:
            if isinstance(state, tuple) and not state:
                return []
            raise ShapeError("a policy state was given, but the buffer was made without one; give it a state_spec")
        return self._states.checked("state", state, self.num_lanes if lanes is None else len(lanes))

    def _state_slots(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some rows keep a memory, and the row numbers of these memories."""
        places, lanes = numbers // self.num_lanes, numbers % self.num_lanes
        kept = places % self.state_period == 0
        return kept, (places[kept] // self.state_period) * self.num_lanes + lanes[kept]

    def _write_state(self, memory: list[tuple[str, np.ndarray]], numbers: np.ndarray) -> None:
        kept, slots = self._state_slots(numbers)
        if slots.size and self._states is not None:
            self._states.write([(path, given[kept]) for path, given in memory], slots)

    def _note_ends(self, lanes: np.ndarray, completed: np.ndarray) -> None:
        """Counts the rows of running episodes, and drops those of episodes that broke off."""
        heads = self._heads
        opened = heads.numbers(lanes)
        left, arrived = self._kinds[completed], self._kinds[opened]
        running = np.where((left == LAST) | (arrived == LAST), 0, heads.unfinished[lanes] + 1)
        broken = (arrived == FIRST) & (left != LAST)
        if broken.any():
            heads.rewind(lanes[broken], running[broken])
            self._storage.move(opened[broken], heads.numbers(lanes[broken]))
            running[broken] = 0
        heads.unfinished[lanes] = running

    def write_info(self, info: Any, rows: int) -> None:
        """Adds what the policy computed about its newest actions, in one batched pass after acting.

        Args:
            info: the fields of `info_spec`, `[rows, lanes, ...]`, of the rows that `recent` gives.
            rows: how many rows of every lane.

        Raises:
            ShapeError: the info is not what the buffer was made for.
        """
        checked = self._storage.checked("policy_info", info, rows, self.num_lanes)
        self._info_rows = max(self._info_rows, rows)
        places = self._heads.newest(rows, and_open=False)
        if isinstance(places, slice):
            places = np.arange(places.start, places.stop)[:, None]
        self._storage.write(checked, self._heads.numbers_at(places))

    def clear(self) -> None:
        """Forgets all complete rows; the open rows stay, so streams go on."""
        heads = self._heads
        if self._log is not None:
            heads.write_to(self._log, at_most=0)
        back = np.arange(heads.spare, -1, -1)[:, None]  # the frames of the open rows' stacks stay too
        self._storage.move(heads.numbers_at((heads.heads - back) % heads.places), heads.numbers_at(heads.spare - back))
        heads.restart(0)
        if self._log is not None:
            heads.write_to(self._log)
        heads.unfinished[:] = 0
        self._used = False

    def _discard(self) -> None:
        """Forgets what an unroll has handed out; where only ended episodes count, the others wait for their end."""
        if self._complete_only and self._heads.unfinished.any():
            self._heads.keep(self._heads.unfinished)
            self._used = False
        else:
            self.clear()

    def _make_room(self, lanes: np.ndarray) -> None:
        if self._growing and (self._heads.counts[lanes] == self._heads.rows).any():
            self._grow()

    def _grow(self) -> None:
        """Doubles the room, with every lane's rows moved to the front in time order."""
        heads = self._heads
        order = (heads.heads - heads.counts + np.arange(heads.places)[:, None]) % heads.places  # [places, lanes]
        self._resize(2 * heads.rows, order)
        heads.restart(heads.counts, 2 * heads.rows)

    def _resize(self, rows: int, order: np.ndarray) -> None:
        self._set_storage(self._storage.resized(rows + 1, order))
        if self._states is not None:  # a buffer that grows keeps a memory with every row
            self._states = self._states.resized(rows + 1, order)

    def _set_storage(self, storage: LaneStorage) -> None:
        self._storage = storage
        self._write_row = storage.row_writer()
        self._kinds, self._versions = storage.array("step_type").reshape(-1), storage.array("policy_version")

    def _begin_stacks(self, time_step: TimeStep, lanes: np.ndarray) -> None:
        """Sees to it that stacks can be made again from single frames.

        At a FIRST step the frames before must be zeros; a stream that is cut from another brings its own along.
        """
        heads, first = self._heads, as_array(time_step.step_type) == FIRST
        fresh = ~first & (heads.counts[lanes] == 0)
        if fresh.any():
            back = np.arange(heads.spare, 0, -1)[:, None]
            numbers = (heads.heads[lanes[fresh]] - back) % heads.places * self.num_lanes + lanes[fresh]
            self._kinds[numbers] = MID
            self._storage.write_stacks("observation", time_step.observation, fresh, numbers)
        agrees = self._storage.stacks_agree("observation", time_step.observation, first, heads.numbers(lanes))
        if not agrees.all():
            lane = int(lanes[~agrees][0])
            raise ShapeError(
                f"lane {lane}: the frames of a stack are not those of the rows before, or at a first step not zeros; "
                "leave `stacked` out of the spec, so that whole stacks are stored"
            )

    def _checked_step(self, time_step: TimeStep, *leading: int) -> list[tuple[str, np.ndarray]]:
        checked = self._storage.checked
        return [
            *checked("step_type", time_step.step_type, *leading),
            *checked("reward", time_step.reward, *leading),
            *checked("discount", time_step.discount, *leading),
            *checked("observation", time_step.observation, *leading),
        ]

    def _which(self, lanes: Any) -> np.ndarray:
        if lanes is None:
            return np.arange(self.num_lanes)
        which = np.asarray(lanes)
        numbers = set(which.tolist()) if which.ndim == 1 and which.dtype.kind in "iu" else ()
        if len(numbers) != which.size or (numbers and not 0 <= min(numbers) <= max(numbers) < self.num_lanes):
            raise ShapeError(
                f"env_id is {which.tolist()}; give each lane once, as numbers from 0 to {self.num_lanes - 1}"
            )
        return which
