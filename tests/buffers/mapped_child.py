"""Fills or samples a mapped buffer, for `test_memory.py`: `-m tests.buffers.mapped_child VERB DIRECTORY ROWS`."""

import os
import resource
import sys
from itertools import count
from pathlib import Path

import numpy as np
import torch

from palaestra.buffers import MappedFiles, ReplayBuffer
from palaestra.core import DiscreteSpec, Replay, TensorSpec
from palaestra.testing.buffers import FIRST, LAST, MID
from tests.buffers.model import step

LANES, WIDTH = 4, 1024


def mapped(directory, capacity):
    return ReplayBuffer(
        capacity,
        LANES,
        observation_spec=TensorSpec((WIDTH,), torch.int64),
        action_spec=DiscreteSpec(num=5),
        storage=MappedFiles(directory),
    )


def arrival(serial):
    """Every element of an observation is its row's serial number, so that half a row can be told from a whole one."""
    kind = FIRST if serial % 10 == 0 else LAST if serial % 10 == 9 else MID
    observation = torch.full((LANES, WIDTH), serial, dtype=torch.int64)
    return step([kind] * LANES, observation, torch.full((LANES,), float(serial)))


def write(buffer, serial):
    buffer.append(torch.full((LANES,), serial % 5), arrival(serial + 1), policy_version=serial)


def anonymous_bytes():
    """Resident memory that is no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main():
    verb, directory, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if verb == "write for ever":
        buffer = mapped(directory, rows)
        buffer.open(arrival(0))
        print("writing", flush=True)
        for serial in count():
            write(buffer, serial)
    before = anonymous_bytes()
    # whatever is not a mapped file: what is there already and 64 MiB more
    used = next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if "VmData" in x) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**26, used + 2**26))
    buffer = mapped(directory, rows)
    if verb == "fill":
        buffer.open(arrival(0))
        for serial in range(rows // LANES):
            write(buffer, serial)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        drawn = buffer.draw(Replay(unroll_length=1, mini_batch_size=64), generator)
        assert (drawn.observation + 1 == drawn.next_observation).all()
    print(len(buffer), anonymous_bytes() - before, np.prod([rows, WIDTH, 8]), os.getpid())


if __name__ == "__main__":
    main()
