"""`ReplayBuffer`: streams of many lanes, drawn as unrolls, sequences or n-step windows; `ListReplayBuffer`.

It knows nothing of policies, losses or environments: a plan says what to draw.
"""

import functools
import math
from collections import UserList
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, TypeVar, Unpack, cast, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers.drawn import FLAG, RowNumbers, Unroll, Windows, cast_rows, given_rows, lane_step, warn_of_resets
from palaestra.buffers.lane_storage import FIRST, LAST, MID, other_actions
from palaestra.buffers.reader import Field, StreamReader
from palaestra.buffers.samplers import Sampler, UniformSampler
from palaestra.buffers.saving import (
    SegmentKeys,
    gathered,
    load_stream_tensors,
    read_buffer,
    stream_tensors,
    write_buffer,
)
from palaestra.buffers.storage import LoadedTensors, Storage
from palaestra.buffers.streams import RowOptions, Streams, WritePositions
from palaestra.buffers.writer import StreamWriter
from palaestra.core import Batch, CheckpointError, ConfigError, Offline, OnPolicy, Plan, Replay, ShapeError, to_device
from palaestra.core.tree import as_array

__all__ = ["KeepsBuffer", "ListReplayBuffer", "ReplayBuffer", "buffer_of"]

R = TypeVar("R", bound=Callable[..., Any])
_PIECE = 1000  # rows that are copied at once


