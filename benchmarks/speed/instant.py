"""Workers that answer at once, so that what the driver does for them is all there is."""

from typing import Any

from palaestra.runtime import Runtime
from palaestra.runtime.calls import Arrival, Call, WorkerRecord
from palaestra.runtime.messages import Request


class Instant(Runtime):
    """A runtime without workers: every call is answered by nothing.

    Args:
        batch: answers in a poll.
    """

    def __init__(self, batch: int = 10) -> None:
        super().__init__()
        self._arrivals: list[Arrival] = []
        self._batch = batch

    def launch(self, worker: WorkerRecord) -> bool:
        self._arrivals.append(Arrival(worker.id, worker.incarnation, 0))
        return True

    def submit(self, worker: WorkerRecord, call: Call, request: Request) -> None:
        self._arrivals.append(Arrival(call.worker, call.incarnation, call.sequence))

    def poll(self, timeout_s: float) -> list[Arrival]:
        now, self._arrivals = self._arrivals[: self._batch], self._arrivals[self._batch :]
        return now

    def dismiss(self, worker: WorkerRecord) -> None:
        pass

    def end(self, worker: WorkerRecord, timeout_s: float) -> Any:
        pass
