"""The command line: `palaestra --help` lists its verbs."""

from palaestra.cli.main import main

__all__ = ["main"]
