"""A robot of one task: flat SAC with the hindsight that both tasks of the hierarchy have."""

from dataclasses import dataclass

from examples.robots.hierarchical import near
from palaestra import AlgorithmConfig, NetworkConfig, RunSeeds
from palaestra.algorithms import SAC, SACConfig
from palaestra.buffers import HindsightSampler
from palaestra.robots import Agent, ComputationTask, Robot


@dataclass(frozen=True, kw_only=True)
class FlatConfig(AlgorithmConfig):
    """Settings of `FlatRobot`; what is not here is as in the hierarchy's control task."""

    learning_rate: float = 1e-3
    """Step size."""
    gamma: float = 0.98
    """Discount per env step."""
    temperature: float = 0.1
    """Of the entropy, at the beginning."""


class FlatAgent(Agent):
    """Observes, acts, stores."""

    def run_one_episode(self) -> None:
        control = self.helpers["control"]
        step = self.env.reset()
        while not step.last:
            step = self.env.step(control.predict(step))
            control.store_data(step)


class FlatRobot(Robot):
    """SAC with hindsight."""

    config_class, agent_class = FlatConfig, FlatAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        config = SACConfig(
            learning_rate=self.config.learning_rate,
            gamma=self.config.gamma,
            initial_temperature=self.config.temperature,
            network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
            mini_batch_size=128,
            unroll_length=4,
            gradient_steps=2,
        )
        sac = SAC(self.observation_spec, self.action_spec, config, seeds)
        return {"control": ComputationTask(sac, sampler=HindsightSampler(near, terminated=near))}
