"""Stable-Baselines3's side of the buffer benchmark; runs in the peer's environment."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks.speed import buffer_tasks as tasks


def make(task: str) -> Callable[[], Any]:
    if task == "frames":
        space, actions, capacity = Box(0, 255, (4, 84, 84), np.uint8), Discrete(6), tasks.FRAMES
    else:
        space, actions, capacity = Box(-1, 1, (tasks.OBSERVATION,)), Box(-1, 1, (tasks.ACTION,)), tasks.CAPACITY
    count = tasks.LANES
    buffer = ReplayBuffer(capacity, space, actions, device="cpu", n_envs=count)
    row = tasks.rows(np.random.default_rng(0))
    observation = np.ones((count, *space.shape), space.dtype) if task == "frames" else row["observation"]
    action = np.zeros(count, np.int64) if task == "frames" else row["action"]
    done, infos = np.zeros(count), [{} for _ in range(count)]
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        getattr(buffer, name)[:] = 0

    def add() -> None:
        buffer.add(observation, observation, action, row["reward"], done, infos)

    for _ in range(capacity // count):
        add()
    size = tasks.FRAME_BATCH if task == "frames" else tasks.BATCH
    return add if task == "add" else lambda: buffer.sample(size)


if __name__ == "__main__":
    tasks.serve(make)
