"""A run that was cut and resumed in fresh processes equals the one that was not, bit for bit (F25)."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import palaestra
from palaestra.experiments import RunDirectory
from tests.faults.child import train
from tests.faults.parts import (
    COMMAND,
    TIMEOUT_S,
    child_environment,
    command,
    differences,
    logged,
    run_contents,
    steps_of,
)

SMALL = {
    "trainer__total_env_steps": 480,
    "trainer__checkpoint_every_steps": 90,
    "trainer__log_every_steps": 50,
    "trainer__eval_every_steps": 150,
    "trainer__eval_episodes": 3,
    "run__seed": 7,
}
PPO = {"algorithm__unroll_length": 7, "algorithm__mini_batch_size": 8, "algorithm__num_epochs": 2, "env__num_envs": 3}
DQN = {
    "algorithm__unroll_length": 3,
    "algorithm__gradient_steps": 2,
    "algorithm__mini_batch_size": 16,
    "algorithm__capacity": 200,
    "algorithm__learning_starts": 40,
    "algorithm__target_period": 15,
    "algorithm__n_step": 2,
    "env__num_envs": 2,
}
RUNS = {
    "ppo-serial": ("ppo", "Pendulum-v1", PPO | {"algorithm__normalize_observation": True}),
    "ppo-process": ("ppo", "CartPole-v1", PPO | {"env__vectorization": "process", "env__num_workers": 2}),
    "dqn-serial": ("dqn", "CartPole-v1", DQN | {"algorithm__normalize_observation": True}),
    "dqn-process": ("dqn", "CartPole-v1", DQN | {"env__vectorization": "process", "env__num_workers": 1}),
}
# Saved where it stopped, killed between two checkpoints, and saved again.
CUTS = [(115, "SIGINT", 130), (260, "SIGKILL", -signal.SIGKILL), (400, "SIGTERM", 143)]


def child(order: dict[str, Any], expected: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.child", json.dumps(order)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == expected, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_run_cut_at_three_points_equals_the_uninterrupted_one(case, tmp_path):
    """F25, F22, F9: parameters, optimizer, buffer, normaliser, generators, metrics, episodes, evaluations, policy."""
    algorithm, env, settings = RUNS[case]
    settings = SMALL | settings
    order = {"verb": "train", "algorithm": algorithm, "env": env, "directory": str(tmp_path), "name": "cut"}
    for stop_at, how, code in CUTS:
        child({**order, "settings": settings, "stop_at": stop_at, "how": how}, code)
        order["verb"] = "resume"
    child(order, 0)
    train(algorithm, env, str(tmp_path), "whole", settings)
    whole, cut = run_contents(tmp_path / "whole"), run_contents(tmp_path / "cut")
    assert differences(whole, cut) == []
    assert whole["step"] >= 480
    assert len(whole["metrics"]) == len({row["env_steps"] for row in whole["metrics"]}) >= 9


@pytest.mark.fault
def test_environments_that_cannot_go_on_exactly_are_said_to(tmp_path):
    """RELIABILITY.md, mechanism 6: a pool of the simulator's own begins new episodes, and run.json says so."""
    settings = SMALL | PPO | {"env__vectorization": "native"}
    order = {"algorithm": "ppo", "env": "CartPole-v1", "directory": str(tmp_path), "name": "run", "settings": settings}
    child({**order, "verb": "train", "stop_at": 115, "how": "SIGINT"}, 130)
    done = palaestra.resume("run", root=tmp_path)
    assert done.result.status == "done"
    assert RunDirectory(tmp_path / "run").info["resume"] == "statistical"
    steps = [row["env_steps"] for row in logged(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 480


def test_the_comparison_sees_a_single_bit():
    """The mutant: were `differences` blind, the test above would prove nothing."""
    import numpy as np
    import torch

    a = {"x": [torch.tensor([1.0, float("nan")]), np.arange(3)], "y": (0.1, None)}
    b = {"x": [torch.tensor([1.0, float("nan")]), np.arange(3)], "y": (0.1, None)}
    assert differences(a, b) == []
    b["x"][0][0] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert differences(a, b) == [".x.0"]
    assert differences(a, {**a, "y": (0.1, 0)}) == [".y.1: None and 0"]
    assert differences(a, {"x": a["x"]}) == [": ['y']"]


@pytest.mark.slow
def test_the_rest_of_a_killed_run_is_not_doubled(tmp_path):
    """F9, F25: rows after the last checkpoint are cut off and written again, once."""
    settings = SMALL | DQN
    order = {"algorithm": "dqn", "env": "CartPole-v1", "directory": str(tmp_path), "name": "run", "settings": settings}
    child({**order, "verb": "train", "stop_at": 170, "how": "SIGKILL"}, -signal.SIGKILL)
    run = Path(tmp_path / "run")
    saved = steps_of(run)[-1]
    assert logged(run)[-1]["env_steps"] > saved
    child({**order, "verb": "resume", "stop_at": saved + 1, "how": "SIGINT"}, 130)
    steps = [row["env_steps"] for row in logged(run)]
    assert steps == sorted(set(steps))


@pytest.mark.fault
def test_d1_a_killed_run_of_eight_halfcheetahs_in_one_worker_goes_on(tmp_path, wait_until):
    """D1: what the worker is sent when it resumes is more than its socket takes at once."""
    pytest.importorskip("mujoco")
    run = tmp_path / "runs" / "run"
    options = (
        *("train", "ppo", "HalfCheetah-v5", "--env.num-envs", "8", "--env.vectorization", "process"),
        *("--env.num-workers", "1", "--algorithm.unroll-length", "64", "--algorithm.network.hidden-sizes", "8"),
        *("--trainer.total-env-steps", "50000000", "--trainer.checkpoint-every-steps", "2048", "--run.name", "run"),
        *("--trainer.eval-every-steps", "0", "--run.no-tensorboard"),
    )
    training = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *options],
        cwd=tmp_path,
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(
            lambda: training.poll() is not None or max(steps_of(run), default=0) >= 6144, TIMEOUT_S, what="checkpoints"
        )
        assert training.poll() is None
    finally:
        training.kill()
        training.wait()
    saved = max(steps_of(run))
    command("resume", "runs/run", "--until", str(saved + 2048), folder=tmp_path)
    assert max(steps_of(run)) >= saved + 2048
