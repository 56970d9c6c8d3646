"""Our side of the buffer benchmark: `python -m benchmarks.speed.buffer_ours TASK`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.speed import buffer_tasks as tasks
from palaestra.buffers import PrioritizedSampler, ReplayBuffer
from palaestra.core import Batch, BoundedSpec, Replay, TensorSpec, TimeStep


def make(task: str) -> Callable[[], Any]:
    if task in ("construct", "index", "stack", "cat"):
        return batch_call(task)
    return frames_call() if task == "frames" else buffer_call(task)


def buffer_call(task: str) -> Callable[[], Any]:
    by_priority = task.startswith("prioritized")
    buffer = ReplayBuffer(
        tasks.CAPACITY,
        tasks.LANES,
        observation_spec=TensorSpec((tasks.OBSERVATION,)),
        action_spec=TensorSpec((tasks.ACTION,)),
        sampler=PrioritizedSampler() if by_priority else None,
    )
    for name, tensor in buffer.state_tensors().items():
        if name.startswith("field."):
            tensor.zero_()
    row = tasks.rows(np.random.default_rng(0))
    count = tasks.LANES
    ones, kinds = np.ones(count, np.float32), [np.full(count, kind, np.int32) for kind in range(3)]
    steps = [TimeStep(kind, row["reward"], ones, row["observation"]) for kind in kinds]
    buffer.open(steps[0])

    def add(number: int) -> None:
        place = number % tasks.EPISODE
        kind = 0 if place == 0 else 2 if place == tasks.EPISODE - 1 else 1
        buffer.append(row["action"], steps[kind])

    for number in range(1, int(tasks.filled_share(task) * tasks.CAPACITY) // count + 1):
        add(number)
    if task == "add":
        return lambda: buffer.append(row["action"], steps[1])
    generator, plan = torch.Generator().manual_seed(0), Replay(unroll_length=1, mini_batch_size=tasks.BATCH)
    if task == "sequences":
        plan = Replay(unroll_length=1, mini_batch_size=tasks.SEQUENCES, mini_batch_length=tasks.LENGTH)
    if not by_priority:
        return lambda: buffer.draw(plan, generator)
    priority = torch.rand(tasks.BATCH, generator=generator) + 0.01

    def cycle() -> None:
        buffer.write_back(buffer.draw(plan, generator).index, priority)

    for _ in range(2000):
        cycle()
    return cycle


def frames_call() -> Callable[[], Any]:
    shape = (4, 84, 84)
    spec = BoundedSpec(shape, torch.uint8, np.zeros(shape), np.full(shape, 255), stacked=4)
    action = TensorSpec((), torch.int64)
    buffer = ReplayBuffer(tasks.FRAMES, tasks.LANES, observation_spec=spec, action_spec=action)
    count = tasks.LANES
    stack = np.zeros((count, *shape), np.uint8)
    stack[:, -1] = 7
    ones, kinds = np.ones(count, np.float32), [np.full(count, kind, np.int32) for kind in range(3)]
    buffer.open(TimeStep(kinds[0], ones, ones, stack))
    for number in range(1, tasks.FRAMES // count + 1):
        place = number % tasks.EPISODE
        kind = kinds[0 if place == 0 else 2 if place == tasks.EPISODE - 1 else 1]
        buffer.append(np.zeros(count, np.int64), TimeStep(kind, ones, ones, stack))
    generator, plan = torch.Generator().manual_seed(0), Replay(unroll_length=1, mini_batch_size=tasks.FRAME_BATCH)
    return lambda: buffer.draw(plan, generator)


def batch_call(task: str) -> Callable[[], Any]:
    arrays = tasks.batch_arrays()
    batch, index = Batch(**arrays), np.random.default_rng(1).integers(0, tasks.BATCH_ROWS, tasks.BATCH)
    parts = [batch[i * 32 : (i + 1) * 32] for i in range(8)]
    return {
        "construct": lambda: Batch(**arrays),
        "index": lambda: batch[index],
        "stack": lambda: Batch.stack(parts),
        "cat": lambda: Batch.cat(parts),
    }[task]


if __name__ == "__main__":
    tasks.serve(make)
