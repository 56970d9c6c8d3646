"""The Ray cluster of a run: its processes on this machine, whether it is still there, and room that is set aside."""

import contextlib
import functools
import logging
import operator
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.core import PalaestraError
from palaestra.runtime.leaks import children
from palaestra.runtime.signals import signals_blocked

__all__ = ["ClusterError"]

_log = logging.getLogger(__name__)
_CONNECT_S = 10.0
_PROBE_S = 2.0
_HEAD_S = 30.0  # so long a head may be away; Ray itself ends its processes after 60 s
_SLICE_S = 1  # Ray waits for whole seconds
_SOON_S = 3.0  # what there is room for is placed by then

# Waits for the end of the process that the first file descriptor stands for, then ends the others.
_WATCH = """\
import contextlib, select, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
parent, *others = map(int, sys.argv[1:])
select.select([parent], [], [])
for other in others:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(other, signal.SIGKILL)
"""


class ClusterError(PalaestraError):
    """Ray itself fails: the node of this machine or the head is gone, or has no room for workers or what they need."""

    exit_code = 3


class RayProcesses:
    """Starts Ray on this machine, so that a signal to every process of a run leaves the run time to save.

    Ray's processes hear no SIGTERM and no SIGHUP; this process ends them. Most end with it by themselves, but Ray's
    agents look a minute long for the head first: a small process ends these as soon as this process is gone. On systems
    other than Linux both are left to Ray.

    Args:
        ray: the module.
        options: for `ray.init`.
    """

    def __init__(self, ray: Any, **options: Any) -> None:
        self._lines: list[int] = []
        self._watch: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):
            ray.init(**options)
            return
        with signals_blocked(signal.SIGTERM, signal.SIGHUP):
            ray.init(**options)
        started = [info.process for infos in ray._private.worker._global_node.all_processes.values() for info in infos]
        for process in started:
            process.terminate = process.kill  # Ray would wait a second for each of them, which hears no SIGTERM
        for process in started:
            for pid in map(int, children(Path("/proc", str(process.pid)))):
                with contextlib.suppress(ProcessLookupError):
                    self._lines.append(os.pidfd_open(pid))
        self._watch = self._watching()

    def _watching(self) -> subprocess.Popen[bytes]:
        own = os.pidfd_open(os.getpid())
        lines = [own, *self._lines]
        command = [sys.executable, "-I", "-S", "-c", _WATCH, *map(str, lines)]
        try:
            with signals_blocked(signal.SIGTERM, signal.SIGHUP):
                return subprocess.Popen(command, pass_fds=lines, stdin=subprocess.DEVNULL, start_new_session=True)
        finally:
            os.close(own)

    def close(self) -> None:
        """Ends what is left of them, after `ray.shutdown`."""
        for line in self._lines:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(line, signal.SIGKILL)
            os.close(line)
        self._lines = []
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
            self._watch = None


def reach(address: str, timeout_s: float = _CONNECT_S) -> None:
    """Knocks first, for ray itself tries for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in host:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()


class ClusterLine:
    """Whether the node of this process, and the head, are still there; Ray ends the process that finds out too late."""

    def __init__(self, ray: Any) -> None:
        context = ray.get_runtime_context()
        mine = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._path, self._head = mine["RayletSocketName"], context.gcs_address
        self._line = self._connected()
        self._probed_s, self._failed_s = time.monotonic(), None
        self.lost = False
        """Whether one of them is known to be gone."""

    def require(self) -> None:
        """Raises where the node has ended: its end of a connection is closed then, or reset."""
        try:
            if self._line.recv(1, socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._line.close()
        try:
            self._line = self._connected()
        except OSError:
            self._lose("the Ray node of this machine has ended")

    def require_head(self) -> None:
        """Raises where the head has not answered for half a minute; looks every two seconds."""
        now = time.monotonic()
        if now - self._probed_s < _PROBE_S:
            return
        self._probed_s = now
        try:
            reach(self._head, _PROBE_S)
            self._failed_s = None
        except OSError as error:
            self._failed_s = now if self._failed_s is None else self._failed_s  # before, an update may have taken long
            if now - self._failed_s > _HEAD_S:
                self._lose(f"the head of the Ray cluster, {self._head}, has not answered for {_HEAD_S:g} s ({error})")

    def close(self) -> None:
        self._line.close()

    def _lose(self, what: str) -> None:
        self.lost = True
        raise ClusterError(f"{what}, and with it all workers. Start Ray again if it is yours to start")

    def _connected(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.connect(self._path)
        return line


def placed(ray: Any, cluster: ClusterLine, name: str, bundles: Sequence[Mapping[str, float]], timeout_s: float) -> Any:
    """A placement group, once there is room: on the node of this process, else packed onto as few nodes as can be.

    Args:
        ray: the module.
        cluster: which raises if it is lost meanwhile.
        name: of the group, for people.
        bundles: resources of each worker, none of them 0.
        timeout_s: how long to wait for room.

    Raises:
        ClusterError: there was none; says what is missing.
    """
    needed = functools.reduce(operator.add, map(Counter[str], bundles))
    here = ray.get_runtime_context().get_node_id()
    fits = any(node["NodeID"] == here and needed <= Counter(node["Resources"]) for node in ray.nodes())
    began, group, unique = time.monotonic(), None, f"{name}-{uuid.uuid4().hex[:8]}"
    try:
        if fits:
            group = ray.util.placement_group(
                bundles, "PACK", unique, bundle_label_selector=[{"ray.io/node-id": here}] * len(bundles)
            )
            if group.wait(_SLICE_S):
                return group
            ray.util.remove_placement_group(group)
        group, told = ray.util.placement_group(bundles, "PACK", unique), False
        while not group.wait(_SLICE_S):
            cluster.require()
            cluster.require_head()
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise ClusterError(
                    f"{_missing(ray, name, bundles)}, and that was so for {timeout_s:g} s. Add machines, end what uses "
                    "them, or ask for less"
                )
            if waited_s > _SOON_S and not told:
                _log.warning("%s; waiting up to %g s for it", _missing(ray, name, bundles), timeout_s)
                told = True
        return group
    except BaseException:
        if group is not None and not cluster.lost:
            ray.util.remove_placement_group(group)
        raise


def _missing(ray: Any, name: str, bundles: Sequence[Mapping[str, float]]) -> str:
    """Says what there is no room for."""
    needed, largest = (functools.reduce(one, map(Counter[str], bundles)) for one in (operator.add, operator.or_))
    free, whole = ray.available_resources(), ray.cluster_resources()
    has = ", ".join(f"{free.get(kind, 0):g} of {whole.get(kind, 0):g} {kind}" for kind in needed)
    return (
        f"there is no room for {len(bundles)} {name}, which need {_listed(needed)} together, and up to "
        f"{_listed(largest)} of one machine; free are {has} of all machines"
    )


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in resources.items())
