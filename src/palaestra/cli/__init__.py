"""The command line: `palaestra train, resume, eval, play, list, check-env, doctor`."""

from palaestra.cli.main import main

__all__ = ["main"]
