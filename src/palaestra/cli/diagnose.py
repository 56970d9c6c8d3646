"""`palaestra diagnose`: why a run does not learn."""

from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import RunOptions, command

__all__ = ["diagnose"]


@dataclass(frozen=True)
class DiagnoseOptions(RunOptions):
    """Options of `palaestra diagnose`."""

    episodes: int = 5
    """Episodes that the newest policy plays; 0 for none."""


def diagnose(arguments: list[str]) -> int:
    """Says what in a run's settings, metrics and play keeps it from learning, and what to try.

    Args:
        arguments: the run, then options.

    Returns:
        0 where nothing was found, 1 where there are findings.
    """
    (name,), options = command(DiagnoseOptions, arguments, "palaestra diagnose RUN [--episodes N] [--json]", "the run")
    found = experiments.diagnose(name, root=options.root, episodes=options.episodes)
    options.show(found.to_json(), str(found))
    return 1 if found.findings else 0
