"""How PyTorch computes in this process: by how many threads, and by which library."""

import functools
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from palaestra.core.errors import ConfigError

__all__ = ["computing_thread", "left_as_found", "prefer_onednn"]

_GAIN = 1.25  # less is not worth the cores, which environments and other programs may want
_LARGE = 5_000_000
"""Floating-point operations of a product from which oneDNN is faster, if it ever is: its calls take microseconds."""
_before: str | None = None  # the precision that `prefer_onednn` has changed
# Activations of a layer: several threads are never faster below; more need not be tried.
_LEAST, _MOST = 1 << 15, 1 << 18
_PICTURES, _LARGE_PICTURE = 16, 36  # how many are enough to measure; from which height and width on kernels are large


_OF_SHAPES = (torch.empty, torch.full, torch.ones, torch.rand, torch.randn, torch.zeros)


class BoundedTensors(TorchFunctionMode):
    """While entered, tensors of more numbers than there is reason for are refused before memory is asked for.

    Args:
        numbers: that all tensors may have together.
        calls: that may make tensors.
        reason: why no more, for the message.
    """

    def __init__(self, numbers: float, calls: float, reason: str) -> None:
        super().__init__()
        self._left, self._calls_left, self._reason = numbers, calls, reason

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_SHAPES:
            sizes = kwargs.get("size", args[0] if args and isinstance(args[0], list | tuple) else args)
            self._take([size for size in sizes if type(size) is int])
        elif func is torch.eye:
            self._take([args[0], args[0]])
        elif func is torch.linspace:
            self._take([kwargs.get("steps", args[2] if len(args) > 2 else 0)])
        elif func is torch.arange:
            self._take([max(args, default=0) - min(0, *args)])
        return func(*args, **kwargs)

    def _take(self, shape: Sequence[float]) -> None:
        count = math.prod(shape)
        self._left, self._calls_left = self._left - count, self._calls_left - 1
        if self._left < 0 or self._calls_left < 0 or count < 0:
            text = " x ".join(f"{size:,}" for size in shape)
            raise ConfigError(f"it asks for a tensor of {text} numbers, {self._reason}")


def memory_bytes() -> int | None:
    """Memory of this machine; `None` where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def num_cores() -> int:
    """Cores that this process may use: those that it is bound to, and no more than its container has time for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cores, *_quotas(control_groups("cpu"))])


def _quotas(groups: Iterable[Path]) -> Iterator[int]:
    """Whole cores of time that each control group with a limit has, at least one."""
    for folder in groups:
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of the second kind, and of the first
            with suppress(OSError, ValueError):  # no such group here, or its limit is "max"
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0 and period > 0:
                    yield max(1, quota // period)


def control_groups(
    controller: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[Path]:
    """Folders of the control groups of this process, of both kinds, and of those above them.

    Args:
        controller: whose limits are asked for, such as `memory`.
        root: where the system shows all of them.
        own: where it says which are this process's.
    """
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if not controllers or controller in controllers.split(","):
            base = root / controller if controllers else root
            group = base / path.strip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(base)))


def computing_thread(target: Callable[..., object], *args: Any, name: str | None = None) -> threading.Thread:
    """A daemon thread, not started yet, that computes with as many cores as the one that makes it.

    PyTorch keeps that number for each thread: a thread made otherwise takes every core, whatever
    `torch.set_num_threads` said before, is slower beside others that do, and adds numbers in another order.

    Args:
        target: what it runs.
        *args: of `target`.
        name: of the thread, for messages.
    """
    cores = torch.get_num_threads()

    def run() -> None:
        torch.set_num_threads(cores)
        target(*args)

    return threading.Thread(target=run, name=name, daemon=True)


