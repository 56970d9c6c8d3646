"""`BufferContract`: what goes into a buffer comes out, in the order of its lane; draws never cross an end or the ring.

Beside the buffer stands a model of it as plain as possible, lists of rows. Every row carries a serial number as its
observation, so that whatever a buffer hands out can be looked up there.
"""

import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import OnPolicy, Replay, StepType, TimeStep, load_tensors, save_tensors
from palaestra.ops import n_step_targets

__all__ = ["BufferContract"]

FIRST, MID, LAST = (int(kind) for kind in StepType)
GAMMA = 0.9


class BufferContract(ABC):
    """A suite for a replay buffer with a storage or a sampler of your own.

    Examples:
        >>> from palaestra.buffers import EpisodeSampler
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> class TestMine(BufferContract):
        ...     def make(self, capacity, num_lanes):
        ...         specs = {"observation_spec": TensorSpec((), torch.int64), "action_spec": DiscreteSpec(num=5)}
        ...         return ReplayBuffer(capacity, num_lanes, sampler=EpisodeSampler(), **specs)
        >>> TestMine().test_what_goes_in_comes_out()
    """

    shapes: tuple[tuple[int, int, int], ...] = ((40, 2, 9), (40, 2, 20), (40, 2, 33), (17, 5, 8), (30, 1, 70))
    """(capacity, lanes, steps of all lanes): before, at and after it is full."""

    @abstractmethod
    def make(self, capacity: int, num_lanes: int) -> ReplayBuffer:
        """An empty buffer of scalar int64 observations and five discrete actions, as in the example.

        Args:
            capacity: rows.
            num_lanes: streams.
        """

    def filled(self, capacity: int, num_lanes: int, steps: int) -> tuple[ReplayBuffer, "World"]:
        """A buffer after so many steps of all lanes, some of whose streams break off, and the model beside it."""
        buffer, world = self.make(capacity, num_lanes), World(num_lanes, capacity // num_lanes, breaks=True)
        world.open(buffer)
        for _ in range(steps):
            world.append(buffer)
        return buffer, world

    # -- the suite

    def test_what_goes_in_comes_out(self) -> None:
        """Every row of every lane in its order, with wrap-around."""
        for shape in self.shapes:
            check_contents(*self.filled(*shape))

    def test_windows_respect_ends_the_ring_and_the_write_head(self) -> None:
        """Each of many windows equals a sum that walks along its lane."""
        for shape, n_step in itertools.product(self.shapes, (1, 2, 3)):
            buffer, world = self.filled(*shape)
            if any(lane.starts(n_step) for lane in world.lanes):
                plan = Replay(unroll_length=1, mini_batch_size=64, n_step=n_step)
                check_windows(buffer.draw(plan, torch.Generator().manual_seed(0)), world, n_step)

    def test_an_unroll_is_everything_with_a_bootstrap_row(self) -> None:
        """And the row after it begins the next one."""
        for shape in self.shapes:
            buffer, world = self.filled(*shape)
            unroll = buffer.draw(OnPolicy(unroll_length=1), torch.Generator().manual_seed(0))
            check_unroll(unroll, [(lane, 0) for lane in world.lanes])

    def test_the_same_generator_draws_the_same(self) -> None:
        """A draw depends on the contents and the given generator alone."""
        buffer, _ = self.filled(*self.shapes[1])
        plan = Replay(unroll_length=1, mini_batch_size=64)
        first, second = (buffer.draw(plan, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first.index, second.index)
        assert torch.equal(first.observation, buffer.take("observation", first.index))

    def test_a_saved_buffer_goes_on_bit_for_bit(self) -> None:
        """Contents, draws and later rows are those of the buffer that was not interrupted."""
        for shape in self.shapes:
            buffer, world = self.filled(*shape)
            twin = self.make(*shape[:2])
            with tempfile.TemporaryDirectory() as folder:
                save_tensors(Path(folder) / "buffer", buffer.state_tensors())
                twin.load_state_tensors(load_tensors(Path(folder) / "buffer"))
            check_contents(twin, world)
            if any(lane.starts(1) for lane in world.lanes):
                plan = Replay(unroll_length=1, mini_batch_size=16)
                drawn = [each.draw(plan, torch.Generator().manual_seed(2)).observation for each in (buffer, twin)]
                assert torch.equal(*drawn)


# -- the model


@dataclass
class ModelRow:
    """One row of a lane; `action` is `None` while it is open."""

    serial: int
    kind: int
    reward: float
    discount: float
    action: int | None = None
    version: int = 0


@dataclass
class ModelLane:
    """One stream: complete rows, the oldest first, and the open row."""

    capacity: int
    rows: list[ModelRow] = field(default_factory=list)
    open: ModelRow | None = None

    def append(self, action: int, row: ModelRow, version: int = 0) -> None:
        """Completes the open row."""
        assert self.open is not None
        self.open.action, self.open.version = action, version
        self.rows = [*self.rows, self.open][-self.capacity :]
        self.open = row

    def restart(self, row: ModelRow) -> None:
        """Begins a new stream; the last step of an episode stays."""
        if self.open is not None and self.open.kind == LAST:
            self.append(0, row)
        self.open = row

    @property
    def stream(self) -> list[ModelRow]:
        """All rows with the open one."""
        assert self.open is not None
        return [*self.rows, self.open]

    def starts(self, length: int, *, fixed: bool = False) -> list[int]:
        """Positions that may be learned from and have so many successors; in fixed data, or whose episode has ended."""
        stream = self.stream
        ends = [i for i, row in enumerate(stream) if row.kind == LAST]
        ends += [i - 1 for i, row in enumerate(stream) if row.kind == FIRST]
        return [
            i
            for i in range(len(stream) - 1)
            if stream[i].kind != LAST
            and stream[i + 1].kind != FIRST
            and (i + length < len(stream) or (fixed and i < max(ends, default=0)))
            and (fixed or length <= self.capacity)
        ]

    def target(self, start: int, n_step: int) -> tuple[float, float, ModelRow]:
        """Discounted reward, discount and bootstrap row of a window: Sutton and Barto 2018, equation (7.1)."""
        stream, total, factor, i = self.stream, 0.0, 1.0, start
        for _ in range(n_step):
            i += 1
            total += factor * stream[i].reward
            factor *= GAMMA * stream[i].discount
            if stream[i].kind == LAST or i + 1 == len(stream) or stream[i + 1].kind == FIRST:
                break
        return total, factor, stream[i]


class World:
    """Lanes that emit legal streams of unlike episodes, some broken; the same rows go into a buffer and a model."""

    def __init__(self, num_lanes: int, capacity: int, seed: int = 0, *, breaks: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.lanes = [ModelLane(capacity) for _ in range(num_lanes)]
        self.breaks, self.serial, self.version = breaks, 0, 0

    def row(self, lane: ModelLane, *, restart: bool = False) -> ModelRow:
        """What the environment of a lane emits next."""
        self.serial += 1
        before = lane.open
        draw = self.rng.random()
        if restart or before is None or before.kind == LAST or (self.breaks and draw < 0.1):
            return ModelRow(self.serial, FIRST, 0.0, 1.0)
        kind = LAST if draw > 0.7 else MID
        terminated = kind == LAST and self.rng.random() < 0.5
        return ModelRow(self.serial, kind, float(self.serial % 17) + 1, 0.0 if terminated else 1.0)

    def open(self, buffer: ReplayBuffer, lanes: list[int] | None = None) -> None:
        """Starts or restarts lanes."""
        which = range(len(self.lanes)) if lanes is None else lanes
        rows = [self.row(self.lanes[i], restart=True) for i in which]
        for i, row in zip(which, rows, strict=True):
            self.lanes[i].restart(row)
        buffer.open(time_step(rows), None if lanes is None else np.array(lanes))

    def append(self, buffer: ReplayBuffer, lanes: list[int] | None = None) -> None:
        """One step of every lane, or of some."""
        which = range(len(self.lanes)) if lanes is None else lanes
        self.version += 1
        actions, rows = [], []
        for i in which:
            actions.append(self.serial % 5)
            row = self.row(self.lanes[i])
            self.lanes[i].append(actions[-1], row, self.version)
            rows.append(row)
        index = None if lanes is None else np.array(lanes)
        buffer.append(torch.tensor(actions), time_step(rows), policy_version=self.version, env_id=index)

    def find(self, serial: int) -> tuple[ModelLane, int]:
        """The lane and position of a row."""
        return next((lane, i) for lane in self.lanes for i, row in enumerate(lane.stream) if row.serial == serial)


def time_step(rows: list[ModelRow]) -> TimeStep:
    """Rows as a batched time step."""
    return TimeStep(
        step_type=torch.tensor([row.kind for row in rows], dtype=torch.int32),
        reward=torch.tensor([row.reward for row in rows]),
        discount=torch.tensor([row.discount for row in rows]),
        observation=torch.tensor([row.serial for row in rows]),
    )


def check_contents(buffer: ReplayBuffer, world: World) -> None:
    """Number of rows, and every row of every lane in time order."""
    assert len(buffer) == sum(len(lane.rows) for lane in world.lanes)
    rows = min(len(lane.rows) for lane in world.lanes)
    if rows:
        check_unroll(buffer.newest(rows), [(lane, len(lane.rows) - rows) for lane in world.lanes])


def check_unroll(unroll: Any, starts: Iterable[tuple[ModelLane, int]], *, one_episode: bool = False) -> None:
    """Columns of an unroll against the streams that begin at given positions."""
    for b, (lane, start) in enumerate(starts):
        steps = len(unroll.action)
        rows = lane.stream[start : start + steps + 1]
        held = len(rows)  # a sequence may begin near the newest row, and a lane may be shorter
        assert unroll.observation[:held, b].tolist() == [row.serial for row in rows]
        assert unroll.step_type[:held, b].tolist() == [row.kind for row in rows]
        assert unroll.reward[:held, b].tolist() == [row.reward for row in rows]
        assert unroll.discount[:held, b].tolist() == [row.discount for row in rows]
        assert unroll.action[: held - 1, b].tolist() == [row.action for row in rows[:-1]]
        assert unroll.policy_version[: held - 1, b].tolist() == [row.version for row in rows[:-1]]
        assert unroll.valid[: held - 1, b].tolist() == valid(rows, one_episode=one_episode)
        assert not unroll.valid[held - 1 :, b].any()


def valid(rows: list[ModelRow], *, one_episode: bool) -> list[float]:
    """Which rows may be learned from; with `one_episode`, only those before the first end after row 0."""
    flags = [row.kind != LAST and following.kind != FIRST for row, following in itertools.pairwise(rows)]
    begin = int(rows[0].kind == LAST)
    return [float(flag and (all(flags[begin:i]) or not one_episode)) for i, flag in enumerate(flags)]


def check_windows(windows: Any, world: World, n_step: int, *, fixed: bool = False) -> None:
    """Every window against a sum that walks along its lane."""
    targets = n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=GAMMA)
    for i, serial in enumerate(windows.observation.tolist()):
        lane, start = world.find(serial)
        assert start in lane.starts(n_step, fixed=fixed)
        total, discount, last = lane.target(start, n_step)
        assert windows.action[i] == lane.stream[start].action
        assert windows.next_observation[i] == last.serial
        assert np.isclose(targets.reward[i].item(), total, rtol=1e-5)
        assert np.isclose(targets.bootstrap[i].item(), discount, rtol=1e-5)
