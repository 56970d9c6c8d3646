"""The watchdog: what happens when an environment hangs in this process, or wants to end it.

One thread looks a few times within a timeout at what the drivers of this process are doing. A step tells it by storing
two attributes, so watching costs nothing; and it counts its own looks, not the clock, so a process that was stopped
for an hour has lost no time. A step that waits in a debugger has all the time it needs. Where one lane has hung, the
lanes behind it have a quarter of the time each; none is stepped any more where the run ends.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from palaestra.core import EnvError, PalaestraError
from palaestra.envs.supervision import guard
from palaestra.envs.supervision.faults import Failure, Fault, FaultPolicy, Hang, Incident, failure_of, is_own

NEVER_BACK = (
    "It could not be interrupted, so this process had to be ended; `{}` steps environments where one that hangs can be "
    "replaced"
)
BESIDE = (
    ". Another one lives in its process: if it allows one in a process, as emulators do, give {}, and as many {} as "
    "environments"
)
ROLL_OUT_WORKERS = "--runtime process", "--num-workers"
"""What takes environments elsewhere that `--env.vectorization` does not: those of many agents, and of robots."""
CLOSE_S = 5.0
"""How long closing environments may take."""
_T = TypeVar("_T")
_EXIT_CODE = 3
_LONGEST_PERIOD_S, _LOOKS = 1.0, 4  # a hang is seen within a quarter more than its timeout
_GRACE_S = 2.0  # from the interruption to the end of the process
_STEPPING = {"palaestra.envs.stepping.serial", __name__}  # their methods let environments act
_DEBUGGERS = {"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"}


class EnvironmentExit(BaseException):
    """An environment called `os._exit` where that would have ended the whole run."""


class Watched:
    """Calls of environments by one who steps them, its driver, which the watchdog looks at.

    Args:
        faults: has the timeouts.
        first_id: number in messages of the environment in lane 0.
        cursor: element 0 is set to the lane of a call.
        watched: whether hangs are looked for here.
    """

    lost: Callable[[Incident], Fault] | None = None
    """Makes the record of a hang that ends this process; `None` while environments are made."""
    elsewhere: tuple[str, str] = "--env.vectorization process", "--env.num-workers"
    """The options by which environments are stepped in other processes, and how many of these there are."""

    def __init__(self, faults: FaultPolicy, first_id: int, cursor: np.ndarray | None, *, watched: bool) -> None:
        self.faults, self.first_id, self._cursor = faults, first_id, cursor
        self.doing: Sequence[Any] | None = None
        """As long as the lane that is being worked on; `None` while no environment has control."""
        self.hang = ""
        """The stack of a hang that is to be interrupted; empty if none is."""
        self.shortest_s = min(faults.timeout_s, faults.reset_timeout_s)
        """The shortest time that an environment may ever take."""
        self._starting: Any = True
        self._longest_s = faults.reset_timeout_s
        self.watched = watched
        """Whether the watchdog looks for hangs here; else only whether this process still runs Python."""
        if watched:
            watch(self)

    @property
    def limit_s(self) -> float:
        """Seconds that an environment may take now."""
        return self._longest_s if self._starting else self.faults.timeout_s

    def call(self, lane: int, function: Callable[..., _T], *given: Any) -> _T:
        """Lets an environment act under the watchdog's eyes; it has as long as a step in which an episode starts.

        Args:
            lane: of the environment.
            function: calls it.
            given: for the function.
        """
        if self._cursor is not None:  # a watcher in another process reads it
            self._cursor[0] = lane
        self._starting, self.doing = True, range(lane)
        try:
            return function(*given)
        finally:
            self.doing = None

    def call_step(self, lane: int, function: Callable[[Any], _T], given: Any) -> _T:
        """The same for what has as long as a step, in a third of the time.

        Args:
            lane: of the environment.
            function: calls it.
            given: for the function.
        """
        self._starting, self.doing = False, range(lane)
        try:
            return function(given)
        finally:
            self.doing = None

    def failure(self, lane: int, error: BaseException) -> Failure:
        """What an exception says about a lane; one that is not the environment's own is raised again.

        Args:
            lane: whose environment was let act.
            error: that came of it.
        """
        if not is_own(error):
            raise error
        return failure_of(lane, Hang(self.hang) if isinstance(error, Hang) else error)

    def made(self, lane: int, make: Callable[[], _T]) -> _T:
        """An environment.

        Args:
            lane: its own.
            make: makes it.

        Raises:
            EnvError: it cannot be made, or not in time.
        """
        try:
            return self.call(lane, make)
        except PalaestraError as error:
            if type(error) is not EnvError:
                raise
            what, cause = str(error), error
        except BaseException as error:
            failure, cause = self.failure(lane, error), error
            what = f"it {failure.what}: {failure.detail}"
        beside = BESIDE.format(*self.elsewhere) if lane or _drivers - {self} else ""  # others of this process
        raise EnvError(f"environment {self.first_id + lane} could not be made: {what}{beside}") from cause

    def closed(self, lane: int, env: Any) -> Failure | None:
        """Closes an environment; returns what went wrong.

        Args:
            lane: its own.
            env: is closed.
        """
        try:
            self.call(lane, env.close)
        except BaseException as error:
            failure = self.failure(lane, error)
            self._longest_s /= 4 if failure.kind == "timeout" else 1  # for the others, which may hang as well
            return failure._replace(what=f"{failure.what} when it was closed")
        return None

    def close_all(self, envs: Mapping[int, Any]) -> list[Failure]:
        """Closes environments within `CLOSE_S` each, also where closing one fails; returns what went wrong.

        Args:
            envs: by lane.
        """
        self._longest_s = min(self._longest_s, CLOSE_S)
        found = [self.closed(lane, env) for lane, env in envs.items()]
        unwatch(self)
        return [failure for failure in found if failure is not None]


class _Look(NamedTuple):
    """What the last look at a driver saw."""

    doing: Sequence[Any]
    lane: int
    waited_s: float
    told: bool
    hung: bool = False
    """Whether a lane before it hung in the same step."""


_drivers: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()
_changed = threading.Event()
_thread: threading.Thread | None = None
_words: list[Callable[[Fault], None]] = []
_guards: list[int] = []  # what they listen to
_exit = os._exit
_pid = os.getpid()


def watch(driver: Watched) -> None:
    """Watches a driver until it is gone.

    Args:
        driver: that steps environments in this process.
    """
    global _thread
    keep_process()
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGURG) in (signal.SIG_DFL, signal.SIG_IGN, None):
        signal.signal(signal.SIGURG, _interrupted)  # nobody else uses it, and unhandled it is ignored
    with _lock:
        _drivers.add(driver)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="watchdog", daemon=True)
            _thread.start()
    _changed.set()


def unwatch(driver: Watched) -> None:
    """Watches a driver no more.

    Args:
        driver: that was watched, or not.
    """
    _drivers.discard(driver)
    _changed.set()


@contextlib.contextmanager
def last_words(write: Callable[[Fault], None]) -> Iterator[None]:
    """While entered, something is called before a hang that cannot be interrupted ends this process.

    Args:
        write: called in another thread, with the record of the hang.
    """
    _words.append(write)
    try:
        yield
    finally:
        _words.remove(write)


@contextlib.contextmanager
def guarded(crash: Path) -> Iterator[None]:
    """While entered, a process besides ends this one if an environment holds Python's lock (GIL) for too long.

    The watchdog is a thread, and cannot run then. Every look of it is told to that process, which aborts this one when
    it has heard nothing for the longest time that an environment may take; the time for which this one was stopped
    does not count.

    Args:
        crash: where the stacks of threads go when this process is aborted; the reason is written there first.
    """
    if not os.path.exists("/proc/self/stat"):
        yield
        return
    command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(crash)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdin is not None
        told = process.stdin.fileno()
        os.set_blocking(told, False)
        _guards.append(told)
        try:
            yield
        finally:
            _guards.remove(told)
            process.terminate()


def _tell_guards(limit_s: float) -> None:
    """Says that this process runs Python, and how long it may take until it says so again; 0 is as long as it likes."""
    for guard_input in list(_guards):
        with contextlib.suppress(OSError):  # it is gone, or the run ends
            os.write(guard_input, f"{limit_s:g}\n".encode())


def keep_process() -> None:
    """From now on an environment that calls `os._exit` while it is stepped in this process fails instead."""
    global _pid
    os._exit, _pid = _guarded_exit, os.getpid()


def _guarded_exit(status: int) -> NoReturn:
    # a child that an environment forked may end itself
    if os.getpid() == _pid and _steps(sys._getframe()):
        raise EnvironmentExit(f"it called os._exit({status}), which would have ended the whole process")
    _exit(status)


def _steps(frame: FrameType | None, driver: Watched | None = None) -> bool:
    """Whether the stack that ends in a frame is in a driver's step."""
    while frame is not None:
        if (found := _driver_of(frame)) is not None and (driver is None or found is driver):
            return True
        frame = frame.f_back
    return False


