"""`PolicyHost`: where policies learn away from the driver, alone or as one rank of a group."""

import copy
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palaestra.algorithms import Algorithm, ShardedSteps, UpdateInfo
from palaestra.core import Batch, NonFiniteError, Plan, computing_thread
from palaestra.distributed.exchange import BrokenGroupError, Exchange, GroupSeat, exchange_for, fingerprint
from palaestra.nn import Precision, set_deterministic, set_products

__all__ = ["PolicyHost"]


def host_factory(algorithms: Mapping[str, Algorithm[Any, Any]]) -> Callable[[int], Any]:
    """What makes a host of some number, with copies of algorithms on the devices that they are on, see `_here`.

    They are sent as they are on the CPU, and so is everything that follows; a host places what arrives. It computes
    with as many threads as this process, for sums of another number are rounded otherwise, and with its kernels.
    """
    sent = {name: one if one.device.type == "cpu" else copy.deepcopy(one).to("cpu") for name, one in algorithms.items()}
    devices = {name: one.asked_device for name, one in algorithms.items()}
    products: Precision = "tf32" if torch.get_float32_matmul_precision() == "high" else "float32"
    kernels = torch.get_num_threads(), torch.get_deterministic_debug_mode(), products
    return lambda number: functools.partial(_placed, sent, devices, number, kernels)


def _placed(
    algorithms: Mapping[str, Algorithm[Any, Any]],
    devices: Mapping[str, str],
    number: int,
    kernels: tuple[int, int, Precision],
) -> Any:
    threads, mode, products = kernels
    torch.set_num_threads(threads)
    set_deterministic(mode > 0, warn_only=mode == 1)
    for name, algorithm in algorithms.items():
        if algorithm.to(_here(devices[name], number)).device.type == "cuda":
            set_products(products, algorithm.device)
    return PolicyHost(algorithms)


def _here(device: str, host: int) -> str:
    """The device of this name, and of `cuda`, which leaves it open, the GPUs in turn.

    Where fewer are to be seen, as on Ray, the one that is this process's.
    """
    kind, _, number = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 0
    if number:
        return device if int(number) < count else kind
    return f"cuda:{host % count}" if count > 1 else device


class HostTask(NamedTuple):
    """One update, as a driver asks a host for it."""

    version: int
    """Number of the state that the update starts from."""
    generator: Tensor
    """State of `Algorithm.minibatch_generator` after the data was drawn."""
    progress: float
    """Where schedules are, in [0, 1]."""
    seat: GroupSeat | None = None
    """The host's in the group that computes gradients; `None` where it computes alone, of whole minibatches."""


class Updated(NamedTuple):
    """An update has ended."""

    result: UpdateInfo | NonFiniteError | None
    """What it did, or why it stopped; `None` on a rank whose group broke."""
    state: dict[str, Any] | None
    """`Algorithm.state_tensors` after it, from a rank 0; what the acting policy draws from means nothing here."""
    fingerprint: int | None
    """Of the weights after it, where there is a group."""
    write_backs: list[tuple[Tensor, Tensor]]
    """Row numbers and priorities, in the order in which they were written back."""
    began_s: float
    """`time.monotonic()` of this machine when it began."""
    ended_s: float
    """And when it ended."""
    broken: str = ""
    """Why its group broke on the way; empty where it did not."""


