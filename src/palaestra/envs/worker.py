"""The worker side of `ProcessEnvironment`: a loop around `Lanes`, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import torch

from palaestra.core import SpecTree, spec_leaves
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.faults import Failure, failure_of
from palaestra.envs.lanes import Lanes
from palaestra.envs.nest import leaf_dtypes
from palaestra.envs.rows import Infos, Rows, Specs
from palaestra.envs.vector import ActionReader
from palaestra.runtime import SharedArrays
from palaestra.runtime.supervision import spin_acquire

__all__ = ["BUSY", "DONE", "INFO", "MESSAGE", "NEWS", "STEP", "View", "layout", "serve"]

# What a worker is told to do, and how it went, in one number of shared memory each. INFO: there are numbers in the info
# block; NEWS: there is a message in the pipe.
STEP, MESSAGE = 0, 1
BUSY, DONE, INFO, NEWS = 0, 1, 2, 3

# Info entries that have a column in shared memory; further ones go through the pipe.
_INFO_COLUMNS = 32
# Steps between two looks at the worker's memory, which is also looked at whenever an episode starts.
_MEMORY_PERIOD = 64

# How long a worker sleeps at a time; its parent's death ends it from another thread.
_NAP_S = 3600.0


def layout(specs: Specs, batch_size: int, num_workers: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The arrays that parent and workers share.

    Args:
        specs: of the environments.
        batch_size: B.
        num_workers: W.
    """
    arrays: dict[str, tuple[tuple[int, ...], Any]] = {
        "command": ((num_workers,), np.int64),
        "status": ((num_workers,), np.int64),
        "cursor": ((num_workers,), np.int64),
        "memory": ((num_workers,), np.int64),
        "reported": ((num_workers, _INFO_COLUMNS), np.bool_),
        "info": ((batch_size, _INFO_COLUMNS), np.float64),
        "seed": ((batch_size,), np.int64),
        "step_type": ((batch_size,), np.int32),
        "reward": ((batch_size, *specs.reward.shape), np.float32),
        "discount": ((batch_size,), np.float32),
    }
    for kind, spec in (("observation", specs.observation), ("action", specs.action)):
        for number, (leaf, dtype) in enumerate(_leaves(spec)):
            arrays[f"{kind}.{number}"] = ((batch_size, *leaf.shape), dtype)
    return arrays


@dataclass(frozen=True)
class View:
    """The rows of some lanes in shared memory."""

    seed: np.ndarray
    """int64 [n]; at least 0 where the lane starts an episode."""
    rows: Rows
    """What the latest step gave."""
    action: list[np.ndarray]
    """Leaf arrays [n, ...]."""
    info: np.ndarray
    """float64 [n, columns]; NaN where nothing was reported."""

    @classmethod
    def of(cls, shared: SharedArrays, specs: Specs, lanes: slice) -> View:
        """The view of some lanes.

        Args:
            shared: with the arrays of `layout`.
            specs: of the environments.
            lanes: which.
        """
        observation, action = (
            [shared[f"{kind}.{number}"][lanes] for number in range(len(spec_leaves(spec)))]
            for kind, spec in (("observation", specs.observation), ("action", specs.action))
        )
        rows = Rows(shared["step_type"][lanes], shared["reward"][lanes], shared["discount"][lanes], observation)
        return cls(shared["seed"][lanes], rows, action, shared["info"][lanes])


def serve(
    connection: Connection,
    factories: Sequence[Callable[[], SingleEnvironment]],
    place: tuple[int, int, int, bool],
    go: Semaphore,
    done: Semaphore,
) -> None:
    """Makes environments, then steps them whenever `go` is released, until told to stop.

    Args:
        connection: to the parent.
        factories: of this worker's environments.
        place: number of the worker, and of its first lane; number of the batch's first environment, for messages; and
            whether observations out of bounds are failures.
        go: released by the parent for every command.
        done: released when it was carried out.
    """
    torch.set_num_threads(1)
    envs: list[SingleEnvironment] = []
    try:
        for factory in factories:
            envs.append(factory())
        specs = Lanes(envs).specs
    except Exception as error:
        connection.send(failure_of(min(len(envs), len(factories) - 1), error))
        return
    connection.send(specs)
    shared = SharedArrays.receive(connection)
    number, first, first_id, strict = place
    lanes = Lanes(envs, factories, shared["cursor"][number : number + 1], strict=strict, first=first_id + first)
    _Worker(connection, lanes, shared, number, first).run(go, done)


