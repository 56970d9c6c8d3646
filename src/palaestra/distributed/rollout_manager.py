"""`RolloutManager`: collects with workers, in place of a collector."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, CheckpointError, ConfigError, DataSource
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.crew import Crew, Dropped, Member
from palaestra.distributed.weights import acting_weights
from palaestra.distributed.worker import ActingParts, Fragment, RolloutWorker, broken_off
from palaestra.policies import Policy
from palaestra.rollout import CollectInfo, Episode, Quota
from palaestra.runtime import Call, Runtime, Shared

__all__ = ["RolloutManager"]

_PATIENCE_S = 5.0  # for fragments that are on their way when a signal comes
_SLICE_S = 0.2


@final
class RolloutManager:
    """Lets workers collect, each in its own environments, and puts what they send into the buffers of the run.

    A `Trainer` takes it in the place of a `Collector`. Every unroll goes to all workers that are there, with the newest
    weights. By default all of them are waited for. With `min_finished_workers` an unroll ends when so many have
    answered and `grace_timeout_s` are over; who comes later has its data used in the next one, if it is at most
    `max_lag` policy versions old then. A worker that ends is replaced and its fragment dropped; every fragment is
    either used once or named in `dropped`.

    Args:
        runtime: where the workers live.
        make: makes the parts of a worker from its number, such as a `CollectorFactory`.
        policies: the learning policies by name, whose weights the workers act with.
        buffers: by policy name, where data goes. The workers share their lanes evenly, the first worker has the first.
        config: how many workers, and how to wait for them.
        num_envs: environments stepped side by side, over all workers; as many as the first buffer has lanes if left
            out.

    Raises:
        ConfigError: the lanes of a buffer cannot be shared evenly.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        policies: Mapping[str, Policy],
        buffers: Mapping[str, ReplayBuffer],
        config: DistributedConfig,
        num_envs: int | None = None,
    ) -> None:
        for name, buffer in buffers.items():
            if buffer.num_lanes % config.num_workers:
                raise ConfigError(
                    f"the buffer of {name!r} has {buffer.num_lanes} lanes, which {config.num_workers} workers cannot "
                    "share evenly"
                )
        self.buffers = dict(buffers)
        """Where data goes, by policy."""
        self.sources: dict[str, DataSource] = dict(buffers)
        """What each policy learns from: its buffer, unless you set a mixture of it with loaded data."""
        self.num_lanes = num_envs or next(iter(buffers.values())).num_lanes
        """Environments stepped side by side, over all workers."""
        self.env_steps = 0
        """Actions executed so far, of fragments that were used."""
        self.runtime = runtime
        """Where the workers live."""
        self._policies, self._config = policies, config
        self._crew = Crew(
            runtime, functools.partial(RolloutWorker, make), config, name="rollout", joined=self._has_joined
        )
        self._positions: list[Any] | None = None
        self._quota = Quota()
        self._fragments, self._lags = 0, list[int]()
        self._shared: Shared | None = None
        self._mark: Any = None
        self._exact = True
        self._gaps: set[int] = set()  # workers whose last fragment is missing in the streams

    # -- collecting

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Collects for one training iteration.

        Args:
            length: time steps from every environment, unless the configuration asks for whole episodes; a fraction is
                met on average over calls.
            random: names of the policies that act at random.

        Raises:
            WorkersLostError: there are too few workers.
            RemoteError: a worker's environment or policy failed.
        """
        began, info = time.perf_counter(), CollectInfo(0)
        self._crew.limit_s = math.inf
        if not self._crew.members:
            self._crew.start(self._positions)
        if rows := self._quota.begin(length):
            taken, whole = self._collect(rows, sorted(random))
            if whole:
                self._quota.left = 0
            self._store(taken, info)
        info.total_s = time.perf_counter() - began
        return info

    def _collect(self, rows: int, random: Sequence[str]) -> tuple[list[tuple[Member, Fragment]], bool]:
        """Fragments by the number of their worker, and whether all that were to be waited for are there."""
        crew, config, weights = self._crew, self._config, self._weights()
        amount, episodes = (rows, False) if config.episodes is None else (config.episodes, True)

        def work(member: Member) -> None:
            crew.give(member, "collect", weights, amount, episodes=episodes, random=random)

        crew.admit()
        while not (crew.idle or crew.busy) and time.monotonic() < crew.limit_s:
            crew.admit(_SLICE_S)
        for member in crew.idle:
            work(member)
        needed = min(config.min_finished_workers or self._config.num_workers, len(crew.busy))
        used: list[tuple[Member, Fragment]] = []
        while len(used) < needed and time.monotonic() < crew.limit_s:
            self._sort(crew.take(at_least=needed - len(used), timeout_s=config.timeout_s), used, work)
            needed = min(needed, len(used) + len(crew.busy))
        if crew.busy:
            self._sort(crew.take(at_least=len(crew.busy), timeout_s=config.grace_timeout_s), used, None)
        return sorted(used, key=lambda one: one[0].number), bool(used) and len(used) >= needed

    def _weights(self) -> Shared:
        """Of the policies as they are now; what has not changed is not sent again."""
        weights = acting_weights(self._policies)
        mark = [(given["version"], given["exploration"]) for given in weights.values()]
        if self._shared is None or mark != self._mark:
            self._shared, self._mark = Shared(weights), mark
        return self._shared

    def _sort(
        self,
        taken: Sequence[tuple[Member, Call, Fragment]],
        used: list[tuple[Member, Fragment]],
        again: Callable[[Member], None] | None,
    ) -> None:
        """Keeps what may be learned from, drops what is too old and gives who sent it new work."""
        for member, call, fragment in taken:
            if call.method != "collect":  # a state that came too late for its checkpoint
                continue
            member.position = {"lanes": fragment.lanes}
            lag = max(self._policies[name].version - version for name, version in fragment.versions.items())
            self._lags.append(lag)
            if lag > self._config.max_lag:
                reason = f"it is {lag} policy versions old, and max_lag is {self._config.max_lag}"
                self._crew.drop(call, reason)
                self._gaps.add(member.number)
                if again is not None:
                    again(member)
                continue
            used.append((member, broken_off(fragment) if member.number in self._gaps else fragment))
            self._gaps.discard(member.number)

    def _store(self, taken: Sequence[tuple[Member, Fragment]], info: CollectInfo) -> None:
        """Fragments of equal length go into a buffer together, so that lanes stay together where they can."""
        for name, buffer in self.buffers.items():
            size, groups = buffer.num_lanes // self._config.num_workers, dict[int, tuple[list[int], list[Batch]]]()
            for member, fragment in taken:
                for lanes, rows in fragment.pieces[name]:
                    numbers, batches = groups.setdefault(len(rows.step_type), ([], []))
                    numbers += [member.number * size + lane for lane in lanes]
                    batches.append(rows)
            for numbers, batches in groups.values():
                buffer.extend(batches[0] if len(batches) == 1 else _beside(batches), numbers)
        for member, fragment in taken:
            one = fragment.info
            info.env_steps += one.env_steps
            info.rows = max(info.rows, one.rows)
            info.rows_of = {
                name: max(rows, info.rows_of.get(name, 0)) for name, rows in {**info.rows_of, **one.rows_of}.items()
            }
            first = member.number * (self.num_lanes // self._config.num_workers)
            info.episodes += [episode._replace(env_id=first + episode.env_id) for episode in one.episodes]
            info.env_s += one.env_s / len(taken)
            info.inference_s += one.inference_s / len(taken)
            self._crew.faults += [dataclasses.replace(f, env_id=first + f.env_id) for f in fragment.faults]
        self.env_steps += info.env_steps
        self._fragments += len(taken)

    def pause(self) -> None:
        """Lets a running unroll end within seconds; fragments that are still on their way then are dropped."""
        self._crew.limit_s = time.monotonic() + _PATIENCE_S

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause`."""
        return self._quota.left > 0

    def drain(self) -> list[Episode]:
        """Nothing: every fragment brings the episodes that have ended in it."""
        return []

    # -- how things are

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Fragments that nobody learns from, in order."""
        return self._crew.dropped

    @property
    def faults(self) -> Sequence[Any]:
        """Ends of workers, and faults of environments that workers dealt with, in order."""
        return self._crew.faults

    @property
    def resume(self) -> str:
        """Whether a run that goes on from a checkpoint does so exactly: "exact", or "statistical"."""
        return "exact" if self._exact else "statistical"

    def metrics(self) -> dict[str, float]:
        """For a row of metrics: who is there, what was used and dropped, how old data was since the last call."""
        crew, lags = self._crew, self._lags
        self._lags = []
        return {
            "workers/there": len(crew.idle) + len(crew.busy),
            "workers/late": len(crew.busy),
            "workers/restarts": crew.runtime.restarted,
            "workers/fragments": self._fragments,
            "workers/dropped": len(crew.dropped),
            "workers/duplicates": crew.runtime.duplicates,
            "workers/lag_mean": float(np.mean(lags)) if lags else 0.0,
            "workers/lag_max": float(max(lags, default=0)),
        }

    def _has_joined(self, member: Member, resume: str) -> None:
        self._exact = self._exact and resume == "exact"

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is. Who is still at work is not waited for: a resumed run does not get its fragment."""
        crew = self._crew
        positions = {str(number): position for number, position in enumerate(self._positions or ())}
        positions |= {str(member.number): member.position for member in crew.members}
        crew.limit_s, asked = math.inf, crew.idle
        for member in asked:
            crew.give(member, "state")
        told = crew.take(at_least=len(asked), timeout_s=self._config.timeout_s, of=asked)
        positions |= {str(member.number): state for member, _, state in told}
        return {
            "env_steps": self.env_steps,
            **self._quota.state(),
            "fragments": self._fragments,
            "gaps": sorted(self._gaps),
            "workers": positions,
            "exact": self._exact and len(told) == len(crew.members),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave; the workers take their positions when they start.

        Args:
            state: of a manager with as many workers.

        Raises:
            CheckpointError: it had another number of workers.
        """
        positions = state["workers"]
        if positions and len(positions) != self._config.num_workers:
            raise CheckpointError(
                f"the checkpoint is of {len(positions)} workers and this run has {self._config.num_workers}; resume "
                f"with distributed.num_workers={len(positions)}"
            )
        self.env_steps = state["env_steps"]
        self._quota.load_state(state)
        self._fragments, self._exact, self._gaps = state["fragments"], state["exact"], set(state["gaps"])
        self._positions = [positions[str(number)] for number in range(len(positions))] or None


def _beside(batches: Sequence[Batch]) -> Batch:
    """[T, B, ...] of several workers as lanes of one batch."""
    return batches[0].map(lambda *leaves: torch.cat(leaves, 1), *batches[1:])
