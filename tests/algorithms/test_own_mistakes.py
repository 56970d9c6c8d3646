"""Mistakes in an algorithm of the user's own, named where they are made."""

import inspect

import gymnasium
import pytest
import torch

from palaestra import CoreModel, OptimizerOption, preset, train
from palaestra.algorithms import A2C, Algorithm, AlgorithmConfig, GradientAlgorithm, Losses
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from tests.algorithms.parts import collected


class Settings(AlgorithmConfig):
    """Of an algorithm of one's own."""


class Nameless(Algorithm):
    """Has neither settings nor an update."""


class Loss(GradientAlgorithm):
    """Calls it otherwise."""

    config_class = Settings

    def loss(self, batch):
        return None


class Unbuilt(Loss):
    """Makes networks, and says so to nobody."""

    losses = Loss.loss

    def build(self, observation_spec, action_spec, config):
        self.net = torch.nn.Linear(1, 1)


def test_a_build_that_sets_nothing_is_told_what_to_set():
    with pytest.raises(ConfigError, match=r"Unbuilt.build set no self.policy and no self.model; it has to set"):
        Unbuilt(TensorSpec((1,)), TensorSpec((1,)))


class Misnamed(Unbuilt):
    """Gives an optimizer to what it does not have."""

    def build(self, observation_spec, action_spec, config):
        self.model = CoreModel({}, {"policy": OptimizerOption("adam")})


def test_a_build_that_fails_is_not_said_to_be_of_the_wrong_environment():
    """Issue 51: it "does not fit CartPole-v1", and 24 algorithms that do were recommended, whatever was wrong."""
    name, line = f"{__name__}:Misnamed", inspect.getsourcelines(Misnamed.build)[1] + 1
    with pytest.raises(ConfigError) as refused:
        train(name, "CartPole-v1")
    wrong = "optimizers are given for ['policy'], but the components are []"
    assert str(refused.value) == f"{name} cannot be made for CartPole-v1: {wrong} (test_own_mistakes.py:{line})"


@pytest.mark.parametrize(("kind", "lacks"), [("Nameless", "config_class"), ("Nameless", "build"), ("Loss", "losses")])
def test_what_an_algorithm_has_to_define_is_named(kind, lacks):
    with pytest.raises(ConfigError, match=rf"{kind} does not define .*{lacks}"):
        preset(f"{__name__}:{kind}", "CartPole-v1")


class Dropping(A2C):
    """With a component of its own."""

    def build(self, observation_spec, action_spec, config):
        super().build(observation_spec, action_spec, config)
        self.model.extend({"judge": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))})


class Untrained(A2C):
    """With a parameter beside the network."""

    def build(self, observation_spec, action_spec, config):
        super().build(observation_spec, action_spec, config)
        self.policy.temperature = torch.nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Dropping, "the component 'judge' of Dropping has a Dropout, 1, which draws from PyTorch's global generator"),
        (Untrained, "policy of Untrained has parameters that are in no component of self.model.*: temperature; add"),
    ],
)
def test_networks_that_could_not_be_trained_are_refused(kind, message):
    with pytest.raises(ConfigError, match=message):
        kind(TensorSpec((4,)), DiscreteSpec(num=2))


@pytest.mark.parametrize("given", [gymnasium.spaces.Discrete(2), "CartPole-v1"])
def test_a_space_or_a_name_where_a_spec_is_needed(given):
    with pytest.raises(ConfigError, match=r"was given where a spec is needed, such as env\.action_spec"):
        A2C(TensorSpec((4,)), given)


def own(monkeypatch, method, replacement):
    """A2C whose method returns what the replacement makes of it, and unrolls to learn from."""
    algorithm, collector = collected("a2c", "discrete")
    original = getattr(A2C, method)
    monkeypatch.setattr(A2C, method, lambda self, *given: replacement(original(self, *given)))
    return algorithm, collector.buffer


def with_terms(**changes):
    return lambda losses: losses._replace(terms={**losses.terms, **changes})


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("losses", lambda losses: losses.terms, r"losses returned a dict; return Losses\(terms="),
        ("losses", lambda losses: sum(losses.terms.values()), "losses returned a Tensor; return Losses"),
        ("losses", lambda losses: Losses(1.0, {}), "returned terms as a float; give a dict, tensors by name"),
        ("losses", lambda losses: losses._replace(metrics={"x": 1.0}), "metrics whose 'x' is a float; give a tensor"),
        ("losses", with_terms(a2c=torch.tensor(1.0)), "a term for a2c that depends on no parameter there"),
        ("preprocess", lambda batch: None, "preprocess returned a NoneType; return the batch"),
        ("noise", lambda batch: None, "noise returned a NoneType; return the batch"),
    ],
)
def test_what_a_method_returns_is_looked_at(method, replacement, message, monkeypatch):
    """F27: nothing is trained meanwhile."""
    algorithm, buffer = own(monkeypatch, method, replacement)
    before = {name: value.clone() for name, value in algorithm.model.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        algorithm.update(buffer)
    assert all(torch.equal(value, before[name]) for name, value in algorithm.model.state_dict().items())


def test_a_term_of_another_component_is_named(monkeypatch):
    """F27: both components have optimizers, and the loss of one is given as that of the other."""
    algorithm, collector = collected("sac", "continuous")
    original = type(algorithm).losses

    def exchanged(self, batch):
        losses = original(self, batch)
        return losses._replace(
            terms={**losses.terms, "temperature": losses.terms["actor"].detach() + losses.terms["critic"]}
        )

    assert {"temperature", "critic"} <= set(algorithm.model.optimizers)
    monkeypatch.setattr(type(algorithm), "losses", exchanged)
    with pytest.raises(ConfigError, match="a term for temperature that depends on no parameter there"):
        algorithm.update(collector.buffer)