def faster_threads(rows: int, widths: Sequence[int], most: int, picture: Sequence[int] = ()) -> int:
    """One thread, or as many as there are: measured on gradients of such a network, in a third of a second.

    On a busy machine several threads wait for the slowest of them, and one is faster even for wide layers. Sums of
    several threads are rounded otherwise than those of one, so whoever repeats a run exactly gives the number.

    Args:
        rows: of a minibatch.
        most: threads, at least 1; `OMP_NUM_THREADS` is a limit as well.
        picture: [channels, height, width] of an observation that convolutions see.

    Returns:
        1, or the limit where it usually takes 1.25 times less than one thread ever did.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # OpenMP takes one for each nested level
    most = min(most, int(limit)) if limit.isdecimal() and int(limit) else most
    widest = max(widths, default=0)
    if most == 1 or (not picture and rows * widest < _LEAST):
        return 1
    before, library, generator = torch.get_num_threads(), prefers_onednn(), torch.Generator().manual_seed(0)
    stride = 1
    if picture:
        size, stride = (8, 4) if min(picture[1:]) >= _LARGE_PICTURE else (3, 1)
        shapes = [(32, picture[0], size, size), (64, 32, 3, 3)]
        inputs = torch.randn(min(rows, _PICTURES), *picture, generator=generator)
    else:
        shapes = [*itertools.pairwise(widths), (widths[-1], widths[-1])]
        choose_library(2 * rows * max(a * b for a, b in shapes))
        inputs = torch.randn(min(rows, _MOST // widest), widths[0], generator=generator)
    weights = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]

    def gradient() -> None:
        hidden = inputs
        for number, weight in enumerate(weights):
            whole = torch.conv2d(hidden, weight, stride=1 if number else stride) if picture else hidden @ weight
            hidden = whole.relu()
        torch.autograd.grad(hidden.sum(), weights)

    if picture:
        gradient()  # the first one prepares convolutions
    taken: dict[int, list[float]] = {1: [], most: []}
    deadline_s = time.perf_counter() + 0.3
    for threads in [1, most] * 8:
        torch.set_num_threads(threads)
        begun = time.perf_counter()
        if begun > deadline_s and threads == 1:
            break
        gradient()
        taken[threads].append(time.perf_counter() - begun)
    torch.set_num_threads(before)
    prefer_onednn(library)
    return most if min(taken[1]) > _GAIN * statistics.median(taken[most]) else 1


def choose_library(largest: int) -> None:
    """Chooses who makes this process's products of matrices on the CPU: oneDNN where it is much faster, else MKL.

    PyTorch leaves those in single precision to Intel's MKL, which takes vectors of 256 bits on every processor of AMD:
    those that have units for 512 bits then run at half their speed.

    Args:
        largest: product of a gradient step, in floating-point operations.
    """
    prefer_onednn(largest >= _LARGE and _onednn_is_exact() and _onednn_is_faster())


def prefer_onednn(wanted: bool) -> None:
    """Lets oneDNN make this process's products of matrices on the CPU, if it loses no digit, or puts back what was.

    With `torch.set_float32_matmul_precision` at "medium" oneDNN makes them, and may round to bfloat16, which it does on
    processors that have AMX. Products on a GPU would be rounded, too, so where there is one nothing changes.

    Args:
        wanted: whether it may.
    """
    global _before
    if (wanted and _onednn_is_exact()) == prefers_onednn():
        return
    put_back_later("library of products", functools.partial(prefer_onednn, prefers_onednn()))
    _before, precision = (torch.get_float32_matmul_precision(), "medium") if _before is None else (None, _before)
    torch.set_float32_matmul_precision(precision)


def prefers_onednn() -> bool:
    """Whether `prefer_onednn` has decided so; workers then prefer it as well, where it loses no digit."""
    return _before is not None


@functools.cache
def _onednn_is_exact() -> bool:
    """Whether products with numbers that bfloat16 lacks come out exactly."""
    if torch.cuda.is_available() or not _is_set_as_a_whole():
        return False
    digits, ones = torch.full((256, 256), 1 + 2**-12), torch.ones(256, 256)
    with _precision("medium"):
        made = digits @ ones, digits.T @ ones, ones @ digits.T
    return all(bool((product == 256 * digits).all()) for product in made)


def _is_set_as_a_whole() -> bool:
    """Whether the precision of products has one name here: it may be set for each backend alone, and then it stays."""
    try:
        return bool(torch.get_float32_matmul_precision())
    except RuntimeError:
        return False


@functools.cache
def _onednn_is_faster() -> bool:
    """Whether it is, by much and with one thread: both multiply 256 x 256 by 256 x 256, 20 times in turns."""
    ones, fastest, threads = torch.ones(256, 256), {"highest": math.inf, "medium": math.inf}, torch.get_num_threads()
    torch.set_num_threads(1)
    for precision in list(fastest) * 20:
        with _precision(precision):
            began = time.perf_counter()
            torch.mm(ones, ones)
            fastest[precision] = min(fastest[precision], time.perf_counter() - began)
    torch.set_num_threads(threads)
    return fastest["highest"] > _GAIN * fastest["medium"]


@contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_processes: Any = torch.multiprocessing
_lock, _here = threading.RLock(), threading.local()
_calls = 0  # that are inside `left_as_found`, in all threads
_changed: dict[str, Callable[[], object]] = {}


def put_back_later(setting: str, put_back: Callable[[], object]) -> None:
    """Says how a setting of all of the process, which is about to change, is put back when calls end.

    Args:
        setting: its name; the first change since a call of `left_as_found` began counts.
        put_back: sets it as it is now.
    """
    with _lock:
        if _calls:
            _changed.setdefault(setting, put_back)


def set_variable(name: str, value: str) -> None:
    """Sets a variable of the environment, unless someone has.

    Args:
        name: of the variable.
        value: that it gets.
    """
    if name not in os.environ:
        put_back_later(name, functools.partial(os.environ.pop, name, None))
        os.environ[name] = value


def _forget_start_method() -> None:
    """How processes start is open until the first one starts, by any way; then it is the system's default."""
    if _processes.get_start_method(allow_none=True) == _processes.get_all_start_methods()[0]:
        _processes.set_start_method(None, force=True)


@contextmanager
def left_as_found() -> Iterator[None]:
    """While entered, the library may set how its process computes; then that is as it was, however the call ended.

    What programs and environments set, and the library does not, stays. Calls in several threads share a process: the
    last one to end puts back; only how many cores PyTorch takes is each thread's own. Inside another one in the same
    thread it does nothing. A decorator of what is called in programs of users.
    """
    global _calls
    if getattr(_here, "inside", False):
        yield
        return
    with _lock:
        _calls += 1
        if _processes.get_start_method(allow_none=True) is None:
            put_back_later("start method", _forget_start_method)
    threads, _here.inside = torch.get_num_threads(), True
    try:
        yield
    finally:
        _here.inside = False
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with _lock:
            _calls -= 1
            while _changed and not _calls:
                _changed.popitem()[1]()
