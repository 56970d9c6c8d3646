"""Hindsight replay lets actor-critics learn from rewards that chance almost never meets."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra import Collector, EnvConfig, Trainer, TrainerConfig
from palaestra.buffers import HindsightSampler, MixtureSource, ReplayBuffer
from palaestra.policies import RulePolicy
from tests.algorithms.parts import environment, make
from tests.learning.parts import NUM_ENVS, evaluated
from tests.learning.test_continuous import OFF_POLICY


class Reach(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A point in a square, moved by at most 0.25 along each axis, that should stand within 0.07 of a goal.

    Every step elsewhere costs 1. A point that goes straight there pays about 2 of the 10 of an episode; chance meets a
    goal in a step out of three hundred.
    """

    def __init__(self) -> None:
        place = spaces.Box(-2, 2, (2,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), place))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._place = self._goal = np.zeros(2, np.float32)

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.07).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._place = np.zeros(2, np.float32)
        self._goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + 0.25 * action, -1, 1).astype(np.float32)
        return self._observation(), float(self.compute_reward(self._place, self._goal, {})), False, False, {}

    def _observation(self) -> dict[str, np.ndarray]:
        return {"observation": self._place, "achieved_goal": self._place, "desired_goal": self._goal}


REACH = EnvConfig(name="tests.learning.test_goals:Reach", max_episode_steps=10)
SETTINGS = {
    "ddpg": {"exploration_std": 0.3},
    "td3": {"exploration_std": 0.3},
    "sac": {"initial_temperature": 0.1, "temperature_learning_rate": 3e-3},
}


def straight(observation: Any) -> Any:
    """The rule that goes to the goal."""
    return ((observation.desired_goal - observation.achieved_goal) / 0.25).clamp(-1.0, 1.0)


def returns(name: str, seed: int, share: float) -> float:
    with environment(REACH, NUM_ENVS, seed) as environments:
        algorithm = make(name, environments, seed, **OFF_POLICY, gamma=0.9, **SETTINGS[name])
        collector = Collector.of(environments, algorithm)
        collector.buffer.sampler = HindsightSampler(Reach.compute_reward, share=share)
        Trainer(collector, algorithm, TrainerConfig(total_env_steps=3_000)).run()
    return evaluated(algorithm, REACH).return_mean


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_goals_are_reached_with_hindsight(name, seed):
    assert returns(name, seed, share=0.8) > -3.5


@pytest.mark.slow
def test_without_hindsight_no_goal_is_reached():
    """The mutant: the same learner, the same env steps, only the goals as they were."""
    assert returns("td3", 0, share=0.0) < -8.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_goals_are_reached_with_a_loaded_buffer_beside_the_own_one(seed):
    """ALF's offline buffer: a quarter of each minibatch is of episodes that a rule has made; no hindsight."""
    with environment(REACH, NUM_ENVS, seed) as environments:
        algorithm = make("td3", environments, seed, **OFF_POLICY, gamma=0.9, **SETTINGS["td3"])
        specs = environments.observation_spec, algorithm.policy.raw_action_spec
        loaded = ReplayBuffer(1_200, NUM_ENVS, observation_spec=specs[0], action_spec=specs[1])
        Collector(environments, RulePolicy(straight, *specs), loaded).unroll(300)
    with environment(REACH, NUM_ENVS, seed) as environments:
        collector = Collector.of(environments, algorithm)
        source = MixtureSource([(collector.buffer, 0.75), (loaded, 0.25)])
        collector.collect(n_step=200, random=True)
        while collector.env_steps < 3_000:
            collector.unroll(algorithm.plan.unroll_length)
            algorithm.update(source)
    assert evaluated(algorithm, REACH).return_mean > -4.0
