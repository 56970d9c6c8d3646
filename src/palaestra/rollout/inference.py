"""`InferenceServer`: answers requests of many clients in batches, one forward pass each, from a thread of its own."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, PalaestraError, ShapeError, computing_thread, tree_leaves, tree_split
from palaestra.core.spec import SpecTree, TensorSpec, children_of, numpy_dtype

__all__ = ["Clients", "InferenceServer", "RequestError", "ServerStatistics", "pack"]


def pack(inputs: Sequence[Any], spec: SpecTree, path: str = "") -> Any:
    """The rows of several inputs, one after another, as one.

    Args:
        inputs: nests shaped like the spec, arrays or tensors [n_i, ...]; numbers of rows may differ.
        spec: of one row.
        path: of the inputs in a larger nest, for messages.

    Returns:
        A tensor [N, ...] of the spec's dtype, or a `Batch` of them; tuples get the keys "0", "1", ...

    Raises:
        ShapeError: an input has no such entry, or one of another shape; the message says whose.

    Examples:
        >>> pack([np.zeros((2, 3)), np.ones((1, 3))], TensorSpec((3,))).shape
        torch.Size([3, 3])
    """
    if not isinstance(spec, TensorSpec):
        packed = {}
        for key, child in children_of(spec).items():
            inner = f"{path}.{key}" if path else key
            packed[key] = pack([_child(x, key, i, inner) for i, x in enumerate(inputs)], child, inner)
        return Batch.of(packed)
    arrays = [np.asarray(leaf, numpy_dtype(spec.dtype)) for leaf in inputs]
    for number, array in enumerate(arrays):
        if array.shape[1:] != spec.shape or array.ndim != len(spec.shape) + 1:
            raise ShapeError(
                f"input {number}{f' {path!r}' if path else ''} has shape {array.shape}; its spec needs "
                f"(rows, {', '.join(map(str, spec.shape))})"
            )
    return torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


def _child(node: Any, key: str, number: int, path: str) -> Any:
    try:
        return node[int(key)] if isinstance(node, tuple | list) else node[key]
    except (KeyError, IndexError, TypeError):
        raise ShapeError(f"input {number} is a {type(node).__name__} without the entry {path!r} of its spec") from None


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
    """Requests of clients that left before they were answered."""
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
    client: int
    payload: Any
    rows: int
    blocks: bool
    since_s: float
    answer: Future[Any]
    settled: bool = False
    """Whether its answer or failure is decided."""


class Clients:
    """Who may ask, and how many of them wait: a batch need not wait for others once no client is left that could ask.

    Servers that the same clients ask share one of these.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified when anything here, or in the queue of a server, changes; its lock guards both."""
        self.connected: set[int] = set()
        """Numbers of the clients."""
        self.waiting = 0
        """Clients that can ask nothing at present: they wait for an answer, or are absent."""
        self.all_waited_s = float("-inf")
        """When last all clients waited, by the monotonic clock: older requests wait for no other any more."""

    def connect(self, client: int) -> None:
        """Adds a client.

        Args:
            client: its number.

        Raises:
            ConfigError: the number is taken.
        """
        with self.changed:
            if client in self.connected:
                raise ConfigError(f"client {client} is connected already; give every client a number of its own")
            self.connected.add(client)

    def disconnect(self, client: int) -> None:
        """Frees a client's place; its requests that wait are dropped.

        Args:
            client: its number; one that is not connected is ignored.
        """
        with self.changed:
            self.connected.discard(client)
            self.note()

    def absent(self, change: int) -> None:
        """Says that clients will ask nothing for a while, or are back.

        Args:
            change: how many left, or came back as a negative number.
        """
        with self.changed:
            self.waiting += change
            self.note()

    def note(self) -> None:
        """Wakes the threads that wait for a change; called with the lock held."""
        if self.waiting >= len(self.connected):
            self.all_waited_s = time.monotonic()
        self.changed.notify_all()


class InferenceServer:
    """Collects requests into batches and answers every batch by one call.

    A batch closes when it is full, when no client is left that could ask, or when its oldest request has waited
    `max_wait_s`, whichever comes first; it never waits for a certain number of clients. Requests in a batch are in the
    order of their clients' numbers, so that what is drawn for them does not depend on which was faster.

    Args:
        function: with `input_spec`, a packed batch [N, ...] in and a nest of tensors [N, ...] out; without, the list of
            payloads in and one answer for each out. Called in the server's thread.
        input_spec: of one row of a payload.
        name: for messages.
        max_batch_size: rows in a batch; a larger single request is a batch of its own.
        max_wait_s: seconds that a batch may wait for more requests; 0 takes what is there.
        min_batch_size: rows that close a batch before that; `max_batch_size` if left out.
        clients: shared with other servers; its own if left out.

    Raises:
        ConfigError: a size is below 1, or the time negative.

    Examples:
        >>> with InferenceServer(lambda x: x.sum(-1), TensorSpec((2,))) as server:
        ...     server.clients.connect(0)
        ...     server.submit(0, torch.ones(3, 2)).result()
        tensor([2., 2., 2.])
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        input_spec: SpecTree | None = None,
        *,
        name: str = "inference",
        max_batch_size: int = 64,
        max_wait_s: float = 0.002,
        min_batch_size: int | None = None,
        clients: Clients | None = None,
    ) -> None:
        least = max_batch_size if min_batch_size is None else min_batch_size
        if not 1 <= least <= max_batch_size or max_wait_s < 0:
            raise ConfigError(
                f"{name}: min_batch_size={least}, max_batch_size={max_batch_size}, max_wait_s={max_wait_s}; "
                "1 <= min_batch_size <= max_batch_size and a time of at least 0 are needed"
            )
        self.name, self.clients = name, clients or Clients()
        self.statistics = ServerStatistics()
        self._function, self._input_spec = function, input_spec
        self._least, self._most, self._max_wait_s = least, max_batch_size, max_wait_s
        self._queue: list[_Request] = []
        self._current: list[_Request] = []  # the batch that is being computed
        self._stopping = self._ended = False
        self._thread: threading.Thread | None = None

    # -- for clients

    def submit(self, client: int, payload: Any, *, blocks: bool = True) -> Future[Any]:
        """Asks without waiting.

        Args:
            client: number of one that is connected.
            payload: what the function gets: rows [n, ...] as the input spec says, or anything where there is none.
            blocks: whether the client asks nothing else until it is answered.

        Returns:
            Its answer to come. It fails with `RequestError` if the batch fails, or the client is disconnected.

        Raises:
            RequestError: the server is stopping, or the client is not connected.
            ShapeError: the payload does not fit the input spec; no other client's batch suffers from it.
        """
        rows = 1
        if self._input_spec is not None:
            payload = pack([payload], self._input_spec)
            rows = len(next(iter(tree_leaves(payload))))
        request = _Request(client, payload, rows, blocks, time.monotonic(), Future())
        with self.clients.changed:
            if self._stopping:
                raise RequestError(f"{self.name} has stopped and takes no more requests")
            if client not in self.clients.connected:
                raise RequestError(f"{self.name}: client {client} is not connected, so it cannot ask")
            self._queue.append(request)
            self.clients.waiting += blocks
            self.clients.note()
        return request.answer

    # -- the thread

    def start(self) -> None:
        """Starts answering; requests may have been made before."""
        if self._thread is None:
            self._thread = computing_thread(self._serve, name=self.name)
            self._thread.start()

    def idle(self, timeout_s: float) -> bool:
        """Waits until nothing is asked or computed; returns whether that is so, or the server ends.

        Args:
            timeout_s: how long it may take.
        """
        with self.clients.changed:
            return self.clients.changed.wait_for(
                lambda: self._stopping or self._thread is None or not (self._queue or self._current), timeout_s
            )

    def stop(self, timeout_s: float = 10.0) -> None:
        """Answers what waits, then ends the thread. Stopping twice is fine.

        Args:
            timeout_s: how long it may take.

        Raises:
            RequestError: the function still runs after that; all that wait get the same error.
        """
        with self.clients.changed:
            self._stopping = True
            self.clients.changed.notify_all()
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
                left = self._next_batch()
                for request in left:
                    request.answer.set_exception(RequestError(f"{self.name}: client {request.client} was disconnected"))
                if self._current:
                    self._compute(self._current)
                with self.clients.changed:
                    self._current = []
                    self.clients.changed.notify_all()
        except BaseException as error:  # no client may wait for a thread that is gone
            with self.clients.changed:
                self._stopping = True
                self.clients.changed.notify_all()
            self._fail([*self._current, *self._take_all()], error)
            raise

    def _next_batch(self) -> list[_Request]:
        """Waits until a batch is closed, and notes it, or the end; or returns requests whose clients have left."""
        changed = self.clients.changed
        with changed:
            while True:
                if left := self._without_clients():
                    return left
                if not self._queue:
                    if self._stopping:
                        self._ended = True
                        return []
                    changed.wait()
                    continue
                since_s = self._queue[0].since_s
                left_s = since_s + self._max_wait_s - time.monotonic()
                alone, rows = since_s <= self.clients.all_waited_s, sum(request.rows for request in self._queue)
                if left_s <= 0 or alone or self._stopping or rows >= self._least:
                    self._current = self._taken()
                    return []
                changed.wait(left_s)

    def _taken(self) -> list[_Request]:
        count, rows = 1, self._queue[0].rows
        while count < len(self._queue) and rows + self._queue[count].rows <= self._most:
            rows += self._queue[count].rows
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return sorted(batch, key=lambda request: request.client)

    def _take_all(self) -> list[_Request]:
        with self.clients.changed:
            batch, self._queue = self._queue, []
        return batch

    def _without_clients(self) -> list[_Request]:
        """Takes requests out of the queue whose clients have left."""
        connected = self.clients.connected
        left = [request for request in self._queue if request.client not in connected]
        if left:
            self._queue = [request for request in self._queue if request.client in connected]
            self.statistics.dropped += len(left)
            self._settle(left)
        return left

    def _compute(self, batch: list[_Request]) -> None:
        began, stats = time.monotonic(), self.statistics
        rows, waits = [request.rows for request in batch], [time.monotonic() - request.since_s for request in batch]
        try:
            answers = self._answers([request.payload for request in batch], rows)
        except Exception as error:
            stats.failed_batches += 1
            answers = error
        stats.busy_s += time.monotonic() - began
        stats.requests, stats.batches = stats.requests + len(batch), stats.batches + 1
        stats.rows, stats.largest_batch = stats.rows + sum(rows), max(stats.largest_batch, sum(rows))
        stats.wait_s, stats.longest_wait_s = stats.wait_s + sum(waits), max(stats.longest_wait_s, *waits)
        if isinstance(answers, Exception):
            self._fail(batch, answers)
            return
        for request, given, mine in zip(batch, answers, self._settle(batch), strict=True):
            if mine:  # else `stop` has given up on it
                request.answer.set_result(given)

    def _answers(self, payloads: list[Any], rows: list[int]) -> Sequence[Any]:
        if self._input_spec is not None:
            return tree_split(self._function(pack(payloads, self._input_spec)), rows)
        answers = self._function(payloads)
        if len(answers) != len(payloads):
            raise RequestError(f"{len(answers)} answers were given to {len(payloads)} requests; one each is needed")
        return answers

    def _settle(self, batch: Sequence[_Request]) -> list[bool]:
        """For each request, whether the caller is the first to decide its answer; its client waits no longer then."""
        with self.clients.changed:
            first = [not request.settled for request in batch]
            for request in itertools.compress(batch, first):
                request.settled = True
                self.clients.waiting -= request.blocks
        return first

    def _fail(self, batch: Sequence[_Request], cause: BaseException) -> None:
        clients = [request.client for request in batch]
        for request in itertools.compress(batch, self._settle(batch)):
            error = RequestError(f"{self.name} failed for the clients {clients}: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            request.answer.set_exception(error)
