"""The documentation's page of all learning results, and the section "Measured" of every algorithm's page."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning import frontier
from benchmarks.learning.rows import ROWS
from benchmarks.learning.summary import interval, markdown, marks, peer_seeds, summarize, verdict, zoo_text
from benchmarks.record import ROOT, table

Records = Mapping[str, Mapping[str, Any] | None]
PAGES = ROOT / "docs" / "algorithms"
HEADING = "## Measured\n"
HEADER = ["environment", "env steps", "seeds", "last policy", "best policy", "Zoo", "bars"]
ALL = "learning.md"
INTRODUCTION = """\
# Learning results

Mean returns with their 95% intervals, a table for each environment, of what `python -m benchmarks.learning run` has
trained so far; a click on a verdict says what was compared. The last table is beside published results."""
TEXT = """\
Mean return over seeds with its 95% interval, deterministic evaluation over 100 episodes; *last policy* is the one after
the last update, *best policy* the one with the best evaluation during training. *Zoo* is one tuned run of RL Baselines3
Zoo and the spread of its episodes. *Level* is non-inferiority: the 95% interval of the difference lies above minus
5% of what the other one is above random actions; *undecided* are rows whose interval is too wide to tell. Where seeds
were added after a look at the planned ones, the verdict of those alone stands in brackets. *Compiled* is with
`--compile`, *bf16* with products in bfloat16. Commands, single seeds and machine: `benchmarks/learning/results/`."""


def section(algorithm: str, records: Records) -> str:
    """The text under the heading; empty where nothing is measured."""
    rows = [row for row in ROWS.values() if row.algorithm == algorithm and not row.peer and records.get(row.name)]
    if not rows:
        return ""
    lines, curves = [], []
    for row in rows:
        record: Any = records[row.name]
        summary = summarize(row, record["seeds"], peer_seeds(row, records))
        bars = "; ".join(f"{bar['text']}: {verdict(bar, bold=True)}" for bar in summary["bars"])
        done = len(record["seeds"])
        lines.append(
            [
                ", ".join([row.task, *(mark for mark in marks(row) if mark != row.variant)]),
                f"{row.env_steps:,}",
                f"{done}" if done >= row.seeds else f"{done} of {row.seeds}",
                interval(summary["last"]),
                interval(summary["best"]),
                zoo_text(row),
                bars,
            ]
        )
        curves.append(f"![{algorithm} on {row.task}](../assets/curves/{row.name}.svg)")
    return "\n\n".join([table(HEADER, lines), TEXT, *curves]) + "\n"


def page_with(text: str, measured: str) -> str:
    """A page whose section "Measured" is as given: in its old place or at the end, or left out."""
    before, found, after = text.partition(HEADING)
    following = re.search(r"^## ", after, re.MULTILINE)
    rest = "\n" + after[following.start() :] if found and following else ""
    return f"{before.rstrip()}\n" + (f"\n{HEADING}\n{measured}" if measured else "") + rest


def all_results(records: Records) -> str:
    """The page of all results."""
    return f"{INTRODUCTION}\n\n{markdown(records)}\n\n{frontier.section(records)}"


def write_pages(records: Records, folder: Path = PAGES) -> list[Path]:
    """Writes the page of all results, and those of algorithms whose results have changed; returns what was written."""
    written = [folder / ALL]
    written[0].write_text(all_results(records))
    for algorithm in dict.fromkeys(row.algorithm for row in ROWS.values()):
        page = folder / f"{algorithm}.md"
        before = page.read_text()
        after = page_with(before, section(algorithm, records))
        if after != before:
            page.write_text(after)
            written.append(page)
    return written
