"""The worker side of `ProcessEnvironment`: a loop around `Lanes`, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import torch

from palaestra.core import SpecTree, spec_leaves
from palaestra.envs.driving import describe
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.lanes import Lanes, Rows, Specs
from palaestra.envs.nest import leaf_dtypes
from palaestra.envs.vector import ActionReader
from palaestra.runtime import SharedArrays
from palaestra.runtime.supervision import spin_acquire

__all__ = ["FAILED", "INFO", "MESSAGE", "STEP", "View", "layout", "serve"]

# What a worker is told to do, and how it went, in one number of shared memory each.
STEP, MESSAGE = 0, 1
DONE, INFO, FAILED = 0, 1, 2

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
        return cls(shared["seed"][lanes], rows, action)


def serve(
    connection: Connection,
    factories: Sequence[Callable[[], SingleEnvironment]],
    place: tuple[int, int],
    go: Semaphore,
    done: Semaphore,
) -> None:
    """Makes environments, then steps them whenever `go` is released, until told to stop.

    Args:
        connection: to the parent.
        factories: of this worker's environments.
        place: number of the worker, and of its first lane.
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
        connection.send((FAILED, (len(envs), *describe(error))))
        return
    connection.send((DONE, specs))
    shared = SharedArrays.receive(connection)
    _Worker(connection, envs, shared, place).run(go, done)


class _Worker:
    def __init__(
        self, connection: Connection, envs: list[SingleEnvironment], shared: SharedArrays, place: tuple[int, int]
    ) -> None:
        number, first = place
        self._connection = connection
        self._command = shared["command"][number : number + 1]
        self._status = shared["status"][number : number + 1]
        self._lanes = Lanes(envs, shared["cursor"][number : number + 1])
        self._view = View.of(shared, self._lanes.specs, slice(first, first + len(envs)))
        self._reader = ActionReader(self._lanes.specs.action, len(envs))

    def run(self, go: Semaphore, done: Semaphore) -> None:
        command, status = self._command, self._status
        while True:
            if not spin_acquire(go):
                while not go.acquire(True, _NAP_S):
                    pass
            outcome, message = DONE, None
            try:
                if command[0] == STEP:
                    message = self._step()
                    outcome = DONE if message is None else INFO
                else:
                    what, *arguments = self._connection.recv()
                    message = getattr(self, f"_{what}")(*arguments)
                    outcome = INFO
            except Exception as error:
                outcome, message = FAILED, (self._lanes.lane, *describe(error))
            status[0] = outcome
            done.release()
            if outcome != DONE:
                # after `done`: a pipe holds only so much, and the parent reads it when it knows that there is something
                self._connection.send(message)
            if outcome == INFO and message == "closed":
                return

    def _step(self) -> Any:
        view = self._view
        seeds = view.seed.tolist()
        started = {lane: seed for lane, seed in enumerate(seeds) if seed >= 0} if max(seeds) >= 0 else {}
        actions = self._reader.per_lane([array.copy() for array in view.action])
        rows, infos = self._lanes.step(actions, started)
        target = view.rows
        target.step_type[:] = rows.step_type
        target.reward[:] = rows.reward
        target.discount[:] = rows.discount
        for array, values in zip(target.observation, rows.observation, strict=True):
            array[:] = values
        return infos

    def _load(self, episodes: list[Any]) -> Any:
        self._lanes.load(episodes)
        return self._lanes.over

    def _digests(self) -> Any:
        return self._lanes.digests()

    def _render(self) -> Any:
        return self._lanes.envs[0].render()

    def _close(self) -> str:
        self._lanes.close()
        return "closed"


def _leaves(spec: SpecTree) -> Any:
    return zip(spec_leaves(spec).values(), leaf_dtypes(spec), strict=True)
