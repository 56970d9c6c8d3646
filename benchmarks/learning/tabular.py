"""`python -m benchmarks.learning.tabular`: twenty small worlds whose best return is known, and what is learned of it.

Chains, mazes, bandits with contexts, and worlds that are seen through the belief of an exact filter. Each is a table of
transitions, so the best policy and the value of a learned one are computed instead of sampled; episodes end by chance,
so that nothing is discounted. A row that time did not reach says "not run"; run again to go on.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.learning.worlds import WORLDS, Table
from benchmarks.record import origin, provenance, table, write_json
from palaestra.algorithms import ALGORITHMS as ALL
from palaestra.config.presets import tuned

RESULTS = Path(__file__).parent / "results"
ON_POLICY = ("a2c", "impala", "ppg", "ppo", "reinforce", "trpo")
Q_LEARNING = ("c51", "dqn", "iqn", "munchausen_dqn", "qr_dqn", "rainbow")
OTHERS = ("discrete_sac", "evolution_strategies", "pqn", "sarsa")
ALGORITHMS = sorted((*ON_POLICY, *Q_LEARNING, *OTHERS))
"""Those of discrete actions that neither plan, nor learn a model, nor learn from data."""
STEPS = {"evolution_strategies": 100_000, "discrete_sac": 10_000, **dict.fromkeys(Q_LEARNING, 30_000)}
FEWER = 40_000
"""Env steps of the others."""
TOLERATED = 0.02


def settings(algorithm: str) -> dict[str, Any]:
    """The preset of CartPole, but that nothing is discounted, and returns are what these worlds have."""
    preset = tuned()[algorithm, "CartPole-v1"]
    own = {name: value for name, value in preset["algorithm"].items() if name not in ("min_return", "max_return")}
    changes: dict[str, Any] = {"gamma": 1.0, "normalize_observation": False}
    if algorithm in (*Q_LEARNING, "discrete_sac"):
        changes |= {"n_step": 1, "learning_starts": 500, "epsilon": "linear(1, 0.1, 0.5)", "initial_temperature": 0.01}
    known = ALL[algorithm].config_class.__dataclass_fields__
    own |= {name: value for name, value in changes.items() if name in known}
    return {"algorithm": own, "env__num_envs": preset.get("env", {}).get("num_envs", 1)}


def learned(algorithm: str, world: str, seed: int) -> float:
    """The expected return of the last policy, computed."""
    known: Table = WORLDS[world]
    with tempfile.TemporaryDirectory() as folder:
        run = palaestra.train(
            algorithm,
            "benchmarks.learning.worlds:World",
            **settings(algorithm),
            env__kwargs={"name": world},
            trainer__total_env_steps=STEPS.get(algorithm, FEWER),
            trainer__eval_episodes=0,
            run__seed=seed,
            run__directory=folder,
        )
        policy: Any = run.policy
        return known.value_of(policy(known.features))


def missing(record: Mapping[str, Any], arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """What is still to be run: one seed of all first."""
    for seed in range(arguments.seeds):
        for world in arguments.worlds:
            for algorithm in arguments.algorithms:
                if str(seed) not in record["returns"].get(world, {}).get(algorithm, {}):
                    yield algorithm, world, seed


def missed(world: str, value: float) -> float:
    """What is missing to the best return, as a share of what that is above random actions."""
    known = WORLDS[world]
    return (known.best - value) / (known.best - known.random)


def page(record: Mapping[str, Any]) -> str:
    """The table: worlds down, algorithms across; the largest miss of the seeds, in percent."""
    rows, within, run, beyond = list[list[str]](), 0, 0, Counter[str]()
    for world, known in WORLDS.items():
        cells = [world, f"{len(known.features)}", f"{known.random:.2f}", f"{known.best:.2f}"]
        for algorithm in ALGORITHMS:
            values = record["returns"].get(world, {}).get(algorithm, {}).values()
            worst = max((missed(world, value) for value in values), default=None)
            cells.append("not run" if worst is None else f"{abs(worst):.1%}")
            run += worst is not None
            within += worst is not None and worst <= TOLERATED
            beyond[algorithm] += worst is not None and worst > TOLERATED
        rows.append(cells)
    head = ["world", "states", "random", "best", *ALGORITHMS]
    said = (
        "# Tabular worlds\n\nWhat the last policy misses of the best return, as a share of what that is above random "
        "actions; where several seeds were run, the worst of them. Values are computed, not sampled. "
        f"{within} of the {run} cells that were run are within {TOLERATED:.0%}; there are "
        f"{len(WORLDS) * len(ALGORITHMS)}. The {run - within} that miss more: "
        f"{', '.join(f'{count} of {name}' for name, count in beyond.most_common() if count) or 'none'}."
    )
    return f"{said}\n\n{table(head, rows)}\n\n{origin(record)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.tabular", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tabular.json and tabular.md are written")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS, metavar="NAME")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), metavar="WORLD")
    parser.add_argument("--seeds", type=int, default=1, help="of each; default 1")
    parser.add_argument("--minutes", type=float, help="begin nothing after so long; run again to go on")
    arguments = parser.parse_args()
    file = arguments.results / "tabular.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"returns": {}}
    record = {**provenance("python -m benchmarks.learning.tabular"), "returns": record["returns"]}
    end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    for algorithm, world, seed in list(missing(record, arguments)):
        if end is not None and time.monotonic() > end:
            break
        value = learned(algorithm, world, seed)
        record["returns"].setdefault(world, {}).setdefault(algorithm, {})[str(seed)] = value
        print(f"{world} {algorithm} seed {seed}: {value:.3f}, misses {missed(world, value):.1%}", flush=True)
        write(file, record)
    write(file, record)


def write(file: Path, record: Mapping[str, Any]) -> None:
    """The results so far, as numbers and as a page."""
    write_json(file, record)
    file.with_suffix(".md").write_text(page(record))


if __name__ == "__main__":
    main()
