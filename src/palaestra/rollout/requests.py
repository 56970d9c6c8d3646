"""`RequestServer`: answers requests of many callers in batches, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from palaestra.core import ConfigError, PalaestraError

__all__ = ["Callers", "RequestError", "RequestServer", "ServerStatistics"]


class RequestError(PalaestraError, RuntimeError):
    """A request was not answered: its batch failed (the cause is what went wrong), or its server has stopped."""


@dataclass(slots=True)
class ServerStatistics:
    """What a server has done so far."""

    requests: int = 0
    """Answered, or failed."""
    rows: int = 0
    """In all of these."""
    batches: int = 0
    """Calls of the function."""
    largest_batch: int = 0
    """Rows of the largest."""
    failed_batches: int = 0
    """Those that raised."""
    dropped: int = 0
    """Requests of callers that left before they were answered."""
    wait_s: float = 0.0
    """Sum over requests of the time until their batch was closed."""
    longest_wait_s: float = 0.0
    """The longest of these times."""
    busy_s: float = 0.0
    """Seconds in the function."""

    def metrics(self) -> dict[str, float]:
        """Means, for reports: batch size, waiting time and time in the function."""
        return {
            "requests": self.requests,
            "batches": self.batches,
            "batch_size": self.rows / max(self.batches, 1),
            "wait_ms": 1000 * self.wait_s / max(self.requests, 1),
            "batch_ms": 1000 * self.busy_s / max(self.batches, 1),
        }


@dataclass(slots=True, eq=False)
class _Request:
    caller: int
    payload: Any
    rows: int
    blocks: bool
    since_s: float
    answer: Future[Any]


class Callers:
    """Who may ask, and how many of them wait: a batch need not wait for others once nobody is left who could ask.

    Servers that the same callers ask share one of these.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified when anything here, or in the queue of a server, changes; its lock guards both."""
        self.connected: set[int] = set()
        """Numbers of the callers."""
        self.waiting = 0
        """Callers that can ask nothing at present: they wait for an answer, or are absent."""
        self.all_waited_s = float("-inf")
        """When last everybody waited, by the monotonic clock: older requests wait for nobody any more."""

    def connect(self, caller: int) -> None:
        """Adds a caller.

        Args:
            caller: its number.

        Raises:
            ConfigError: the number is taken.
        """
        with self.changed:
            if caller in self.connected:
                raise ConfigError(f"caller {caller} is connected already; give every caller a number of its own")
            self.connected.add(caller)

    def disconnect(self, caller: int) -> None:
        """Frees a caller's place; its requests that wait are dropped.

        Args:
            caller: its number; one that is not connected is ignored.
        """
        with self.changed:
            self.connected.discard(caller)
            self.note()

    def absent(self, change: int) -> None:
        """Says that callers will ask nothing for a while, or are back.

        Args:
            change: how many left, or came back as a negative number.
        """
        with self.changed:
            self.waiting += change
            self.note()

    def note(self) -> None:
        """Wakes whoever waits for a change; called with the lock held."""
        if self.waiting >= len(self.connected):
            self.all_waited_s = time.monotonic()
        self.changed.notify_all()


class RequestServer:
    """Collects requests into batches and answers every batch by one call.

    A batch closes when it is full, when nobody is left who could ask, or when its oldest request has waited
    `max_wait_s`, whichever comes first; it never waits for a certain number of callers. Requests in a batch are in the
    order of their callers' numbers, so that what is drawn for them does not depend on who was faster.

    Args:
        answer: the payloads of a batch in, one answer for each out.
        name: for messages.
        max_batch_size: rows in a batch; a larger single request is a batch of its own.
        max_wait_s: seconds that a batch may wait for more requests; 0 takes what is there.
        min_batch_size: rows that close a batch before that; `max_batch_size` if left out.
        callers: shared with other servers; its own if left out.

    Raises:
        ConfigError: a size is below 1, or the time negative.

    Examples:
        >>> with RequestServer(lambda numbers: [2 * number for number in numbers], name="doubling") as server:
        ...     server.callers.connect(0)
        ...     server.submit(0, 21).result()
        42
    """

    def __init__(
        self,
        answer: Callable[[list[Any]], Sequence[Any]],
        *,
        name: str,
        max_batch_size: int = 64,
        max_wait_s: float = 0.002,
        min_batch_size: int | None = None,
        callers: Callers | None = None,
    ) -> None:
        least = max_batch_size if min_batch_size is None else min_batch_size
        if not 1 <= least <= max_batch_size or max_wait_s < 0:
            raise ConfigError(
                f"{name}: min_batch_size={least}, max_batch_size={max_batch_size}, max_wait_s={max_wait_s}; "
                "1 <= min_batch_size <= max_batch_size and a time of at least 0 are needed"
            )
        self.name, self.callers = name, callers or Callers()
        self.statistics = ServerStatistics()
        self._answer, self._least, self._most, self._max_wait_s = answer, least, max_batch_size, max_wait_s
        self._queue: list[_Request] = []
        self._current: list[_Request] = []  # the batch that is being computed
        self._stopping = self._ended = False
        self._thread: threading.Thread | None = None

    # -- for callers

    def submit(self, caller: int, payload: Any, *, rows: int = 1, blocks: bool = True) -> Future[Any]:
        """Asks without waiting.

        Args:
            caller: number of one that is connected.
            payload: what the function gets.
            rows: how many of a batch it makes.
            blocks: whether the caller asks nothing else until it is answered.

        Returns:
            Its answer to come. It fails with `RequestError` if the batch fails, or the caller is disconnected.

        Raises:
            RequestError: the server is stopping, or the caller is not connected.
        """
        request = _Request(caller, payload, rows, blocks, time.monotonic(), Future())
        with self.callers.changed:
            if self._stopping:
                raise RequestError(f"{self.name} has stopped and takes no more requests")
            if caller not in self.callers.connected:
                raise RequestError(f"{self.name}: caller {caller} is not connected, so it cannot ask")
            self._queue.append(request)
            self.callers.waiting += blocks
            self.callers.note()
        return request.answer

    # -- the thread

    def start(self) -> None:
        """Starts answering; requests may have been made before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Answers what waits, then ends the thread. Stopping twice is fine.

        Args:
            timeout_s: how long it may take.

        Raises:
            RequestError: the function still runs after that; whoever waits gets the same error.
        """
        with self.callers.changed:
            self._stopping = True
            self.callers.changed.notify_all()
        if self._thread is None:
            self._fail(self._take_all(), RequestError(f"{self.name} was stopped before it was started"))
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            error = RequestError(f"{self.name}: a batch was still being computed {timeout_s:g} s after the stop")
            self._fail([*self._current, *self._take_all()], error)
            raise error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _serve(self) -> None:
        try:
            while not self._ended:
                self._current, left = self._next_batch()
                for request in left:
                    request.answer.set_exception(RequestError(f"{self.name}: caller {request.caller} was disconnected"))
                if self._current:
                    self._compute(self._current)
                self._current = []
        except BaseException as error:  # nobody may wait for a thread that is gone
            with self.callers.changed:
                self._stopping = True
            self._fail([*self._current, *self._take_all()], error)
            raise

    def _next_batch(self) -> tuple[list[_Request], list[_Request]]:
        """Waits until a batch is closed; returns it, or requests whose callers have left, or notes the end."""
        changed = self.callers.changed
        with changed:
            while True:
                if left := self._without_callers():
                    return [], left
                if not self._queue:
                    if self._stopping:
                        self._ended = True
                        return [], []
                    changed.wait()
                    continue
                since_s = self._queue[0].since_s
                left_s = since_s + self._max_wait_s - time.monotonic()
                alone = since_s <= self.callers.all_waited_s
                if left_s <= 0 or alone or self._stopping or self._rows() >= self._least:
                    return self._taken(), []
                changed.wait(left_s)

    def _rows(self) -> int:
        return sum(request.rows for request in self._queue)

    def _taken(self) -> list[_Request]:
        count, rows = 1, self._queue[0].rows
        while count < len(self._queue) and rows + self._queue[count].rows <= self._most:
            rows += self._queue[count].rows
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return sorted(batch, key=lambda request: request.caller)

    def _take_all(self) -> list[_Request]:
        with self.callers.changed:
            batch, self._queue = self._queue, []
        return batch

    def _without_callers(self) -> list[_Request]:
        """Takes requests out of the queue whose callers have left."""
        connected = self.callers.connected
        left = [request for request in self._queue if request.caller not in connected]
        if left:
            self._queue = [request for request in self._queue if request.caller in connected]
            self.statistics.dropped += len(left)
            self._settle(left)
        return left

    def _compute(self, batch: list[_Request]) -> None:
        began = time.monotonic()
        stats, waits = self.statistics, [began - request.since_s for request in batch]
        try:
            answers = self._answer([request.payload for request in batch])
            if len(answers) != len(batch):
                raise RequestError(f"{len(answers)} answers were given to {len(batch)} requests; one each is needed")
        except Exception as error:
            stats.failed_batches += 1
            answers = error
        stats.busy_s += time.monotonic() - began
        rows = sum(request.rows for request in batch)
        stats.requests, stats.rows, stats.batches = stats.requests + len(batch), stats.rows + rows, stats.batches + 1
        stats.largest_batch = max(stats.largest_batch, rows)
        stats.wait_s, stats.longest_wait_s = stats.wait_s + sum(waits), max(stats.longest_wait_s, *waits)
        if isinstance(answers, Exception):
            self._fail(batch, answers)
            return
        self._settle(batch)
        for request, given in zip(batch, answers, strict=True):
            if not request.answer.done():  # else `stop` has given up on it
                request.answer.set_result(given)

    def _settle(self, batch: Sequence[_Request]) -> None:
        with self.callers.changed:
            self.callers.waiting -= sum(request.blocks for request in batch)

    def _fail(self, batch: Sequence[_Request], cause: BaseException) -> None:
        self._settle(batch)
        callers = [request.caller for request in batch]
        for request in batch:
            error = RequestError(f"{self.name} failed for the callers {callers}: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            if not request.answer.done():
                request.answer.set_exception(error)
