"""`ProcessRuntime`: workers in processes of this machine; arrays travel through memory that both sides see."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, final

import numpy as np

from palaestra.core.computing import prefers_onednn
from palaestra.runtime.calls import Arrival, Call, RestartPolicy, WorkerRecord, arrival
from palaestra.runtime.memory import SharedArrays, aligned
from palaestra.runtime.messages import Failed, Mapped, Message, Performer, Request, SharedCache, decode, require_script
from palaestra.runtime.runtime import Runtime
from palaestra.runtime.supervision import CLOCK, SupervisedProcess, WorkerDiedError, WorkerTimeoutError

__all__ = ["ProcessRuntime"]

_FIRST_BYTES = 1 << 16
_ONCE_BYTES = 1 << 16  # larger shared values are written once for all workers, which map them
_ANSWER_S = 60.0  # from the first byte of an answer to its last
_CLOSED = "closed"
_PRELOAD = ("palaestra.distributed",)  # and with it what most workers import

Places = list[list[tuple[int, int]]]
"""Offset and size of the header and the buffers of each message."""


@final
class ProcessRuntime(Runtime):
    """Workers in supervised processes: one that dies is noticed, and none outlives this process.

    A worker has one piece of shared memory for requests and one for answers. Each message is written over the one
    before, since a worker does one call at a time; the memory grows when a message does not fit. A `Shared` value
    above 64 KiB is written once, into memory of its own, and all workers read it there.

    Args:
        restarts: how often workers may be restarted.
    """

    def __init__(self, restarts: RestartPolicy | None = None) -> None:
        super().__init__(restarts)
        self._alive: dict[WorkerKey, _Seat] = {}
        self._blocks = SharedCache()  # large shared values
        self._finalizer = weakref.finalize(self, _kill_all, self._alive)

    def launch(self, worker: WorkerRecord) -> Any:
        """See `Runtime.launch`.

        Raises:
            ConfigError: the script that runs is no file, and every new process has to import it.
        """
        require_script()
        given = worker.factory, prefers_onednn()
        process = SupervisedProcess(_serve, given, context="forkserver", name=worker.title, preload=_PRELOAD)
        seat = self._alive[worker.id, worker.incarnation] = _Seat(worker, process)
        return seat

    def submit(self, worker: WorkerRecord, call: Call, request: Request) -> None:
        seat: _Seat = worker.handle
        seat.call = call
        new = {place: value for place, value in request.shared.items() if value.key not in seat.shared}
        for value in request.shared.values():
            if value.key not in seat.shared:
                seat.shared.put(value.key, None, value.message.size_bytes)
            _ = seat.shared[value.key]  # in use, as it is over there
        keys = {place: value.key for place, value in request.shared.items()}
        seat.shared.forget(len({*keys.values()}))
        once = [place for place, value in new.items() if value.message.size_bytes > _ONCE_BYTES]
        for place in once if len(self._alive) > 1 else ():
            value = new.pop(place)
            if value.key not in self._blocks:
                self._blocks.put(value.key, _Mapping(value.message), value.message.size_bytes)
            self._blocks[value.key].send(seat.process, value.key)
        self._blocks.forget(len(once))
        messages = [request.message, *(value.message for value in new.values())]
        needed = _size(messages)
        if needed > seat.requests.size:
            seat.requests.grow(needed)
            seat.process.send("requests")
            seat.requests.send(seat.process)
        seat.process.send((call.sequence, request.method, keys, list(new), seat.requests.write(messages)))

    def poll(self, timeout_s: float) -> list[Arrival]:
        seats: dict[Any, _Seat] = {}
        for seat in self._alive.values():
            seats[seat.process.connection] = seats[seat.process.sentinel] = seat
        if not seats:
            time.sleep(timeout_s)
            return []
        ready = {id(seats[one]): seats[one] for one in mp_connection.wait(list(seats), min(timeout_s, 3600.0))}
        return [arrived for seat in ready.values() if (arrived := self._hear(seat)) is not None]

    def _hear(self, seat: _Seat) -> Arrival | None:
        worker, process = seat.worker, seat.process
        try:
            if process.connection.poll():
                sequence, what = process.receive(CLOCK.now() + _ANSWER_S)
                if sequence is None:
                    seat.answers.grow(what)
                    seat.answers.send(process)
                    return None
                assert seat.call is not None
                value = what if what is None or isinstance(what, Failed) else decode(seat.answers.read(what)[0])
                return arrival(worker, seat.call._replace(sequence=sequence), value)
        except WorkerTimeoutError as error:
            return Arrival(worker.id, worker.incarnation, None, error=WorkerDiedError(str(error)))
        except (WorkerDiedError, EOFError, OSError):
            pass  # its end is what follows
        if process.alive:
            return None
        text = str(process.died())
        if seat.call is not None and not seat.call.sequence:
            text += (
                " while it was making its object. If its own output shows that it ran your script again, put the "
                'script\'s code under `if __name__ == "__main__":`'
            )
        return Arrival(worker.id, worker.incarnation, None, error=WorkerDiedError(text))

    def dismiss(self, worker: WorkerRecord) -> None:
        with contextlib.suppress(WorkerDiedError, WorkerTimeoutError):
            worker.handle.process.send(None, CLOCK.now())
            worker.handle.dismissed = True

    def end(self, worker: WorkerRecord, timeout_s: float) -> None:
        seat: _Seat = worker.handle
        self._alive.pop((worker.id, worker.incarnation), None)
        deadline = CLOCK.now() + timeout_s
        with contextlib.suppress(WorkerDiedError, WorkerTimeoutError):
            while seat.dismissed:
                sequence, what = seat.process.receive(deadline)
                if sequence == _CLOSED:
                    self.tell_closed(worker, what)
                    break
        seat.process.stop(max(deadline - CLOCK.now(), 0.0))
        seat.requests.close()
        seat.answers.close()


class _Mapping:
    """A shared value in memory of its own, which every worker maps."""

    def __init__(self, message: Message) -> None:
        self._arrays = SharedArrays({"bytes": ((_size([message]),), np.uint8)})
        self._places = _places([message])
        for (at, _), part in zip(self._places[0], (message.header, *message.buffers), strict=True):
            self._arrays.write(at, part)
        weakref.finalize(self, self._arrays.close)

    def send(self, process: SupervisedProcess, key: int) -> None:
        process.send(_Written(key, self._places))
        self._arrays.send(process)


class _Written(NamedTuple):
    """Says that a shared value comes, in memory of its own."""

    key: int
    places: Places


WorkerKey = tuple[str, int]


class _Seat:
    """The driver's side of an incarnation."""

    def __init__(self, worker: WorkerRecord, process: SupervisedProcess) -> None:
        self.worker, self.process = worker, process
        self.requests, self.answers, self.shared = _Slab(), _Slab(), SharedCache()
        self.call: Call | None = worker.running
        self.dismissed = False


