"""Episodes that never end: what is kept to replay them has a limit."""

import json

import numpy as np
import pytest
import torch

import palaestra
from palaestra.core import StepType
from palaestra.envs import EnvConfig, create_environment
from palaestra.envs.contract import episodes
from tests.experiments.parts import SMALL

ENDLESS = "palaestra.envs.tiny:Endless"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """So that a test has more."""
    monkeypatch.setattr(episodes, "MOST_STEPS", 300)
    monkeypatch.setattr(episodes, "_ALWAYS_KEPT", 100)


def made(steps: int, **options):
    """Two environments after so many steps."""
    env = create_environment(EnvConfig(name=ENDLESS, num_envs=2, **options), seed=3)
    env.reset()
    for _ in range(steps):
        env.step(torch.tensor([0, 1]))
    return env


def test_the_actions_of_all_lanes_that_one_endless_episode_keeps_take_a_bounded_amount_of_memory(monkeypatch, caplog):
    """D10: only its own actions are given up; what the others do is replayed."""
    monkeypatch.setattr(episodes, "_MOST_BYTES", 150 * 2 * 8)
    with made(200) as env:
        env._log.due = [1]  # the other begins a new episode
        env.step(torch.tensor([0, 1]))
        for _ in range(99):
            env.step(torch.tensor([0, 1]))
        assert env.state_dict()["steps"].tolist() == [0, 99]
        env.load_state_dict(env.state_dict())
        assert "environment 0 after 300 steps: episodes" in caplog.text
        assert env.step(torch.tensor([0, 0])).step_type.tolist() == [StepType.FIRST, StepType.MID]


def test_an_endless_episode_takes_a_bounded_amount_of_memory(caplog):
    """D10: ten times as many steps need the same memory and the same checkpoint; the steps are counted on."""
    with made(5000) as env:
        state = env.state_dict()
        assert sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray)) < 300 * 2 * 8
        assert sum(rows.nbytes for rows in env._log._rows) <= 4 * 300 * 2 * 8
        env.load_state_dict(state)
        assert env.resume == "statistical"
        assert "environment 0 after 5,000 steps, environment 1 after 5,000 steps" in caplog.text
        assert env.step(torch.tensor([0, 0])).step_type.tolist() == [StepType.FIRST] * 2


def test_an_episode_below_the_limit_goes_on_exactly():
    """D10: up to the limit, and beside an episode that is over it."""
    with made(300) as env, made(0) as other:
        other.load_state_dict(env.state_dict())
        assert other.resume == "exact"
        assert other.step(torch.tensor([0, 1])).step_type.tolist() == [StepType.MID] * 2
    with made(0, max_episode_steps=250) as other, made(5000, max_episode_steps=250) as env:
        other.load_state_dict(env.state_dict())
        assert other.resume == "exact"


def test_a_run_of_endless_episodes_is_resumed_with_new_ones_and_says_so(tmp_path, caplog):
    """D10: checkpoints of a long run are as large as those of a short one; `run.json` says how it was resumed."""
    settings = SMALL | {"env__max_episode_steps": 1200, "trainer__total_env_steps": 2000, "trainer__eval_episodes": 1}
    settings |= {"run__directory": str(tmp_path), "trainer__eval_every_steps": 0, "run__eval_num_envs": 1}
    done = palaestra.train("ppo", ENDLESS, run__name="run", trainer__checkpoint_every_steps=900, **settings)
    checkpoints = sorted((done.directory / "checkpoints").glob("step_*"))
    sizes = [(path / "collect.safetensors").stat().st_size for path in checkpoints]
    assert sizes[-1] <= sizes[0]
    again = palaestra.resume(done.directory, trainer__total_env_steps=2100)
    assert again.result.status == "done"
    assert json.loads((done.directory / "run.json").read_text())["resume"] == "statistical"
    assert "episodes of more than 300 steps are not replayed" in caplog.text
