"""Offline and hybrid runs that were cut and resumed in fresh processes equal those that were not, bit for bit (F25)."""

import signal
from typing import Any

import pytest

from palaestra import EnvConfig
from palaestra.experiments import collect_data
from tests.faults.child import train
from tests.faults.parts import differences, run_contents
from tests.faults.test_resume import CUTS, DQN, SMALL, child

STEPS = {"algorithm__gradient_steps": 1, "algorithm__normalize_observation": True}
OFFLINE = STEPS | {"algorithm__mini_batch_size": 16}
MEMORY = {"recurrent": "attention", "recurrent_size": 8, "attention_window": 5, "hidden_sizes": [8]}
ENDS: dict[str, Any] = {"offline__fraction": 0.25}
TRANSFORMER = STEPS | {"algorithm__mini_batch_sequences": 16, "algorithm__mini_batch_length": 4}
TRANSFORMER |= {"algorithm__network": MEMORY}
RUNS = {
    "offline-decision_transformer": ("decision_transformer", "CartPole-v1", TRANSFORMER),
    "then-hybrid-decision_transformer": (
        "decision_transformer",
        "CartPole-v1",
        TRANSFORMER | ENDS | {"offline__updates": 130},
    ),
    "offline-rebrac": ("rebrac", "Pendulum-v1", OFFLINE),
    "offline-fql": ("fql", "Pendulum-v1", OFFLINE),
    "offline-td3_bc": ("td3_bc", "Pendulum-v1", OFFLINE),
    "offline-discrete_cql": ("discrete_cql", "CartPole-v1", OFFLINE | {"algorithm__gradient_steps": 2}),
    "then-hybrid-td3_bc": ("td3_bc", "Pendulum-v1", OFFLINE | ENDS | {"offline__updates": 200}),
    "then-hybrid-discrete_cql": ("discrete_cql", "CartPole-v1", OFFLINE | ENDS | {"offline__updates": 130}),
    "hybrid-dqn": ("dqn", "CartPole-v1", DQN | ENDS),
    "hybrid-dqn-prioritized": ("dqn", "CartPole-v1", DQN | ENDS | {"algorithm__prioritized": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_run_on_loaded_data_cut_at_three_points_equals_the_uninterrupted_one(case, tmp_path):
    """F25, F22, F9: and so do the priorities of the loaded rows, which learning writes."""
    algorithm, env, settings = RUNS[case]
    collect_data(None, EnvConfig(name=env), tmp_path / "data", steps=300, seed=5)
    settings = SMALL | settings | {"offline__data": str(tmp_path / "data")}
    order = {"verb": "train", "algorithm": algorithm, "env": env, "directory": str(tmp_path), "name": "cut"}
    for stop_at, how, code in CUTS:
        child({**order, "settings": settings, "stop_at": stop_at, "how": how}, code)
        order["verb"] = "resume"
    child(order, 0)
    train(algorithm, env, str(tmp_path), "whole", settings)
    whole, cut = run_contents(tmp_path / "whole"), run_contents(tmp_path / "cut")
    assert differences(whole, cut) == []
    assert whole["step"] >= 480
    assert ("buffer" in whole["state"]) == ("hybrid" in case)
    assert len(whole["state"]["loaded"]) == 1


@pytest.mark.slow
def test_a_killed_offline_run_learns_no_update_twice(tmp_path):
    """F9: updates after the last checkpoint are made again, once; the metrics have each of them once."""
    collect_data(None, EnvConfig(name="Pendulum-v1"), tmp_path / "data", steps=300, seed=5)
    settings = SMALL | OFFLINE | {"offline__data": str(tmp_path / "data")}
    order = {"algorithm": "iql", "env": "Pendulum-v1", "directory": str(tmp_path), "name": "run", "settings": settings}
    child({**order, "verb": "train", "stop_at": 170, "how": "SIGKILL"}, -signal.SIGKILL)
    child({**order, "verb": "resume"}, 0)
    contents = run_contents(tmp_path / "run")
    assert [row["env_steps"] for row in contents["metrics"]] == [row["policy_version"] for row in contents["metrics"]]
    assert len({row["env_steps"] for row in contents["metrics"]}) == len(contents["metrics"])
    assert contents["metrics"][-1]["gradient_steps"] == 480
