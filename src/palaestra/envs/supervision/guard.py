"""Aborts a process that does not run Python any more; a program that `watchdog.guarded` starts.

It imports nothing of this library, so it starts within milliseconds. Through its standard input it hears that the
process runs Python, and within how many seconds it will hear so again. It counts its own looks, not the clock: a
process that was stopped (Ctrl-Z), and a machine that slept, have lost no time. It ends with the process, however that
ends.
"""

import os
import select
import signal
import sys

PERIOD_S, GRACE_S = 0.5, 5.0
REASON = (
    "an environment did not answer in time ({limit_s:g} s), in native code that lets no other thread of this process "
    "run (it holds Python's lock, the GIL), so the process was ended; `--env.vectorization process` (of many agents or "
    "robots `--runtime process`) steps environments where one that hangs can be replaced\n"
)


def stopped(pid: int) -> bool:
    """Whether a process was stopped, by Ctrl-Z say; also where it is gone.

    Args:
        pid: of it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"TtZX"
    except OSError:
        return True


def main(pid: int, crash: str) -> None:
    """Waits until the process ends, or has to be ended.

    Args:
        pid: of the process, which has the other end of standard input.
        crash: file for the reason.
    """
    limit_s = waited_s = 0.0
    while os.getppid() == pid:  # a child that it forked may have the other end, too
        if select.select([0], [], [], PERIOD_S)[0]:
            told = os.read(0, 1 << 16)
            if not told:
                return
            limit_s, waited_s = float(told.split()[-1]), 0.0
        elif limit_s and not stopped(pid):
            waited_s += PERIOD_S
            if waited_s >= limit_s + GRACE_S:
                reason = REASON.format(limit_s=limit_s)
                with open(crash, "a") as file:
                    file.write(reason)
                sys.stderr.write(f"EnvError  {reason}")
                os.kill(pid, signal.SIGABRT)
                return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
