"""`python -m benchmarks.learning.fqe FOLDER`: how often the interval of `palaestra data evaluate` holds the true value.

Policies of four short trainings collect five data sets of 5,000 env steps each, with their exploration; each is asked
what its policy is worth without exploration. The truth is the mean of 2,000 episodes in the environment, without
its time limit. Results: `results/fqe.*`, and a table on the page about offline training.
"""

import argparse
import dataclasses
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


def trained(folder: Path, algorithm: str, env: str, env_steps: int) -> Policy:
    run = folder / f"{algorithm}_{env}_{env_steps}"
    if not run.exists():
        settings = {"trainer__total_env_steps": env_steps, "run__tensorboard": False, "run__num_threads": 1}
        palaestra.train(algorithm, env, run__directory=str(run), run__name="run", **settings)
    _, policies = policies_of_run(find_run(run / "run"), "last")
    [policy] = policies.values()
    return policy


def truth(
    policy: Policy, algorithm: str, env: str, gamma: float, *, lanes: int = LANES, rounds: int = EPISODES // LANES
) -> Sample:
    """Discounted returns of episodes that end where the task does, or where gamma has left a thousandth."""
    horizon = math.ceil(math.log(1e-3) / math.log(gamma))
    config = dataclasses.replace(preset(algorithm, env).env, max_episode_steps=horizon + 1).for_evaluation(lanes)
    returns: list[float] = []
    for seed in range(rounds):
        with create_environment(config, seed=10_000 + seed) as made:
            step, alive, value = made.reset(), torch.ones(lanes), torch.zeros(lanes)
            for t in range(horizon):
                action = policy.act(step, deterministic=True).action
                step = made.step(policy.env_action(action))
                value += alive * gamma**t * torch.as_tensor(step.reward)
                alive *= ~torch.as_tensor(step.last)
            returns += value.tolist()
    return sample(returns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.fqe", description=__doc__)
    parser.add_argument("folder", type=Path, help="for runs and data; what is there already is used")
    folder = parser.parse_args().folder.resolve()
    torch.set_num_threads(1)
    record: dict[str, Any] = {**provenance("python -m benchmarks.learning.fqe FOLDER"), "cases": []}
    rows, held = [], 0
    for algorithm, env, env_steps, gamma in CASES:
        policy = trained(folder, algorithm, env, env_steps)
        true = truth(policy, algorithm, env, gamma)
        values = []
        for seed in range(DATA_SETS):
            data = folder / f"{algorithm}_{env}_{env_steps}_data_{seed}"
            if not data.exists():
                collect_data(policy, preset(algorithm, env).env, data, steps=STEPS, seed=seed)
            values.append(evaluate_offline(policy, str(data), gamma=gamma, seed=seed).value)
            print(algorithm, env, gamma, f"{true.mean:.4g}", values[-1], flush=True)
        inside = sum(value.low <= true.mean <= value.high for value in values)
        held += inside
        case = {"algorithm": algorithm, "env": env, "env_steps": env_steps, "gamma": gamma, "truth": true._asdict()}
        record["cases"].append(case | {"values": [dataclasses.asdict(value) for value in values]})
        name = f"{algorithm}, {env}, {env_steps:,} env steps"
        texts = ", ".join(f"{one.value:.3g} [{one.low:.3g}, {one.high:.3g}]" for one in values)
        rows.append([name, f"{gamma:g}", f"{true.mean:.4g}", texts, f"{inside} of {len(values)}"])
    total = DATA_SETS * len(CASES)
    record["held"] = [held, total]
    write_json(RESULT, record)
    verdict = "met" if held >= 0.95 * total else "not met"
    title = (
        f"The interval holds the true value in {held} of {total} data sets of {STEPS:,} env steps (bar 19: {verdict}):"
    )
    header = ["policy", "gamma", "true value", "by data", "held"]
    text = "\n\n".join([title, table(header, rows), origin(record)])
    publish(RESULT.with_suffix(".md"), text, "docs/concepts/offline.md")
    print(text)


if __name__ == "__main__":
    main()
