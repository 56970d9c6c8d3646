"""TorchRL's and TensorDict's side of the buffer benchmark; runs in the peer's environment."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from benchmarks.speed import buffer_tasks as tasks


def make(task: str) -> Callable[[], Any]:
    if task in ("construct", "index", "stack", "cat"):
        return batch_call(task)
    count = tasks.LANES
    size, sampler = tasks.BATCH, None
    if task == "sequences":  # where episodes end is looked up once, since nothing is written any more
        size = tasks.SEQUENCES * tasks.LENGTH
        sampler = SliceSampler(slice_len=tasks.LENGTH, end_key="terminated", cache_values=True)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(tasks.CAPACITY), batch_size=size, sampler=sampler)
    row = tasks.rows(np.random.default_rng(0))
    over = np.zeros(count, bool)

    def arrived() -> TensorDict:
        fields = {
            "observation": torch.from_numpy(row["observation"]),
            "action": torch.from_numpy(row["action"]),
            "reward": torch.from_numpy(row["reward"]),
            "terminated": torch.from_numpy(over),
            "next_observation": torch.from_numpy(row["observation"]),
        }
        return TensorDict(fields, batch_size=[count])

    big = arrived().expand(1250, count).reshape(-1).contiguous()
    big["terminated"][tasks.EPISODE - 1 :: tasks.EPISODE] = True
    for _ in range(tasks.CAPACITY // len(big)):
        buffer.extend(big)
    return (lambda: buffer.extend(arrived())) if task == "add" else buffer.sample


def batch_call(task: str) -> Callable[[], Any]:
    tensors = {name: torch.from_numpy(array) for name, array in tasks.batch_arrays().items()}
    batch = TensorDict(tensors, batch_size=[tasks.BATCH_ROWS])
    index = torch.from_numpy(np.random.default_rng(1).integers(0, tasks.BATCH_ROWS, tasks.BATCH))
    parts = [batch[i * 32 : (i + 1) * 32] for i in range(8)]
    return {
        "construct": lambda: TensorDict(tensors, batch_size=[tasks.BATCH_ROWS]),
        "index": lambda: batch[index],
        "stack": lambda: torch.stack(parts),
        "cat": lambda: torch.cat(parts),
    }[task]


if __name__ == "__main__":
    tasks.serve(make)
