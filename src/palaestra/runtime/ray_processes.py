"""Ray's own processes on this machine: none ends before the process that has started them, and none outlives it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from palaestra.runtime.supervision import sigterm_blocked

__all__ = ["RayProcesses"]

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


class RayProcesses:
    """Starts Ray on this machine, so that a signal to every process of a run leaves the run time to save.

    Ray's processes do not hear SIGTERM; this process ends them. Most end with it by themselves, but Ray's agents
    look a minute long for the head first: a small process ends these as soon as this process is gone. On systems other
    than Linux both are left to Ray.

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
        with sigterm_blocked():
            ray.init(**options)
        started = [info.process for infos in ray._private.worker._global_node.all_processes.values() for info in infos]
        for process in started:
            process.terminate = process.kill  # Ray would wait a second for each of them, which hears no SIGTERM
        for process in started:
            for pid in _children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    self._lines.append(os.pidfd_open(pid))
        self._watch = self._watching()

    def _watching(self) -> subprocess.Popen[bytes]:
        own = os.pidfd_open(os.getpid())
        lines = [own, *self._lines]
        command = [sys.executable, "-I", "-S", "-c", _WATCH, *map(str, lines)]
        try:
            with sigterm_blocked():
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


def _children(pid: int) -> list[int]:
    """Processes that one has started and that live."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in Path("/proc", str(pid), "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
