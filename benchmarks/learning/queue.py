"""What is still to be run: a row's file of results has the seeds that are done, so a queue that was stopped goes on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.learning.rows import ROWS, Row, peer_of
from benchmarks.learning.summary import Seeds, peer_seeds, summarize
from benchmarks.record import write_json


class Job(NamedTuple):
    """One seed of one row."""

    row: Row
    seed: int


def read(results: Path, row: Row) -> dict[str, Any] | None:
    """What is known of a row; `None` if nothing is."""
    file = results / f"{row.name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def seeds_done(record: Mapping[str, Any] | None) -> list[int]:
    return [] if record is None else [seed["seed"] for seed in record["seeds"]]


def status(results: Path, row: Row) -> str:
    """`done`, `partial` or `not run`."""
    done = len(seeds_done(read(results, row)))
    return "done" if done >= row.seeds else "partial" if done else "not run"


def pending(results: Path, names: Sequence[str], seeds: Sequence[int] | None = None) -> list[Job]:
    """What is missing, row by row; of all rows if none is named, all seeds of a row if none is given."""
    jobs = []
    for name in names or ROWS:
        row = ROWS[name]
        done = seeds_done(read(results, row))
        jobs += [Job(row, seed) for seed in (range(row.seeds) if seeds is None else seeds) if seed not in done]
    return jobs


def add(results: Path, job: Job, result: Mapping[str, Any], origin: Mapping[str, Any]) -> None:
    """Writes one more seed of a row, and renews the summaries of rows that are compared with it.

    Where its numbers come from is kept with each seed.
    """
    record = read(results, job.row)
    seeds = [] if record is None else [seed for seed in record["seeds"] if seed["seed"] != job.seed]
    seeds = sorted([*seeds, {**result, "revision": origin["revision"]}], key=lambda seed: seed["seed"])
    summary = summary_of(results, job.row, seeds)
    write_json(results / f"{job.row.name}.json", {**origin, **described(job.row), "summary": summary, "seeds": seeds})
    for row in ROWS.values():
        if peer_of(row) == job.row:
            renew(results, row)


def renew(results: Path, row: Row) -> None:
    """Writes the summary of a row anew where its peer has got seeds since."""
    record = read(results, row)
    if record is not None and (summary := summary_of(results, row, record["seeds"])) != record["summary"]:
        write_json(results / f"{row.name}.json", {**record, "summary": summary})


def summary_of(results: Path, row: Row, seeds: Seeds) -> dict[str, Any]:
    """Of seeds of a row, beside those that its peer has."""
    peer = peer_of(row)
    return summarize(row, seeds, () if peer is None else peer_seeds(row, {peer.name: read(results, peer)}))


def described(row: Row) -> dict[str, Any]:
    """What `palaestra verify` trains again; nothing for a row of another library."""
    names = ("algorithm", "env", "env_steps", "compile", *(("settings",) if row.settings else ()))
    return {} if row.peer else {"row": {name: getattr(row, name) for name in names}}
