"""Buffers to fill beside the model of `palaestra.testing.buffers`."""

from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, BoundedSpec, DiscreteSpec, Replay, TensorSpec, TimeStep
from palaestra.testing.buffers import World

NESTED = {
    "camera": BoundedSpec((2, 2), torch.uint8, np.array(0), np.array(255)),
    "pair": (TensorSpec(()), {"n": TensorSpec((3,))}),
}


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
