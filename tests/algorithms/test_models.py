"""Models of shipped algorithms as MARO has them: networks with their optimizers, made by a factory, asked to act."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS, Losses
from palaestra.core import RunSeeds
from palaestra.nn import create_algorithm_func
from tests.algorithms.parts import collected, collector_for, environment, first_minibatch, tiny_config

FAMILIES = {
    "dqn": ("discrete", {"q": {"target_q"}}),
    "reinforce": ("discrete", {"policy": set()}),
    "a2c": ("discrete", {"a2c": set()}),
    "discrete_sac": ("discrete", {"actor": set(), "critic": {"target_critic"}, "temperature": set()}),
    "ddpg": ("continuous", {"actor": {"target_actor"}, "critic": {"target_critic"}}),
    "sac": ("continuous", {"actor": set(), "critic": {"target_critic"}, "temperature": set()}),
}
"""Values, policies, and both: the kind of action, and trained components with the frozen ones that follow them."""
DETERMINISTIC = ("dqn", "ddpg")


class Net(nn.Module):
    """A user's network for observations."""

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(in_size, size)

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation.flatten(1)).tanh()


def factory(name: str, env: Any, **changes: Any) -> Any:
    kind: Any = ALGORITHMS[name]
    config = tiny_config(kind, **changes)

    specs = {"observation_spec": env.observation_spec, "action_spec": env.action_spec}
    size = {"in_size": env.observation_spec.size, "size": 5}
    return create_algorithm_func(Net, size, kind, {**specs, "config": config, "seeds": RunSeeds(1)})


def updated(env: Any, algorithm: Any) -> Any:
    collector = collector_for(env, algorithm)
    collector.unroll(12)
    algorithm.update(collector.buffer)
    return algorithm


@pytest.mark.parametrize("name", FAMILIES)
def test_a_factory_makes_shipped_algorithms_of_a_users_network(name):
    """MARO-32, MARO-33: each component has an optimizer or is frozen; clones are equal, share nothing, learn apart."""
    kind, components = FAMILIES[name]
    with environment(kind) as env:
        make = factory(name, env)
        first, second = make(), make()
        assert first.model.optimizers.keys() == components.keys()
        assert first.model.component.keys() == set(components).union(*components.values())
        with_net = [n for n, part in first.model.component.items() if any(type(m) is Net for m in part.modules())]
        assert set(with_net) == first.model.component.keys() - {"temperature"}
        ours, theirs = ({p.untyped_storage().data_ptr() for p in one.model.parameters()} for one in (first, second))
        assert not ours & theirs
        before = {key: value.clone() for key, value in second.model.state_dict().items()}
        assert_close(dict(first.model.state_dict()), before, rtol=0, atol=0)
        learned = updated(env, first).model.state_dict()
        for part in components:
            assert any(not torch.equal(learned[key], before[key]) for key in before if f".{part}." in f".{key}")
        assert_close(dict(second.model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_other_optimizers_and_networks_need_no_other_algorithm(name):
    """MARO-32: the algorithm knows nothing of structure or optimization: gradients and steps go through the model."""
    kind, components = FAMILIES[name]
    changes = {part: {"cls": "sgd", "params": {"lr": 0.1}} for part in components}
    with environment(kind) as env:
        algorithm = updated(env, factory(name, env, optimizers=changes)())
    assert {option.option.cls for option in algorithm.model.optimizers.values()} == {"sgd"}
    weights = {key: value.detach().clone() for key, value in algorithm.model.component.named_parameters()}
    part = next(iter(components))
    loss = sum(parameter.sum() for parameter in algorithm.model.component[part].parameters())
    gradients = algorithm.model.get_gradients(loss)
    assert gradients and all(key.startswith(f"{part}.") and bool((g == 1).all()) for key, g in gradients.items())
    unclipped = algorithm.model.optimizers[part].option.max_grad_norm is None
    algorithm.model.apply_gradients([gradients])
    for key, parameter in algorithm.model.component.named_parameters():
        if key not in gradients:
            assert torch.equal(parameter, weights[key])
        elif unclipped:
            assert_close(parameter.detach(), weights[key] - 0.1)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_of_a_shipped_algorithm_gives_actions(name):
    """MARO-36: batched, stochastic with log-probabilities; of values and deterministic actors the best, with 0."""
    with environment(FAMILIES[name][0]) as env:
        algorithm = updated(env, factory(name, env)())
    states = torch.rand(64, *algorithm.policy.observation_spec.shape)
    action, log_prob = algorithm.model.get_action(states)
    again, _ = algorithm.model.get_action(states)
    assert action.shape == (64, *algorithm.policy.raw_action_spec.shape) and log_prob.shape == (64,)
    if name in DETERMINISTIC:
        policy = algorithm.policy
        assert_close(action, policy.greedy(states) if name == "dqn" else policy.action(states))
        assert torch.equal(action, again) and not log_prob.any()
    else:
        assert not torch.equal(action, again)
        known = algorithm.policy.distribution(states).log_prob(action.detach())
        assert_close(log_prob, known, rtol=1e-4, atol=1e-4)
        assert log_prob.requires_grad


def test_terms_that_train_a_component_with_different_others_add_up_there(monkeypatch):
    algorithm, collector = collected("ddpg", "continuous")
    batch = first_minibatch(algorithm, collector.buffer)
    terms = algorithm.losses(batch).terms
    before = algorithm.gradients(batch).values
    twice = Losses({**terms, "again": terms["critic"] + 0.0 * terms["actor"]}, {})
    monkeypatch.setattr(algorithm, "losses", lambda batch: twice)
    monkeypatch.setattr(algorithm, "trains", {**algorithm.trains, "again": ("critic", "actor")})
    after = algorithm.gradients(batch).values
    for name, gradient in before.items():
        assert_close(after[name], (2 if name.startswith("critic") else 1) * gradient)
