"""Robots train from the command line like everything else: run directory, resume, metrics, evaluation, faults."""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import palaestra
from palaestra import NetworkConfig
from palaestra.algorithms import A2C, DQN, A2CConfig, AlgorithmConfig, DQNConfig
from palaestra.core import CheckpointError, ConfigError, DiscreteSpec, NonFiniteError, RunSeeds
from palaestra.experiments import RunDirectory, evaluate_run
from palaestra.policies import load_policy
from palaestra.robots import Agent, AgentError, ComputationTask, ModelTask, Robot, task_seeds
from palaestra.runs import make_learner
from palaestra.runs.lineage import begin_from
from tests.cli.parts import exit_code, output

ROBOT, WORLD = "tests.experiments.test_robots:Walker", "tests.experiments.test_robots:Line"
SIZES = {
    "env__num_envs": 2,
    "robot__steps_per_iteration": 20,
    "trainer__total_env_steps": 160,
    "trainer__eval_every_steps": 80,
    "trainer__checkpoint_every_steps": 80,
    "trainer__log_every_steps": 40,
    "trainer__eval_episodes": 3,
    "run__tensorboard": False,
}


class Line(gymnasium.Env[np.ndarray, np.int64]):
    """Ten steps along a line; each to the right pays 1, or each step `pays`. Fails in step `fail_at`."""

    def __init__(self, fail_at: int = -1, pays: float | None = None) -> None:
        self.observation_space, self.action_space = spaces.Box(-20, 20, (1,), np.float32), spaces.Discrete(2)
        self._x = self._steps = 0
        self._fail_at, self._pays = fail_at, pays

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._x = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._fail_at:
            raise ValueError("lost")
        self._x += 1 if action else -1
        over = self._steps % 10 == 0
        return np.array([self._x], np.float32), float(action) if self._pays is None else self._pays, over, False, {}


@dataclass(frozen=True, kw_only=True)
class WalkerConfig(AlgorithmConfig):
    """Settings of `Walker`."""

    period: int = 5
    """Env steps between two choices of the slow task."""
    sync_every: int | None = None
    """Updates after which the copy that the fast task predicts with follows."""


class WalkerAgent(Agent):
    def run_one_episode(self) -> None:
        slow, fast = self.helpers["slow"], self.helpers["fast"]
        step = since = self.env.reset()
        earned = 0.0
        while not step.last:
            if slow.due:
                slow.predict(since)
                earned = 0.0
            step = self.env.step(fast.predict(step))
            fast.store_data(step)
            earned += step.reward
            if slow.due or step.last:
                since = step._replace(reward=earned)
                slow.store_data(since)


class Walker(Robot):
    """A slow task beside a fast one."""

    config_class = WalkerConfig
    agent_class = WalkerAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        network = NetworkConfig(hidden_sizes=(8,))
        slow = DQNConfig(unroll_length=1, learning_starts=4, mini_batch_size=4, capacity=200, network=network)
        fast = A2CConfig(unroll_length=5, network=network)
        first = DQN(self.observation_spec, DiscreteSpec(num=3), slow, task_seeds(seeds, 0))
        second = A2C(self.observation_spec, self.action_spec, fast, task_seeds(seeds, 1))
        slow_task = ComputationTask(first, period_steps=self.config.period)
        return {"slow": slow_task, "fast": ComputationTask(second, sync_every_updates=self.config.sync_every)}


class Code(nn.Module):
    """Learns to see by itself."""

    def __init__(self, perception: nn.Module) -> None:
        super().__init__()
        self.perception, self.decoder = perception, nn.Linear(4, 1)

    def loss(self, batch: Any) -> torch.Tensor:
        return (self.decoder(self.perception(batch.observation)) - batch.observation).square().mean()


class Watcher(Agent):
    def run_one_episode(self) -> None:
        play, watch = self.helpers["play"], self.helpers["watch"]
        step = self.env.reset()
        watch.begin(step)
        while not step.last:
            step = self.env.step(play.predict(step))
            watch.store_data(step, action=play.action)
            play.store_data(step)


class SharedSight(Robot):
    """Two tasks train one perception."""

    agent_class = Watcher

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        perception = nn.Linear(1, 4)
        specs = self.observation_spec, self.action_spec
        play = A2C(*specs, A2CConfig(unroll_length=5), task_seeds(seeds, 0), network=perception)
        watch = ModelTask(Code(perception), *specs, seeds=task_seeds(seeds, 1))
        return {"play": ComputationTask(play), "watch": watch}


def trained(folder, **settings):
    return palaestra.train(ROBOT, WORLD, run__directory=str(folder), **(SIZES | settings))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), run__name="walker")


def rows_of(run):
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_directory_has_what_every_run_has(run):
    assert run.result.status == "done" and run.result.env_steps == 160
    for name in ("config.yaml", "run.json", "metrics.jsonl", "episodes.csv", "report.html"):
        assert (run.directory / name).is_file(), name
    assert len((run.directory / "episodes.csv").read_text().splitlines()) == 1 + 16
    assert sorted(path.stem for path in (run.directory / "evals").iterdir()) == ["160", "80"]
    assert run.result.evaluation.episodes == 3 and 0 <= run.result.evaluation.return_mean <= 10


