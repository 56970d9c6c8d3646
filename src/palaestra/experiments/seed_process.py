"""The process of one seed: `python -m palaestra.experiments.seed_process RUN [ENTRY OF THE PYTHON PATH ...]`."""

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from palaestra.core import PalaestraError
from palaestra.experiments.build import make_learner
from palaestra.experiments.run import active, ended
from palaestra.experiments.run_directory import RunDirectory

__all__ = ["main"]


def main(run: str, *path: str) -> int:
    """Trains one seed, or goes on with it, and returns the exit code.

    Args:
        run: its run directory, which exists.
        path: entries of the Python path that the parent had; the user's environment may lie there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s  %(message)s")
    sys.path += [entry for entry in path if entry not in sys.path]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    directory = RunDirectory(Path(run))
    try:
        resumed = directory.status != "created"
        learner = make_learner(directory.config)
        with active(directory, learner, data=learner.load_data(), resumed=resumed) as trainer:
            return ended(directory, trainer, trainer.run()).result.exit_code
    except PalaestraError as error:
        sys.stderr.write(f"{type(error).__name__}  {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _end_with_parent() -> None:
    """The pipe from the parent ends when the parent does; what has been learned is saved then."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):  # not `sys.stdin`, whose lock would be held when the interpreter ends
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
