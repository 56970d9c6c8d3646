"""A buffer written as plainly as possible, lists of rows, and streams to fill it with.

Every row carries a serial number as its observation, so that whatever a buffer hands out can be looked up here.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, Replay, StepType, TensorSpec, TimeStep

FIRST, MID, LAST = (int(kind) for kind in StepType)
GAMMA = 0.9


@dataclass
class Row:
    """One row of a lane; `action` is `None` while it is open."""

    serial: int
    kind: int
    reward: float
    discount: float
    action: int | None = None
    version: int = 0


@dataclass
class Lane:
    """One stream: complete rows, the oldest first, and the open row."""

    capacity: int
    rows: list[Row] = field(default_factory=list)
    open: Row | None = None

    def append(self, action: int, row: Row, version: int = 0) -> None:
        """Completes the open row."""
        assert self.open is not None
        self.open.action, self.open.version = action, version
        self.rows = [*self.rows, self.open][-self.capacity :]
        self.open = row

    def restart(self, row: Row) -> None:
        """Begins a new stream; the last step of an episode stays."""
        if self.open is not None and self.open.kind == LAST:
            self.append(0, row)
        self.open = row

    @property
    def stream(self) -> list[Row]:
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

    def target(self, start: int, n_step: int) -> tuple[float, float, Row]:
        """Discounted reward, discount and bootstrap row of a window: Sutton and Barto 2018, equation (7.1)."""
        stream, total, factor, i = self.stream, 0.0, 1.0, start
        for _ in range(n_step):
            i += 1
            total += factor * stream[i].reward
            factor *= GAMMA * stream[i].discount
            if stream[i].kind == LAST or i + 1 == len(stream) or stream[i + 1].kind == FIRST:
                break
        return total, factor, stream[i]


NESTED = {
    "camera": BoundedSpec((2, 2), torch.uint8, np.array(0), np.array(255)),
    "pair": (TensorSpec(()), {"n": TensorSpec((3,))}),
}


class World:
    """Lanes that emit legal streams of unlike episodes, some broken; the same rows go into a buffer and a model."""

    def __init__(self, num_lanes: int, capacity: int, seed: int = 0, *, breaks: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.lanes = [Lane(capacity) for _ in range(num_lanes)]
        self.breaks, self.serial, self.version = breaks, 0, 0

    def row(self, lane: Lane, *, restart: bool = False) -> Row:
        """What the environment of a lane emits next."""
        self.serial += 1
        before = lane.open
        draw = self.rng.random()
        if restart or before is None or before.kind == LAST or (self.breaks and draw < 0.1):
            return Row(self.serial, FIRST, 0.0, 1.0)
        kind = LAST if draw > 0.7 else MID
        terminated = kind == LAST and self.rng.random() < 0.5
        return Row(self.serial, kind, float(self.serial % 17) + 1, 0.0 if terminated else 1.0)

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

    def find(self, serial: int) -> tuple[Lane, int]:
        """The lane and position of a row."""
        return next((lane, i) for lane in self.lanes for i, row in enumerate(lane.stream) if row.serial == serial)


def time_step(rows: list[Row]) -> TimeStep:
    """Rows as a batched time step."""
    return TimeStep(
        step_type=torch.tensor([row.kind for row in rows], dtype=torch.int32),
        reward=torch.tensor([row.reward for row in rows]),
        discount=torch.tensor([row.discount for row in rows]),
        observation=torch.tensor([row.serial for row in rows]),
    )


def make_buffer(capacity: int | None, num_lanes: int, **named: Any) -> ReplayBuffer:
    """A buffer for the rows of a `World`."""
    return ReplayBuffer(
        capacity,
        num_lanes,
        observation_spec=TensorSpec((), torch.int64),
        action_spec=DiscreteSpec(num=5),
        **named,
    )


def filled(
    capacity: int | None, num_lanes: int, steps: int, seed: int = 0, *, storage: Any = None, **named: Any
) -> tuple[ReplayBuffer, World]:
    """A buffer after so many steps of all lanes, and the model beside it."""
    buffer = make_buffer(capacity, num_lanes, storage=storage)
    world = World(num_lanes, 10**6 if capacity is None else capacity // num_lanes, seed, **named)
    world.open(buffer)
    for _ in range(steps):
        world.append(buffer)
    return buffer, world


def generator(seed=0):
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def replay(**named):
    """A replay plan."""
    return Replay(unroll_length=1, **named)


def step(kinds, observation=None, reward=None, discount=None):
    """A time step of so many lanes; what is not given is zero, and every episode goes on."""
    count = len(kinds)
    return TimeStep(
        step_type=torch.tensor(kinds, dtype=torch.int32),
        reward=torch.zeros(count) if reward is None else reward,
        discount=torch.ones(count) if discount is None else discount,
        observation=torch.zeros(count, dtype=torch.int64) if observation is None else observation,
    )


def nested(values):
    """Observations of `NESTED` that hold these numbers in every leaf."""
    count = len(values)
    numbers = torch.tensor(values, dtype=torch.float32)
    return Batch(
        camera=numbers.to(torch.uint8)[:, None, None].expand(count, 2, 2),
        pair={"0": numbers, "1": {"n": numbers[:, None].expand(count, 3)}},
    )