def _driver_of(frame: FrameType) -> Any:
    """The driver that lets environments act in a frame; `None` if none does."""
    return frame.f_locals.get("self") if frame.f_globals.get("__name__") in _STEPPING else None


def _interrupted(number: int, frame: FrameType | None) -> None:
    """The handler in the main thread: raises `Hang` if what hung still does."""
    for driver in list(_drivers):
        if driver.hang and driver.doing is not None and _steps(frame, driver):
            raise Hang(driver.hang)


def _run() -> None:
    looks: dict[int, _Look] = {}
    waited_s = 0.0
    while True:
        with _lock:
            drivers = list(_drivers)
            if not drivers:
                global _thread
                _thread = None
                _tell_guards(0)
                return
        _tell_guards(max(max(one.faults.timeout_s, one.faults.reset_timeout_s) for one in drivers))
        period_s = min([_LONGEST_PERIOD_S, *(driver.shortest_s / _LOOKS for driver in drivers)])
        looks = {
            id(one): look for one in drivers if (look := _look(one, looks.get(id(one)), min(waited_s, 2 * period_s)))
        }
        del drivers  # or they would live until the next look
        before = time.monotonic()
        _changed.wait(period_s)
        _changed.clear()
        waited_s = time.monotonic() - before


def _look(driver: Any, last: _Look | None, since_s: float) -> _Look | None:
    doing = driver.doing
    if doing is None or not driver.watched:
        return None
    lane = len(doing)
    if last is None or last.doing is not doing or last.lane != lane:
        driver.hang = ""
        hung = last is not None and last.doing is doing and (last.told or last.hung)
        return _Look(doing, lane, (1 - 1 / _LOOKS) * driver.limit_s if hung else 0.0, False, hung)
    waited_s = last.waited_s + since_s
    if waited_s < (min(_GRACE_S, driver.limit_s) if last.told else driver.limit_s):
        return last._replace(waited_s=waited_s)
    ident, hang, held = _stack(driver)
    if held:
        return last._replace(waited_s=0.0)
    if last.told:
        _end(driver, lane)
    driver.hang = hang
    _interrupt(ident)
    return _Look(doing, lane, 0.0, True, last.hung)