class DrawnSource:
    """A data source that has been drawn from already.

    Args:
        batch: what was drawn.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        """What was drawn."""
        self.write_backs: list[tuple[Tensor, Tensor]] = []
        """Row numbers and priorities, in the order in which they were written back."""
        self.by_lanes: Any = None
        """How ranks share out what is computed of an unroll's lanes; see `Exchange.by_lanes`."""

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The batch."""
        return self.batch

    def write_back(self, indices: Tensor, priority: Tensor) -> None:
        """Keeps them for the true source."""
        self.write_backs.append((indices, priority))


class PolicyHost:
    """Keeps the algorithms and optimizers of policies, and learns from what it is sent.

    Args:
        algorithms: by policy name; they are the host's own from now on.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm[Any, Any]]) -> None:
        self._algorithms = dict(algorithms)
        self._versions: dict[str, int] = {}
        self._running: dict[str, _Running] = {}
        self._exchanges: dict[str, Exchange] = {}

    def update(self, policy: str, task: HostTask, drawn: Batch, state: Mapping[str, Any] | None) -> None:
        """Begins an update.

        Args:
            drawn: what the driver drew from the policy's source.
            state: that the update starts from, for a host that does not have it; else `None`.
        """
        algorithm = self._algorithms[policy]
        self._give_up(policy)
        known = self._versions.pop(policy, None)
        if state is not None:
            algorithm.load_state_tensors(state)
        elif known != task.version:
            raise RuntimeError(f"this host has version {known} of policy {policy!r}, not {task.version}")
        algorithm.set_progress(task.progress)
        algorithm.minibatch_generator.set_state(task.generator)
        exchange = None if task.seat is None else exchange_for(self._exchanges, policy, task.seat)
        self._running[policy] = _Running(algorithm, task, drawn, exchange)
        self._running[policy].thread.start()

    def finish(self, policy: str, patience_s: float) -> Updated | None:
        """What an update did; `None` if it has not ended.

        Args:
            patience_s: how long to wait for it.
        """
        running = self._running[policy]
        running.thread.join(patience_s)
        if running.thread.is_alive():
            return None
        del self._running[policy]
        updated = running.updated()
        if updated.result is not None:
            self._versions[policy] = running.task.version + 1
        return updated

    def _give_up(self, policy: str) -> None:
        """Ends an update whose result is no longer wanted."""
        if policy in self._running:
            if policy in self._exchanges:
                self._exchanges.pop(policy).close()
            self._running.pop(policy).thread.join()

    def __del__(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()


class _Running:
    """An update that has begun, in a thread of its own: ranks that share a process go on side by side."""

    def __init__(self, algorithm: Any, task: HostTask, drawn: Batch, exchange: Exchange | None) -> None:
        self.task, self._algorithm, self._exchange = task, algorithm, exchange
        self._source, self._began_s = DrawnSource(drawn), time.monotonic()
        self._result: UpdateInfo | NonFiniteError | BrokenGroupError | Exception | None = None
        self.thread = computing_thread(self._update)

    def _update(self) -> None:
        try:
            self._result = updated_by(self._algorithm, self._source, self._exchange)
        except Exception as error:
            self._result = error
            if self._exchange is not None and not isinstance(error, NonFiniteError):
                self._exchange.close()  # nobody waits for a rank that has failed
        self._ended_s = time.monotonic()

    def updated(self) -> Updated:
        result, exchange, algorithm = self._result, self._exchange, self._algorithm
        if isinstance(result, Exception) and not isinstance(result, NonFiniteError | BrokenGroupError):
            raise result
        follows = exchange is not None and exchange.seat.rank > 0
        return Updated(
            None if isinstance(result, BrokenGroupError) else result,
            None if follows else algorithm.state_tensors(),
            None if exchange is None else fingerprint(algorithm),
            [] if follows else self._source.write_backs,
            self._began_s,
            self._ended_s,
            "" if exchange is None or exchange.error is None else str(exchange.error),
        )


def updated_by(algorithm: Any, source: DrawnSource, exchange: Exchange | None) -> UpdateInfo:
    """An update of one rank, or of a host that learns alone.

    Raises:
        NonFiniteError: a gradient is NaN or infinite.
        BrokenGroupError: the group broke, on a rank other than 0.
    """
    if exchange is None:
        return algorithm.update(source)
    exchange.connect()
    source.by_lanes = exchange.by_lanes
    return algorithm.update(source, ShardedSteps(functools.partial(exchange.step, algorithm)))
