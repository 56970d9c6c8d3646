"""Where workers live: in this process, in supervised processes that share memory with it, on other machines."""

from palaestra.runtime.calls import Call, RemoteError, RestartPolicy, Result, WorkerStatus
from palaestra.runtime.heap import keep_freed_memory
from palaestra.runtime.local import LocalRuntime
from palaestra.runtime.messages import Shared
from palaestra.runtime.process import ProcessRuntime
from palaestra.runtime.ray import RayRuntime
from palaestra.runtime.runtime import Runtime
from palaestra.runtime.shared_memory import SharedArrays
from palaestra.runtime.supervision import SupervisedProcess, WorkerDiedError, WorkerTimeoutError, stop_all

__all__ = [
    "Call",
    "LocalRuntime",
    "ProcessRuntime",
    "RayRuntime",
    "RemoteError",
    "RestartPolicy",
    "Result",
    "Runtime",
    "Shared",
    "SharedArrays",
    "SupervisedProcess",
    "WorkerDiedError",
    "WorkerStatus",
    "WorkerTimeoutError",
    "keep_freed_memory",
    "stop_all",
]
