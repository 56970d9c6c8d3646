"""The library's own PPO, DQN and SAC as computation tasks, made of a user's network by `create_algorithm_func`."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from palaestra.algorithms import DQN, PPO, SAC, DQNConfig, PPOConfig, SACConfig
from palaestra.compat import create_algorithm_func
from palaestra.core import BoundedSpec, DiscreteSpec, RunSeeds, TensorSpec, restart, transition
from palaestra.robots import ComputationTask
from palaestra.robots.helpers import helper_for
from tests.robots.parts import Ticks, ToyCommunicator

OBSERVATION = TensorSpec((3,))
CHOICE = DiscreteSpec(num=3)
FORCE = BoundedSpec((2,), minimum=np.array(-1), maximum=np.array(1))
REPLAY = {"unroll_length": 4, "mini_batch_size": 8, "learning_starts": 8, "capacity": 200}
SHIPPED = {
    "ppo": (PPO, CHOICE, PPOConfig(unroll_length=8, mini_batch_size=8)),
    "dqn": (DQN, CHOICE, DQNConfig(**REPLAY)),
    "sac": (SAC, FORCE, SACConfig(**REPLAY)),
}


class Net(nn.Module):
    """A user's network for observations."""

    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(3, size)

    def forward(self, observation):
        return torch.tanh(self.layer(observation))


def factory(name, seed=0):
    kind, action_spec, config = SHIPPED[name]

    specs = {"observation_spec": OBSERVATION, "action_spec": action_spec}
    return create_algorithm_func(Net, {"size": 5}, kind, {**specs, "config": config, "seeds": RunSeeds(seed)})


def parameters(algorithm):
    return [parameter.detach().clone() for parameter in algorithm.model.parameters()]


def changed(algorithm, before):
    return any(not torch.equal(*pair) for pair in zip(algorithm.model.parameters(), before, strict=True))


def play(task, rows=40):
    """An agent's loop; returns its helper."""
    task.make_buffer(1)
    clock = Ticks()
    helper = helper_for(task.spec("act"), ToyCommunicator(task), clock)
    rng = np.random.default_rng(0)
    step = restart(rng.standard_normal(3).astype(np.float32))
    for _ in range(rows):
        action = np.asarray(helper.predict(step))
        clock.env_steps += 1
        step = transition(rng.standard_normal(3).astype(np.float32), float(action.sum()))
        helper.store_data(step)
    return helper


@pytest.mark.parametrize("name", SHIPPED)
def test_a_task_of_a_shipped_algorithm_predicts_stores_and_learns(name):
    """PARL-13: with a network of the user's own, through predict, store and learn."""
    task = ComputationTask(factory(name)())
    before = parameters(task.algorithm)
    helper = play(task)
    assert helper.metrics and all(np.isfinite(value) for value in helper.metrics.values())
    assert len(task.updates) > 1 and changed(task.algorithm, before)
    assert any(type(module) is Net for module in task.algorithm.model.modules())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_factory_of_a_shipped_algorithm_makes_clones_that_share_nothing(name):
    """PARL-30, PARL-32: equal at first; what one learns, the other does not. A factory may be sent to a process."""
    make = pickle.loads(pickle.dumps(factory(name)))
    first, second = make(), make()
    assert not changed(first, parameters(second))
    storage = [{p.untyped_storage().data_ptr() for p in one.model.parameters()} for one in (first, second)]
    assert not storage[0] & storage[1]
    before = parameters(second)
    play(ComputationTask(first))
    assert changed(first, before) and not changed(second, before)


@pytest.mark.parametrize("name", SHIPPED)
def test_two_tasks_of_one_shipped_algorithm_share_what_they_learn(name):
    """PARL-31: passing the same object shares it."""
    algorithm = factory(name)()
    acting, other = ComputationTask(algorithm), ComputationTask(algorithm)
    row = {"observation": torch.ones(1, 3), "step_type": torch.zeros(1, dtype=torch.int32)}
    before = parameters(other.algorithm)
    play(acting)
    assert changed(other.algorithm, before) and other.acting_policy.version == acting.acting_policy.version > 0
    assert ToyCommunicator(other).predict(row)["env_action"].shape[0] == 1
