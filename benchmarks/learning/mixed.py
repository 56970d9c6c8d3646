"""`python -m benchmarks.learning.mixed FOLDER`: mixed data by Decision Transformer and others; from data to own steps.

Mixed data is that of chance, of a medium and of a good policy together: of Pendulum-v1 as `benchmarks.learning.offline`
makes it, of CartPole-v1 by PPO after 4,000 and 20,000 env steps. Going on: 2,500 updates of two gradient steps on
Pendulum's medium data alone, then 5,000 env steps with half of each minibatch from the data.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.learning import offline
from benchmarks.numbers import mean_interval
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra import ReplayBuffer
from palaestra.experiments import evaluate_run, preset, train_seeds

RESULT = Path(__file__).parent / "results" / "mixed.json"
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
CARTPOLE_DATA = {"cartpole_random": None, "cartpole_medium": 4_000, "cartpole_good": 20_000}
MIXED: dict[str, dict[str, dict[str, Any]]] = {
    PENDULUM: {
        "behaviour_cloning": {},
        "td3_bc": {"value_weight": 10.0},
        "rebrac": {"actor_penalty": 0.1, "critic_penalty": 0.01},
        "decision_transformer": {},
    },
    CARTPOLE: {"behaviour_cloning": {}, "discrete_cql": {}, "decision_transformer": {}},
}
"""Settings beside those of the presets: of TD3+BC and ReBRAC those that were best on medium data."""
ONLINE: dict[str, dict[str, Any]] = {"td3_bc": {"value_weight": 10.0, "gradient_steps": 2}}
UPDATES, STEPS = 2_500, 5_000
SEEDS = list(range(5))


def mixed(folder: Path, names: list[str], called: str) -> Path:
    """One data set of several, lane beside lane."""
    path = folder / called
    if not path.exists():
        buffers = [ReplayBuffer.load(folder / name) for name in names]
        kept = {name: buffers[0].options[name] for name in ("observation_spec", "action_spec")}
        whole = ReplayBuffer(None, sum(buffer.num_lanes for buffer in buffers), **kept)
        lane = 0
        for buffer in buffers:
            for lanes, rows in buffer.pieces():
                whole.extend(rows, [lane + number for number in lanes])
            lane += buffer.num_lanes
        whole.save(path)
    return path


def returns(folder: Path, called: str, algorithm: str, env: str, changes: dict[str, Any]) -> list[float]:
    """Returns of the last policies of all seeds; what is there already is taken as it is."""
    done = folder / f"{called}.json"
    if not done.exists():
        config = preset(algorithm, env)
        own = {group: dataclasses.replace(getattr(config, group), **settings) for group, settings in changes.items()}
        config = dataclasses.replace(config, **own)
        config = dataclasses.replace(
            config,
            run=dataclasses.replace(config.run, directory=str(folder / "runs"), num_threads=1),
            trainer=dataclasses.replace(config.trainer, eval_episodes=0),
        )
        runs = [seed.directory for seed in train_seeds(config, SEEDS).seeds]
        found = [evaluate_run(run, episodes=100, seed=20_000, which="last").return_mean for run in runs]
        done.write_text(json.dumps(found))
    found = json.loads(done.read_text())
    print(called, [round(value) for value in found], flush=True)
    return found


def on_mixed_data(folder: Path, record: dict[str, Any]) -> list[list[str]]:
    """A row for each environment and algorithm."""
    made = {
        PENDULUM: offline.data(folder),
        CARTPOLE: offline.data(folder, CARTPOLE_DATA, algorithm="ppo", env=CARTPOLE),
    }
    rows = []
    for env, algorithms in MIXED.items():
        data = mixed(folder, list(made[env]), f"mixed_{env}")
        record["data"][env] = made[env]
        for algorithm, settings in algorithms.items():
            changes = {"algorithm": settings, "offline": {"data": str(data)}}
            found = returns(folder, f"mixed {env} {algorithm}", algorithm, env, changes)
            record["mixed"][f"{env} {algorithm}"] = found
            rows.append([env, ", ".join(f"{value:.0f}" for value in made[env].values()), algorithm, _shown(found)])
    return rows


def going_on(folder: Path, record: dict[str, Any]) -> list[list[str]]:
    """A row for each algorithm: on data alone, as many updates as both have, and after steps of its own."""
    rows, data = [], str(folder / "medium")
    for algorithm, settings in ONLINE.items():
        alone = {"algorithm": settings, "offline": {"data": data}, "trainer": {"total_env_steps": UPDATES}}
        further = alone | {
            "offline": {"data": data, "fraction": 0.5, "updates": UPDATES},
            "trainer": {"total_env_steps": UPDATES + STEPS},
        }
        longer = alone | {"trainer": {"total_env_steps": UPDATES + STEPS}}
        found = [
            returns(folder, f"{phase} {algorithm}", algorithm, PENDULUM, changes)
            for phase, changes in (("data", alone), ("longer", longer), ("online", further))
        ]
        record["online"][algorithm] = found
        rows.append([algorithm, *map(_shown, found)])
    return rows


def _shown(found: list[float]) -> str:
    mean, half_width = mean_interval(found)
    return f"{mean:.0f} ± {half_width:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.mixed", description=__doc__)
    parser.add_argument("folder", type=Path, help="for data, runs and their returns; what is there already is used")
    folder = parser.parse_args().folder.resolve()
    record: dict[str, Any] = provenance("python -m benchmarks.learning.mixed FOLDER")
    record |= {"data": {}, "mixed": {}, "online": {}}
    first = table(["environment", "its three parts", "algorithm", "return"], on_mixed_data(folder, record))
    second = table(
        ["algorithm", "2,500 updates on the data", "7,500 updates on the data", "2,500 updates, 5,000 env steps"],
        going_on(folder, record),
    )
    write_json(RESULT, record)
    means = "the last policy over 100 episodes; means over five seeds with 95% intervals"
    first = f"Mixed data, {means}:\n\n{first}\n\n{origin(record)}"
    second = f"From medium data of Pendulum-v1 to steps of its own, {means}:\n\n{second}\n\n{origin(record)}"
    publish(RESULT.with_suffix(".md"), first, "docs/algorithms/decision_transformer.md")
    publish(RESULT.with_name("going_online.md"), second, "docs/concepts/offline.md", "measured online")


if __name__ == "__main__":
    main()
