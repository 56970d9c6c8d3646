"""`LocalRuntime`: workers in this process. What it does is what the other runtimes have to do."""

import time
from collections import deque
from typing import Any, final

from palaestra.runtime.calls import Arrival, Call, RestartPolicy, WorkerRecord, arrival
from palaestra.runtime.messages import Message, Performer, Request, decode
from palaestra.runtime.runtime import Runtime

__all__ = ["LocalRuntime"]


@final
class LocalRuntime(Runtime):
    """Workers in this process, which work while the caller waits: the call that was made first is done first.

    Args:
        restarts: how often workers may be restarted.
    """

    works_here = True

    def __init__(self, restarts: RestartPolicy | None = None) -> None:
        super().__init__(restarts)
        self._asked: deque[tuple[WorkerRecord, Call, Request | None]] = deque()

    def launch(self, worker: WorkerRecord) -> Any:
        assert worker.running is not None
        self._asked.append((worker, worker.running, None))
        return Performer(worker.factory)

    def submit(self, worker: WorkerRecord, call: Call, request: Request) -> None:
        self._asked.append((worker, call, request.copied()))

    def poll(self, timeout_s: float) -> list[Arrival]:
        """See `Runtime.poll`. Does one call, however long it takes."""
        if not self._asked:
            time.sleep(timeout_s)
            return []
        worker, call, request = self._asked.popleft()
        if call.incarnation != worker.incarnation or worker.handle is None:
            return []
        performer: Performer = worker.handle
        if request is None:
            answer: Any = performer.begin()
        else:
            shared: Any = {place: (value.key, value.message) for place, value in request.shared.items()}
            answer = performer.perform(request.method, request.message, shared)
        if isinstance(answer, Message):
            answer = decode(answer)
        return [arrival(worker, call, answer)]

    def dismiss(self, worker: WorkerRecord) -> None:
        """See `Runtime.dismiss`. Nothing runs here by itself."""

    def end(self, worker: WorkerRecord, timeout_s: float) -> None:
        self.tell_closed(worker, worker.handle.close())
