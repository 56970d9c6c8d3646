"""`ModelTask`: tasks that do not act are modules with a loss."""

import copy
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from examples.robots.auxiliary import InverseDynamics
from palaestra import OptimizerOption, Replay, RunSeeds
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec, TimeStep, restart, transition
from palaestra.policies import load_policy, load_weights, save_policy
from palaestra.robots import ModelTask
from tests.robots.test_helpers import helper_of

SEEN, MOVE = TensorSpec((4,)), DiscreteSpec(num=3)
QUICK = {"optimizer": OptimizerOption("adam", {"lr": 0.02}), "learning": "agent"}
SHIFT = torch.tensor([[0.0, 0, 0, 0], [0.5, 0, 0, 0], [0, -0.5, 0, 0]])


class AutoEncoder(nn.Module):
    """Agents may ask for its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, observation):
        return {"code": self.encoder(observation)}

    def loss(self, batch):
        return (self.decoder(self(batch.observation)["code"]) - batch.observation).square().mean()


class ForwardModel(nn.Module):
    """Only watches: what an action changes."""

    def __init__(self) -> None:
        super().__init__()
        self.change = nn.Embedding(3, 4)

    def loss(self, batch):
        error = batch.observation + self.change(batch.action) - batch.next_observation
        return error.square().mean(), {"largest": error.detach().abs().max()}


def watched(task: ModelTask, steps: int = 60):
    """A helper whose task has seen random moves of another one."""
    task.make_buffer(1)
    helper, _, clock = helper_of(task)
    rng, seen = np.random.default_rng(0), np.ones(4, np.float32)
    helper.begin(restart(seen))
    for move in rng.integers(0, 3, steps):
        seen = seen + SHIFT[move].numpy()
        helper.store_data(transition(seen, 0.0), action=torch.tensor([move]))
        clock.env_steps += 1
    return helper


def test_a_forward_model_learns_what_actions_change():
    """PARL-07: it never acts, has no actions of its own and is no policy to its author."""
    task = ModelTask(ForwardModel, SEEN, MOVE, **QUICK)
    helper = watched(task)
    metrics = [helper.learn() or helper.communicator.learn(None) for _ in range(300)]
    assert metrics[-1]["largest"] < 0.02 < metrics[0]["largest"]
    assert torch.allclose(task.algorithm.policy.network.change.weight, SHIFT, atol=0.02)
    assert task.predictions == 0


def test_agents_ask_an_autoencoder_for_its_code():
    """PARL-07, PARL-10: numbers without a gradient, under the names that the module gives them."""
    task = ModelTask(AutoEncoder, SEEN, MOVE, **QUICK)
    helper = watched(task)
    before, _ = helper.communicator.learn(None), [helper.communicator.learn(None) for _ in range(200)]
    assert helper.communicator.learn(None)["loss"] < 0.1 * before["loss"]
    answer = helper.predict(transition(np.ones(4, np.float32), 0.0))
    assert set(answer) == {"code"}
    expected = task.algorithm.policy.network(torch.ones(1, 4))["code"]
    assert np.array_equal(answer["code"], expected[0].detach().numpy())


def test_a_module_may_see_parts_by_name_or_by_place():
    """PARL-07: what it predicts is found with zeros of the observation's own layout."""

    class Sum(nn.Module):
        def __init__(self, names) -> None:
            super().__init__()
            self.names, self.bias = names, nn.Parameter(torch.zeros(3))

        def forward(self, observation):
            return {"sum": self.bias + sum(observation[name] for name in self.names)}

        def loss(self, batch):
            return self.bias.square().sum()

    part = TensorSpec((3,))
    for names, spec in ((("a", "b"), {"a": part, "b": part}), (("0", "1"), (part, part))):
        policy = ModelTask(Sum(names), spec, MOVE).algorithm.policy
        assert policy.action_spec == {"sum": part}


def test_weights_follow_from_the_seeds_and_a_module_is_shared():
    """PARL-31: the same module in two tasks is one; what makes modules is called once for each task."""
    first, again, other = (ModelTask(AutoEncoder, SEEN, MOVE, seeds=RunSeeds(seed)) for seed in (1, 1, 2))
    weights = [task.algorithm.policy.network.encoder.weight for task in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    module = AutoEncoder()
    assert ModelTask(module, SEEN, MOVE).algorithm.policy.network is module


def test_what_it_predicts_with_is_saved_and_sent(tmp_path):
    """A run keeps it with the policies; evaluation elsewhere gets a copy."""
    policy = ModelTask(AutoEncoder, SEEN, MOVE).algorithm.policy
    save_policy(policy, tmp_path / "see")
    step = TimeStep(step_type=torch.ones(3, dtype=torch.int32), observation=torch.randn(3, 4))
    expected = policy.act(step).action.code
    with torch.no_grad():
        policy.network.encoder.weight.add_(1.0)
    loaded = copy.deepcopy(policy)
    load_weights(loaded, tmp_path / "see")
    assert torch.equal(loaded.act(step).action.code, expected)
    assert torch.equal(pickle.loads(pickle.dumps(loaded)).act(step).action.code, expected)
    with pytest.raises(ConfigError, match="a policy of class 'ModelPolicy'"):
        load_policy(tmp_path / "see")


def test_what_cannot_be_a_task_is_refused():
    with pytest.raises(ConfigError, match=r"Linear has no method `loss\(batch\)`"):
        ModelTask(nn.Linear(4, 2), SEEN, MOVE)

    class Scalar(AutoEncoder):
        def forward(self, observation):
            return 3

    with pytest.raises(ConfigError, match=r"Scalar makes 3 of one observation; a tensor \[1, \.\.\.\] is needed"):
        ModelTask(Scalar, SEEN, MOVE, plan=Replay(unroll_length=8))


def test_the_example_has_a_task_that_does_not_act_in_15_lines():
    """PARL-07: class and construction, in lines of code."""
    lines = [line for line in inspect.getsource(InverseDynamics).splitlines() if line.strip()]
    source = Path("examples/robots/auxiliary.py").read_text()
    made = [line for line in source.splitlines() if "InverseDynamics," in line or "ModelTask(" in line]
    assert len(made) == 2
    assert len(lines) - 1 + len(made) <= 15, "without the docstring"


def test_an_optimizer_of_torch_is_refused_with_what_is_needed():
    module = AutoEncoder()
    with pytest.raises(ConfigError, match=r"optimizer was given a Adam; give OptimizerOption\('adam'"):
        ModelTask(module, SEEN, MOVE, optimizer=torch.optim.Adam(module.parameters()))
