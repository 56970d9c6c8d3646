"""`palaestra verify`: a published result, or the end of a run, computed again."""

import sys
from dataclasses import dataclass

from palaestra import experiments
from palaestra.cli.options import JsonOptions, print_table
from palaestra.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(JsonOptions):
    """Options of `palaestra verify`."""

    seeds: tuple[int, ...] = ()
    """Which of the published seeds: `--seeds 3` is the seed 3, `--seeds 0,3` are two; by default all."""
    results: str | None = None
    """Folder of published results; by default benchmarks/learning/results of this checkout."""
    run: str | None = None
    """In place of a row: a run, or last, whose newest iterations are computed again; every bit is compared."""
    iterations: int | None = None
    """With --run: so many at least; by default those since the checkpoint before the newest."""
    from_start: bool = False
    """With --run: train it again from its seed, and compare all checkpoints that are left."""
    root: str = "runs"
    """With --run: where runs are."""
    list: bool = False
    """List the published rows, and whether they have hashes of weights."""


def verify(name: str, options: VerifyOptions) -> int:
    """Trains a published row again, and says whether it comes to the same bits, or to the same return.

    Of a run, the newest iterations are computed again from a checkpoint, and all bits compared.

    Returns:
        0 where it is verified, 1 where it is not.
    """
    of_run = {"--iterations": options.iterations is not None, "--from-start": options.from_start}
    if alone := [name for name, given in of_run.items() if given and options.run is None]:
        raise ConfigError(f"{alone[0]} is for --run RUN; give both, or neither")
    if options.run is not None:
        if name or options.seeds or options.list:
            raise ConfigError("--run computes a run again; leave out the row, --seeds and --list")
        return _receipt(options.run, options)
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


def _receipt(run: str, options: VerifyOptions) -> int:
    def tell(begins: int, ends: int) -> None:
        if not options.json:
            sys.stderr.write(f"replaying {begins:,} to {ends:,}\n")

    receipt = experiments.verify_run(
        run, iterations=options.iterations, from_start=options.from_start, root=options.root, on_start=tell
    )
    options.show(receipt.to_json(), str(receipt))
    return 0 if receipt.ok else 1
