"""Training by hand, without files, for tests of what is learned."""

import dataclasses
from typing import Any

from palaestra import Collector, EnvConfig, Evaluation, NetworkConfig, Trainer, TrainerConfig, evaluate
from palaestra.algorithms import GradientAlgorithm
from palaestra.core import StepType, TimeStep
from palaestra.envs import EnvironmentWrapper
from tests.algorithms.parts import environment, make

NUM_ENVS = 4


class TruncationAsTermination(EnvironmentWrapper):
    """The mutant: calls a time limit an end of the task, as if nothing could come after it."""

    def begin_episode(self, seed: int) -> TimeStep:
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        time_step = self.env.advance(action)
        return time_step._replace(discount=0.0) if time_step.step_type == StepType.LAST else time_step


def learned(name: str, env: EnvConfig, env_steps: int, *, seed: int = 0, **settings: Any) -> GradientAlgorithm:
    """A small algorithm after so many env steps in four environments."""
    settings = {"network": NetworkConfig(hidden_sizes=(32,)), "gamma": 0.9, **settings}
    with environment(env, NUM_ENVS, seed) as environments:
        algorithm = make(name, environments, seed, **settings)
        trainer = Trainer(Collector.of(environments, algorithm), algorithm, TrainerConfig(total_env_steps=env_steps))
        trainer.run()
    return algorithm


def evaluated(algorithm: GradientAlgorithm, env: EnvConfig) -> Evaluation:
    """Twenty deterministic episodes with seeds that training never saw."""
    with environment(dataclasses.replace(env), NUM_ENVS, seed=99) as environments:
        return evaluate(algorithm.policy, environments, episodes=20)
