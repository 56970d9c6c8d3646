"""Small runs, and run directories that were written by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import palaestra
from palaestra.config.config import config_from_mapping
from palaestra.experiments import ExperimentConfig, RunDirectory, preset
from palaestra.training import Callback, Evaluated, Trainer

CHAIN = "palaestra.envs.tiny:Chain"
SMALL: dict[str, Any] = {
    "env__max_episode_steps": 6,
    "env__num_envs": 2,
    "trainer__total_env_steps": 96,
    "trainer__eval_every_steps": 40,
    "trainer__eval_episodes": 4,
    "algorithm__unroll_length": 8,
    "algorithm__network__hidden_sizes": (8,),
    "run__tensorboard": False,
}


class Hook(Callback):
    """Writes into a file which hooks were called.

    Args:
        file: that is added to.
        stop_at: env steps at which the run is stopped.
    """

    def __init__(self, file: str, stop_at: float = math.inf) -> None:
        self.file, self.stop_at = Path(file), stop_at

    def _note(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text + "\n")

    def iteration_ended(self, trainer: Trainer, updates: Mapping[str, Any]) -> None:
        """See `Callback`."""
        self._note(f"learned {trainer.collector.env_steps}")
        if trainer.collector.env_steps >= self.stop_at:
            trainer.stop("enough")

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        """See `Callback`."""
        self._note(f"evaluated {result.env_steps}")

    def ended(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._note("ended")


def trained(folder: Path, name: str = "run", **settings: Any) -> palaestra.RunResult:
    """A small run."""
    env = settings.pop("env__name", CHAIN)
    return palaestra.train("ppo", env, run__directory=str(folder), run__name=name, **(SMALL | settings))


def config_of(folder: Path, **settings: Any) -> ExperimentConfig:
    """The configuration of a small run."""
    settings = SMALL | {"run__directory": str(folder)} | settings
    return config_from_mapping(ExperimentConfig, settings, base=preset("ppo", CHAIN))


def written(folder: Path, rows: Sequence[dict[str, float]], name: str = "run", **settings: Any) -> RunDirectory:
    """A run directory with these rows of metrics; nothing was trained."""
    run = RunDirectory.create(config_of(folder, run__name=name, **settings))
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def rows_of(returns: Sequence[float], step: int = 10) -> list[dict[str, float]]:
    """Rows of metrics with these returns."""
    return [
        {
            "env_steps": step * (i + 1),
            "episodes": i + 1,
            "return_mean": value,
            "time/train_s": 0.5 * (i + 1),
            "time/env_steps_per_s": 20.0,
            "time/environment": 0.6,
            "time/learning": 0.4,
            "learning/kl": 0.01,
        }
        for i, value in enumerate(returns)
    ]
