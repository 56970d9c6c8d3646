"""`python -m benchmarks.learning.offline FOLDER`: TD3+BC and ReBRAC on data of random, medium and expert policies.

Makes the data, 20,000 env steps of Pendulum-v1 each: of chance, and of SAC's best policy in 3,000 and 8,000 env steps.
For each data set, each algorithm takes the best of seven settings on seeds 100 and 101, as the papers do; five other
seeds are reported, the last policy over 100 episodes. Results: `results/offline.*`, and a table on the page of ReBRAC.
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import palaestra
from benchmarks.numbers import mean_interval
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra import load_policy
from palaestra.experiments import collect_data, evaluate_run, preset, train_seeds

RESULT = Path(__file__).parent / "results" / "offline.json"
ENV, STEPS = "Pendulum-v1", 20_000
DATA = {"random": None, "medium": 3_000, "expert": 8_000}
"""Env steps of the training whose best policy acts; `None` is chance."""
ALGORITHMS: dict[str, list[dict[str, float]]] = {
    "behaviour_cloning": [{}],
    "td3_bc": [{"value_weight": weight} for weight in (0.3, 1.0, 2.5, 10.0, 40.0, 100.0, 400.0)],
    "rebrac": [
        {"actor_penalty": actor, "critic_penalty": critic}
        for actor, critic in (
            (0.0025, 0.0),
            (0.01, 0.0),
            (0.01, 0.01),
            (0.1, 0.01),
            (0.4, 0.01),
            (1.0, 0.01),
            (4.0, 0.01),
        )
    ],
}
"""Each one's settings to choose from."""
CHOOSING, REPORTED = [100, 101], list(range(5))


def data(
    folder: Path,
    kinds: dict[str, int | None] = DATA,
    *,
    algorithm: str = "sac",
    env: str = ENV,
    steps: int = STEPS,
) -> dict[str, float]:
    """Makes what is not there yet; returns the mean return of each data set's episodes.

    Args:
        folder: where data sets are.
        kinds: by name, the env steps of training of the policy that collects it; `None` is chance.
        algorithm: that trains it.
        env: of both.
        steps: in a data set.
    """
    for name, trained in kinds.items():
        if (folder / f"{name}.json").exists():
            continue
        policy = None
        if trained is not None:
            path = str(folder / f"{algorithm}_{name}")
            palaestra.train(algorithm, env, run__directory=path, trainer__total_env_steps=trained)
            policy = load_policy(next(Path(path).iterdir()) / "policy")
        summary = collect_data(policy, preset(algorithm, env).env, folder / name, steps=steps, seed=1)
        (folder / f"{name}.json").write_text(json.dumps(summary.return_mean))
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in kinds}


def returns(folder: Path, algorithm: str, name: str, seeds: list[int], setting: dict[str, float]) -> list[float]:
    """Returns of the last policies; what is there already is taken as it is."""
    values = "_".join(f"{value:g}" for value in setting.values())
    done = folder / f"{algorithm}_{name}_{values}_seed{seeds[0]}.json"
    if not done.exists():
        config = preset(algorithm, ENV)
        config = dataclasses.replace(
            config,
            algorithm=dataclasses.replace(config.algorithm, **setting),
            offline=dataclasses.replace(config.offline, data=str(folder / name)),
            run=dataclasses.replace(config.run, directory=str(folder / "runs"), num_threads=1),
            trainer=dataclasses.replace(config.trainer, total_env_steps=1_000, eval_episodes=0),
        )
        runs = [seed.directory for seed in train_seeds(config, seeds).seeds]
        found = [evaluate_run(run, episodes=100, seed=20_000, which="last").return_mean for run in runs]
        done.write_text(json.dumps(found))
    return json.loads(done.read_text())


def chosen(folder: Path, algorithm: str, name: str) -> dict[str, float]:
    """The setting with the greatest return on the seeds for choosing."""
    settings = ALGORITHMS[algorithm]
    if len(settings) == 1:
        return settings[0]
    found = [statistics.fmean(returns(folder, algorithm, name, CHOOSING, one)) for one in settings]
    print(algorithm, name, [round(value) for value in found], flush=True)
    return settings[found.index(max(found))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.offline", description=__doc__)
    parser.add_argument("folder", type=Path, help="for data, runs and their returns; what is there already is used")
    folder = parser.parse_args().folder.resolve()
    record: dict[str, Any] = provenance("python -m benchmarks.learning.offline FOLDER")
    record |= {"data": data(folder), "settings": {}, "returns": {}}
    for algorithm in ALGORITHMS:
        for name in DATA:
            setting = record["settings"][f"{algorithm} {name}"] = chosen(folder, algorithm, name)
            found = record["returns"][f"{algorithm} {name}"] = returns(folder, algorithm, name, REPORTED, setting)
            print(algorithm, name, setting, [round(value) for value in found], flush=True)
    write_json(RESULT, record)
    rows = []
    for name in DATA:
        cells = []
        for algorithm in ALGORITHMS:
            mean, half_width = mean_interval(record["returns"][f"{algorithm} {name}"])
            setting = ", ".join(f"{value:g}" for value in record["settings"][f"{algorithm} {name}"].values())
            cells.append(f"{mean:.0f} ± {half_width:.0f}" + (f" ({setting})" if setting else ""))
        rows.append([name, f"{record['data'][name]:.0f}", *cells])
    header = ["data", "its episodes", "behaviour cloning", "TD3+BC (value-weight)", "ReBRAC (both penalties)"]
    title = (
        "Pendulum-v1, the last policy over 100 episodes; means over five seeds with 95% intervals. In brackets the "
        "settings\nthat had the best mean over two other seeds:"
    )
    text = "\n\n".join([title, table(header, rows), origin(record)])
    publish(RESULT.with_suffix(".md"), text, "docs/algorithms/rebrac.md")
    print(text)


if __name__ == "__main__":
    main()
