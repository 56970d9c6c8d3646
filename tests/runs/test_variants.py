"""Several tasks in one run: environments take the variants of `EnvConfig` in turns."""

import csv
import dataclasses
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import palaestra
from palaestra import EnvConfig, create_environment
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError
from palaestra.runs.learner import evaluation_count
from tests.cli.parts import exit_code, output

PAID = "tests.runs.test_variants:Paid"
VARIANTS = (
    "{kwargs: {wage: 2}}",
    "{kwargs: {wage: 5}, max_episode_steps: 3}",
    "{name: 'tests.runs.test_variants:Idle'}",
)
RUN = ("--env.num-envs", "6", "--env.kwargs", "wage", "1", "--env.max-episode-steps", "4", "--run.no-tensorboard")
RUN += ("--algorithm.unroll-length", "4", "--trainer.total-env-steps", "96", "--trainer.eval-episodes", "6")


class Paid(gymnasium.Env):
    """Every step is paid alike."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, wage=1.0):
        self.wage = wage

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.wage, False, False, {}


class Idle(Paid):
    """Nothing is paid."""

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Told(Paid):
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"paid": 0.0}

    def step(self, action):
        return np.zeros(1, np.float32), self.wage, False, False, {"paid": self.wage}


class Wide(Paid):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("vectorization", ["serial", "process"])
def test_a_run_trains_and_evaluates_every_variant(vectorization, capsys):
    options = (*RUN, "--env.vectorization", vectorization, "--env.variants", *VARIANTS)
    assert exit_code("train", "ppo", PAID, *options, "--run.name", "run") == 0, output(capsys)
    run = Path("runs/run")
    returns = {}
    for row in csv.DictReader((run / "episodes.csv").read_text().splitlines()):
        returns.setdefault(int(row["env_id"]) % 3, set()).add((float(row["return"]), int(row["length"])))
    assert returns == {0: {(8.0, 4)}, 1: {(15.0, 3)}, 2: {(0.0, 4)}}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = next(row for row in reversed(rows) if "eval/return_mean" in row)
    assert [evaluated[f"eval/info/return_of_variant_{number}"] for number in range(3)] == [8, 15, 0]
    assert evaluated["eval/return_mean"] == pytest.approx(23 / 3)
    assert exit_code("eval", str(run), "--episodes", "3") == 0
    assert exit_code("resume", str(run), "--until", "192") == 0, output(capsys)


def test_data_of_a_run_is_of_every_variant(capsys):
    """It was that of the first, and was taken for that of all."""
    given = (*RUN, "--env.variants", *VARIANTS[:2], "{kwargs: {wage: 3}}", "--env.info", "paid")
    assert exit_code("train", "ppo", f"{__name__}:Told", *given, "--run.name", "run") == 0, output(capsys)
    assert exit_code("data", "collect", "run", "demo", "--steps", "60") == 0, output(capsys)
    data = ReplayBuffer.load("demo")
    assert data.num_lanes == 3 and {*data.newest(1).env_info["paid"][-1].tolist()} == {2.0, 5.0, 3.0}
    assert exit_code("data", "collect", "run", "few", "--env.num-envs", "1") == 2
    assert "env.num_envs is 1, and env.variants has 3 entries; give one for each" in output(capsys)


def test_environments_take_variants_in_turns():
    variants = ({"kwargs": {"wage": 2.0}}, {"kwargs": {"wage": 3.0}})
    with create_environment(EnvConfig(name=PAID, num_envs=5, variants=variants, kwargs={"wage": 9.0})) as env:
        env.reset()
        assert env.step(torch.zeros(5, dtype=torch.int64)).reward.tolist() == [2, 3, 2, 3, 2]


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (({},), "a variant is a mapping with some of name, max_episode_steps, kwargs"),
        (({"nmae": "x"},), "env.variants has the entry 'nmae' — did you mean 'name'?"),
        (({"kwargs": 3},), "it must be of the type dict"),
    ],
)
def test_variants_that_are_none_are_refused(variants, message):
    with pytest.raises(ConfigError) as refused:
        EnvConfig(name=PAID, variants=variants)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--env.num-envs", "2", "--env.variants", *VARIANTS), "env.num_envs is 2, and env.variants has 3 entries"),
        (("--env.variants", f"{{name: '{PAID.replace('Paid', 'Wide')}'}}", "{kwargs: {wage: 1}}"), "environment 1"),
        (("--env.vectorization", "native", "--env.variants", *VARIANTS), "env.variants are of single environments"),
    ],
)
def test_runs_whose_variants_do_not_fit_are_refused(options, message, capsys):
    assert exit_code("train", "ppo", PAID, *RUN, *options) == 2
    assert message in output(capsys)
    assert not Path("runs").exists()


def test_runs_of_other_variants_are_of_another_task(capsys):
    """The mean of what they earn says nothing; that of runs with the same ones does."""
    sets = {"a": VARIANTS[:2], "b": VARIANTS[:1], "c": VARIANTS[:2]}
    for name, variants in sets.items():
        assert exit_code("train", "ppo", PAID, *RUN, "--run.name", name, "--env.variants", *variants) == 0
    assert exit_code("eval", "a", "b", "--episodes", "2") == 2
    said = output(capsys)
    assert "whose returns have no mean" in said and "variants=" in said
    assert exit_code("eval", "a", "c", "--episodes", "2") == 0


def test_variants_stand_in_the_configuration_of_a_run(capsys):
    assert exit_code("train", "ppo", PAID, *RUN, "--env.variants", *VARIANTS, "--print-config") == 0
    written = yaml.safe_load(capsys.readouterr().out)["env"]["variants"]
    assert written == [yaml.safe_load(text) for text in VARIANTS]


@pytest.mark.parametrize(("episodes", "count"), [(1, 1), (3, 3), (4, 3), (8, 6), (20, 6)])
def test_an_evaluation_steps_as_many_environments_of_each_variant(episodes, count):
    config = palaestra.preset("ppo", "CartPole-v1")
    variants = ({"kwargs": {}}, {"max_episode_steps": 9}, {"max_episode_steps": 8})
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, variants=variants),
        run=dataclasses.replace(config.run, eval_num_envs=5),
    )
    assert evaluation_count(config, episodes) == count
