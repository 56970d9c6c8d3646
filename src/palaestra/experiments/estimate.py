"""What a run will take, found out by building all of it and making updates for about a second."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from palaestra.core import ConfigError, Offline, Replay
from palaestra.experiments.build import make_learner
from palaestra.experiments.collecting import collecting
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.offline import load_data
from palaestra.experiments.provenance import memory_bytes
from palaestra.experiments.updating import algorithms_of, make_update
from palaestra.robots import Robot
from palaestra.training import Trainer

__all__ = ["Estimate", "dry_run"]

_MEASURE_S = 1.0
_MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    env_steps_per_s: float
    """Env steps per second of collecting and learning; of an offline run, updates."""
    train_s: float
    """Seconds for the whole budget, without evaluations and checkpoints."""
    updates: int
    """Updates made to find out, of all policies."""
    num_parameters: int
    """Numbers that are learned, by all policies."""
    model_bytes: int
    """Parameters and optimizer state."""
    buffer_bytes: int
    """The buffer when it is full."""
    memory_bytes: int
    """Process, model and full buffer together."""
    available_bytes: int | None
    """Memory of this machine."""
    checkpoint_bytes: int
    """Size of the checkpoints that are kept, at most."""

    def to_json(self) -> str:
        """The fields as a JSON object."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        lines = [
            f"speed       {self.env_steps_per_s:,.0f} env steps per second, after {self.updates} updates",
            f"time        {_duration(self.train_s)}, without evaluations and checkpoints",
            f"parameters  {self.num_parameters:,} ({_size(self.model_bytes)} with optimizer state)",
            f"buffer      {_size(self.buffer_bytes)} when full",
            f"memory      {_size(self.memory_bytes)} in all"
            + (f" of {_size(self.available_bytes)}" if self.available_bytes else ""),
            f"checkpoints up to {_size(self.checkpoint_bytes)} on the disk",
        ]
        if self.available_bytes and self.memory_bytes > self.available_bytes:
            lines.append("warning     this is more memory than there is; make algorithm.capacity smaller")
        return "\n".join([*lines, "dry run     everything was built; nothing is left behind"])


def dry_run(config: ExperimentConfig) -> Estimate:
    """Builds everything that a run needs, makes updates for about a second, and leaves nothing behind.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the settings do not fit together.
        PalaestraError: whatever the run itself would fail with in its first second.
    """
    learner = make_learner(config)
    algorithms = algorithms_of(learner)
    data, offline = load_data(config, learner), all(isinstance(one.plan, Offline) for one in algorithms.values())
    for one in [*algorithms.values(), *(learner.tasks.values() if isinstance(learner, Robot) else ())]:
        if isinstance(one.plan, Replay):  # to learn at once; the rest of the plan is as it is
            one.plan = dataclasses.replace(one.plan, learning_starts=0)
    with collecting(config, learner, data) as (collect, _):
        trainer = Trainer(collect, make_update(config, learner, collect), config.trainer)
        with contextlib.closing(trainer.learner):
            speed, updates = _measure(trainer)
        model = sum(_bytes_of(one.state_tensors()) for one in algorithms.values())
        size = sum(
            getattr(buffer, "size_bytes", 0) or _bytes_of(buffer.state_tensors())
            for buffer in [*trainer.collector.buffers.values(), *data.values()]
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    parameters = {id(p): p.numel() for one in algorithms.values() for p in one.model.parameters()}
    return Estimate(
        env_steps_per_s=speed,
        train_s=config.trainer.total_env_steps / speed,
        updates=updates,
        num_parameters=sum(parameters.values()),
        model_bytes=model,
        buffer_bytes=size,
        memory_bytes=peak + size,
        available_bytes=memory_bytes(),
        checkpoint_bytes=config.trainer.keep_checkpoints * (model + (0 if offline else size)),
    )


def _measure(trainer: Trainer) -> tuple[float, int]:
    """Env steps per second and updates: the first update of everybody warms up, those after it are timed.

    Whoever has not learned after a second for which others have is not waited for: it may never be asked to.
    """
    began_s = time.perf_counter()
    for _ in range(_MOST_ITERATIONS):
        trainer.train_iter()
        learned = [algorithm.policy_version > 0 for algorithm in trainer.algorithms.values()]
        if all(learned) or (any(learned) and time.perf_counter() - began_s > _MEASURE_S):
            break
    else:
        raise ConfigError(f"nothing was learned in {_MOST_ITERATIONS:,} iterations; look at the algorithm's plan")
    begin_s, begin = time.perf_counter(), trainer.collector.env_steps
    while (elapsed_s := time.perf_counter() - begin_s) < _MEASURE_S or trainer.collector.env_steps == begin:
        trainer.train_iter()
    updates = sum(algorithm.policy_version for algorithm in trainer.algorithms.values())
    return (trainer.collector.env_steps - begin) / elapsed_s, updates


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0


def _size(count: int) -> str:
    units = ("B", "KiB", "MiB", "GiB")
    power = min(3, max(0, count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.3g} {units[power]}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    if hours:
        return f"{hours} h {rest // 60:02d} min"
    return f"{rest // 60} min {rest % 60:02d} s" if rest >= 60 else f"{seconds:.1f} s"
