"""Tests of optimizers of PyTorch and of the user's, for each component."""

import pytest
import torch
from torch import nn

from palaestra.algorithms import SAC, SACConfig
from palaestra.core import BoundedSpec, ConfigError, Linear, TensorSpec
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption

BOX = BoundedSpec((1,), minimum=-torch.ones(1).numpy(), maximum=torch.ones(1).numpy())
X = torch.linspace(-1, 1, 12).reshape(4, 3)


def model(option) -> CoreModel:
    torch.manual_seed(0)
    return CoreModel({"q": nn.Linear(3, 2)}, {"q": option})


@pytest.mark.parametrize(
    "name", ["Adagrad", "adamax", "torch.optim.RAdam", "NAdam", "torch.optim:Adadelta", "Adafactor"]
)
def test_any_class_of_torch_steps_as_by_hand_and_is_restored(name):
    """MARO-35: any class of PyTorch, not only Adam and RMSprop."""
    ours, twin = model(OptimizerOption(name, {"lr": 0.1})), nn.Linear(3, 2)
    twin.load_state_dict(ours.component["q"].state_dict())
    theirs = OptimizerOption(name).torch_class(twin.parameters(), lr=0.1)
    for _ in range(3):
        ours.step(ours.component["q"](X).square().sum())
        theirs.zero_grad()
        twin(X).square().sum().backward()
        theirs.step()
    assert torch.equal(ours.component["q"].weight, twin.weight)
    assert ours.component["q"].weight.grad is None
    again = model(OptimizerOption(name, {"lr": 0.1}))
    again.load_state_tensors({key: value.clone() for key, value in ours.state_tensors().items()})
    for one in (ours, again):
        one.step(one.component["q"](X).square().sum())
    assert torch.equal(ours.component["q"].weight, again.component["q"].weight)


def test_what_it_remembers_is_forgotten_with_a_state_of_before_the_first_step():
    ours, twin = (model(OptimizerOption("RAdam", {"lr": 0.1})) for _ in range(2))
    fresh = {key: value.clone() for key, value in ours.state_tensors().items()}
    twin.load_state_tensors(fresh)
    ours.step(ours.component["q"](X).square().sum())
    ours.load_state_tensors(fresh)
    for _ in range(3):
        for one in (ours, twin):
            one.step(one.component["q"](X).square().sum())
    assert torch.equal(ours.component["q"].weight, twin.component["q"].weight)


def test_a_class_follows_its_schedule_and_a_gradient_that_is_not_finite_changes_nothing():
    ours = model(OptimizerOption(torch.optim.Adagrad, {"lr": Linear(0.1, 0.0)}, max_grad_norm=1.0))
    before = ours.component["q"].weight.clone()
    ours.step(ours.component["q"](X).sum() * torch.nan)
    assert torch.equal(ours.component["q"].weight, before)
    ours.set_progress(1.0)
    ours.step(ours.component["q"](X).sum())
    assert torch.equal(ours.component["q"].weight, before)


def test_each_component_of_an_algorithm_gets_the_optimizer_that_is_set():
    optimizers = {
        "critic": {"cls": "sgd", "params": {"lr": "linear(0.1, 0)", "momentum": 0.9}, "max_grad_norm": 1.0},
        "actor": torch.optim.Adagrad,
    }
    config = SACConfig(network=NetworkConfig(hidden_sizes=(4,)), optimizers=optimizers)
    options = {name: o.option for name, o in SAC(TensorSpec((3,)), BOX, config).model.optimizers.items()}
    assert options["critic"] == OptimizerOption("sgd", {"lr": Linear(0.1, 0.0), "momentum": 0.9}, 1.0)
    assert options["actor"] == OptimizerOption(torch.optim.Adagrad, {"lr": config.learning_rate})
    assert options["temperature"].cls == "adam"


@pytest.mark.parametrize(
    ("optimizers", "words"),
    [
        ({"critics": "sgd"}, "given for 'critics' — did you mean 'critic'"),
        ({"critic": "rprob"}, "unknown optimizer 'rprob' — did you mean"),
        ({"critic": "lbfgs"}, "those of LBFGS do not"),
        ({"critic": {"class": "sgd"}}, "give a name, or a mapping of cls, params and max_grad_norm"),
        ({"critic": {"cls": "adagrad", "params": {"momentum": 1.0}}}, "has no parameter 'momentum'"),
        ({"critic": dict}, "a class of torch.optim is needed"),
    ],
)
def test_what_is_no_optimizer_is_refused(optimizers, words):
    with pytest.raises(ConfigError, match=words):
        SAC(TensorSpec((3,)), BOX, SACConfig(optimizers=optimizers))