@final
class ReplayBuffer:
    """Keeps the newest rows of every lane; a lane is one stream in time order.

    Row t holds time step t and the action taken on it. The newest row of each lane is *open*: its time step is known,
    its action is not yet. So a transition is two neighbouring rows, no observation is stored twice, and the newest
    transition is complete as soon as its time step has arrived. When a lane is full its oldest row is overwritten.

    A writer and a reader work on one storage. Their methods are the buffer's: see `StreamWriter` for `open`, `append`,
    `extend`, `write_info` and `clear`, and `StreamReader` for all that reads.

    Args:
        capacity: complete rows to keep, over all lanes; with `None` a full lane gets more room instead of losing its
            oldest row (for unrolls of any length).
        num_lanes: environments (or agents) that write.
        sampler: who chooses the rows of a draw; `UniformSampler()` by default.
        options: what a row consists of, see `RowOptions`; `observation_spec` and `action_spec` are needed.

    Raises:
        ConfigError: there is not room for one row in every lane, or the options do not fit together.
        TypeError: an option is unknown, or a spec is missing.
    """

    def __init__(
        self, capacity: int | None, num_lanes: int, *, sampler: Sampler | None = None, **options: Unpack[RowOptions]
    ) -> None:
        self._streams = streams = Streams(capacity, num_lanes, options)
        self._keys: SegmentKeys | None = None
        self.sampler = UniformSampler() if sampler is None else sampler
        self.options = options
        """What a row consists of."""
        self.num_lanes, self.info_fields, self.state_period = num_lanes, streams.info_fields, streams.state_period
        self.keeps_states = streams.states is not None
        """Whether a policy's hidden state is stored."""
        self.device = streams.storage.device or torch.device("cpu")
        """Where what is read lies."""
        self.positions = streams.positions
        """Where each lane is written next, and which rows it holds; to be read only."""
        self.origin: dict[str, str] = {}
        """What is known of where loaded rows come from; see `save`."""
        self._saw_an_end = False  # of an episode, and what `add` got after it
        self._known_returns: tuple[Any, np.ndarray, np.ndarray, int] | None = None

        self.writer = writer = StreamWriter(streams)
        self.open, self.append, self.clear = writer.open, writer.append, writer.clear
        self.extend, self.end_streams = writer.extend, writer.end_streams
        self.write_info, self.forget = writer.write_info, writer.forget
        self.lose, self.skip = writer.lose, writer.skip

        self.reader = reader = StreamReader(streams)
        self._fixed_reader, self._drawn_from = StreamReader(streams, fixed=True), reader
        self.newest, self.recent, self.take, self.field = reader.newest, reader.recent, reader.take, reader.field
        self.next, self.prev, self.held, self.pieces = reader.next, reader.prev, reader.held, reader.pieces
        self.following, self.is_start, self.windows = reader.following, reader.is_start, reader.windows
        self.starts, self.episodes = _numbered(reader.starts), _numbered(reader.episodes)
        self.in_time_order, self.unfinished = _numbered(reader.in_time_order), _numbered(reader.unfinished)

    def __len__(self) -> int:
        """Complete rows over all lanes."""
        return len(self.reader)

    def __getitem__(self, index: Any) -> Batch:
        """Rows by row number: every field of them, as it was stored.

        Args:
            index: a row number, or [N] of them; `episodes`, `starts` and the `index` of what is drawn give them. A
                slice from number to number is all of these that hold a complete row. Negative numbers, slices of them
                and `...` count complete rows in time order, lane by lane: -1 is the newest one of the last lane.

        Raises:
            IndexError: no row is there; or one end of a slice is a row number, the other a place in time order, and
                these differ.
        """
        return self.reader[index]

    def __getattr__(self, name: str) -> Field:
        streams = self.__dict__.get("_streams")
        if streams is None or name not in streams.storage.specs:
            raise AttributeError(f"{type(self).__name__} has no attribute and no field {name!r}")
        return self.reader.field(name)

    @property
    def rows_per_lane(self) -> int:
        """Complete rows that one lane can hold at present."""
        return self.positions.rows

    @property
    def size_bytes(self) -> int:
        """Memory of the storage."""
        return self._streams.storage.size_bytes

    def returns_to_go(self, index: np.ndarray | Tensor) -> Tensor:
        """The rewards that followed rows until the ends of their episodes, added up.

        They are worked out for all rows at once, and again when rows have been written.

        Args:
            index: [N] row numbers.

        Returns:
            [N] float32; NaN where the end of the episode was not recorded.
        """
        return torch.from_numpy(self._returns()[0][np.asarray(index)])

    def _returns(self) -> tuple[np.ndarray, np.ndarray, int]:
        """`returns_to_go` of all rows, the returns of complete episodes, and the most steps of one."""
        if self._known_returns is None or self._known_returns[0] != self.positions.stamp:
            if (spec := self.options.get("reward_spec")) is not None and spec.shape:
                raise ConfigError("a return is a sum of single numbers, but the rewards of these rows are vectors")
            to_go = np.full(self.positions.ring_size * self.num_lanes, np.nan, np.float32)
            for lane in range(self.num_lanes):
                rows = self.in_time_order(lane)
                reward = self.take("reward", rows).cpu().double().numpy()
                to_go[rows] = _sums_to_end(reward, self.take("step_type", rows).cpu().numpy())
            episodes = self.episodes()
            found = to_go[np.array([rows[0] for rows in episodes], np.int64)]
            self._known_returns = self.positions.stamp, to_go, found, max(map(len, episodes), default=1) - 1
        return self._known_returns[1:]

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any = False, lane: int = 0
    ) -> None:
        """Appends one transition of a plain loop, as Gymnasium's `step` gives it.

        An episode ends where a flag says so. Where `obs` is not the `next_obs` of the transition before, some are
        missing: what lies before counts as cut off there. Neither side is a whole episode then: both begin with MID,
        unless rows lie in mapped files or stacks of frames are kept, where what was written stays. Where the first
        episode that ends is followed by its own last observation, a warning asks about environments that reset
        themselves.

        Args:
            obs: what the action was taken on, raw.
            action: as the buffer's `action_spec` says: raw, where that is a policy's `raw_action_spec`.
            reward: that followed.
            next_obs: that followed; at the end of an episode its last observation, not the one after a reset.
            terminated: whether the task ended.
            truncated: whether the episode was cut off, by a time limit say.
            lane: which stream it belongs to: one for each environment.

        Raises:
            ShapeError: something does not fit the specs, or rows keep more than a transition has.
        """
        storage, which = self._streams.storage, self.writer.lanes_of([lane])
        if more := [*self.info_fields, *storage.extras, *(["state"] if self.keeps_states else [])]:
            raise ShapeError(f"rows keep {', '.join(more)} besides, which a transition does not have; use append")
        given = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "terminated": terminated}
        specs = [*(storage.specs[name] for name in ("observation", "observation", "action", "reward")), FLAG, FLAG]
        named = zip({**given, "truncated": truncated}.items(), specs, strict=True)
        seen, led, acted, earned, ended, cut = (cast_rows(*one, spec) for one, spec in named)
        number, opened = self.positions.numbers(which), bool(self.positions.opened[lane])
        running = opened and bool(storage.step_types[number] != LAST)
        looks = opened and not running and not self._saw_an_end
        stands = to_device(Batch.of({"obs": storage.take("observation", number)}), "cpu") if running or looks else None
        same = stands == Batch.of({"obs": seen})
        if looks:
            self._saw_an_end = True
            warn_of_resets(int(same and stands != Batch.of({"obs": led})))
        if not (running and same):
            if running:
                self.writer.cut(which)
            self.open(lane_step(MID if running else FIRST, torch.zeros_like(earned), 1, seen), which)
        kind = LAST if ended or cut else MID
        self.append(acted, lane_step(kind, earned, 0 if ended else 1, led), env_id=which)

    def update(self, other: "ReplayBuffer") -> None:
        """Appends what another buffer holds, see `StreamWriter.update`; of `origin`, what both say stays.

        Args:
            other: with the same fields, and actions of the same unit: both raw ones of a policy, or executed ones.

        Raises:
            ShapeError: it has other fields or actions.
        """
        if said := other_actions({"this buffer": self.options, "the other": other.options}):
            raise ShapeError(said)
        told = self.origin.items() & other.origin.items() if len(self) else other.origin.items()
        self.writer.update(other.reader)
        self.origin = dict(told)

    # -- drawing

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            plan: an on-policy plan gets everything as one `Unroll`, which the next `append` discards where the plan
                clears; a replay plan gets random `Windows`, or an `Unroll` of random sequences where
                `mini_batch_length` is above 1; with `num_epochs` all of them, in time order.
            generator: source of the sampled rows.

        Raises:
            ConfigError: a lane has no room for one window or sequence of the plan, windows of several steps are
                asked for where only some rows have a hidden state, priorities where rows are drawn uniformly, or
                whoever has this generator has drawn this unroll.
            ShapeError: the buffer does not hold a single row to learn from.
        """
        if isinstance(plan, OnPolicy):
            if self.writer.used and self.writer.used_by is generator:
                raise ConfigError(
                    "this unroll was learned from already, and an on-policy update needs new rows: collect before the "
                    "next one (`collector.unroll(...)`). To learn more from each unroll raise num_epochs; to learn "
                    "from older ones, too, ask for OnPolicy(clear=False)"
                )
            unroll = self.reader.everything()
            self.writer.used, self.writer.used_by = plan.clear, generator
            return unroll
        drawn = self.rows_of(plan, self.chosen(plan, generator))
        drawn = self.sampler.finish(self._drawn_from, drawn, generator)
        return drawn if self._streams.storage.device is None else to_device(drawn, self._streams.storage.device)

    def chosen(self, plan: Replay | Offline, generator: torch.Generator) -> np.ndarray:
        """Row numbers where the windows or sequences of a draw begin.

        Args:
            plan: what is drawn.

        Raises:
            ConfigError: see `draw`.
            ShapeError: the buffer does not hold a single row to learn from.
        """
        if plan.mini_batch_length == 1 and plan.n_step > 1 and self.keeps_states and self.state_period > 1:
            raise ConfigError(
                f"windows of {plan.n_step} steps were asked for, but this buffer keeps a policy's hidden state with "
                f"one row in {self.state_period}, for sequences; ask for mini_batch_length > 1 or n_step=1, or make "
                "a buffer without state_spec"
            )
        if getattr(plan, "prioritized", None) is not None and isinstance(self.sampler, UniformSampler):
            raise ConfigError(
                "the plan asks for priorities, and this buffer draws all rows alike; give it the plan's sampler: "
                "buffer.sampler = sampler_of(plan)"
            )
        reader = self._drawn_from = self._fixed_reader if isinstance(plan, Offline) else self.reader
        if isinstance(plan, Replay) and plan.num_epochs is not None:
            return self._all_starts(plan)
        return self.sampler.starts(reader, plan.gradient_steps * plan.mini_batch_size, plan.window, generator)

    def rows_of(self, plan: Replay | Offline, index: np.ndarray) -> Windows | Unroll:
        """The windows or sequences that begin at given rows, as a plan wants them.

        Args:
            plan: what is drawn.
            index: [N] row numbers, of `chosen`.
        """
        reader = self._fixed_reader if isinstance(plan, Offline) else self.reader
        if plan.mini_batch_length == 1:
            return reader.windows(index, plan.n_step, all_actions=plan.all_actions)
        sequences = reader.sequences(index, plan.window, plan.burn_in)
        if not plan.returns:
            return sequences
        to_go, returns, longest = self._returns()
        to_go, time = to_go[index], reader.steps_from_begin(index)
        begins = self.take("step_type", reader.after(index, -time)).cpu().numpy() == FIRST
        to_go[~begins] = np.nan  # of a row whose time is not known
        stats = [len(returns), returns.min(), returns.max(), returns.mean(), longest] if len(returns) else [0] * 5
        return sequences.replace(
            return_to_go=torch.from_numpy(to_go),
            time=torch.from_numpy(time).float(),
            episode_stats=torch.tensor(stats, dtype=torch.float32).unsqueeze(-1).expand(-1, len(index)),
        )

    def _all_starts(self, plan: Replay) -> np.ndarray:
        """Rows where windows begin, or sequences one behind the other.

        None begins with a row that cannot be learned from, such as the end of an episode, but with the one after it.
        """
        starts = self.sampler.every(self.reader, plan.window)
        if plan.mini_batch_length == 1 or (self.keeps_states and self.state_period > 1):  # so far apart already
            return starts
        ages = self.reader.ages(starts) % (plan.sequence_period or plan.mini_batch_length)
        late = (ages == 1) & ~np.isin(self.reader.after(starts, -1), starts)
        return starts[(ages == 0) | late]

    def write_back(self, indices: Tensor | np.ndarray, priority: Tensor | np.ndarray) -> None:
        """Gives priorities of rows to the sampler, at any time; uniform sampling ignores them.

        Args:
            indices: the batch's `index` field, the row numbers of `sample`, or any others.
            priority: non-negative, one for each.

        Raises:
            NonFiniteError: a priority is NaN, infinite or negative.
            ShapeError: there are not as many priorities as rows.
        """
        if indices.shape != priority.shape:
            raise ShapeError(
                f"priorities of shape {list(priority.shape)} were given for rows of shape {list(indices.shape)}; one "
                "for each row is needed"
            )
        self.sampler.write_back(self._drawn_from, given_rows(indices), np.asarray(as_array(priority)))

    def sample(self, count: int, generator: torch.Generator) -> tuple[Batch, np.ndarray]:
        """Rows as they were stored; for learning, `draw` gives windows that know how they end.

        Args:
            count: how many the sampler chooses; 0 is every complete row, those of a lane in time order.

        Returns:
            The rows, and [N] their row numbers. With priorities the rows have a field `weight`, as drawn ones have.

        Raises:
            ShapeError: there is nothing to choose from, or the count is negative.
        """
        if count < 0:
            raise ShapeError(f"sample({count}) was asked for; give at least 1 row, or 0 for all")
        if count:
            self._drawn_from = self.reader
            index = self.sampler.starts(self.reader, count, 1, generator)
        else:
            index = self.reader.complete()
        rows = self[index]
        if count and (weight := self.sampler.weight()) is not None:
            rows.weight = weight.to(self.device)
        return rows, index.view(RowNumbers)

    def set_progress(self, progress: float) -> None:
        """Moves the schedules of the sampler to a point of the run, in [0, 1]."""
        self.sampler.set_progress(progress)

    # -- checkpoints and files

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies are whole: rows, positions and what the sampler knows."""
        storage = self.options.get("storage")
        if storage is not None and storage.mapped:
            raise ConfigError(
                "a buffer in mapped files cannot be pickled or copied, for two would write to the same files; use "
                "`save` and `load`, or make one for the same folder in the other process"
            )
        tensors = {**stream_tensors(self._streams), **self.writer.state()}
        capacity = None if self._streams.growing else self.rows_per_lane * self.num_lanes
        held = {name: value.clone() if isinstance(value, Tensor) else value for name, value in tensors.items()}
        return _unpickled, (capacity, self.num_lanes, self.sampler, dict(self.options), self.reader.fixed, held)

    def state_tensors(self) -> dict[str, Any]:
        """Everything the buffer and its sampler hold, by name; tensors are views of it."""
        streams, tensors = self._streams, stream_tensors(self._streams)
        if not streams.growing:
            if self._keys is None:
                multiple = math.lcm(self.state_period, streams.storage.block_rows)
                self._keys = SegmentKeys(self.positions, multiple, self.size_bytes)
            tensors["segments"] = self._keys.describe(streams, tensors, self.writer.rewritten)
            self.writer.rewritten = 0
        sampler = {f"sampler.{name}": value for name, value in self.sampler.state().items()}
        return {**tensors, **self.writer.state(), **sampler}

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave.

        Args:
            tensors: of a buffer with the same specs, lanes, capacity and sampler, in one piece or in shards.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        tensors = gathered(tensors) if "shards" in tensors else tensors
        self._load_streams(tensors)
        prefix = "sampler."
        self.sampler.load_state({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})

    def _load_streams(self, tensors: Mapping[str, Any]) -> None:
        load_stream_tensors(self._streams, tensors)
        self.writer.load_state(tensors)
        self._keys = self._known_returns = None

    def save(self, directory: str | Path, *, origin: Mapping[str, str] | None = None) -> None:
        """Writes the buffer to a new folder: safetensors, JSON and their hashes. What its sampler knows is left out.

        Args:
            directory: must not exist yet, or be empty; it appears when it is whole.
            origin: what to note of where the rows come from, such as that of `palaestra.rollout.origin_of`, with which
                runs compare theirs. A folder without it is of whatever it fits.

        Raises:
            ConfigError: the folder exists.
            CheckpointError: it cannot be written; nothing is left of it.
        """
        shape = {
            "capacity": None if self._streams.growing else self.rows_per_lane * self.num_lanes,
            "num_lanes": self.num_lanes,
            "origin": {**(origin or {})},
        }
        tensors = {**stream_tensors(self._streams), **self.writer.state()}
        write_buffer(Path(directory), shape, self.options, tensors)

    @classmethod
    def load(cls, directory: str | Path, *, sampler: Sampler | None = None, storage: Storage | None = None) -> Self:
        """A buffer with what `save` wrote, after comparing every hash, as data that stay. No pickle is ever read.

        Args:
            directory: its folder.
            sampler: who chooses the rows of a draw; `UniformSampler()` by default. Priorities are not in the folder.
            storage: where rows lie, as in `RowOptions`; main memory by default. `MappedFiles` must be new ones; they
                are written piece by piece, and a buffer that grew has the rows it holds as its capacity there.

        Raises:
            CheckpointError: a file is missing, damaged, of another kind or of a newer format; the message names it.
            ConfigError: there is no room for it, or mapped files hold rows already or cannot hold these.
        """
        shape, options, tensors = read_buffer(Path(directory))
        capacity, lanes = shape["capacity"], shape["num_lanes"]
        if capacity is None and storage is not None and storage.mapped:
            capacity = max(1, int(tensors["count"].max())) * lanes
        buffer = cls(capacity, lanes, sampler=sampler, **{**options, "storage": storage})
        buffer.reader.fixed, buffer.origin = True, shape["origin"]
        if buffer.positions.opened.any():
            raise ConfigError(
                f"mapped files that hold {len(buffer)} rows were given to load {directory} into; give a new folder, or "
                "make a ReplayBuffer with this one to continue with its rows"
            )
        alike = capacity is None or tensors.get("places") == buffer.positions.ring_size
        if capacity == shape["capacity"] and alike:
            buffer._load_streams({**tensors, "used": False})
            return buffer
        if buffer.state_period > 1:
            raise ConfigError(
                f"the buffer in {directory} keeps a policy's hidden state with one row in {buffer.state_period}, and "
                "these cannot move to or from mapped files; load it where it was, in main memory or in mapped files"
            )
        saved = Streams(shape["capacity"], lanes, RowOptions(**{**options, "storage": LoadedTensors(tensors)}))
        try:
            rows = int(tensors["rows_per_lane"])
            saved.positions = WritePositions(lanes, rows, int(tensors["places"]) - rows - 1)
        except KeyError as error:
            raise CheckpointError(f"the saved buffer has no {error}") from None
        saved.positions.load_state(tensors)
        for which, piece in StreamReader(saved).pieces(at_most=_PIECE, frames=saved.stack_num - 1):
            buffer.extend(piece, which)
        buffer.writer.keep(saved.positions.counts)
        return buffer


