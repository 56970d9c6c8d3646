"""Hindsight replay of whole runs: what is drawn, what resumes, and what is refused before anything starts."""

import dataclasses
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Dict

import palaestra
from palaestra.buffers import HindsightSampler, UniformSampler
from palaestra.config.config import config_from_mapping
from palaestra.core import POLICY, ConfigError
from palaestra.experiments import ExperimentConfig, HindsightConfig, RunDirectory, dry_run, preset
from palaestra.runs.build import make_algorithm, make_learner
from palaestra.runs.single import hindsight_sampler
from palaestra.training import CheckpointStore
from tests.cli.parts import exit_code
from tests.experiments.data import saved
from tests.faults.parts import differences
from tests.learning.test_goals import REACH, Reach
from tests.training.parts import Recorder

HERE = "tests.experiments.test_hindsight"
SMALL: dict[str, Any] = {
    "env__max_episode_steps": 10,
    "env__num_envs": 2,
    "algorithm__network__hidden_sizes": (8,),
    "algorithm__mini_batch_size": 16,
    "algorithm__capacity": 1000,
    "algorithm__learning_starts": 40,
    "hindsight__share": 0.8,
    "trainer__total_env_steps": 160,
    "trainer__checkpoint_every_steps": 30,
    "trainer__eval_every_steps": 80,
    "trainer__eval_episodes": 2,
    "run__tensorboard": False,
}


class Without(Reach):
    """A goal environment that keeps its reward to itself."""

    compute_reward = None  # type: ignore[assignment]

    def step(self, action: np.ndarray) -> Any:
        return self._observation(), 0.0, False, False, {}


class Uneven(Reach):
    """Reaches a place in the plane, and is asked for one on a line."""

    def __init__(self) -> None:
        super().__init__()
        spaces = dict(self.observation_space.spaces)  # pyright: ignore[reportAttributeAccessIssue]
        self.observation_space = Dict(spaces | {"desired_goal": Box(-1, 1, (1,), np.float32)})

    def _observation(self) -> Any:
        seen = super()._observation()
        return {**seen, "desired_goal": seen["desired_goal"][:1]}


class Costly(Reach):
    """Actions cost something as well."""

    def step(self, action: np.ndarray) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward - 0.5, *rest


class Parts(Reach):
    """Rewards of two parts, of which the second may be less than its goals say."""

    reward_space = Box(-2, 2, (2,), np.float32)

    def __init__(self, less: float = 0.0) -> None:
        super().__init__()
        self._less = less

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        cost = Reach.compute_reward(achieved, desired, info)
        return np.stack([cost, 1 + cost], -1)

    def step(self, action: np.ndarray) -> Any:
        self._place = np.clip(self._place + 0.25 * action, -1, 1).astype(np.float32)
        reward = self.compute_reward(self._place, self._goal, {}) - np.array([0, self._less], np.float32)
        return self._observation(), reward, False, False, {}


class Single(Reach):
    """Computes one row at a time."""

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return -float(np.linalg.norm(achieved - desired) > 0.07)


class Informed(Reach):
    """Rewards what only the info has."""

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return Reach.compute_reward(achieved, desired, info) + info["bonus"]

    def step(self, action: np.ndarray) -> Any:
        return self._observation(), 0.0, False, False, {}


class Ending(Reach):
    """Ends where the goal is reached, or at once; one boolean is for all rows where `rows` is False."""

    def __init__(self, falls: bool = False, rows: bool = True) -> None:
        super().__init__()
        self._falls, self._rows = falls, rows

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        over = Reach.compute_reward(achieved, desired, info) == 0
        return over if self._rows else bool(np.all(over))

    def step(self, action: np.ndarray) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self._falls or reward == 0, False, info


def pool(num_envs: int) -> gymnasium.vector.SyncVectorEnv:
    """All environments as one."""
    return gymnasium.vector.SyncVectorEnv([Reach] * num_envs)


def config_of(algorithm: str = "sac", env: str = REACH.name, **settings: Any) -> ExperimentConfig:
    known = SMALL if algorithm in ("sac", "td3") else {"hindsight__share": 0.8}
    return config_from_mapping(ExperimentConfig, known | settings, base=preset(algorithm, env))


def drawn(config: ExperimentConfig) -> Any:
    """A batch of what a run would learn from after some steps, and how many rows are its own."""
    learner = make_learner(config)
    with learner.collecting(learner.load_data()) as made:
        collect, algorithm = made.collector, learner.algorithms[POLICY]
        while collect.env_steps < 200:
            collect.unroll(10, random=[POLICY])
        buffer: Any = collect.buffers[POLICY]
        plan = dataclasses.replace(algorithm.plan, mini_batch_size=200)
        batch = collect.sources[POLICY].draw(plan, torch.Generator().manual_seed(0))
        return batch, buffer.positions.ring_size * buffer.num_lanes


