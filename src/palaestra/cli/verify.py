"""`palaestra verify`: a published result, trained again."""

import sys
from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import JsonOptions, print_table


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(JsonOptions):
    """Options of `palaestra verify`."""

    seeds: tuple[int, ...] = ()
    """Which of the published seeds; by default all."""
    results: str | None = None
    """Folder of published results; by default benchmarks/learning/results of this checkout."""
    list: bool = False
    """List the published rows, and whether they have hashes of weights."""


def verify(name: str, options: VerifyOptions) -> int:
    """Trains a published row again, and says whether it comes to the same bits, or to the same return.

    Returns:
        0 where the row is verified, 1 where it is not.
    """
    if options.list:
        rows = experiments.published_rows(options.results).values()
        table = [(row.name, row.settings["trainer__total_env_steps"], len(row.seeds), row.has_hashes) for row in rows]
        if options.json:
            options.show([dict(zip(("row", "env_steps", "seeds", "hashes"), line, strict=True)) for line in table], "")
        else:
            shown = [(name, f"{steps:,}", seeds, "yes" if hashes else "") for name, steps, seeds, hashes in table]
            print_table(["row", "env steps", "seeds", "hashes"], shown)
        return 0

    def tell(seed: int, found: dict[str, object]) -> None:
        if not options.json:
            sys.stderr.write(f"seed {seed} has been trained: return {found['here']:.2f}\n")

    found = experiments.verify(name, seeds=options.seeds, results=options.results, on_seed=tell)
    options.show(found.to_json(), str(found))
    return 0 if found.ok else 1