class _Slab:
    """One piece of shared memory that messages are written to, each over the one before."""

    def __init__(self) -> None:
        self.size = 0
        self._arrays: Any = None  # `SharedArrays`, where it has grown

    def grow(self, size_bytes: int) -> None:
        self.close()
        self.size = max(_FIRST_BYTES, 1 << (size_bytes - 1).bit_length())
        self._arrays = SharedArrays({"bytes": ((self.size,), np.uint8)})

    def send(self, process: SupervisedProcess) -> None:
        self._arrays.send(process)
        self._arrays.seal()

    def receive(self, connection: Connection) -> None:
        self.close()
        self._arrays = SharedArrays.receive(connection)
        self.size = len(self._arrays["bytes"])

    def write(self, messages: list[Message]) -> Places:
        memory, places = self._arrays["bytes"], _places(messages)
        for message, mine in zip(messages, places, strict=True):
            for (at, size), part in zip(mine, (message.header, *message.buffers), strict=True):
                memory[at : at + size] = np.frombuffer(part, np.uint8)
        return places

    def read(self, places: Places) -> list[Message]:
        return _found(self._arrays["bytes"], places)

    def close(self) -> None:
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None


def _places(messages: list[Message]) -> Places:
    at, places = 0, []
    for message in messages:
        mine: list[tuple[int, int]] = []
        for part in (message.header, *message.buffers):
            mine.append((at, len(part)))
            at += aligned(len(part))
        places.append(mine)
    return places


def _found(memory: np.ndarray, places: Places) -> list[Message]:
    found = [[memory[at : at + size] for at, size in mine] for mine in places]
    return [Message(header.tobytes(), buffers) for header, *buffers in found]


def _size(messages: list[Message]) -> int:
    return sum(aligned(len(m.header)) + sum(aligned(len(b)) for b in m.buffers) for m in messages)


def _kill_all(seats: dict[WorkerKey, _Seat]) -> None:
    for seat in seats.values():
        seat.process.kill()


# -- in the worker


def _serve(connection: Connection, factory: Callable[[], Any], onednn: bool) -> None:
    performer, requests, answers = Performer(factory, 1, onednn=onednn), _Slab(), _Slab()
    mapped: dict[int, Message] = {}
    connection.send((0, performer.begin()))
    while (asked := _next(connection)) is not None:
        if asked == "requests":
            requests.receive(connection)
            continue
        if isinstance(asked, _Written):
            (message,) = _found(SharedArrays.receive(connection)["bytes"], asked.places)
            mapped[asked.key] = Mapped(*message)
            continue
        sequence, method, keys, new, places = asked
        message, *shared = requests.read(places)
        values = dict(zip(new, shared, strict=True))
        given = {place: (key, values.get(place) or mapped.pop(key, None)) for place, key in keys.items()}
        answer = performer.perform(method, message, given)
        if isinstance(answer, Failed):
            connection.send((sequence, answer))
            continue
        if (needed := _size([answer])) > answers.size:
            connection.send((None, needed))
            try:
                answers.receive(connection)
            except EOFError:  # dismissed, or the driver is gone: nobody waits for it
                break
        connection.send((sequence, answers.write([answer])))
    with contextlib.suppress(OSError):  # the driver is gone
        connection.send((_CLOSED, performer.close()))


def _next(connection: Connection) -> Any:
    """What the driver asks; nothing any more if it is gone."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None
