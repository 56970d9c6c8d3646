"""Draws from replay in four shards, and from one buffer in the process that learns, in turns."""

import os
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer, sampler_of
from palaestra.core import Batch, DiscreteSpec, Prioritized, Replay, TensorSpec
from palaestra.distributed import DistributedConfig, ReplayShards
from palaestra.runtime import Runtime

LANES, STEPS, DRAWN, SHARDS = 8, 64, 256, 4
SHAPES = {"vectors of 68 bytes": ((17,), torch.float32), "pictures of 7 kB": ((84, 84), torch.uint8)}
CAPACITY = 20_000


class Both:
    """The same rows here and in shards, each with a copy or without."""

    def __init__(self, runtime: Runtime, shape: str, prioritized: bool, copies: bool = False) -> None:
        spec = TensorSpec(*SHAPES[shape])
        options: Any = {"observation_spec": spec, "action_spec": DiscreteSpec(num=4)}
        priorities = Prioritized() if prioritized else None
        self.plan = plan = Replay(unroll_length=1, capacity=CAPACITY, mini_batch_size=DRAWN, prioritized=priorities)
        self.here = ReplayBuffer(CAPACITY, LANES, sampler=sampler_of(plan), **options)
        template, algorithm = ReplayBuffer(None, LANES, **options), cast(Any, SimpleNamespace(plan=plan))
        config = DistributedConfig(runtime="process", replay_shards=SHARDS, replay_copies=copies)
        self.shards = ReplayShards(runtime, {"policy": algorithm}, {"policy": template}, config)
        self.there = self.shards.replays["policy"]
        rng, self.generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        observation = torch.from_numpy(rng.integers(0, 255, (STEPS + 1, LANES, *spec.shape)).astype(np.uint8))
        self.rows = Batch.of(
            {
                "step_type": torch.ones(STEPS + 1, LANES, dtype=torch.int32),
                "reward": torch.ones(STEPS + 1, LANES),
                "discount": torch.ones(STEPS + 1, LANES),
                "observation": observation.to(spec.dtype),
                "action": torch.ones(STEPS, LANES, dtype=torch.int64),
            }
        )
        self.size_bytes = sum(leaf.nbytes for leaf in self.rows.values())
        while len(self.here) < CAPACITY // LANES * LANES:
            self.write_here()
            self.write_there()
        self.draws(self.there, 0.1)  # all that was sent is there

    def write_here(self) -> float:
        """Seconds of this process's computing for one fragment."""
        began = time.process_time()
        self.here.extend(self.rows)
        return time.process_time() - began

    def write_there(self) -> float:
        """The same, without what the worker does that has made the fragment."""
        rest, parcels = self.shards.map.split({"policy": [(list(range(LANES)), self.rows)]}, {"policy": 0})
        began = time.process_time()
        for lanes, known in rest["policy"]:
            self.there.extend(known, lanes)
        self.shards.extend(parcels, ["policy"])
        self.shards.keep_up()
        return time.process_time() - began

    def process(self, runtime: Any, number: int, copy: int = 0) -> int:
        """Of a shard, or of its copy."""
        ids = {seat.worker.id: seat.process.pid for seat in runtime._alive.values()}
        return ids[self.shards._ids[number][copy]]

    def kill(self, runtime: Any, number: int) -> None:
        """Ends the worker of a shard that is asked."""
        os.kill(self.process(runtime, number), signal.SIGKILL)

    def draw(self, source: Any) -> None:
        """One minibatch, with priorities written back."""
        drawn = source.draw(self.plan, self.generator)
        if "weight" in drawn:
            source.write_back(drawn.index, drawn.weight)

    def draws(self, source: Any, window_s: float) -> tuple[float, float]:
        """Draws per second, and seconds of this process's computing for each."""
        count, began, computed = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < window_s:
            self.draw(source)
            count += 1
        return count / (time.perf_counter() - began), (time.process_time() - computed) / count
