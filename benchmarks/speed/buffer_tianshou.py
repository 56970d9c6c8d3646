"""Tianshou's side of the buffer benchmark; runs in the peer's environment. Numpy out becomes tensors, as ours are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

from benchmarks.speed import buffer_tasks as tasks


def make(task: str) -> Callable[[], Any]:
    if task in ("construct", "index", "stack", "cat"):
        return batch_call(task)
    count, by_priority = tasks.LANES, task.startswith("prioritized")
    kind = PrioritizedVectorReplayBuffer if by_priority else VectorReplayBuffer
    buffer = kind(tasks.CAPACITY, count, **({"alpha": 0.6, "beta": 0.4} if by_priority else {}))
    row = tasks.rows(np.random.default_rng(0))
    over = np.zeros(count, bool)

    def batch(ended: bool) -> Batch:
        return Batch(
            obs=row["observation"],
            act=row["action"],
            rew=row["reward"],
            terminated=over | ended,
            truncated=over,
            obs_next=row["observation"],
        )

    going, ended, ids = batch(False), batch(True), np.arange(count)
    for number in range(1, int(tasks.filled_share(task) * tasks.CAPACITY) // count + 1):
        buffer.add(ended if number % tasks.EPISODE == 0 else going, buffer_ids=ids)
    if task == "add":
        return lambda: buffer.add(going, buffer_ids=ids)

    def sample() -> np.ndarray:
        drawn, index = buffer.sample(tasks.BATCH)
        drawn.to_torch_()
        return index

    if not by_priority:
        return sample
    priority = np.random.default_rng(0).random(tasks.BATCH) + 0.01

    def cycle() -> None:
        buffer.update_weight(sample(), priority)

    for _ in range(2000):
        cycle()
    return cycle


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
    assert torch.get_num_threads() >= 1
    tasks.serve(make)
