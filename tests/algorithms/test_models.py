"""Models of shipped algorithms as MARO has them: networks with their optimizers, made by a factory, asked to act."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from palaestra.algorithms import ALGORITHMS, Losses
from palaestra.compat import create_algorithm_func
from palaestra.core import ConfigError, RunSeeds
from tests.algorithms.parts import collected, collector_for, environment, first_minibatch, tiny_config
from tests.algorithms.parts import make as any_algorithm

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


MARO = {
    "policy.encoder": {"cls": "adam", "params": {"lr": 1e-4}},
    "policy": {"cls": "sgd", "params": {"lr": 0.0}},
    "value": {"cls": "rmsprop", "params": {"lr": 1e-3}, "max_grad_norm": 0.25},
}


@pytest.mark.parametrize("name", ["a2c", "ppo", "impala"])
def test_maro_35_representation_actor_and_critic_have_an_optimizer_each(name):
    """MARO-32, MARO-33: where one component is trained by one loss, its parts may have optimizers of their own."""
    with environment("discrete") as env:
        algorithm = factory(name, env, optimizers=MARO)()
        before = {key: value.detach().clone() for key, value in algorithm.model.component.named_parameters()}
        updated(env, algorithm)
        used = algorithm.model.optimizers
        assert {key: one.option.cls for key, one in used.items()} == {
            name: used[name].option.cls,
            f"{name}/policy/encoder": "adam",
            f"{name}/policy": "sgd",
            f"{name}/value": "rmsprop",
        }
        assert used[f"{name}/value"].option.max_grad_norm == 0.25 and not used[name].names
        assert sum(len(one.names) for one in used.values()) == len(before)
        for key, parameter in algorithm.model.component.named_parameters():
            still = key.startswith(f"{name}.policy.") and not key.startswith(f"{name}.policy.encoder.")
            assert torch.equal(parameter, before[key]) is still  # the actor's step size is 0
        again = factory(name, env, optimizers=MARO)()
        again.load_state_tensors(algorithm.state_tensors())
    assert_close(dict(again.model.state_tensors()), dict(algorithm.model.state_tensors()), rtol=0, atol=0)


def test_a_part_that_is_not_there_is_refused_with_those_that_are():
    with environment("discrete") as env, pytest.raises(ConfigError, match=r"'critic'.* components are a2c; .* value"):
        factory("a2c", env, optimizers={"critic": "rmsprop"})()


def test_what_searches_shows_its_actions_too():
    """They are a batch, which has no device."""
    with environment("game") as env:
        _, log_prob = any_algorithm("alphazero", env, 0, kind="game").policy.sample(env.reset().observation)
        assert log_prob.shape == (env.batch_size,) and not log_prob.any()
