"""`RayRuntime`: workers on the machines of a Ray cluster. The only file that imports ray."""

import contextlib
import logging
import math
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from palaestra.core import ConfigError, import_extra
from palaestra.core.computing import prefers_onednn
from palaestra.runtime.calls import Arrival, Call, PlacementGroup, RestartPolicy, WorkerRecord, arrival
from palaestra.runtime.messages import Failed, Mapped, Message, ParcelLostError, Performer, Request, SharedCache, decode
from palaestra.runtime.ray_cluster import ClusterError, ClusterLine, RayProcesses, placed, reach
from palaestra.runtime.runtime import Runtime
from palaestra.runtime.signals import ignore_stop_signals
from palaestra.runtime.supervision import WorkerDiedError
from palaestra.runtime.titles import title

__all__ = ["RayRuntime"]

_log = logging.getLogger(__name__)
_SLICE_S = 0.5  # how soon a lost node is noticed
_TOKEN = (
    "If the cluster has a token, set RAY_AUTH_MODE=token here and give the same one, as ~/.ray/auth_token or "
    "RAY_AUTH_TOKEN"
)
_INLINE_BYTES = 64 << 10  # travels with the call; a node that is lost while Ray stores something ends this process


@final
class RayRuntime(Runtime):
    """Workers as Ray actors. Large arrays travel through Ray's object store; a large `Shared` value is put there once.

    Parcels stay in the store of the node that made them, until the worker that opens them fetches them.

    Ray must be able to import on every machine what this process imports: install the same packages there. Actors end
    with this process, whatever happens to it.

    Args:
        restarts: how often workers may be restarted. A new incarnation may be on another machine.
        address: of a cluster, as `ray.init` takes it: `"auto"`, `"10.0.0.1:6379"`. `None` starts Ray on this machine,
            or uses the one that this process has started or joined before.
        num_cpus: of Ray on this machine, where it is started; the machine's own by default.

    Raises:
        MissingExtraError: ray is not installed.
        ConfigError: the cluster cannot be joined.
        ClusterError: Ray does not start on this machine.

    Every method raises `ClusterError` once the node of this machine, or the head, is gone. A node that ends while Ray
    stores something large takes this process with it: exit code 1.
    """

    def __init__(
        self, restarts: RestartPolicy | None = None, *, address: str | None = None, num_cpus: int | None = None
    ) -> None:
        super().__init__(restarts)
        self._ray = _imported(address)
        self._own = not self._ray.is_initialized()
        self._processes: RayProcesses | None = None
        if self._own:
            on_sigterm = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
            self._processes = _join(self._ray, address, num_cpus)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own ends the process with code 15
        self._cluster = ClusterLine(self._ray)
        self._cpus_each = 0.0 if address is None else 1.0
        self._asked: dict[Any, tuple[WorkerRecord, Call]] = {}
        self._parcels: dict[Call, list[Any]] = {}  # references of those that answers may have
        self._placed: dict[str, Any] = {}  # references that are there once the actor is
        self._put = SharedCache()

    @property
    def address(self) -> str:
        """See `Runtime.address`."""
        return self._ray.util.get_node_ip_address()

    def launch(self, worker: WorkerRecord) -> Any:
        """See `Runtime.launch`.

        Without other wishes a worker takes one CPU of a cluster, and none of this machine, whose cores all share. Ray
        spreads workers over the nodes, but for those of a placement group.
        """
        assert worker.running is not None
        self._cluster.require()
        options, strategy = _options(self._needs(worker.resources)), "SPREAD"
        if worker.group is not None:
            in_group = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            strategy = in_group(worker.group.handle, placement_group_bundle_index=worker.bundle)
        kind = self._ray.remote(type(title(worker.title), (_Actor,), {}))  # Ray calls processes by their classes
        actor = kind.options(max_restarts=0, scheduling_strategy=strategy, **options).remote(
            worker.factory, prefers_onednn()
        )
        self._placed[worker.id] = actor.__ray_ready__.remote()
        self._asked[actor.begin.remote()] = worker, worker.running
        return actor

    def reserve(self, group: PlacementGroup, timeout_s: float) -> None:
        """See `Runtime.reserve`."""
        self._cluster.require()
        needs = [{name: need for name, need in self._needs(one).items() if need} for one in group.bundles]
        bundles = [one or {"memory": 1.0} for one in needs]  # a byte: Ray refuses to place nothing
        group.handle = placed(self._ray, self._cluster, group.name, bundles, timeout_s)

    def vacate(self, group: PlacementGroup) -> None:
        if not self._cluster.lost:
            self._ray.util.remove_placement_group(group.handle)

    def _needs(self, resources: Mapping[str, float]) -> dict[str, float]:
        return {"CPU": self._cpus_each, **resources}

    def room(self, resources: Mapping[str, float]) -> float:
        """See `Runtime.room`; all machines together, less what workers of this runtime have; others may use them."""
        left, needs = Counter(self._ray.cluster_resources()), self._needs(resources)
        for record in self._workers.values():
            left.subtract({} if record.ended else self._needs(record.resources))
        return max(min((left[name] // amount for name, amount in needs.items() if amount), default=math.inf), 0.0)

    def waits_for_room(self, worker: str) -> bool:
        """See `Runtime.waits_for_room`."""
        if self._ray.wait([self._placed[worker]], timeout=0, fetch_local=False)[0]:
            return False
        record = self._record(worker)
        free, needs = self._ray.available_resources(), self._needs(record.resources)
        return record.group is not None or any(free.get(name, 0.0) < amount for name, amount in needs.items())

    def submit(self, worker: WorkerRecord, call: Call, request: Request) -> None:
        self._cluster.require()  # Ray would end this process without a word
        for value in request.shared.values():
            if value.key not in self._put:
                self._put.put(value.key, self._stored(value.message), value.message.size_bytes)
        keys = {place: value.key for place, value in request.shared.items()}
        shared = [self._put[key] for key in keys.values()]
        self._put.forget(len(shared))
        perform = worker.handle.perform
        if worker.parcels:
            perform = perform.options(num_returns=1 + worker.parcels)
        with self._room_for(request.message):
            made = perform.remote(request.method, request.message, keys, request.parcels, worker.parcels, *shared)
        reference, *self._parcels[call] = made if worker.parcels else [made]
        self._asked[reference] = worker, call

    def _stored(self, message: Message) -> Any:
        if message.size_bytes <= _INLINE_BYTES:
            return message
        with self._room_for(message):
            return self._ray.put(message)

    @contextlib.contextmanager
    def _room_for(self, message: Message) -> Iterator[None]:
        """Names what fills the object store."""
        full = self._ray.exceptions
        try:
            yield
        except (full.ObjectStoreFullError, full.OutOfDiskError) as error:
            raise ClusterError(
                f"Ray's object store has no room for {message.size_bytes:,} bytes that workers need: "
                f"{str(error).splitlines()[0]}. Start Ray with more (`ray start --object-store-memory`), free its "
                "disk, or make what is sent smaller"
            ) from error

    def poll(self, timeout_s: float) -> list[Arrival]:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            ready = self._ready(min(left_s, _SLICE_S))
            self._cluster.require()
            self._cluster.require_head()
            if ready or left_s <= _SLICE_S:
                return [self._answer(reference) for reference in ready]

    def _ready(self, timeout_s: float) -> list[Any]:
        """References of answers."""
        if not self._asked:
            time.sleep(timeout_s)
            return []
        wait, asked = self._ray.wait, list(self._asked)
        ready, rest = wait(asked, num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready and rest:
            ready += wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return ready

    def _answer(self, reference: Any) -> Arrival:
        worker, call = self._asked.pop(reference)
        parcels = self._parcels.pop(call, [])
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            text = f"{worker.title} (Ray actor) died: {str(error).strip()}"
            return Arrival(call.worker, call.incarnation, None, error=WorkerDiedError(text))
        return arrival(worker, call, decode(answer, parcels) if isinstance(answer, Message) else answer)

    def dismiss(self, worker: WorkerRecord) -> None:
        if not self._cluster.lost:
            worker.handle = worker.handle, worker.handle.close.remote()

    def end(self, worker: WorkerRecord, timeout_s: float) -> None:
        if self._cluster.lost:
            return
        actor = worker.handle
        if isinstance(actor, tuple):
            actor, closed = actor
            self._tell(worker, closed, timeout_s)
        for reference, (asked, call) in list(self._asked.items()):
            if asked is worker:
                del self._asked[reference]
                self._parcels.pop(call, None)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor)

    def _tell(self, worker: WorkerRecord, closed: Any, timeout_s: float) -> None:
        """Waits for an actor that closes, and logs what went wrong there."""
        if not self._ray.wait([closed], timeout=timeout_s)[0]:
            _log.warning("%s did not close within %.1f s and was killed", worker.name, timeout_s)
            return
        with contextlib.suppress(self._ray.exceptions.RayError):  # it had ended before
            self.tell_closed(worker, self._ray.get(closed))

    def release(self) -> None:
        self._cluster.close()
        if self._own:
            self._ray.shutdown()
        if self._processes is not None:
            self._processes.close()


def _imported(address: str | None) -> Any:
    if address is None:  # without a cluster, the ports of Ray are open to this machine alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", "ray", "RayRuntime")


def _join(ray: Any, address: str | None, num_cpus: int | None) -> RayProcesses | None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    if address is None:  # which `ray.init` takes for whatever cluster runs on this machine
        try:
            return RayProcesses(ray, address="local", include_dashboard=False, num_cpus=num_cpus, **quiet)
        except Exception as error:  # Ray's own are of no other type
            raise ClusterError(f"Ray does not start on this machine: {error}. Begin again") from error
    advice = "If there is none, start one with `ray start --head`, or leave the address out to use this machine"
    try:
        reach(address)
        advice = f"{_TOKEN}. {advice}"
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"the Ray cluster at {address!r} cannot be joined: {error}. {advice}") from error


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources as Ray names them."""
    rest = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {names[name]: amount for name, amount in resources.items() if name in names} | {"resources": rest}


class _Actor:
    """A worker, on its machine."""

    def __init__(self, factory: Callable[[], Any], onednn: bool) -> None:
        if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # Ray was started by `RayProcesses`
            ignore_stop_signals()
        # of shared values, which nobody changes
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._performer = Performer(factory, 1, onednn=onednn)

    def begin(self) -> Failed | None:
        return self._performer.begin()

    def perform(
        self,
        method: str,
        message: Message,
        keys: dict[int | str, int],
        parcels: dict[int | str, tuple[Any, Any]],
        room: int,
        *values: Message,
    ) -> Any:
        """An answer; with room for parcels, these after it, each an object of its own in Ray's store.

        Shared values are read where Ray's store has them, once for all workers of a node. Parcels are fetched here: Ray
        refuses a call whose own arguments are lost, and nobody there would know of it.
        """
        shared: Any = {place: (key, Mapped(*value)) for (place, key), value in zip(keys.items(), values, strict=True)}
        fetched = {place: (_fetched(reference), label) for place, (reference, label) in parcels.items()}
        answer, apart = self._performer.perform_apart(method, message, shared, fetched, room)
        return (answer, *apart, *(None,) * (room - len(apart))) if room else answer

    def close(self) -> Failed | None:
        return self._performer.close()


def _fetched(reference: Any) -> Any:
    """The content of a parcel; an error where it is lost."""
    ray = import_extra("ray", "ray", "RayRuntime")
    try:
        return ray.get(reference)
    except ray.exceptions.ObjectLostError as error:
        return ParcelLostError(f"a parcel was lost with the node that had it: {str(error).splitlines()[0]}")
