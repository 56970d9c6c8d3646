"""Training by hand, without files, for tests of what is learned."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from palaestra import Collector, EnvConfig, Evaluation, NetworkConfig, Trainer, TrainerConfig, evaluate
from palaestra.algorithms import GradientAlgorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import StepType, TimeStep
from palaestra.envs import EnvironmentWrapper
from palaestra.policies import RandomPolicy, RulePolicy
from tests.algorithms.parts import environment, make

NUM_ENVS = 4


class Point(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point on a line that should go to 0: it moves by the action, at most 1, and pays the square of its place.

    From a uniform start in [-2, 2] the best mean return is -1/6: one step leads to 0, or to |x| - 1 where x is too far.
    Never moving gets -4/3 in every step.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-20, 20, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._x = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._x = float(self.np_random.uniform(-2, 2))
        return np.array([self._x], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._x += float(action[0])
        return np.array([self._x], np.float32), -(self._x**2), False, False, {}


POINT = EnvConfig(name="tests.learning.parts:Point", max_episode_steps=8)


class TruncationAsTermination(EnvironmentWrapper):
    """The mutant: calls a time limit an end of the task, as if nothing could come after it."""

    def begin_episode(self, seed: int) -> TimeStep:
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        return time_step._replace(discount=0.0) if time_step.step_type == StepType.LAST else time_step


def learned(
    name: str, env: EnvConfig, env_steps: int, *, seed: int = 0, num_envs: int = NUM_ENVS, **settings: Any
) -> GradientAlgorithm:
    """A small algorithm after so many env steps in a few environments."""
    settings = {"network": NetworkConfig(hidden_sizes=(32,)), "gamma": 0.9, **settings}
    with environment(env, num_envs, seed) as environments:
        algorithm = make(name, environments, seed, **settings)
        trainer = Trainer(Collector.of(environments, algorithm), algorithm, TrainerConfig(total_env_steps=env_steps))
        trainer.run()
    return algorithm


def learned_offline(
    name: str, env: EnvConfig, behaviour: Callable[[Any], Any] | None, updates: int, *, seed: int = 0, **settings: Any
) -> GradientAlgorithm:
    """A small algorithm after so many updates on the rows of a rule, or of a policy that acts at random."""
    with environment(env, NUM_ENVS, seed) as environments:
        algorithm = make(name, environments, seed, **settings)
        specs = environments.observation_spec, algorithm.policy.raw_action_spec
        executed = environments.observation_spec, environments.action_spec  # where both are the same numbers
        actor = RandomPolicy(*executed) if behaviour is None else RulePolicy(behaviour, *executed)
        actor.seed(seed)
        buffer = ReplayBuffer(4_000, NUM_ENVS, observation_spec=specs[0], action_spec=specs[1])
        Collector(environments, actor, buffer).unroll(1_000)
    for _ in range(updates):
        algorithm.update(buffer)
    return algorithm


def evaluated(algorithm: GradientAlgorithm, env: EnvConfig) -> Evaluation:
    """Twenty deterministic episodes with seeds that training never saw."""
    with environment(dataclasses.replace(env), NUM_ENVS, seed=99) as environments:
        return evaluate(algorithm.policy, environments, episodes=20)
