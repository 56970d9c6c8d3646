"""`python -m benchmarks.learning.chance`: the returns of random actions, from which "level" is measured.

Of every environment in which there are rows, as its presets make it, over at least 100 episodes.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.learning.rows import ROWS
from benchmarks.record import provenance, write_json
from palaestra.experiments import collect_data, preset

RESULT = Path(__file__).parent / "results" / "chance" / "chance.json"
STEPS = 100_000


def main() -> None:
    rows = {row.env: row for row in ROWS.values() if not row.peer}
    returns = {}
    for name, row in rows.items():
        with tempfile.TemporaryDirectory() as folder:
            summary = collect_data(None, preset(row.algorithm, name).env, Path(folder) / "data", steps=STEPS, seed=0)
        returns[name] = summary.return_mean
        print(f"{name}  {summary.return_mean:.2f} over {summary.episodes} episodes", flush=True)
    write_json(RESULT, {**provenance("python -m benchmarks.learning.chance"), "env_steps": STEPS, "returns": returns})


def chance() -> dict[str, float]:
    """The mean return of random actions, by environment."""
    return json.loads(RESULT.read_text())["returns"]


if __name__ == "__main__":
    main()
