"""What a new run of a robot may be asked: settings that its tasks heed, and tasks that agents can share."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import palaestra
from palaestra.algorithms import A2C, A2CConfig, EvolutionStrategies, FlashSAC
from palaestra.core import BoundedSpec, ConfigError, RunSeeds, TensorSpec
from palaestra.robots import Agent, ComputationTask, ModelTask, Robot
from tests.experiments.test_robots import SIZES, WORLD, Code, Line, SharedSight

HERE = "tests.experiments.test_new_robots"


class TwoRewards(Line):
    """Pays for steps to the right, and 1 in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.reward_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: np.int64) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, 1], np.float32), *rest


class Sums(Agent):
    """Its task learns from the sum."""

    def run_one_episode(self) -> None:
        act = self.helpers["act"]
        step = self.env.reset()._replace(reward=0.0)
        while not step.last:
            step = self.env.step(act.predict(step))
            act.store_data(step._replace(reward=float(np.sum(step.reward))))


class Summing(Robot):
    agent_class = Sums
    reward_spec = TensorSpec(())

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        algorithm = A2C(self.observation_spec, self.action_spec, A2CConfig(unroll_length=5), seeds)
        return {"act": ComputationTask(algorithm, reward_spec=self.reward_spec)}


class Unweighted(Summing):
    reward_spec = TensorSpec((2,))


class Dropping(SharedSight):
    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        code = Code(nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.1)))
        return {"watch": ModelTask(code, self.observation_spec, self.action_spec, seeds=seeds)}


class Perturbed(Summing):
    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        return {"act": ComputationTask(EvolutionStrategies(self.observation_spec, self.action_spec, seeds=seeds))}


class Holding(Summing):
    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        box = BoundedSpec((1,), minimum=np.array(-1.0), maximum=np.array(1.0))
        return {"act": ComputationTask(FlashSAC(self.observation_spec, box, seeds=seeds))}


class Handing(Summing):
    """Hands its settings on."""

    config_class = A2CConfig

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        return {"act": ComputationTask(A2C(self.observation_spec, self.action_spec, self.config, seeds))}


def test_optimizers_that_a_robot_hands_on_are_those_of_its_tasks(tmp_path):
    settings = {"algorithm__optimizers": {"a2c": "sgd"}, "run__directory": str(tmp_path)}
    assert palaestra.train(f"{HERE}:Handing", WORLD, **(SIZES | settings)).result.status == "done"


def test_an_evaluation_weighs_a_vector_of_rewards(tmp_path):
    names = f"{HERE}:Summing", f"{HERE}:TwoRewards"
    settings = {"algorithm__rewards__weights": (0.0, 3.0), "run__directory": str(tmp_path)}
    assert palaestra.train(*names, **(SIZES | settings)).result.evaluation.returns == [30.0] * 3


@pytest.mark.parametrize(
    ("robot", "settings", "message"),
    [
        ("Walker", {"algorithm__optimizers": {"a2c": "sgd"}}, "whose tasks are given their optimizers .* WalkerConfig"),
        ("Walker", {"algorithm__rewards__weights": (1.0, 2.0)}, r"weights has 2 entries, .* have the shape \[\]"),
        ("Unweighted", {}, r"rewards have the shape \[2\], and A2C maximises one number"),
        ("Dropping", {}, "the module of the task 'watch' has a Dropout, perception.1, which draws from PyTorch's"),
        ("Perturbed", {}, "task 'act' disturbs each row of a batch in its own way .EvolutionStrategies."),
        ("Holding", {"env__num_envs": 2}, "the task 'act' holds one batch's noise for the next ones"),
    ],
)
def test_what_tasks_do_not_heed_and_cannot_do_is_refused_in_new_runs(robot, settings, message, tmp_path):
    world = f"{HERE}:TwoRewards" if robot == "Unweighted" else WORLD
    name = f"tests.experiments.test_robots:{robot}" if robot == "Walker" else f"{HERE}:{robot}"
    with pytest.raises(ConfigError, match=message):
        palaestra.train(name, world, run__directory=str(tmp_path), **settings)
    assert not list(tmp_path.iterdir())