# -- what is drawn


@pytest.mark.parametrize(
    "distributed",
    [
        {},
        {"distributed__runtime": "local", "distributed__num_workers": 2},
        {"distributed__runtime": "local", "distributed__num_workers": 2, "distributed__mode": "async"},
    ],
    ids=["here", "workers", "actors"],
)
def test_rows_of_a_run_reach_their_goals_wherever_they_are_collected(distributed):
    reached = (drawn(config_of(hindsight__share=0.8, **distributed))[0].reward[1] == 0).float().mean()
    assert reached > 0.1
    mutant = (drawn(config_of(hindsight__share=0.0, **distributed))[0].reward[1] == 0).float().mean()
    assert mutant < 0.02


def test_rows_of_loaded_data_do_too(tmp_path):
    batch, own = drawn(config_of(offline__data=saved(tmp_path / "data", REACH, steps=200)))
    for mine in (batch.index < own, batch.index >= own):
        assert mine.any()
        assert (batch.reward[1, mine] == 0).float().mean() > 0.1


def test_the_strategy_is_that_of_the_setting_and_the_base_is_the_sampler_of_the_plan():
    config = config_of("td3", hindsight__strategy="final")
    with make_learner(config).collecting({}) as made:
        sampler: Any = made.collector.buffers[POLICY].sampler  # type: ignore[attr-defined]
    assert isinstance(sampler, HindsightSampler)
    assert (sampler.strategy, sampler.share, sampler.terminated) == ("final", 0.8, None)
    assert isinstance(sampler.base, UniformSampler)


def test_a_dry_run_replays_with_hindsight(monkeypatch):
    batches = []
    finish = HindsightSampler.finish
    monkeypatch.setattr(HindsightSampler, "finish", lambda *args: batches.append(1) or finish(*args))
    assert dry_run(config_of()).updates <= len(batches) + 1


@pytest.mark.parametrize(("kwargs", "used"), [({}, True), ({"rows": False}, False), ({"falls": True}, False)], ids=str)
def test_ends_follow_the_goals_where_the_environment_says_how(kwargs, used):
    """One boolean for all rows cannot be used, nor a function that is silent about some ends."""
    config = config_of(env=f"{HERE}:Ending", env__kwargs=kwargs)
    make = hindsight_sampler(config, make_algorithm(config))
    assert make is not None
    assert (make().terminated is not None) == used
    if used:
        batch, _ = drawn(config)
        assert torch.equal(batch.discount[1] == 0, batch.reward[1] == 0)
        assert (batch.discount[1] == 0).any()


# -- resuming


class Cut(Recorder):
    """Sends SIGTERM once so many env steps are taken."""

    def __init__(self, env_steps: int) -> None:
        super().__init__()
        self.env_steps = env_steps

    def metrics(self, row: Any) -> None:
        if row["env_steps"] >= self.env_steps:
            self.env_steps = 10**9
            signal.raise_signal(signal.SIGTERM)


def newest(directory: Path) -> dict[str, Any]:
    state = CheckpointStore(directory / "checkpoints").load_newest()[1]
    del state["trainer"]["seconds"]
    return state


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_run_cut_in_the_middle_equals_the_uninterrupted_one(tmp_path, hybrid):
    """F25."""
    settings = {"run__directory": str(tmp_path), "trainer__log_every_steps": 10}
    if hybrid:
        settings["offline__data"] = saved(tmp_path / "data", REACH, steps=200)
    whole = palaestra.run(config_of(**settings, run__name="whole"))
    cut = palaestra.run(config_of(**settings, run__name="cut"), loggers=[Cut(94)])
    assert (cut.result.status, whole.result.status) == ("interrupted", "done")
    assert cut.result.env_steps < 160
    resumed = palaestra.resume(cut.directory)
    assert RunDirectory(cut.directory).info["resume"] == "exact"
    assert differences(newest(whole.directory), newest(resumed.directory)) == []
    without = palaestra.run(config_of(**settings, run__name="without", hindsight__share=0.0))
    assert differences(newest(whole.directory), newest(without.directory))


def test_a_run_from_before_the_setting_is_resumed_and_may_begin_with_hindsight(tmp_path):
    config = config_of(hindsight__share=0.0, run__directory=str(tmp_path), run__name="old")
    directory = palaestra.run(config).directory
    settings = yaml.safe_load((directory / "config.yaml").read_text())
    assert settings.pop("hindsight") == {"share": 0.0, "strategy": "future"}
    (directory / "config.yaml").write_text(yaml.safe_dump(settings))
    assert RunDirectory(directory).config == config
    palaestra.resume(directory, trainer__total_env_steps=200, hindsight__share=0.5)
    assert RunDirectory(directory).config.hindsight == HindsightConfig(share=0.5)


