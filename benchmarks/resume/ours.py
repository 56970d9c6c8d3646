"""DQN of Palaestra: `python ours.py whole|first|second FOLDER`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import palaestra
from benchmarks.resume.parts import hash_of, tell
from palaestra.core import scheduled_values
from palaestra.training import Callback

HALF, TOTAL = 1_000, 2_000
KINDS = ("model", "optimizer", "generator", "normalizer")
SETTINGS = {
    "trainer__total_env_steps": TOTAL,
    "env__num_envs": 1,
    "algorithm__learning_starts": 200,
    "algorithm__epsilon": "linear(1.0, 0.1)",
    "run__seed": 1,
    "run__num_threads": 1,
}


def bits(value: Any) -> Iterator[np.ndarray]:
    """All of a nest, in order; but for names of files, and for times.

    Args:
        value: numbers, texts and arrays.
    """
    if hasattr(value, "items"):
        for name in sorted(value, key=str):
            if name not in ("segments", "seconds"):
                yield from bits(value[name])
    elif hasattr(value, "shape"):
        yield np.asarray(value)
    else:
        yield np.frombuffer(json.dumps(value, default=repr).encode(), np.uint8)


def parts_of(trainer: Any) -> dict[str, str]:
    """Hashes of what a run depends on.

    Args:
        trainer: of the run, between two iterations.
    """
    state, tensors = trainer.state(), trainer.algorithm.state_tensors()
    of = {kind: {name: one for name, one in tensors.items() if name.startswith(kind)} for kind in KINDS}
    counters = [state["trainer"][name] for name in ("position", "iterations", "next")]
    found = {
        "weights": of["model"],
        "optimizer": of["optimizer"],
        "counters": {
            "trainer": counters,
            "algorithm": [trainer.algorithm.policy_version, trainer.algorithm.num_gradient_steps],
        },
        "buffer": state["buffer"],
        "generators": of["generator"],
        "environment": state["collect"],
        "normaliser": of["normalizer"],
        "schedule": scheduled_values(trainer.algorithm.config, trainer.progress),
    }
    assert all(found.values()), f"nothing is compared: {found}"
    return {name: hash_of(*bits(value)) for name, value in found.items()}


class StopAtHalf(Callback):
    """Ends the run in its middle, wherever its episode is, and says what it has then."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}

    def iteration_ended(self, trainer, updates):
        """Asks for the end.

        Args:
            trainer: of the run.
            updates: not looked at.
        """
        if trainer.progress >= HALF / TOTAL:
            trainer.stop("half of it")

    def ended(self, trainer):
        """Notes the parts.

        Args:
            trainer: of the run.
        """
        self.parts = parts_of(trainer)


class Loaded(Callback):
    """Says what a resumed run has before its first iteration."""

    def __init__(self) -> None:
        self.told = False

    def iteration_began(self, trainer):
        """Tells the parts, once.

        Args:
            trainer: of the run.
        """
        if not self.told:
            self.told = True
            tell(**parts_of(trainer))


def main(what: str, folder: Path) -> None:
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: of the runs.
    """
    half, where = StopAtHalf(), {"run__directory": str(folder), "run__name": "whole" if what == "whole" else "halves"}
    if what == "second":
        done = palaestra.resume(str(folder / "halves"), callbacks=[Loaded()])
    else:
        done = palaestra.train("dqn", "CartPole-v1", callbacks=[half] if what == "first" else [], **SETTINGS, **where)
    end = {"env_steps": done.result.env_steps, "weights": hash_of(*done.policy.state_dict().values())}
    tell(**end | half.parts if what == "first" else end)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
