"""Where workers live: supervised processes and memory shared with them."""

from palaestra.runtime.shared_memory import SharedArrays
from palaestra.runtime.supervision import SupervisedProcess, WorkerDiedError, WorkerTimeoutError, stop_all

__all__ = ["SharedArrays", "SupervisedProcess", "WorkerDiedError", "WorkerTimeoutError", "stop_all"]