def _numbered(rows_of: R) -> R:
    """Marks row numbers, which then refuse to be taken modulo."""

    @functools.wraps(rows_of)
    def numbered(*args: Any, **kwargs: Any) -> Any:
        rows = rows_of(*args, **kwargs)
        return [one.view(RowNumbers) for one in rows] if isinstance(rows, list) else rows.view(RowNumbers)

    return cast(R, numbered)


def _unpickled(
    capacity: int | None, num_lanes: int, sampler: Sampler, options: Any, fixed: bool, tensors: Mapping[str, Any]
) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, num_lanes, sampler=sampler, **options)
    buffer.reader.fixed = fixed
    buffer._load_streams(tensors)
    return buffer


def _sums_to_end(reward: np.ndarray, step_type: np.ndarray) -> np.ndarray:
    """[T] the rewards after each row of a lane up to the LAST one of its episode; NaN where there is none."""
    rows = np.arange(len(reward))
    lasts, firsts = (np.append(np.flatnonzero(step_type == kind), len(rows)) for kind in (LAST, FIRST))
    last, first = lasts[np.searchsorted(lasts, rows)], firsts[np.searchsorted(firsts, rows, side="right")]
    earned = np.append(reward.cumsum(), np.nan)  # a lane ends in the middle of an episode
    return np.where(first > last, earned[last] - earned[rows], np.nan)