def _stack(driver: Watched) -> tuple[int, str, bool]:
    """The thread in which a driver is stepping, what it is doing, and whether a debugger holds it there."""
    for ident, frame in sys._current_frames().items():
        if _steps(frame, driver):
            return ident, "".join(traceback.format_stack(frame)), _is_held(frame)
    return 0, "a thread that has ended\n", False


def _is_held(frame: FrameType | None) -> bool:
    """Whether the step that a stack is in has called a debugger; one that runs the program lies below the step."""
    while frame is not None and _driver_of(frame) is None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def _interrupt(ident: int) -> None:
    """Has a thread raise `Hang`: the main one also out of a system call, another one when it runs Python code."""
    if ident == threading.main_thread().ident and signal.getsignal(signal.SIGURG) is _interrupted:
        signal.pthread_kill(ident, signal.SIGURG)
    elif ident:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Hang))


def _end(driver: Watched, lane: int) -> NoReturn:
    """Says what hangs, and ends this process."""
    detail = f"{NEVER_BACK.format(driver.elsewhere[0])}. It was doing:\n{driver.hang}"
    incident = Incident(Failure(lane, "timeout", "did not answer in time", detail), fatal=True)
    if driver.lost is None:  # it is being made
        fault = Fault.of(incident, (-1, None, 0, None), handled="raise", first_id=driver.first_id)
    else:
        fault = driver.lost(incident)
    sys.stderr.write(f"EnvError  {fault}\n")
    for write in _words:
        try:
            write(fault)
        except Exception as error:  # it has to end, whatever becomes of its record
            sys.stderr.write(f"the record of this could not be written: {error!r}\n")
    sys.stderr.flush()
    _exit(_EXIT_CODE)
