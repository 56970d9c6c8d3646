"""Worker processes that are watched: a dead one is named, a silent one has a deadline, none is left behind.

A worker ignores Ctrl-C, SIGTERM and SIGHUP (its parent decides), ends when its parent does, and prints the stacks of
its threads on request, even if it hangs in native code.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import connection as mp_connection
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import cloudpickle

from palaestra.core import ConfigError, PalaestraError
from palaestra.runtime.memory import SharedSemaphore
from palaestra.runtime.signals import STOP_SIGNALS, end_group, ignore_stop_signals, signals_blocked
from palaestra.runtime.titles import entitle

__all__ = [
    "CLOCK",
    "Companion",
    "SupervisedProcess",
    "WorkerDiedError",
    "WorkerTimeoutError",
    "spin_acquire",
    "stop_all",
    "when_forked",
]

Context = Literal["spawn", "forkserver"]
"""How processes are started."""

# How often a waiting parent looks whether the worker still lives; a death is seen within this time.
_PULSE_S = 0.1
# For messages without another deadline.
_SEND_S = 60.0
# Length of the busy part of a wait. Longer than a step of a cheap environment, shorter than anybody notices.
_SPIN_TRIES = 300
_in_forks = weakref.WeakKeyDictionary[Any, Callable[[Any], None]]()


class WorkerDiedError(PalaestraError):
    """A worker process ended without being asked to; the message says how."""

    exit_code = 3


class WorkerTimeoutError(PalaestraError):
    """A worker process did not answer in time."""


def when_forked(owner: Any, let_go: Callable[[Any], None]) -> None:
    """Has every process that is forked from this one, by an environment say, let go of what stays its parent's.

    A fork has all of its parent's open files: a lock and the pipes of workers would outlive their run in it.

    Args:
        owner: of the files; while it lives.
        let_go: called with it, in the fork.
    """
    _in_forks[owner] = let_go


def _let_go_of_all() -> None:
    for owner, let_go in list(_in_forks.items()):
        let_go(owner)
    _in_forks.clear()
    StoppableClock.counting = threading.RLock()  # another thread may have held it, and is not in the fork


os.register_at_fork(after_in_child=_let_go_of_all)


class StoppableClock:
    """`time.monotonic()`, less the seconds for which this process was stopped while it waited, by Ctrl-Z say.

    Whoever was to answer was stopped with it: by this clock nobody is late for that.

    Args:
        leeway_s: a wait that takes so much longer than it should was stopped. Stops between waits are not counted:
            after one, whoever is waited for has so long to answer.
    """

    counting = threading.RLock()
    """Held while a stop is counted, so that no two threads count it twice."""

    def __init__(self, leeway_s: float) -> None:
        self.leeway_s, self._stopped_s, self._counted_s = leeway_s, 0.0, 0.0

    def now(self) -> float:
        """Its seconds, from a moment of no meaning."""
        return time.monotonic() - self._stopped_s

    def wait(self, wait: Callable[[float], Any], deadline: float = float("inf")) -> Any:
        """Waits for a tenth of a second, or for less where the deadline is nearer.

        Args:
            wait: waits for so many seconds, and says for what it need not wait any more.
            deadline: in seconds of this clock.

        Returns:
            What `wait` returns.
        """
        began_s, most_s = time.monotonic(), max(0.0, min(_PULSE_S, deadline - self.now()))
        found, now_s = wait(most_s), time.monotonic()
        if now_s - began_s - most_s > self.leeway_s:
            with StoppableClock.counting:
                over_s = max(0.0, now_s - max(began_s + most_s, self._counted_s))
                self._stopped_s, self._counted_s = self._stopped_s + over_s, max(self._counted_s, now_s)
        return found


CLOCK = StoppableClock(1.0)
"""By which deadlines of worker processes, and of environments in threads, run."""


class SupervisedProcess:
    """A worker process and a connection to it; in a fork of the process that made it, it counts as ended.

    Args:
        target: a function of a module, called in the worker with the other end of the connection and `args`.
        args: sent by value.
        context: how processes are started: afresh, or by forking a server that has imported `preload`.
        name: for error messages and lists of processes, for example "worker 2".
        preload: modules that the fork server imports once.

    Raises:
        ConfigError: `args` cannot be sent to another process.
        WorkerDiedError: the fork server died meanwhile.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...],
        *,
        context: Context,
        name: str,
        preload: Iterable[str] = (),
    ) -> None:
        ctx: Any = multiprocessing.get_context(context)
        if context == "forkserver":
            server: Any = forkserver._forkserver
            asked = [] if server._preload_modules == ["__main__"] else server._preload_modules  # by the user
            ctx.set_forkserver_preload(list(dict.fromkeys([*asked, *preload])))
        self.name = name
        self.connection, theirs = ctx.Pipe()
        self._stacks, stacks = ctx.Pipe(duplex=False)
        # a fork server has the environment of its start
        environment = {name: value for name, value in os.environ.items() if name.startswith("PALAESTRA_")}
        arguments = (target, theirs, stacks, environment, args)
        self._process = ctx.Process(target=_main, args=arguments, name=name, daemon=True)
        with signals_blocked(*STOP_SIGNALS):
            resource_tracker.ensure_running()  # which unblocks some of them
        try:
            with signals_blocked(*STOP_SIGNALS):
                self._process.start()
        except (EOFError, ConnectionError) as error:
            raise WorkerDiedError(f"{name} could not be started: the process that forks workers was killed") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"what {name} needs cannot be sent to another process: {error}. Lambdas and local functions cannot; "
                "use a function of a module, or functools.partial of one"
            ) from error
        finally:
            theirs.close()
            stacks.close()
        os.set_blocking(self.connection.fileno(), False)  # our end: every wait has a deadline
        self._torn = False
        when_forked(self, SupervisedProcess._leave)

    def _leave(self) -> None:
        """In a fork: the worker is the parent's, and ends with it."""
        self.connection.close()
        self._stacks.close()
        process: Any = self._process
        with contextlib.suppress(AttributeError, OSError, TypeError):
            for file in process._popen.finalizer._args:  # by which the worker notices its parent's end
                os.close(file)
        self._process = _ParentsProcess()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker still runs."""
        return self._process.exitcode is None and not mp_connection.wait([self._process.sentinel], 0)

    @property
    def sentinel(self) -> int:
        """Becomes readable when the worker ends; for `multiprocessing.connection.wait`."""
        return self._process.sentinel

    def cause(self) -> str:
        """How a dead worker ended, for example "was killed by signal 9 (SIGKILL)"."""
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return "does not answer"
        if code >= 0:
            return f"exited with code {code}"
        names = {sig.value: sig.name for sig in signal.Signals}
        return f"was killed by signal {-code} ({names.get(-code, 'unknown')})"

    def died(self) -> WorkerDiedError:
        """The error of a worker that is gone: its name, process and cause."""
        return WorkerDiedError(f"{self.name} (process {self.pid}) {self.cause()}")

    def acquire(self, semaphore: SharedSemaphore, deadline: float) -> None:
        """Waits until the worker releases a semaphore.

        Args:
            semaphore: that the worker releases.
            deadline: in seconds of `CLOCK`.

        Raises:
            WorkerDiedError: it never will.
            WorkerTimeoutError: it did not in time.
        """
        if spin_acquire(semaphore):
            return
        while not CLOCK.wait(lambda wait_s: semaphore.acquire(True, wait_s)):
            if not self.alive and not semaphore.acquire(False):
                raise self.died()
            if CLOCK.now() >= deadline:
                raise WorkerTimeoutError(f"{self.name} (process {self.pid}) did not answer in time")

    def receive(self, deadline: float) -> Any:
        """The worker's next message.

        Args:
            deadline: in seconds of `CLOCK`.

        Raises:
            WorkerDiedError: there will be none, or only a part of one.
            WorkerTimeoutError: there was none in time, or only a part of one.
        """
        (size,) = struct.unpack("!i", self._read(4, deadline))
        if size == -1:
            (size,) = struct.unpack("!Q", self._read(8, deadline))
        return ForkingPickler.loads(self._read(size, deadline))  # pyright: ignore[reportAttributeAccessIssue]

    def _read(self, size: int, deadline: float) -> bytearray:
        read = bytearray(size)
        rest = memoryview(read)
        while rest:
            try:
                if not (count := os.readv(self.connection.fileno(), [rest])):
                    raise self.died()
                rest = rest[count:]
            except BlockingIOError:
                ready = CLOCK.wait(lambda s: mp_connection.wait([self.connection, self._process.sentinel], s), deadline)
                if not ready and CLOCK.now() >= deadline:
                    raise WorkerTimeoutError(f"{self.name} (process {self.pid}) did not answer in time") from None
                if ready and self.connection not in ready and not self.connection.poll():
                    raise self.died() from None
            except OSError as error:
                raise self.died() from error
        return read

    def send(self, message: Any, deadline: float | None = None) -> None:
        """Sends the worker a message, as `Connection.recv` reads it; a large one waits until the worker reads it.

        Args:
            message: anything that can be pickled.
            deadline: in seconds of `CLOCK`; a minute from now by default.

        Raises:
            WorkerDiedError: the worker is gone.
            WorkerTimeoutError: it did not read the message in time. A part of it may be sent, so that every message
                after it fails alike: end the worker.
        """
        pickled = ForkingPickler.dumps(message)
        size = len(pickled)
        head = struct.pack("!i", size) if size < 1 << 31 else struct.pack("!iQ", -1, size)
        for part in (head + pickled,) if size <= select.PIPE_BUF else (head, pickled):
            rest = memoryview(part)
            while rest:
                rest = rest[self._when_writable(deadline, os.write, rest) :]

    def send_file(self, file: int, deadline: float | None = None) -> None:
        """Gives the worker an open file, as `socket.recv_fds` takes it.

        Args:
            file: its descriptor, which may be closed afterwards.
            deadline: in seconds of `CLOCK`; a minute from now by default.

        Raises:
            WorkerDiedError: the worker is gone.
            WorkerTimeoutError: it did not read what was sent before in time.
        """
        self._when_writable(deadline, _give, file)

    def _when_writable(self, deadline: float | None, write: Callable[..., int], *args: Any) -> int:
        """What `write` returns for the connection's descriptor, once there is room for something."""
        deadline = CLOCK.now() + _SEND_S if deadline is None else deadline
        while not self._torn:
            try:
                return write(self.connection.fileno(), *args)  # an `OSError` where `stop` has closed it
            except BlockingIOError:
                room = select.poll()
                room.register(self.connection.fileno(), select.POLLOUT)
                room.register(self._process.sentinel, select.POLLIN)
                found = CLOCK.wait(lambda s, room=room: room.poll(s * 1000), deadline)
                self._torn = not found and CLOCK.now() >= deadline
                if not self.alive:
                    raise self.died() from None
            except OSError as error:
                raise self.died() from error
        raise WorkerTimeoutError(f"{self.name} (process {self.pid}) did not read its message in time")

    def stacks(self) -> str:
        """What every thread of the worker is doing; empty if it cannot say within a second."""
        if not self.alive:
            return ""
        os.kill(self.pid, signal.SIGUSR1)
        parts, timeout_s = list[bytes](), 1.0
        while self._stacks.poll(timeout_s) and (part := os.read(self._stacks.fileno(), 1 << 16)):
            parts.append(part)
            timeout_s = 0.05
        return b"".join(parts).decode(errors="replace")

    def kill(self) -> None:
        """Ends the worker now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self.stop(5.0)

    def stop(self, timeout_s: float) -> None:
        """Waits for the worker to end, kills it if it does not, and frees what it held.

        Args:
            timeout_s: how long it may take.
        """
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(5.0)
        self.connection.close()
        self._stacks.close()


class _ParentsProcess:
    """What a fork has in place of a worker's process: one that has ended, and is not the fork's to end."""

    pid, sentinel, exitcode = -1, -1, 0

    def join(self, timeout_s: float | None = None) -> None: ...

    def kill(self) -> None: ...


def _give(line: int, file: int) -> int:
    with socket.socket(fileno=os.dup(line)) as sender:
        return socket.send_fds(sender, [b"F"], [file])


class Companion:
    """Another process that calls a function beside what this one does, with the lowest priority.

    It is an interpreter of its own that gets the function by value and does not import the script that runs, which so
    needs no `if __name__ == "__main__":`. What it starts, compilers say, is in a process group with it. It hears no
    Ctrl-C; it ends, and all of its group, when `end` is called or this process is gone.

    Args:
        call: called without arguments.

    Raises:
        ConfigError: the function cannot be sent.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import accompany; accompany({os.getpid()})"
        with contextlib.ExitStack() as files:
            given, said = files.enter_context(tempfile.TemporaryFile()), files.enter_context(tempfile.TemporaryFile())
            try:
                given.write(cloudpickle.dumps(call))
            except Exception as error:  # whatever an object's own way of being sent raises
                raise ConfigError(f"{call!r} cannot be sent to another process: {error}") from error
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=given, stdout=said, stderr=said, process_group=0
            )  # no session, which Linux gives a share of the processor of its own, whatever its priority
            self._said, self._files = said, files.pop_all()

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    def wait(self, timeout_s: float = 0.0) -> str | None:
        """How it ended; `None` while it has not.

        Args:
            timeout_s: how long it is waited for.

        Returns:
            Nothing (an empty text) if the function came to its end; else its error, or what ended the process.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if code < 0:
            return f"was killed by signal {-code}"
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        return "" if code == 0 else f"ended with {said[-1] if said else f'code {code}'}"

    def end(self) -> None:
        """Ends it now, with everything that it has started."""
        if self._process.poll() is None:
            end_group(self._process)  # a compiler removes its half file, which would count as whole
        self._files.close()


def accompany(parent: int) -> None:
    """What a `Companion`'s process does.

    Args:
        parent: its process id.
    """

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PULSE_S)
        os.killpg(0, signal.SIGKILL)

    os.nice(19)
    entitle("compiler")
    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()
    pickle.load(sys.stdin.buffer)()


def spin_acquire(semaphore: SharedSemaphore) -> bool:
    """Tries for a short while to acquire a semaphore, and lets others run in between.

    Cheaper than going to sleep when the wait is a few microseconds, and bounded where it is not.

    Args:
        semaphore: to acquire.

    Returns:
        Whether it was acquired.
    """
    acquire = semaphore.acquire
    for _ in range(_SPIN_TRIES):
        if acquire(False):
            return True
        _yield()
    return False


def stop_all(workers: Iterable[SupervisedProcess], timeout_s: float) -> None:
    """Waits for workers that were told to end; those that have not when the time is over are killed.

    Args:
        workers: any number, in any state.
        timeout_s: for all of them together.
    """
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        worker.stop(max(deadline - time.monotonic(), 0.0))


def _main(
    target: Callable[..., None],
    connection: mp_connection.Connection,
    stacks: mp_connection.Connection,
    environment: dict[str, str],
    args: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_stop_signals()
    entitle(multiprocessing.current_process().name.removeprefix("the "))
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    end_with_parent()
    target(connection, *args)


def _hear_signals(_: object) -> None:
    """In what a fork server of ours has forked: a worker does so in `_main`, another process before its own code."""
    if getattr(multiprocessing.current_process(), "_target", None) is not _main:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


if {*STOP_SIGNALS} <= signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # this is one, started with `signals_blocked`
    util.register_after_fork(SupervisedProcess, _hear_signals)


def end_with_parent() -> None:
    """From now on this process of `multiprocessing` ends when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        mp_connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
