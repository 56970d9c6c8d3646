"""`python -m benchmarks.learning.fqe FOLDER`: how often the interval of `palaestra data evaluate` holds the true value.

Policies of four short trainings collect five data sets of 5,000 env steps each, with their exploration; each is asked
what its policy is worth without exploration. The truth is the mean of 2,000 episodes in the environment, without
its time limit. Results: `results/fqe.*`, and a table on the page about offline training. `--truths 4` measures the
truth of the fourth policy anew, from its run in the folder or a new one, and leaves the intervals as they were.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch

import palaestra
from benchmarks.numbers import Sample, sample
from benchmarks.record import origin, provenance, publish, table, write_json
from palaestra.envs import create_environment
from palaestra.experiments import collect_data, evaluate_offline, find_run, policies_of_run, preset
from palaestra.policies import Policy

RESULT = Path(__file__).parent / "results" / "fqe.json"
CASES = (
    ("sac", "Pendulum-v1", 3_000, 0.95),
    ("sac", "Pendulum-v1", 5_000, 0.99),
    ("dqn", "CartPole-v1", 10_000, 0.99),
    ("ppo", "CartPole-v1", 10_000, 0.95),
)
"""Algorithm, environment, env steps of training, discount."""
DATA_SETS, STEPS, LANES, EPISODES = 5, 5_000, 100, 2_000
UNTIL = 1e-5
"""Where gamma has fallen to when the truth ends: with rewards of 1 what is left out is this share of the whole."""


def trained(folder: Path, algorithm: str, env: str, env_steps: int) -> Policy:
    run = folder / f"{algorithm}_{env}_{env_steps}"
    if not run.exists():
        settings = {"trainer__total_env_steps": env_steps, "run__tensorboard": False, "run__num_threads": 1}
        palaestra.train(algorithm, env, run__directory=str(run), run__name="run", **settings)
    _, policies = policies_of_run(find_run(run / "run"), "last")
    [policy] = policies.values()
    return policy


def horizon(gamma: float) -> int:
    """Env steps until gamma has fallen to `UNTIL`."""
    return math.ceil(math.log(UNTIL) / math.log(gamma))


def truth(
    policy: Policy, algorithm: str, env: str, gamma: float, *, lanes: int = LANES, rounds: int = EPISODES // LANES
) -> Sample:
    """Discounted returns of episodes that end where the task does, or where gamma has fallen to `UNTIL`."""
    length = horizon(gamma)
    config = dataclasses.replace(preset(algorithm, env).env, max_episode_steps=length + 1).for_evaluation(lanes)
    returns: list[float] = []
    for seed in range(rounds):
        with create_environment(config, seed=10_000 + seed) as made:
            step, alive, value = made.reset(), torch.ones(lanes), torch.zeros(lanes)
            for t in range(length):
                action = policy.act(step, deterministic=True).action
                step = made.step(policy.env_action(action))
                value += alive * gamma**t * torch.as_tensor(step.reward)
                alive *= ~torch.as_tensor(step.last)
            returns += value.tolist()
    return sample(returns)


def measured(folder: Path, algorithm: str, env: str, env_steps: int, gamma: float) -> dict[str, Any]:
    """The truth of a policy, and its intervals by the data sets."""
    policy = trained(folder, algorithm, env, env_steps)
    true = truth(policy, algorithm, env, gamma)
    values = []
    for seed in range(DATA_SETS):
        data = folder / f"{algorithm}_{env}_{env_steps}_data_{seed}"
        if not data.exists():
            collect_data(policy, preset(algorithm, env).env, data, steps=STEPS, seed=seed)
        values.append(evaluate_offline(policy, str(data), gamma=gamma, seed=seed).value)
        print(algorithm, env, gamma, f"{true.mean:.4g}", values[-1], flush=True)
    case = {"algorithm": algorithm, "env": env, "env_steps": env_steps, "gamma": gamma, "truth": true._asdict()}
    return case | {"truth_until": UNTIL, "values": [dataclasses.asdict(value) for value in values]}


def renewed(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """With another truth, and where that comes from."""
    algorithm, env, gamma = case["algorithm"], case["env"], case["gamma"]
    true = truth(trained(folder, algorithm, env, case["env_steps"]), algorithm, env, gamma)
    found = provenance(f"python -m benchmarks.learning.fqe FOLDER --truths {1 + CASES.index(_key(case))}")
    return {**case, "truth": true._asdict(), "truth_until": UNTIL, "truth_origin": found}


def _key(case: dict[str, Any]) -> tuple[str, str, int, float]:
    return case["algorithm"], case["env"], case["env_steps"], case["gamma"]


def inside(case: dict[str, Any]) -> int:
    """How many intervals hold the truth."""
    return sum(value["low"] <= case["truth"]["mean"] <= value["high"] for value in case["values"])


def text_of(record: dict[str, Any]) -> str:
    rows, (held, total) = [], record["held"]
    for case in record["cases"]:
        values, true = case["values"], f"{case['truth']['mean']:.6g}"
        name = f"{case['algorithm']}, {case['env']}, {case['env_steps']:,} env steps"
        texts = ", ".join(f"{one['value']:.5g} [{one['low']:.5g}, {one['high']:.5g}]" for one in values)
        until = f"{case.get('truth_until', 1e-3):g}"
        rows.append([name, f"{case['gamma']:g}", true, until, texts, f"{inside(case)} of {len(values)}"])
    verdict = "met" if held >= 0.95 * total else "not met"
    title = (
        f"The interval holds the true value in {held} of {total} data sets of {STEPS:,} env steps (bar 19: {verdict}):"
    )
    header = ["policy", "gamma", "true value", "summed until gamma is", "by data", "held"]
    origins = [record, *(case["truth_origin"] for case in record["cases"] if "truth_origin" in case)]
    return "\n\n".join([title, table(header, rows), *map(origin, origins)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.fqe", description=__doc__)
    parser.add_argument("folder", type=Path, help="for runs and data; what is there already is used")
    numbers = range(1, len(CASES) + 1)
    parser.add_argument("--truths", type=int, nargs="+", choices=numbers, help="measure only these truths anew")
    given = parser.parse_args()
    folder = given.folder.resolve()
    torch.set_num_threads(1)
    if given.truths:
        record = json.loads(RESULT.read_text())
        for number in given.truths:
            record["cases"][number - 1] = renewed(folder, record["cases"][number - 1])
    else:
        record = provenance("python -m benchmarks.learning.fqe FOLDER")
        record["cases"] = [measured(folder, *case) for case in CASES]
    record["held"] = [sum(map(inside, record["cases"])), DATA_SETS * len(CASES)]
    write_json(RESULT, record)
    text = text_of(record)
    publish(RESULT.with_suffix(".md"), text, "docs/concepts/offline.md")
    print(text)


if __name__ == "__main__":
    main()
