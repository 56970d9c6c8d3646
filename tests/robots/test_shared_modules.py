"""A module that is handed over is the module: algorithms, tasks and networks that hold it learn together."""

import numpy as np
import pytest
import torch
from torch import nn

from palaestra.algorithms import A2C, DQN, SAC, A2CConfig, SACConfig
from palaestra.compat import create_algorithm_func
from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, RunSeeds, TensorSpec
from palaestra.envs import load
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.policies import load_policy, save_policy
from palaestra.robots import Agent, ComputationTask, ModelTask, Robot, RobotCollector
from palaestra.training import Trainer, TrainerConfig

SEEN, CHOICE = TensorSpec((4,)), DiscreteSpec(num=2)
BOX = BoundedSpec((1,), minimum=-np.ones(1), maximum=np.ones(1))


class Perception(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, observation):
        return self.layer(observation).tanh()


class Autoencoder(nn.Module):
    def __init__(self, perception):
        super().__init__()
        self.perception, self.back = perception, nn.Linear(8, 4)

    def forward(self, observation):
        return self.perception(observation)

    def loss(self, batch):
        return (self.back(self.perception(batch.observation)) - batch.observation).square().mean()


class Trained(CoreModel):
    """Has an optimizer of its own."""

    def __init__(self, options):
        super().__init__({"layer": nn.Linear(4, 8)}, options)

    def forward(self, observation):
        return self.component["layer"](observation)


class Watching(Agent):
    def run_one_episode(self):
        play, watch = self.helpers["play"], self.helpers["watch"]
        step = self.env.reset()
        watch.begin(step)
        while not step.last:
            step = self.env.step(play.predict(step))
            watch.store_data(step, action=play.action)
            play.store_data(step)


class Watched(Robot):
    agent_class = Watching

    def build(self, seeds):
        self.perception = Perception()
        # its step size is 0, so that what moves the perception is the watching task
        still = A2CConfig(unroll_length=16, learning_rate=0.0)
        play = A2C(self.observation_spec, self.action_spec, still, seeds, network=self.perception)
        watch = ModelTask(Autoencoder(self.perception), self.observation_spec, self.action_spec)
        return {"play": ComputationTask(play), "watch": watch}


def parameters(module):
    return {id(parameter) for parameter in module.parameters()}


@pytest.mark.parametrize("kind", [A2C, DQN])
def test_parl_31_algorithms_train_the_module_that_they_are_given(kind):
    perception = Perception()
    one, other = (kind(SEEN, CHOICE, network=perception) for _ in range(2))
    assert parameters(perception) == parameters(one.model) & parameters(other.model)
    trained = {id(parameter) for option in one.model.optimizers.values() for parameter in option.parameters}
    assert parameters(perception) <= trained


def test_parl_31_what_a_watching_task_learns_is_what_the_acting_one_sees_by():
    env = load("CartPole-v1")
    robot = Watched(env.observation_spec, env.action_spec)
    before = robot.perception.layer.weight.clone()
    assert robot.tasks["play"].lock is robot.tasks["watch"].lock
    with RobotCollector(robot, lambda number: load("CartPole-v1", env_id=number), num_agents=2) as collector:
        Trainer(collector, robot, TrainerConfig(total_env_steps=200, eval_every_steps=0)).run()
    policy = robot.tasks["play"].algorithm.policy
    own = [module for module in policy.modules() if isinstance(module, Perception)]
    assert own == [robot.perception] and not torch.equal(before, robot.perception.layer.weight)


def test_a_module_is_given_to_one_part_where_each_has_an_optimizer():
    perception = Perception()
    with pytest.raises(ConfigError, match=r"'actor' and 'critic' both train .* network=\{'actor': module\}"):
        SAC(SEEN, BOX, network=perception)
    sac = SAC(SEEN, BOX, network={"actor": perception})
    assert parameters(perception) <= parameters(sac.model.component["actor"])
    assert not parameters(perception) & parameters(sac.model.component["critic"])


def test_of_a_module_in_a_configuration_every_network_gets_a_copy():
    """From one configuration many runs are made."""
    perception = Perception()
    sac = SAC(SEEN, BOX, SACConfig(network=NetworkConfig(encoder=perception)))
    assert not parameters(perception) & parameters(sac.model)


def test_a_saved_policy_is_not_loaded_into_the_module_that_learns(tmp_path):
    perception = Perception()
    save_policy(A2C(SEEN, CHOICE, network=perception).policy, tmp_path / "policy")
    with torch.no_grad():
        perception.layer.weight.add_(1.0)
    before = perception.layer.weight.clone()
    policy = load_policy(tmp_path / "policy", network=perception)
    assert not parameters(policy) & parameters(perception) and torch.equal(before, perception.layer.weight)


@pytest.mark.parametrize("kind", [A2C, DQN])
def test_maro_32_a_model_with_optimizers_of_its_own_is_refused_where_they_would_not_be_used(kind):
    options = {"layer": OptimizerOption("sgd", {"lr": 0.1})}
    needed = r"has a Trained, a CoreModel with optimizers of its own for layer, .* give a plain nn\.Module"
    with pytest.raises(ConfigError, match=needed):
        kind(SEEN, CHOICE, network=Trained(options))
    specs = {"observation_spec": SEEN, "action_spec": CHOICE}
    with pytest.raises(ConfigError, match=needed):
        create_algorithm_func(Trained, {"options": options}, kind, specs)()
    assert kind(SEEN, CHOICE, network=lambda spec: Trained({})).model.optimizers


def test_parl_32_clones_are_equal_and_those_of_other_seeds_are_not():
    make = create_algorithm_func(Perception, {}, DQN, {"observation_spec": SEEN, "action_spec": CHOICE})
    one, other, third = (list(one.model.parameters()) for one in (make(), make(), make(seeds=RunSeeds(1))))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert not torch.equal(one[0], third[0])
