"""Iterations of whole episodes: `trainer.episodes_per_iteration`."""

import copy
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra import Collector, EnvConfig, Trainer, TrainerConfig, create_environment
from palaestra.core import ConfigError, TimeStep
from palaestra.distributed import AsynchronousConfig, DistributedConfig
from palaestra.experiments import ExperimentConfig
from palaestra.multiagent import AgentsConfig
from palaestra.rollout import OfflineData
from tests.algorithms.parts import environment, make
from tests.distributed.runs import assert_same
from tests.training.parts import rows_trained, trainer


class ShortOrLong(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of 1 or 21 steps, each as often as the other."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 21]))
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> Any:
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


def make_one(name: str = "reinforce", **settings: Any) -> Trainer:
    env = create_environment(EnvConfig(name=f"{__name__}:ShortOrLong", num_envs=4), seed=3)
    algorithm = make(name, env, 3, **settings)
    collector = Collector.of(env, algorithm)
    return Trainer(collector, algorithm, TrainerConfig(total_env_steps=10_000, episodes_per_iteration=4))


@pytest.mark.parametrize(("name", "settings"), [("reinforce", {}), ("ppo", {"num_epochs": 1})])
def test_every_environment_plays_as_many_episodes_and_all_of_them_are_learned_from(name: str, settings: dict[str, Any]):
    """Tianshou's n_episode, MARO's num_episodes: exactly 6 of 3 environments, and every row of them is used once."""
    made = trainer(name, episodes_per_iteration=6, total=10_000, **settings)
    for number in range(1, 4):
        made.train_iter()
        episodes = made.collector.drain()
        assert Counter(episode.env_id for episode in episodes) == {0: 2, 1: 2, 2: 2}
        assert rows_trained(made) == made.collector.env_steps
        assert made.algorithm.policy_version == number


def test_short_episodes_come_as_often_as_long_ones():
    """First come, first served would take nearly short ones alone; here the mean length is that of the environment."""
    made = make_one()
    lengths = []
    for _ in range(30):
        made.train_iter()
        lengths += [episode.length for episode in made.collector.drain()]
    assert len(lengths) == 120
    assert abs(np.mean(np.array(lengths) == 1) - 0.5) < 0.14  # 3 standard deviations


def test_replayed_episodes_have_their_ends():
    made = make_one("dqn", learning_starts=0, n_step=1)
    made.train_iter()
    made.train_iter()
    assert isinstance(made.collector, Collector)
    buffer = made.collector.buffer
    kinds = [buffer.take("step_type", buffer.in_time_order(lane)).tolist() for lane in range(4)]
    assert [lane.count(2) for lane in kinds] == [2] * 4
    assert [lane.count(0) for lane in kinds] == [2] * 4


@pytest.mark.parametrize(("name", "kind"), [("ppo", "recurrent"), ("dqn", "discrete")])
@pytest.mark.parametrize("pause_at", [0, 5])
def test_a_resumed_run_is_the_uninterrupted_one(name: str, kind: str, pause_at: int):
    """F25: between two iterations, and in the middle of one, where some environments have their episodes already."""

    def run(iterations: int, state: Any = None, pause: int = 0) -> Any:
        torch.set_flush_denormal(True)
        with environment(kind, 3, 7) as env:
            algorithm, steps = make(name, env, 7), 0

            def looked_at(time_step: TimeStep) -> TimeStep:
                nonlocal steps
                steps += 1
                if pause and steps == first + pause:
                    made.collector.pause()
                return time_step

            collector = Collector.of(env, algorithm, preprocess=looked_at)
            made = Trainer(collector, algorithm, TrainerConfig(total_env_steps=9999, episodes_per_iteration=6))
            if state is not None:
                made.load_state(state)
            for number in range(iterations):
                first = steps if number == iterations - 1 else 10**9
                made.train_iter()
            assert made.collector.unfinished == bool(pause)
            saved = copy.deepcopy(made.state())
            torch.set_flush_denormal(False)
            return saved, {**algorithm.state_tensors(), "env_steps": collector.env_steps}

    _, whole = run(4)
    saved, _ = run(3 if pause_at else 2, pause=pause_at)
    assert_same(run(2, saved)[1], whole)


def test_episodes_that_are_asked_for_after_a_pause_in_an_unroll_of_steps_are_played():
    """F25: the rest of that unroll was waited for, by nobody."""
    with environment("discrete", 2, 7) as env:
        collector = Collector.of(env, make("ppo", env, 7))
        collector.preprocess = lambda time_step: collector.pause() or time_step
        collector.unroll(50)
        assert collector.unfinished
        collector.preprocess, collector.episodes = None, 2
        assert Counter(episode.env_id for episode in [*collector.unroll(50).episodes, *collector.drain()])
        assert not collector.unfinished


def test_what_cannot_play_whole_episodes_says_so():
    """Each by its name, before anything is collected."""
    asked = TrainerConfig(episodes_per_iteration=6)
    with pytest.raises(ConfigError, match=r"leave out distributed.mode=async"):
        ExperimentConfig(
            trainer=asked,
            distributed=DistributedConfig(runtime="local", mode="async", num_workers=1),
            asynchronous=AsynchronousConfig(),
        )
    workers = DistributedConfig(runtime="local", num_workers=2, min_finished_workers=1)
    with pytest.raises(ConfigError, match=r"leave out distributed.min_finished_workers"):
        ExperimentConfig(trainer=asked, env=EnvConfig(num_envs=2), distributed=workers)
    with pytest.raises(ConfigError, match=r"leave out env.num_ready"):
        ExperimentConfig(trainer=asked, env=EnvConfig(num_envs=2, num_ready=1, vectorization="process"))
    with pytest.raises(ConfigError, match=r"6, which 4 environments cannot share evenly.*Give a multiple of 4"):
        trainer("ppo", num_envs=4, episodes_per_iteration=6)
    with pytest.raises(ConfigError, match="must be at least 1"):
        TrainerConfig(episodes_per_iteration=0)
    full = trainer("dqn").collector
    assert isinstance(full, Collector)
    full.collect(n_step=9)
    with pytest.raises(ConfigError, match="a OfflineData cannot collect whole episodes"):
        Trainer(OfflineData(full.buffer), trainer("dqn").algorithm, asked)
    config = ExperimentConfig(trainer=asked, env=EnvConfig(name="palaestra.multiagent:Meeting"), agents=AgentsConfig())
    with pytest.raises(ConfigError, match="many agents, whose environments are stepped by time steps"):
        palaestra.run(config)