# -- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": -0.1}, r"hindsight.share is -0.1; it must lie in \[0, 1\]"),
        ({"share": 1.5}, "hindsight.share is 1.5"),
        ({"share": float("nan")}, "hindsight.share is nan"),
        ({"share": 0.5, "strategy": "past"}, "hindsight.strategy is 'past'; it must be"),
        ({"strategy": "final"}, "hindsight.strategy is 'final', but hindsight.share is 0.* give a share"),
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(settings, message):
    """F27."""
    with pytest.raises(ConfigError, match=message):
        HindsightConfig(**settings)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "message"),
    [
        ("ppo", REACH.name, {}, "ppo learns only from its own newest steps, and hindsight needs an algorithm that"),
        ("td3_bc", REACH.name, {}, "td3_bc learns from loaded data alone"),
        (
            "decision_transformer",
            REACH.name,
            {"offline__data": "demo", "offline__updates": 5, "offline__fraction": 0.5},
            "decision_transformer learns from returns, or from what a search found, of the goal that was given",
        ),
        ("dqn", "palaestra.multiagent:Meeting", {}, "Meeting has many agents"),
        ("tests.experiments.test_robots:Walker", "tests.experiments.test_robots:Line", {}, "Walker is a robot"),
        ("sac", "Pendulum-v1", {}, "observations of Pendulum-v1 are no dict, and hindsight needs the keys observation"),
        (
            "sac",
            REACH.name,
            {"env__gym_wrappers": ["FilterObservation(filter_keys=['observation', 'desired_goal'])"]},
            r"have the keys \['desired_goal', 'observation'\]|have the keys \['observation', 'desired_goal'\]",
        ),
        ("sac", f"{HERE}:pool", {"env__vectorization": "native", "env__max_episode_steps": None}, "as one pool"),
        ("sac", f"{HERE}:Without", {}, "is a Without, which has no compute_reward; hindsight needs `compute_reward"),
        (
            "sac",
            f"{HERE}:Uneven",
            {},
            r"achieved_goal is .*shape=\(2,\).* and desired_goal is .*shape=\(1,\).*, and bo",
        ),
        ("sac", f"{HERE}:Costly", {}, r"gives -1 for the goals of a step for which the run gets the reward -1.5: a wr"),
        ("sac", REACH.name, {"env__wrappers": ["ScaleReward(scale=3.0)"]}, r"gives -1 for .* the reward -3: a wrapper"),
        (
            "sac",
            f"{HERE}:Parts",
            {"env__kwargs": {"less": 0.5}, "algorithm__rewards__weights": (1.0, 1.0)},
            r"gives (0|1) for the goals of a step for which the run gets the reward (-0.5|0.5): a wrapper",
        ),
        (
            "sac",
            f"{HERE}:Parts",
            {"algorithm__rewards__weights": (1.0, 1.0), "algorithm__rewards__thresholds": (None, 0.3)},
            "sac would learn their weights from rewards of the goals of hindsight, which it did not earn",
        ),
        ("sac", REACH.name, {"env__variants": ({"kwargs": {}}, {"max_episode_steps": 5})}, "env.variants may reward"),
        ("sac", f"{HERE}:Single", {}, r"gave shape \(\) for goals \(2, 10, 2\) and rewards \(2, 10\); hindsight needs"),
        ("sac", f"{HERE}:Informed", {}, r"raised KeyError.* for goals \(2, 10, 2\) and an empty info"),
    ],
)
def test_what_cannot_be_is_named_before_anything_starts(algorithm, env, settings, message, tmp_path):
    """F27."""
    config = config_of(algorithm, env, run__directory=str(tmp_path / "runs"), **settings)
    for start in (palaestra.run, dry_run):
        with pytest.raises(ConfigError, match=message):
            start(config)
    assert not (tmp_path / "runs").exists()


def test_the_command_line_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ("--env.max-episode-steps", "10", "--algorithm.learning-starts", "30", "--run.no-tensorboard")
    budget = ("--trainer.total-env-steps", "60", "--trainer.eval-episodes", "2", "--run.name", "a")
    assert exit_code("train", "sac", REACH.name, *sizes, *budget, "--hindsight.share", "0.8") == 0
    assert RunDirectory(tmp_path / "runs/a").config.hindsight == HindsightConfig(share=0.8)