def test_metrics_are_of_each_task(run):
    """PARL-12: what each learned, how large its batches were; the slow one asks a fifth as often."""
    last = rows_of(run)[-1]
    assert {"learning/slow/q", "learning/fast/entropy"} <= last.keys()
    assert last["robot/fast/predict/requests"] == 160 and last["robot/slow/predict/requests"] == 32
    assert last["robot/fast/predict/batches"] < 160 and last["gradient_steps"] > 16


def test_policies_are_kept_by_task(run):
    assert load_policy(run.directory / "policy" / "fast").action_spec.num == 2
    assert load_policy(run.directory / "policy" / "slow").action_spec.num == 3


@pytest.mark.parametrize("which", ["best", "last", "80"])
def test_a_run_is_evaluated_afterwards(run, which):
    found = evaluate_run(run.directory, episodes=4, which=which)
    assert found.episodes == 4 and found.length_mean == 10
    if which == "last":
        again = evaluate_run(run.directory, episodes=3, which="last", seed=0)
        assert again.returns == run.result.evaluation.returns


def test_a_robot_does_not_draw_its_actions_in_an_evaluation(run):
    with pytest.raises(ConfigError, match="most valuable actions only; leave out --stochastic"):
        evaluate_run(run.directory, episodes=2, deterministic=False)


def test_what_a_task_that_only_watches_has_learned_is_kept_and_loaded(tmp_path):
    """Its module is the robot's own, which no file could name."""
    sizes = SIZES | {"env__kwargs": {"num_sensors": 8}, "env__max_episode_steps": 20, "run__directory": str(tmp_path)}
    done = palaestra.train("examples.robots.auxiliary:SeeingRobot", "palaestra.envs.tiny:Backdrop", **sizes)
    kept = json.loads((done.directory / "policy" / "see" / "policy.json").read_text())
    assert kept["policy"] == "ModelPolicy"
    again = evaluate_run(done.directory, episodes=3, which="last", seed=0)
    assert again.returns == done.result.evaluation.returns


def test_a_task_whose_policy_is_lost_is_not_evaluated_with_another(run, tmp_path):
    copy = tmp_path / "walker"
    shutil.copytree(run.directory, copy)
    shutil.rmtree(copy / "policy" / "fast")
    with pytest.raises(CheckpointError, match=r"policy.fast"):
        evaluate_run(copy, episodes=2)


def test_policies_around_a_module_that_two_tasks_share_are_kept_and_loaded(tmp_path):
    """No file could name it."""
    done = palaestra.train(
        "tests.experiments.test_robots:SharedSight", WORLD, run__directory=str(tmp_path), **(SIZES | {"run__seed": 1})
    )
    again = evaluate_run(done.directory, episodes=3, which="best", seed=0)
    last = evaluate_run(done.directory, episodes=3, which="last", seed=0)
    assert last.returns == done.result.evaluation.returns and again.episodes == 3


def test_a_reference_copy_begins_with_the_policy_of_the_other_run(run):
    config = RunDirectory(run.directory).config
    given = dataclasses.replace(config.run, initial_policy=str(run.directory))
    learner = make_learner(dataclasses.replace(config, run=given, algorithm=WalkerConfig(sync_every=100)))
    begin_from(learner)
    begun, kept = learner.robot.tasks["fast"].acting_policy, load_policy(run.directory / "policy" / "fast")
    assert all(torch.equal(weight, kept.state_dict()[name]) for name, weight in begun.state_dict().items())


def test_a_resumed_run_goes_on_with_new_episodes(tmp_path):
    """Weights, optimizers, buffers and counters are those of the checkpoint; it says `statistical`."""
    first = trained(tmp_path, run__name="walker", trainer__total_env_steps=80)
    more = palaestra.resume("walker", root=tmp_path, trainer__total_env_steps=240)
    assert more.result.env_steps == 240 and RunDirectory(first.directory).info["resume"] == "statistical"
    rows = rows_of(more)
    assert [row["env_steps"] for row in rows] == [40, 80, 120, 160, 200, 240]
    assert rows[-1]["gradient_steps"] > rows[1]["gradient_steps"] > 0
    assert len((first.directory / "episodes.csv").read_text().splitlines()) == 1 + 24


