"""`python -m benchmarks.learning.precision FOLDER`: returns of SAC on HalfCheetah-v5 in bfloat16, beside float32.

The preset, compiled, for fewer env steps; the last policy over 100 episodes. Results: `results/precision.*`, and a
table on the page about speed. Runs that are finished are taken as they are.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.numbers import mean_interval
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra.experiments import evaluate_run, preset, train_seeds
from palaestra.nn import Precision

RESULT = Path(__file__).parent / "results" / "precision.json"
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")
ENV = "HalfCheetah-v5"


def measured(folder: Path, precision: Precision, seed: int, env_steps: int) -> float:
    """The mean return of the last policy of a run."""
    done = folder / f"{precision}_{seed}.json"
    if not done.exists():
        config = preset("sac", ENV)
        run = dataclasses.replace(config.run, directory=str(folder), compile=True, precision=precision, num_threads=1)
        trainer = dataclasses.replace(config.trainer, total_env_steps=env_steps, eval_episodes=0)
        [trained] = train_seeds(dataclasses.replace(config, run=run, trainer=trainer), [seed]).seeds
        found = evaluate_run(trained.directory, episodes=100, seed=20_000, which="last")
        done.write_text(json.dumps(found.return_mean))
    return json.loads(done.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.precision", description=__doc__)
    parser.add_argument("folder", type=Path, help="for runs")
    parser.add_argument("--env-steps", type=int, default=200_000, help="of each run")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks.learning.precision FOLDER --env-steps {given.env_steps} --seeds {given.seeds}"
    record: dict[str, Any] = {**provenance(command), "env_steps": given.env_steps, "returns": {}}
    runs = {(p, s): measured(given.folder, p, s, given.env_steps) for s in range(given.seeds) for p in PRECISIONS}
    rows = []
    for precision in PRECISIONS:
        returns = record["returns"][precision] = [runs[precision, s] for s in range(given.seeds)]
        interval = mean_interval(returns)
        each = ", ".join(f"{value:,.0f}" for value in returns)
        rows.append([precision, f"{interval.mean:,.0f} ± {interval.half_width:,.0f}", each])
    write_json(RESULT, record)
    title = f"SAC on {ENV} after {given.env_steps:,} env steps, the last policy over 100 episodes; 95% intervals:"
    text = "\n\n".join([title, table(["products", "return", "each seed"], rows), origin(record)])
    publish(RESULT.with_suffix(".md"), text, "docs/concepts/speed.md", "precision")
    print(text)


if __name__ == "__main__":
    main()
