"""Small policies, their data, and workers that die on request."""

import copy
import os
import signal
from collections.abc import Mapping
from typing import Any

from palaestra.algorithms import Algorithm
from palaestra.core import DataSource
from palaestra.runtime import Call, LocalRuntime, RestartPolicy, WorkerDiedError
from tests.algorithms.parts import any_kind, collected

QUICK = RestartPolicy(max_restarts=8, backoff_s=0.01)


class Mortal:
    """Lets a worker of a runtime die of some calls of a method, just when it has got them."""

    def __init__(self, runtime: Any, method: str, *, times: int = 1, skip: int = 0) -> None:
        self.left, self.skip, self.victims = times, skip, list[Call]()
        self._method, self._submit = method, runtime.submit
        runtime.submit = self.submit

    def submit(self, worker: Any, call: Call, request: Any) -> None:
        self._submit(worker, call, request)
        if call.method != self._method or not self.left:
            return
        if self.skip:
            self.skip -= 1
            return
        self.left -= 1
        self.victims.append(call)
        process = getattr(worker.handle, "process", None)
        if process is None:
            raise WorkerDiedError(f"{worker.name} was killed by a test")
        os.kill(process.pid, signal.SIGKILL)


def local() -> LocalRuntime:
    return LocalRuntime(QUICK)


def several(*names: str) -> tuple[dict[str, Algorithm], dict[str, Any]]:
    """Algorithms and collectors with data, by policy name."""
    made = {f"{name}{number}": collected(name, any_kind(name), seed=3 + number) for number, name in enumerate(names)}
    return {name: pair[0] for name, pair in made.items()}, {name: pair[1] for name, pair in made.items()}


def sources_of(collectors: Mapping[str, Any]) -> dict[str, DataSource]:
    return {name: collector.buffer for name, collector in collectors.items()}


def twin(algorithm: Algorithm) -> Algorithm:
    return copy.deepcopy(algorithm)
