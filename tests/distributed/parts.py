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
    """Lets a worker of a runtime die of some calls of a method: sent, and never answered."""

    def __init__(self, runtime: Any, method: str, *, times: int = 1, skip: int = 0) -> None:
        self.left, self.skip, self.victims = times, skip, list[Call]()
        self._method, self._submit = method, runtime.submit
        runtime.submit = self.submit

    def submit(self, worker: Any, call: Call, request: Any) -> None:
        due = call.method == self._method and self.left > 0
        if due and self.skip:
            self.skip -= 1
            due = False
        if not due:
            self._submit(worker, call, request)
            return
        self.left -= 1
        self.victims.append(call)
        process = getattr(worker.handle, "process", None)
        if process is None:
            self._submit(worker, call, request)
            raise WorkerDiedError(f"{worker.name} was killed by a test")
        os.kill(process.pid, signal.SIGSTOP)  # a quick worker would answer before it is killed
        self._submit(worker, call, request)
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
