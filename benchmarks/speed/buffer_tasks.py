"""What the buffer benchmark measures, and the child process that both sides run in.

Plain Python and numpy: the peers' environments, which know nothing of Palaestra, read this file too. A child builds its
buffer once, prints a line when it is ready, and then measures one window for each line it reads.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CAPACITY, LANES, OBSERVATION, ACTION, BATCH, EPISODE = 1_000_000, 8, 84, 6, 256, 200
FRAMES, FRAME_BATCH = 50_000, 32
"""Transitions of the frame task: stacks of 4 frames of 84 x 84 bytes."""
SEQUENCES, LENGTH = 32, 64
"""Of the task with sequences: how many in a batch, and the steps of each."""
BATCH_ROWS = 1024
FIELDS = {"obs": (17,), "act": (6,), "rew": (), "done": (), "obs_next": (17,), "info": (3,)}
"""Of the `Batch` tasks."""


@dataclass(frozen=True)
class Task:
    title: str
    unit: str
    """Of the rate."""
    bars: Mapping[str, float]
    """Least median ratio to each peer."""
    scale: int = 1
    """Units in one call."""


TASKS = {
    "add": Task(
        "Adding rows of 8, numpy in, memory touched beforehand",
        "transitions/s",
        {"sb3": 1.5, "tianshou": 4.0, "torchrl": 4.0},
        LANES,
    ),
    "sample": Task(
        "Sampling batches of 256 as torch tensors, 10^6 rows held",
        "batches/s",
        {"sb3": 2.0, "tianshou": 2.0, "torchrl": 2.0},
    ),
    "prioritized_10": Task(
        "Prioritized sample and update of 256, tensors out, 10% filled", "cycles/s", {"tianshou": 2.0, "cpprb": 2.0}
    ),
    "prioritized_100": Task(
        "Prioritized sample and update of 256, tensors out, 100% filled", "cycles/s", {"tianshou": 2.0, "cpprb": 2.0}
    ),
    "frames": Task("Sampling 32 stacks of 4 frames of 84 x 84 bytes, 5 x 10^4 transitions", "batches/s", {"sb3": 1.3}),
    "sequences": Task(
        "Sampling 32 sequences of 64 steps as torch tensors, 10^6 rows held", "batches/s", {"torchrl": 1.5}
    ),
    "construct": Task("Batch of 6 arrays: construct", "1/s", {"tianshou": 1.0, "torchrl": 1.0}),
    "index": Task("Batch of 6 arrays: 256 rows by number", "1/s", {"tianshou": 2.0, "torchrl": 2.0}),
    "stack": Task("Batch of 6 arrays: stack 8", "1/s", {"tianshou": 2.0, "torchrl": 2.0}),
    "cat": Task("Batch of 6 arrays: cat 8", "1/s", {"tianshou": 1.5, "torchrl": 1.5}),
}


def filled_share(task: str) -> float:
    return 0.1 if task == "prioritized_10" else 1.0


def rows(rng: np.random.Generator, count: int = LANES) -> dict[str, np.ndarray]:
    """One vector step."""
    return {
        "observation": rng.random((count, OBSERVATION), np.float32),
        "action": rng.random((count, ACTION), np.float32),
        "reward": rng.random(count, np.float32),
    }


def batch_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.random((BATCH_ROWS, *shape), np.float32) for name, shape in FIELDS.items()}


def serve(make: Callable[[str], Callable[[], Any]]) -> None:
    """Runs the child: `python -m ... TASK`. `make` builds what the task needs and returns what is timed."""
    import torch

    torch.set_num_threads(1)
    call = make(sys.argv[1])
    scale = TASKS[sys.argv[1]].scale
    for _ in range(20):
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, count = float(line), 0
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds:
            for _ in range(10):
                call()
            count += 10
        print(json.dumps(scale * count / (now - begin)), flush=True)
