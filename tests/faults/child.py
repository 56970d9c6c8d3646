"""A training process that is cut off at a definite env step.

    python -m tests.faults.child '{"verb": "train", "stop_at": 120, "how": "SIGINT", ...}'

`how` is the signal that the process sends itself right after the training iteration that reaches `stop_at`.
"""

import json
import signal
import sys
from typing import Any

import palaestra
from palaestra import NetworkConfig, Trainer


def cut_at(env_steps: int, how: str) -> None:
    """Makes every trainer of this process send the signal once."""
    train_iter = Trainer.train_iter

    def cutting(trainer: Trainer) -> None:
        before = trainer.collector.env_steps
        train_iter(trainer)
        if before < env_steps <= trainer.collector.env_steps:
            signal.raise_signal(getattr(signal, how))

    Trainer.train_iter = cutting


def train(algorithm: str, env: str, directory: str, name: str, settings: dict[str, Any]) -> palaestra.RunResult:
    """A small run in a directory."""
    settings = {"algorithm__network": NetworkConfig(hidden_sizes=(16,)), "run__tensorboard": False, **settings}
    return palaestra.train(algorithm, env, run__directory=directory, run__name=name, **settings)


def main(order: dict[str, Any]) -> int:
    """Trains or resumes; returns the exit code of the run."""
    if order.get("stop_at"):
        cut_at(order["stop_at"], order["how"])
    if order["verb"] == "train":
        done = train(*(order[key] for key in ("algorithm", "env", "directory", "name", "settings")))
    else:
        done = palaestra.resume(f"{order['directory']}/{order['name']}")
    return done.result.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