class _Worker:
    def __init__(self, connection: Connection, lanes: Lanes, shared: SharedArrays, number: int, first: int) -> None:
        self._connection, self._lanes = connection, lanes
        one = slice(number, number + 1)
        self._command, self._status, self._memory = (shared[name][one] for name in ("command", "status", "memory"))
        self._reported = shared["reported"][number]
        size = len(lanes.envs)
        self._view = View.of(shared, lanes.specs, slice(first, first + size))
        self._reader = ActionReader(lanes.specs.action, size)
        self._columns: dict[str, int] = {}
        self._clock = 0

    def run(self, go: Semaphore, done: Semaphore) -> None:
        command, status = self._command, self._status
        while True:
            if not spin_acquire(go):
                while not go.acquire(True, _NAP_S):
                    pass
            if command[0] == STEP:
                outcome, message = self._step()
            else:
                what, *arguments = self._connection.recv()
                try:
                    outcome, message = NEWS, getattr(self, f"_{what}")(*arguments)
                except Exception as error:
                    outcome, message = NEWS, failure_of(0, error)
            status[0] = outcome
            done.release()
            if outcome == NEWS:
                # after `done`: a pipe holds only so much, and the parent reads it when it knows that there is something
                self._connection.send(message)
                if isinstance(message, str) and message == "closed":
                    return

    def _step(self) -> tuple[int, Any]:
        view = self._view
        seeds = view.seed.tolist()
        started = {lane: seed for lane, seed in enumerate(seeds) if seed >= 0} if max(seeds) >= 0 else {}
        if started or self._clock % _MEMORY_PERIOD == 0:
            self._memory[0] = _peak_memory_bytes()
        self._clock += 1
        actions = self._reader.per_lane([array.copy() for array in view.action])
        rows, infos, failures = self._lanes.step(actions, started)
        target = view.rows
        target.step_type[:] = rows.step_type
        target.reward[:] = rows.reward
        target.discount[:] = rows.discount
        for array, values in zip(target.observation, rows.observation, strict=True):
            array[:] = values
        names, surplus = self._report(infos) if infos else ([], {})
        if failures or names or surplus:
            return NEWS, (failures, names, surplus)
        return INFO if infos else DONE, None

    def _report(self, infos: Infos) -> tuple[list[str], Infos]:
        """Writes info entries to their columns; returns the names of new columns, and what has none."""
        columns, new = self._columns, []
        surplus: Infos = {}
        self._view.info[:] = np.nan
        self._reported[:] = False
        for lane, entries in infos.items():
            row = self._view.info[lane]
            for key, value in entries.items():
                column = columns.get(key)
                if column is None and len(columns) < _INFO_COLUMNS:
                    column = columns[key] = len(columns)
                    new.append(key)
                if column is None:
                    surplus.setdefault(lane, {})[key] = value
                else:
                    row[column] = value
                    self._reported[column] = True
        return new, surplus

    def _restart(self, seeds: dict[int, int], again: bool) -> Failure | list[str]:
        for lane, seed in seeds.items():
            self._lanes.mark(lane)
            leaves = self._lanes.restart(lane, seed, again=again)
            if isinstance(leaves, Failure):
                return leaves
            for array, leaf in zip(self._view.rows.observation, leaves, strict=True):
                array[lane] = leaf
        return list(self._lanes.envs[0].memory())

    def _drop(self, lanes: list[int]) -> None:
        for lane in lanes:
            self._lanes.mark(lane)
            self._lanes.drop(lane)

    def _load(self, episodes: list[Any]) -> list[int] | Failure:
        failure = self._lanes.load(episodes)
        return self._lanes.over if failure is None else failure

    def _digests(self) -> list[str]:
        return self._lanes.digests()

    def _render(self) -> np.ndarray:
        return self._lanes.envs[0].render()

    def _close(self) -> str:
        self._lanes.close()
        return "closed"


def _leaves(spec: SpecTree) -> Any:
    return zip(spec_leaves(spec).values(), leaf_dtypes(spec), strict=True)


def _peak_memory_bytes() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
