"""Writes the golden losses, the first 10 of each algorithm on small environments, and its default settings.

    python tests/golden/generate.py                     # show what they are now, write nothing
    python tests/golden/generate.py --overwrite ppo     # accept them, after a change that is meant to move them
    python tests/golden/generate.py --overwrite defaults

A refactoring must not move them. A commit that does says why.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COUNT = 10


def golden_file(name: str) -> Path:
    """Where an algorithm's losses are kept."""
    return Path(__file__).with_name(f"{name}.json")


def first_losses(name: str, kind: str) -> list[float]:
    """The sum of the loss terms in each of the first gradient steps, or of the metrics where there are no losses."""
    from palaestra import NetworkConfig
    from palaestra.algorithms import GradientAlgorithm
    from tests.algorithms.parts import SETTINGS, collector_for, environment, make

    env = environment(kind, num_envs=4, seed=11)
    memory = SETTINGS.get(kind, {}).get("network", NetworkConfig())
    changes: dict[str, Any] = {
        "network": dataclasses.replace(memory, hidden_sizes=(32, 32)),
        "learning_rate": 1e-3,
        "entropy_cost": 0.01,
    }
    algorithm = make(
        name, env, 11, kind=kind, unroll_length=24, mini_batch_size=24, mini_batch_sequences=24, capacity=400, **changes
    )
    collector = collector_for(env, algorithm)
    terms: list[dict[str, float]] = []
    states_losses = isinstance(algorithm, GradientAlgorithm)
    original = getattr(algorithm, "losses", None)

    def losses(batch: Any) -> Any:
        stated = original(batch)
        terms.append({key: float(term.detach()) for key, term in stated.terms.items()})
        return stated

    if states_losses:
        algorithm.losses = losses
    while len(terms) < COUNT:
        collector.unroll(24)
        info = algorithm.update(collector.buffer)
        if not states_losses:
            terms += [{key: float(value) for key, value in record.items()} for record in info.records]
    return [sum(row.values()) for row in terms[:COUNT]]


def losses_by_kind(name: str) -> dict[str, list[float]]:
    """The losses for every kind of action that the algorithm accepts."""
    from tests.algorithms.parts import CASES

    return {kind: first_losses(name, kind) for algorithm, kind in CASES if algorithm == name}


def defaults(kind: Any) -> dict[str, str]:
    """Every setting of a configuration, as it is where nothing is said."""
    return {field.name: repr(getattr(kind(), field.name)) for field in dataclasses.fields(kind)}


def default_settings() -> dict[str, dict[str, str]]:
    """Those of a run; those of an algorithm are in its own file."""
    from palaestra import EnvConfig
    from palaestra.distributed import DistributedConfig
    from palaestra.training import TrainerConfig

    kinds = {"env": EnvConfig, "trainer": TrainerConfig, "distributed": DistributedConfig}
    return {name: defaults(kind) for name, kind in kinds.items()}


def main() -> None:
    """The command."""
    import torch

    from palaestra.algorithms import ALGORITHMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--overwrite", nargs="+", choices=[*ALGORITHMS, "defaults", "all"], default=[], help="which files to write"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("defaults", *ALGORITHMS):
        if name == "defaults":
            content: Any = default_settings()
        else:
            content = {"settings": defaults(ALGORITHMS[name].config_class), **losses_by_kind(name)}
        text = json.dumps(content, indent=1) + "\n"
        sys.stdout.write(f"{name}: {text}")
        if {name, "all"} & set(options.overwrite):
            golden_file(name).write_text(text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