class KeepsBuffer(Protocol):
    """What keeps its rows in a buffer, such as an `ExperienceMemory`."""

    @property
    def buffer(self) -> ReplayBuffer:
        """Where the rows are."""
        ...


def buffer_of(source: ReplayBuffer | KeepsBuffer) -> ReplayBuffer:
    """The buffer that a source draws from.

    Args:
        source: a buffer, or what keeps its rows in one.

    Raises:
        ConfigError: it is neither.
    """
    found = source if isinstance(source, ReplayBuffer) else getattr(source, "buffer", None)
    if not isinstance(found, ReplayBuffer):
        raise ConfigError(f"a {type(source).__name__} was given; a ReplayBuffer or an ExperienceMemory is needed")
    return found


@final
class ListReplayBuffer(UserList[Any]):
    """Keeps all that is appended, without a limit: text, graphs, episodes of any shape. It cannot be sampled.

    It has the methods of a list; numbers in a list or an array choose several items.

    Examples:
        >>> buffer = ListReplayBuffer(["a", {"b": 1}])
        >>> buffer.append(("c", 2))
        >>> len(buffer), buffer[-1], buffer[[0, 2]]
        (3, ('c', 2), ['a', ('c', 2)])
    """

    def __getitem__(self, index: Any) -> Any:
        """One item by its number; or a list of them, by a slice or by numbers."""
        if isinstance(index, list | tuple | np.ndarray | torch.Tensor):
            return [self.data[int(number)] for number in index]
        return self.data[index]

    def draw(self, plan: Any, generator: torch.Generator) -> NoReturn:
        """Refused: nothing is known about the items that could make a batch of them.

        Args:
            plan: not used.
            generator: not used.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a ListReplayBuffer cannot be sampled; read its items, or use a ReplayBuffer")
