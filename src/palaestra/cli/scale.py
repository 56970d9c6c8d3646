"""`palaestra scale`: learners join and leave a run that goes on."""

from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import RunOptions


@dataclass(frozen=True)
class ScaleOptions(RunOptions):
    """Options of `palaestra scale`."""

    learners: int | None = None
    """How many the run has from its next updates on, its own process among them; at most distributed.gradient_shards,
    by which it learns the same, bit for bit, with any number. Without it, print how many there are."""


def scale(name: str, options: ScaleOptions) -> int:
    """Lets learners join or leave a run that goes on, which must have distributed.gradient_shards."""
    said = options.learners is not None and experiments.scale(name, learners=options.learners, root=options.root)
    there, asked = experiments.count_learners(name, root=options.root)
    asked = options.learners or asked  # the run may have read it meanwhile, and logged nothing yet
    now = f"learners    {there}{f', asked for {asked}' * (asked != there)}"
    options.show({"there": there, "asked": asked}, said or now)
    return 0
