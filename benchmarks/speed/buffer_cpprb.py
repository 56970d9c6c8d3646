"""cpprb's side of the buffer benchmark; runs in the peer's environment. Numpy out becomes tensors, as ours are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cpprb import PrioritizedReplayBuffer

from benchmarks.speed import buffer_tasks as tasks


def make(task: str) -> Callable[[], Any]:
    buffer = PrioritizedReplayBuffer(
        tasks.CAPACITY,
        {
            "obs": {"shape": tasks.OBSERVATION},
            "act": {"shape": tasks.ACTION},
            "rew": {},
            "next_obs": {"shape": tasks.OBSERVATION},
            "done": {},
        },
        alpha=0.6,
    )
    rng = np.random.default_rng(0)
    big = tasks.rows(rng, 10_000)
    done = np.zeros(10_000)
    done[:: tasks.EPISODE] = 1
    fields = {"obs": big["observation"], "act": big["action"], "rew": big["reward"], "done": done}
    for _ in range(int(tasks.filled_share(task) * tasks.CAPACITY) // 10_000):
        buffer.add(**fields, next_obs=big["observation"])
    priority = rng.random(tasks.BATCH) + 0.01

    def cycle() -> None:
        drawn = buffer.sample(tasks.BATCH, beta=0.4)
        for name in ("obs", "act", "rew", "next_obs", "done", "weights"):
            torch.from_numpy(drawn[name])
        buffer.update_priorities(drawn["indexes"], priority)

    for _ in range(2000):
        cycle()
    return cycle


if __name__ == "__main__":
    tasks.serve(make)
