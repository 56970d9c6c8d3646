"""Entries of `info` in metrics, evaluations and rows, from outside."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import palaestra
from palaestra.policies import RulePolicy

EPISODE = 4


class Costly(gymnasium.Env):
    """Reports a cost and two forces with every step, and with the last one whether the first action was 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.success = 0, False
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.success |= self.steps == 1 and action == 1
        info = {"cost": 10 * self.steps, "force": np.array([1.0, -self.steps]), "picture": np.zeros((9, 9))}
        if self.steps == EPISODE:
            info["is_success"] = bool(self.success)
        return np.full(2, self.steps, np.float32), float(action), self.steps == EPISODE, False, info


NAME = f"{__name__}:Costly"
COSTS = {"cost": 100.0, "cost@mean": 25.0, "cost@max": 40.0}
FORCES = {"force/0": 4.0, "force/1": -10.0, "force/1@mean": -2.5, "force/1@max": -1.0}
SMALL = {
    "trainer__total_env_steps": 64,
    "trainer__eval_episodes": 3,
    "algorithm__network__hidden_sizes": (8,),
    "run__tensorboard": False,
}


@pytest.mark.parametrize("vectorization", ["serial", "native"])
def test_what_the_environment_reports_is_in_every_row_of_metrics_and_in_evaluations(tmp_path, vectorization):
    """ALF-20, ALF-57: costs, elements of arrays and success rates, of training and of evaluation."""
    name = NAME if vectorization == "serial" else f"{__name__}:costly_pool"
    env = {"env__vectorization": vectorization, "env__num_envs": 2}
    run = palaestra.train("ppo", name, run__directory=str(tmp_path), **SMALL, **env)
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    saved = json.loads(max((run.directory / "evals").glob("*.json")).read_text())
    for found in (
        {key.removeprefix("info/"): value for key, value in last.items()},
        {key.removeprefix("eval/info/"): value for key, value in last.items()},
        saved["parts"],
        palaestra.evaluate_run(run.directory, episodes=3).parts,
    ):
        assert {key: found[key] for key in COSTS | FORCES} == pytest.approx(COSTS | FORCES)
        assert 0 <= found["is_success"] <= 1 and found["is_success"] == found["is_success@mean"]
        assert not any(key.startswith("picture") for key in found)


def test_the_success_rate_of_an_evaluation_is_that_of_its_policy():
    """ALF-57: a policy that always acts 1 succeeds always, one that always acts 0 never."""
    with palaestra.create_environment(palaestra.EnvConfig(name=NAME, num_envs=2)) as env:
        for action in (0, 1):
            rule = lambda seen, action=action: [action] * len(seen)  # noqa: E731
            policy = RulePolicy(rule, env.observation_spec, env.action_spec)
            evaluation = palaestra.evaluate(policy, env, episodes=3)
            assert evaluation.parts["is_success"] == action
            assert evaluation.parts["cost"] == 100.0


def costly_pool(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Several of them, stepped by Gymnasium."""
    return gymnasium.vector.SyncVectorEnv([Costly] * num_envs)
