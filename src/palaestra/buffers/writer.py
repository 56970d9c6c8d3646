"""`StreamWriter`: what is written to the streams of many lanes, a step at a time or many rows at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from palaestra.buffers.lane_storage import ACTED_FIELDS, FIRST, LAST, MID
from palaestra.buffers.reader import StreamReader
from palaestra.buffers.streams import Streams
from palaestra.core import Batch, ShapeError, TimeStep, as_array, tree_select

__all__ = ["StreamWriter"]


class StreamWriter:
    """Writes rows; a row that is refused leaves everything as it was.

    Args:
        streams: to write to.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams, self._storage, self._positions = streams, streams.storage, streams.positions
        self._lanes = np.arange(streams.num_lanes)
        self._skipped = np.zeros(streams.num_lanes, bool)  # the frames before the open row are not there
        self._ended = np.zeros(streams.num_lanes, bool)  # they are another stream's
        self.used = False
        """Whether an unroll with everything was handed out: the next row that is written discards it."""
        self.used_by: Any = None
        """The generator of whom it was handed out to."""
        self.rewritten = 0
        """So many of the newest rows got their info since the buffer was last saved."""

    def state(self) -> dict[str, Any]:
        """What is known besides the rows and their places, by name, for copies and checkpoints."""
        return {"used": self.used, "ended": self._ended.copy(), "skipped": self._skipped.copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: with its entries, of which older ones have only `used`, and possibly others.
        """
        self.used = bool(state["used"])
        self._ended[:], self._skipped[:] = state.get("ended", False), state.get("skipped", False)

    def open(self, time_step: TimeStep, env_id: Any = None) -> None:
        """Starts or restarts streams: their open rows become these time steps, and no row is completed by an action.

        Args:
            time_step: one row per lane written.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for.
        """
        positions, which = self._positions, self.lanes_of(env_id)
        arrived = self._storage.checked_step(time_step, len(which))
        if positions.spare:
            self._begin_stacks(time_step, which)
        running = which[positions.opened[which]]
        begins = as_array(time_step.step_type) != LAST  # a fragment may begin where the one before it ended
        kinds = self._storage.step_types[positions.numbers(which)]
        # of an unroll that was learned from, the last row goes with the others
        ended = positions.opened[which] & (kinds == LAST) & (positions.counts[which] > 0)
        self._complete_ended(which[begins & ended])
        if self._streams.complete_only and running.size:
            positions.rewind(running, positions.unfinished[running])
            positions.unfinished[running] = 0
        positions.exchange(running)
        positions.open(which)
        together = env_id is None and positions.lockstep
        place = positions.cursor
        self._storage.write(arrived, slice(place, place + 1) if together else positions.numbers(which))
        self._streams.write_log()

    def _complete_ended(self, lanes: np.ndarray) -> None:
        """The last step of an episode stays, as a row whose action does not count."""
        if not lanes.size:
            return
        positions, states = self._positions, self._streams.states
        self._make_room(lanes)
        numbers = positions.numbers(lanes)
        self._storage.zero(ACTED_FIELDS, numbers)
        if states is not None:
            states.zero(("state",), self._streams.state_slots(numbers)[1])
        positions.advance(lanes)

    def append(
        self, action: Any, time_step: TimeStep, *, policy_version: int = 0, state: Any = None, env_id: Any = None
    ) -> None:
        """Completes the open row with its action and opens the next one with the time step that followed.

        Args:
            action: what the policy sampled on the open row, one per lane written.
            time_step: what the environment answered.
            policy_version: the version that acted.
            state: the policy's hidden state before it saw the open row: a batch of `[B, ...]`, or `None` without one.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for, or a lane was never opened.
        """
        streams, positions, storage = self._streams, self._positions, self._storage
        which = None if env_id is None else self.lanes_of(env_id)
        hidden = [] if state is None and streams.states is None else self._checked_state(state, which)
        if which is not None and np.array_equal(which, self._lanes):
            which = None
        if which is not None or not positions.lockstep or not positions.all_open or streams.complete_only:
            self._append_to(self._lanes if which is None else which, action, time_step, policy_version, hidden)
            return
        if self.used:
            self._discard()
        if streams.growing and positions.count == positions.rows:
            self._grow()
        row = positions.cursor
        after = 0 if row + 1 == positions.ring_size else row + 1
        storage.write_step(action, row, time_step, after)
        storage.policy_versions[row] = policy_version
        if hidden:
            self._write_state(hidden, row * positions.num_lanes + self._lanes)
        positions.together, positions.cursor = positions.together + 1, after
        positions.count += positions.count < positions.rows
        if streams.log is not None:
            streams.write_log()

    def _append_to(
        self, lanes: np.ndarray, action: Any, time_step: TimeStep, version: Any, hidden: Any, info: Any = None
    ) -> None:
        """Appends one row of some lanes; the version is one number or [n], `hidden` is checked, `info` is not."""
        positions = self._positions
        if not positions.all_open and not positions.opened[lanes].all():
            closed = lanes[~positions.opened[lanes]].tolist()
            raise ShapeError(f"the lanes {closed} have no open row to complete; call open(time_step, env_id) first")
        taken = self._storage.checked("action", action, len(lanes))
        taken += [] if info is None else self._storage.checked("policy_info", info, len(lanes))
        arrived = self._storage.checked_step(time_step, len(lanes))
        if self.used:
            self._discard()
        self._make_room(lanes)
        completed = positions.numbers(lanes)
        self._storage.write(taken, completed)
        self._storage.policy_versions.flat[completed] = version
        if hidden:
            self._write_state(hidden, completed)
        positions.advance(lanes)
        self._storage.write(arrived, positions.numbers(lanes))
        if self._streams.complete_only:
            self._note_ends(lanes, completed)
        self._streams.write_log()

    def _note_ends(self, lanes: np.ndarray, completed: np.ndarray) -> None:
        """Counts the rows of running episodes, and drops those of episodes that broke off."""
        positions, kinds = self._positions, self._storage.step_types
        opened = positions.numbers(lanes)
        left, arrived = kinds[completed], kinds[opened]
        running = np.where((left == LAST) | (arrived == LAST), 0, positions.unfinished[lanes] + 1)
        broken = (arrived == FIRST) & (left != LAST)
        if broken.any():
            positions.rewind(lanes[broken], running[broken])
            self._storage.move(opened[broken], positions.numbers(lanes[broken]))
            running[broken] = 0
        positions.unfinished[lanes] = running

    def write_info(self, info: Any, rows: int) -> None:
        """Adds what the policy computed about its newest actions, in one batched pass after acting.

        Args:
            info: the fields of `info_spec`, `[rows, lanes, ...]`, of the rows that `recent` gives.
            rows: how many rows of every lane.

        Raises:
            ShapeError: the info is not what the buffer was made for.
        """
        checked = self._storage.checked("policy_info", info, rows, self._streams.num_lanes)
        self.rewritten = max(self.rewritten, rows)
        places = self._positions.newest(rows, and_open=False)
        self._storage.write(checked, places if isinstance(places, slice) else self._positions.numbers_at(places))

    # -- many rows at once

    def extend(self, rows: Batch, env_id: Any = None) -> None:
        """Appends fragments of streams at once.

        The first time step takes the place of the open row, as with `open`: the fragments of a lane join where each
        begins with the step that the one before it ended with.

        Args:
            rows: an `Unroll`, or another batch with `step_type`, `reward`, `discount` and `observation`
                `[T+1, B, ...]`, `action` `[T, B, ...]`, and if they are there `policy_version`, `policy_info` and
                `state` `[T, B, ...]`.
            env_id: which lanes, each once; `None` is all.

        Raises:
            ShapeError: a structure, shape or dtype is not what the buffer was made for.
        """
        streams, positions, checked = self._streams, self._positions, self._storage.checked
        fields = self._storage.step_fields
        needed = (*fields, "action", *(("state",) if streams.states is not None else ()))
        if missing := [name for name in needed if name not in rows]:
            instead = "; transitions that stand alone go into an ExperienceMemory" if "next_states" in rows else ""
            raise ShapeError(f"the fragment lacks the fields {missing}; it has {list(rows.keys())}{instead}")
        which, steps = self.lanes_of(env_id), len(rows.step_type) - 1
        if streams.complete_only:
            self._extend_one_by_one(rows, which, steps)
            return
        kept = steps if streams.growing else min(steps, positions.rows + positions.spare)
        # [kept + 1, B, ...] and [kept, B, ...]: rows before these would be overwritten at once
        arrived = [pair for name in fields for pair in checked(name, rows[name], steps + 1, len(which))]
        given = [name for name in ACTED_FIELDS if name in rows and self._storage.specs[name]]
        acted = [pair for name in given for pair in checked(name, rows[name], steps, len(which))]
        hidden = streams.states.checked("state", rows["state"], steps, len(which)) if streams.states is not None else []
        self.open(TimeStep(**{name: rows[name][0] for name in fields}), env_id)
        if self.used:
            self._discard()
        while streams.growing and positions.counts[which].max() + steps > positions.rows:
            self._grow()
        streams.write_log(at_most=positions.ring_size - 1 - kept)
        positions.advance(which, steps)
        together = positions.newest(kept, and_open=True) if env_id is None and not hidden else None
        to: Any = together if isinstance(together, slice) else positions.before_open(kept, which)  # [kept + 1, B]
        to_acted: Any = slice(to.start, to.stop - 1) if isinstance(to, slice) else to[:-1]
        self._storage.write([(path, part[steps - kept :]) for path, part in arrived], to)
        self._storage.zero([name for name in ACTED_FIELDS if name not in rows], to_acted)
        self._storage.write([(path, part[steps - kept :]) for path, part in acted], to_acted)
        if hidden and kept:
            flat = [(path, part[steps - kept :].reshape(-1, *part.shape[2:])) for path, part in hidden]
            self._write_state(flat, to_acted.reshape(-1))
        streams.write_log()

    def _extend_one_by_one(self, rows: Batch, which: np.ndarray, steps: int) -> None:
        arrived = [TimeStep(**{name: rows[name][t] for name in self._storage.step_fields}) for t in range(steps + 1)]
        versions = as_array(rows["policy_version"]) if "policy_version" in rows else np.zeros((steps, 1), np.int32)
        infos = rows["policy_info"] if "policy_info" in rows and self._streams.info_fields else None
        self.open(arrived[0], which)
        for t in range(steps):
            state = () if self._streams.states is None else tree_select(rows["state"], t)
            if infos is None:
                self._storage.zero(("policy_info",), self._positions.numbers(which))
            info = None if infos is None else tree_select(infos, t)
            hidden = self._checked_state(state, which)
            self._append_to(which, rows["action"][t], arrived[t + 1], versions[t], hidden, info)

    def update(self, other: StreamReader) -> None:
        """Appends what another buffer holds, lane by lane in time order.

        The stream of a lane ends where that of the other buffer begins: its open row becomes the end of a truncated
        episode, so that no transition leads from one stream into the other.

        What lies before is no whole episode then: see `cut`. Of other numbers of lanes, lane i is appended to lane i
        modulo the lanes here; a lane that is full loses its oldest rows.

        Where both read stacks by `stack_num`, the other's overwritten rows whose frames are in its oldest stacks come
        along. A lane that held rows before, and all where the numbers of lanes differ, show them as rows, which no draw
        begins with unless their stacks are whole.

        Args:
            other: with the same fields.

        Raises:
            ShapeError: it has other fields.
        """
        size, held = self._streams.num_lanes, self._positions.counts
        for lanes, rows in other.pieces(frames=self._streams.stack_num - 1):
            for begin in range(0, len(lanes), size):
                to, some = [lane % size for lane in lanes[begin : begin + size]], slice(begin, begin + size)
                self.cut(to)
                self.extend(rows.map(lambda leaf, some=some: leaf[:, some]), to)
        if other.num_lanes == size:
            self.keep(np.where(held == 0, other.positions.counts, self._positions.counts))

    def keep(self, counts: np.ndarray) -> None:
        """Forgets all but the newest complete rows of each lane; frames of their stacks stay.

        Args:
            counts: [B] how many to keep.
        """
        self._positions.keep(counts)
        self._streams.write_log()

    def end_streams(self, env_id: Any = None) -> None:
        """Ends streams: open rows become ends of truncated episodes, so that nothing leads to what is written next.

        Args:
            env_id: which lanes, each once; `None` is all. Those that were never opened stay as they are.
        """
        positions, storage, lanes = self._positions, self._storage, self.lanes_of(env_id)
        lanes = lanes[positions.opened[lanes]]
        if self._streams.complete_only:
            positions.rewind(lanes, positions.unfinished[lanes])
            positions.unfinished[lanes] = 0
        while (lanes := lanes[positions.counts[lanes] > 0]).size:
            unreached = lanes[storage.step_types[positions.numbers(lanes)] == FIRST]
            if not unreached.size:
                break
            positions.rewind(unreached, np.ones_like(unreached))  # no action led to an open row that is FIRST
        storage.step_types[positions.numbers(lanes)] = LAST
        self._complete_ended(lanes)
        storage.step_types[positions.numbers(lanes)] = MID  # of open rows whose place is taken by the next `open`
        self._ended[lanes] = self._streams.stack_num == 1  # else whole stacks are read within an episode
        self._streams.write_log()

    def cut(self, env_id: Any = None) -> None:
        """`end_streams`; the episodes that it cuts off count as parts: they begin with MID instead of FIRST.

        Where rows lie in mapped files, or stacks of frames or hidden states are kept, what was written stays; so it
        does of an episode beside one that broke off without an end (FIRST right behind MID).

        Args:
            env_id: which lanes, each once; `None` is all.
        """
        kinds, reader = self._storage.step_types, StreamReader(self._streams)
        running = np.intersect1d(reader.unfinished(), self._positions.numbers(self.lanes_of(env_id)))
        begin = reader.after(running, -reader.steps_from_begin(running))
        apart = (reader.ages(begin) == 0) | (kinds[reader.after(begin, -1)] == LAST)
        self.end_streams(env_id)
        if not self._positions.spare and self._streams.states is None:
            self._storage.step_types[marked := begin[apart & (kinds[begin] == FIRST)]] = MID
            self._positions.rewrites += bool(marked.size)

    def forget(self, env_id: Any = None) -> None:
        """Forgets all rows of lanes, open ones too, so that their streams begin anew.

        Args:
            env_id: which lanes, each once; `None` is all.
        """
        positions, lanes = self._positions, self.lanes_of(env_id)
        positions.rewind(lanes, positions.counts[lanes])
        positions.opened[lanes] = positions.all_open = False
        positions.unfinished[lanes] = 0
        self._streams.write_log()

    def lose(self, places: np.ndarray, env_id: Any) -> None:
        """Makes rows ends of episodes, since what they hold is lost: nothing is learned from them or across them.

        Args:
            places: in the rings.
            env_id: which lanes, each once.
        """
        if len(places):
            numbers = places[:, None] * len(self._lanes) + self.lanes_of(env_id)
            self._storage.step_types[numbers] = LAST
            self._positions.restarts += 1  # samplers begin anew

    def skip(self, step_type: np.ndarray, env_id: Any) -> np.ndarray:
        """Goes past rows of a fragment that is lost, as `extend` goes; they are ends of episodes, as with `lose`.

        Args:
            step_type: [T+1, B] of the fragment.
            env_id: which lanes, each once.

        Returns:
            [T, B] places of these rows; fewer where a lane cannot hold them all.
        """
        positions, which, steps = self._positions, self.lanes_of(env_id), len(step_type) - 1
        kinds = self._storage.step_types[positions.numbers(which)]
        self._complete_ended(which[(step_type[0] != LAST) & positions.opened[which] & (kinds == LAST)])
        positions.exchange(which[positions.opened[which]])
        positions.open(which)
        positions.advance(which, steps)
        numbers = positions.before_open(min(steps, positions.rows), which)
        self._storage.step_types[numbers] = LAST
        self._storage.step_types[numbers[-1]] = step_type[-1]
        positions.restarts += 1  # samplers begin anew
        self._skipped[which] = True
        self._streams.write_log()
        return numbers[:-1] // len(self._lanes)

    # -- hidden states

    def _checked_state(self, state: Any, lanes: np.ndarray | None) -> list[tuple[str, Any]]:
        states = self._streams.states
        if states is not None:
            return states.checked("state", state, len(self._lanes) if lanes is None else len(lanes))
        if isinstance(state, tuple) and not state:
            return []
        raise ShapeError("a policy state was given, but the buffer was made without one; give it a state_spec")

    def _write_state(self, hidden: list[tuple[str, Any]], numbers: np.ndarray) -> None:
        kept, slots = self._streams.state_slots(numbers)
        if slots.size and self._streams.states is not None:
            self._streams.states.write([(path, given[kept]) for path, given in hidden], slots)

    # -- room

    def clear(self) -> None:
        """Forgets all complete rows; the open rows stay, so streams continue."""
        positions = self._positions
        self._streams.write_log(at_most=0)
        spare, target = positions.spare, positions.first_place
        if positions.lockstep and (place := positions.cursor) >= spare <= target:
            self._storage.move(slice(place - spare, place + 1), slice(target - spare, target + 1))
        else:
            back = np.arange(spare, -1, -1)[:, None]  # the frames of the open rows' stacks stay too
            source = (positions.cursors - back) % positions.ring_size
            self._storage.move(positions.numbers_at(source), positions.numbers_at(target - back))
        positions.restart(0)
        self._streams.write_log()
        positions.unfinished[:] = 0
        self.used = False

    def _discard(self) -> None:
        """Forgets what an unroll has handed out; where only ended episodes count, the others wait for their end."""
        if self._streams.complete_only and self._positions.unfinished.any():
            self._positions.keep(self._positions.unfinished)
            self.used = False
        else:
            self.clear()

    def _make_room(self, lanes: np.ndarray) -> None:
        if self._streams.growing and (self._positions.counts[lanes] == self._positions.rows).any():
            self._grow()

    def _grow(self) -> None:
        """Doubles the room, with every lane's rows moved to the front in time order."""
        positions = self._positions
        counts, rows = positions.counts, 2 * positions.rows
        order = (positions.cursors - counts + np.arange(positions.ring_size)[:, None]) % positions.ring_size
        in_place = (positions.cursors - counts == positions.first_place).all()
        self._streams.resize(rows, order)
        if in_place:
            positions.grow(rows)
        else:  # the oldest rows were forgotten
            positions.restart(counts, rows)

    def _begin_stacks(self, time_step: TimeStep, lanes: np.ndarray) -> None:
        """Sees to it that stacks can be made again from single frames.

        At a FIRST step the frames before must be zeros; a stream that is cut from another brings its own along, and
        behind a stream that has ended it gets rows for them, from which nothing is learned.
        """
        positions, first = self._positions, as_array(time_step.step_type) == FIRST
        begins, kinds = positions.counts[lanes] == 0, self._storage.step_types
        fresh = ~first & (begins | self._skipped[lanes] | self._ended[lanes])
        if (ended := lanes[fresh & ~begins & self._ended[lanes]]).size:
            for _ in range(positions.spare):
                kinds[positions.numbers(ended)] = LAST
                self._complete_ended(ended)
            kinds[positions.numbers(ended)] = MID
        self._skipped[lanes] = self._ended[lanes] = False
        if fresh.any():
            back = np.arange(positions.spare, 0, -1)[:, None]
            places = (positions.cursors[lanes[fresh]] - back) % positions.ring_size
            numbers = places * positions.num_lanes + lanes[fresh]
            kinds[numbers[:, begins[fresh]]] = MID
            positions.rewrites += 1
            self._storage.write_stacks("observation", time_step.observation, fresh, numbers)
        agrees = self._storage.stacks_agree("observation", time_step.observation, first, positions.numbers(lanes))
        if not agrees.all():
            lane = int(lanes[~agrees][0])
            raise ShapeError(
                f"lane {lane}: the frames of a stack are not those of the rows before, or at a first step not zeros; "
                "leave `stacked` out of the spec, so that whole stacks are stored"
            )

    # -- checks

    def lanes_of(self, lanes: Any) -> np.ndarray:
        """Numbers of lanes, each once; `None` is all.

        Raises:
            ShapeError: there are no such lanes, or one is given twice.
        """
        if lanes is None:
            return self._lanes
        which = np.asarray(lanes)
        numbers = set(which.tolist()) if which.ndim == 1 and which.dtype.kind in "iu" else ()
        if len(numbers) != which.size or (numbers and not 0 <= min(numbers) <= max(numbers) < len(self._lanes)):
            raise ShapeError(
                f"env_id is {which.tolist()}; give each lane once, as numbers from 0 to {len(self._lanes) - 1}"
            )
        return which
