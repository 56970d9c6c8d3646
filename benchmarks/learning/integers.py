"""`python -m benchmarks.learning.integers`: one task whose observations have other dtypes and bounds, five seeds each.

Catch shows a board of 0 and 1. Here it does so as floats, bytes of 0 and 1, bytes of 0 and 255, and 64-bit integers of
0 and a million: what is learned must not depend on it.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

import palaestra
from benchmarks.record import origin, provenance, table, write_json
from palaestra.envs.tiny import Catch
from palaestra.experiments import evaluate_run

RESULTS = Path(__file__).parent / "results"
KINDS = {
    "float32, 0 to 1": ("float32", 1),
    "uint8, 0 to 1": ("uint8", 1),
    "uint8, 0 to 255": ("uint8", 255),
    "int64, 0 to 1,000,000": ("int64", 1_000_000),
}
ALGORITHMS = {"ppo": 40_000, "dqn": 20_000}
SEEDS = 5
EPISODES = 100


class Board(gymnasium.ObservationWrapper):
    """Catch, in numbers of another kind.

    Args:
        dtype: of its observations.
        high: what stands for 1.
    """

    def __init__(self, dtype: str = "float32", high: int = 1) -> None:
        super().__init__(Catch())
        self._high = high
        self.observation_space = Box(0, high, (50,), np.dtype(dtype))

    def observation(self, observation: Any) -> np.ndarray:
        return (observation * self._high).astype(self.observation_space.dtype)


def learned(algorithm: str, env_steps: int, kind: tuple[str, int], seed: int) -> float:
    """The mean return of the last policy."""
    with tempfile.TemporaryDirectory() as folder:
        run = palaestra.train(
            algorithm,
            "benchmarks.learning.integers:Board",
            env__kwargs={"dtype": kind[0], "high": kind[1]},
            trainer__total_env_steps=env_steps,
            trainer__eval_episodes=0,
            run__seed=seed,
            run__directory=folder,
        )
        return evaluate_run(run.directory, episodes=EPISODES, which="last").return_mean


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.integers", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where integers.json and integers.md are written")
    arguments = parser.parse_args()
    record = {**provenance("python -m benchmarks.learning.integers"), "rows": []}
    lines = []
    for algorithm, env_steps in ALGORITHMS.items():
        for name, kind in KINDS.items():
            returns = [learned(algorithm, env_steps, kind, seed) for seed in range(SEEDS)]
            record["rows"].append(
                {"algorithm": algorithm, "env_steps": env_steps, "observation": name, "returns": returns}
            )
            shown = ", ".join(f"{value:.2f}" for value in sorted(returns))
            lines.append([algorithm, name, f"{env_steps:,}", f"{statistics.fmean(returns):.2f}", shown])
            print(*lines[-1], sep=" | ", flush=True)
    write_json(arguments.results / "integers.json", record)
    head = ["algorithm", "observation", "env steps", "mean return of 5 seeds", "each"]
    (arguments.results / "integers.md").write_text(table(head, lines) + "\n\n" + origin(record) + "\n")


if __name__ == "__main__":
    main()
