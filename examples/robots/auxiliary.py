"""A robot that learns to see by what its actions change, beside learning to act: an auxiliary task for perception.

In `Backdrop` a walker is hidden among a thousand sensors, before a backdrop that is another one in every episode, and
only one place pays. The task "see" guesses from two observations in a row which action lay between them. It has a label
in every step, paid or not, and the backdrop falls out of the difference. The task "play" (A2C) acts on the features
that are found so. No gradient passes between the two. With `see` off, "play" reads the sensors itself.

palaestra train examples.robots.auxiliary:SeeingRobot palaestra.envs.tiny:Backdrop --env.max-episode-steps 60 \
    --env.num-envs 8 --trainer.total-env-steps 12000
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from palaestra import (
    AlgorithmConfig,
    CoreModel,
    GradientAlgorithm,
    Losses,
    NetworkConfig,
    OptimizerOption,
    Replay,
    RunSeeds,
    Trainer,
    TrainerConfig,
)
from palaestra.algorithms import A2C, A2CConfig
from palaestra.core import TensorSpec, TimeStep, seeded_initialisation
from palaestra.envs import load
from palaestra.nn import Network
from palaestra.policies import NetworkPolicy, PolicyStep
from palaestra.robots import Agent, ComputationTask, Robot, RobotCollector, task_seeds

NUM_FEATURES = 4


class Features(NetworkPolicy):
    """Its "action" is what the perception makes of the sensors."""

    @classmethod
    def network_for(cls, observation_spec: Any, action_spec: Any, config: NetworkConfig) -> Network:
        perception = Network(observation_spec["sensors"], action_spec.size, config)
        last: Any = perception.mlp.layers[-1]
        nn.init.normal_(last.weight, std=1e-4)  # what no change speaks for should stay near 0
        return perception

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        return PolicyStep(self.network(observation.sensors), state)


class InverseDynamics(GradientAlgorithm[Features]):
    """Which action lay between two observations, from the difference of their features."""

    def __init__(self, sensors: Any, actions: Any, seeds: RunSeeds) -> None:
        with seeded_initialisation(seeds.integer("initialisation")):
            seen = {"sensors": sensors, "moved": actions}
            policy = Features.build(seen, TensorSpec((NUM_FEATURES,)), NetworkConfig(hidden_sizes=()))
            self.head = nn.Linear(NUM_FEATURES, actions.num)
        parts = nn.ModuleDict({"perception": policy.network, "head": self.head})
        model = CoreModel({"inverse": parts}, {"inverse": OptimizerOption("adam", {"lr": 3e-3})})
        plan = Replay(unroll_length=8, gradient_steps=8, mini_batch_size=64, capacity=20_000)
        super().__init__(AlgorithmConfig(), policy=policy, model=model, plan=plan, seeds=seeds)

    def losses(self, batch: Any) -> Losses:
        before, after = (self.policy.network(seen.sensors) for seen in (batch.observation, batch.next_observation))
        guess, moved = self.head(after - before), batch.next_observation.moved
        right = (guess.argmax(-1) == moved).float().mean()
        return Losses({"inverse": nn.functional.cross_entropy(guess, moved)}, {"right": right})


@dataclass(frozen=True, kw_only=True)
class SeeingConfig(AlgorithmConfig):
    """Settings of `SeeingRobot`."""

    see: bool = True
    """Whether there is a task for perception."""
    learning_rate: float = 2e-3
    """Step size of the task that acts."""
    normalize: bool = True
    """Whether that task shifts and scales what it sees to mean 0 and standard deviation 1."""


class SeeingAgent(Agent):
    """Looks, acts, and lets the perception learn from what came of it."""

    def run_one_episode(self) -> None:
        see, play = self.helpers.get("see"), self.helpers["play"]
        step = self.env.reset()
        seen = step if see is None else self.look(step, 0)
        while not step.last:
            action = play.predict(seen)
            step = self.env.step(action)
            seen = step if see is None else self.look(step, action)
            play.store_data(seen)

    def look(self, step: TimeStep, moved: int) -> TimeStep:
        """The step with features in the place of sensors; whatever came before is stored."""
        see = self.helpers["see"]
        view = step._replace(observation={"sensors": step.observation, "moved": moved})
        if not step.first:
            see.store_data(view)
        return step._replace(observation=see.predict(view))


class SeeingRobot(Robot):
    """A2C on features, or on what the sensors say."""

    config_class, agent_class = SeeingConfig, SeeingAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        seeing = InverseDynamics(self.observation_spec, self.action_spec, task_seeds(seeds, 1))
        spec = seeing.policy.action_spec if self.config.see else self.observation_spec
        settings = A2CConfig(
            learning_rate=self.config.learning_rate,
            normalize_observation=self.config.normalize,
            network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
            unroll_length=8,
            gamma=0.95,
            gae_lambda=0.95,
        )
        tasks = {"play": ComputationTask(A2C(spec, self.action_spec, settings, task_seeds(seeds, 0)))}
        return ({"see": ComputationTask(seeing)} if self.config.see else {}) | tasks


def backdrop(number: int) -> Any:
    return load("palaestra.envs.tiny:Backdrop", env_id=number, max_episode_steps=60)


def main() -> None:
    env = backdrop(0)
    robot = SeeingRobot(env.observation_spec, env.action_spec)
    with RobotCollector(robot, backdrop, num_agents=8) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=800)).run()
    print({name: task.algorithm.num_gradient_steps for name, task in robot.tasks.items()})


if __name__ == "__main__":
    main()
