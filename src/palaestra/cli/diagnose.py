"""`palaestra diagnose`: why a run does not learn."""

from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import RunOptions


@dataclass(frozen=True)
class DiagnoseOptions(RunOptions):
    """Options of `palaestra diagnose`."""

    episodes: int = 5
    """Episodes that the newest policy plays; 0 for none."""


def diagnose(name: str, options: DiagnoseOptions) -> int:
    """Says what in a run's settings, metrics and play keeps it from learning, and what to try.

    Returns:
        0 where nothing was found, 1 where there are findings.
    """
    found = experiments.diagnose(name, **options.chosen())
    options.show(found.to_json(), str(found))
    return 1 if found.findings else 0
