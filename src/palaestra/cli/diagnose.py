"""`palaestra diagnose`: why a run does not learn."""

from palaestra import experiments
from palaestra.cli.options import RunOptions, command

__all__ = ["diagnose"]


def diagnose(arguments: list[str]) -> int:
    """Says what in a run's settings and metrics keeps it from learning, and what to try.

    Args:
        arguments: the run, then options.

    Returns:
        0 where nothing was found, 1 where there are findings.
    """
    (name,), options = command(RunOptions, arguments, "palaestra diagnose RUN [--json]", "the run")
    found = experiments.diagnose(name, root=options.root)
    options.show(found.to_json(), str(found))
    return 1 if found.findings else 0