@pytest.mark.slow
def test_the_command_line_knows_the_settings_of_the_robot(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--env.num-envs", "2", "--trainer.total-env-steps", "100", "--algorithm.period", "2", "--run.name", "w"]
    assert exit_code("train", ROBOT, WORLD, *options, "--run.no-tensorboard", "--trainer.eval-episodes", "2") == 0
    assert "report" in output(capsys)
    assert RunDirectory(tmp_path / "runs" / "w").config.algorithm.period == 2
    further = RunDirectory(tmp_path / "runs" / "w").env_steps + 100
    assert exit_code("resume", "runs/w", "--until", str(further)) == 0
    assert exit_code("eval", "runs/w", "--episodes", "2") == 0
    assert "2 episodes, deterministic" in output(capsys)
    assert exit_code("train", ROBOT, WORLD, "--algorithm.perod", "2") == 2
    assert "did you mean --algorithm.period" in output(capsys)


def test_a_run_is_filmed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    world = "palaestra.envs.tiny:FourRooms"
    options = ["--env.max-episode-steps", "9", "--trainer.total-env-steps", "20", "--trainer.eval-episodes", "2"]
    assert exit_code("train", "tests.robots.parts:GoalRobot", world, *options, "--run.name", "w") == 0
    assert exit_code("play", "runs/w", "--episodes", "2", "--output", "film.gif") == 0
    assert "2 episode(s)" in output(capsys) and (tmp_path / "film.gif").stat().st_size > 1000


@pytest.mark.slow
def test_several_seeds_train_side_by_side(tmp_path):
    group = trained(tmp_path, seeds=2)
    assert group.exit_code == 0 and len(list(group.directory.glob("seed_*/report.html"))) == 2


@pytest.mark.slow
def test_agents_of_a_run_live_in_worker_processes(tmp_path):
    run = trained(tmp_path, distributed__runtime="process", distributed__num_workers=2)
    assert run.result.env_steps == 160 and rows_of(run)[-1]["robot/fast/predict/requests"] == 160


def test_an_agent_that_fails_ends_the_run_with_a_report_of_the_fault(tmp_path):
    with pytest.raises(AgentError, match="lost"):
        trained(tmp_path, run__name="w", env__kwargs={"fail_at": 35})
    info = RunDirectory(tmp_path / "w").info
    assert info["status"] == "failed" and "lost" in info["error"]
    (fault,) = (tmp_path / "w" / "faults").glob("*.json")
    assert "agent" in fault.read_text()


def test_what_a_robot_cannot_do_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="each agent of a robot has an environment of its own"):
        trained(tmp_path, env__vectorization="process")
    with pytest.raises(ConfigError, match=r"leave out offline\.data"):
        trained(tmp_path, offline__data=str(tmp_path))
    with pytest.raises(ConfigError, match=r"robot\.steps_per_iteration is 0"):
        trained(tmp_path, robot__steps_per_iteration=0)
    unheeded = {"timeout_s": 20.0, "max_restarts": 1, "min_workers": 2, "gradient_shards": 2}
    names = r"distributed\.gradient_shards, distributed\.timeout_s, distributed\.min_workers, distributed\.max_restarts"
    with pytest.raises(ConfigError, match=f"leave out {names}"):
        trained(tmp_path, distributed__runtime="process", **{f"distributed__{n}": v for n, v in unheeded.items()})
    with pytest.raises(ConfigError, match=r"leave out env\.timeout_s, env\.strict"):
        trained(tmp_path, env__timeout_s=2.0, env__strict=True)


@pytest.mark.parametrize(
    ("name", "value"), [("inputs", ("reward",)), ("info", ("cost",)), ("untransformed", True), ("auto_reset", False)]
)
def test_what_tasks_and_agents_decide_themselves_is_refused(name, value, tmp_path):
    with pytest.raises(ConfigError, match=rf"is a robot, .*; leave out env\.{name}$"):
        trained(tmp_path, **{f"env__{name}": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("episodes", "of_each"), [(9, [3, 3, 3]), (8, [3, 3, 2])])
def test_an_evaluation_has_as_many_episodes_of_each_variant_and_reports_each(episodes, of_each, tmp_path):
    """Variant k pays k + 1 for every step."""
    variants = tuple({"kwargs": {"pays": pays}} for pays in (1.0, 2.0, 3.0))
    run = trained(tmp_path, env__variants=variants, env__num_envs=3, trainer__eval_episodes=episodes)
    found = run.result.evaluation
    assert [sum(lane % 3 == variant for lane in found.env_ids) for variant in range(3)] == of_each
    assert {f"return_of_variant_{variant}": 10.0 * (variant + 1) for variant in range(3)}.items() <= found.parts.items()
    assert rows_of(run)[-1]["eval/info/return_of_variant_2"] == 30.0


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_nan_of_an_environment_is_a_fault_that_is_written_down(on_fault, tmp_path, monkeypatch):
    monkeypatch.setattr("palaestra.envs.supervision.faults._LONGEST_WAIT_S", 0.01)
    settings = {"env__chaos": "nan@7#0", "env__on_fault": on_fault, "env__max_restarts": 1000}
    if on_fault == "raise":
        with pytest.raises(NonFiniteError, match=r"environment 0 emitted observation\[0\] = nan in episode 0"):
            trained(tmp_path, run__name="w", **settings)
    else:
        trained(tmp_path, run__name="w", **settings)
    faults = [json.loads(path.read_text()) for path in (tmp_path / "w" / "faults").glob("*.json")]
    assert (len(faults) == 1) is (on_fault == "raise") and {fault["kind"] for fault in faults} == {"NonFiniteError"}
