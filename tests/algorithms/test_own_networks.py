"""Tests of `network=`: the user's own encoders in built-in algorithms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palaestra.algorithms import ALGORITHMS
from palaestra.core import ConfigError
from palaestra.testing.algorithms import different
from tests.algorithms.parts import TINY, any_kind, environment

PARTS = {
    **dict.fromkeys(("ppo", "a2c", "impala", "ppg", "trpo"), ("policy", "value")),
    **dict.fromkeys(("dqn", "c51", "qr_dqn", "iqn", "rainbow", "pqn", "sarsa", "discrete_cql"), ("q",)),
    **dict.fromkeys(("sac", "crossq", "xqc", "flash_sac", "redq", "quantile_sac", "cql", "ddpg"), ("actor", "critic")),
    **dict.fromkeys(("td3", "td3_bc", "rebrac"), ("actor", "critic")),
    "fql": ("actor", "flow", "critic"),
    "muzero": ("network",),
    "dreamer": ("world_model",),
    "iql": ("actor", "critic", "value"),
    **dict.fromkeys(("reinforce", "behaviour_cloning", "evolution_strategies"), ("policy",)),
}


class Net(nn.Module):
    """An encoder that counts its calls."""

    def __init__(self, observation_spec: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_spec.size, 5)
        self.calls = 0

    def forward(self, observation: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(observation.flatten(1)).tanh()


class Wide(Net):
    """Another one."""


def made(name: str, network: Any) -> Any:
    kind: Any = ALGORITHMS[name]
    config = kind.config_class(network=TINY["network"])
    with environment(any_kind(name)) as env:
        return kind(env.observation_spec, env.action_spec, config, network=network)


def encoders(algorithm: Any, kind: type[nn.Module]) -> list[str]:
    """Components with a module of this class."""
    components = algorithm.model.component.items()
    return [name for name, part in components for module in part.modules() if type(module) is kind]


@pytest.mark.parametrize("name", PARTS)
def test_a_class_a_factory_and_a_module_are_all_taken(name):
    by_class, by_factory = made(name, Net), made(name, lambda spec: Net(spec))
    assert encoders(by_class, Net) == encoders(by_factory, Net) != []
    assert not different(by_class.state_tensors(), by_factory.state_tensors())
    module = next(part for part in by_class.policy.modules() if type(part) is Net)
    trained = [part for part in encoders(by_class, Net) if part in by_class.model.optimizers]
    if len(trained) > 1:  # two optimizers would train it
        with pytest.raises(ConfigError, match=r"both train .* leave it to one of them"):
            made(name, module)
        return
    given = made(name, module)
    assert encoders(given, Net) == encoders(by_class, Net)
    assert any(part is module for part in given.model.modules())  # PARL-31: the same module, the same parameters


def test_policy_and_value_share_one_encoder_unless_a_mapping_names_two():
    assert len(encoders(made("ppo", Net), Net)) == 1
    apart = made("ppo", {"policy": Net, "value": Wide})
    assert len(encoders(apart, Net)) == len(encoders(apart, Wide)) == 1
    wide = next(part for part in apart.model.modules() if type(part) is Wide)
    before = wide.calls
    apart.value(torch.zeros(2, *apart.policy.observation_spec.shape))
    assert wide.calls == before + 1


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_an_algorithm_does_not_have_is_refused_with_those_that_it_has(name):
    with pytest.raises(ConfigError, match=f"networks are {', '.join(PARTS[name])}"):
        made(name, {"torso": Net})


@pytest.mark.parametrize(
    ("name", "part"),
    [(name, "actor") for name in ("td3", "ddpg", "td3_bc", "rebrac")]
    + [(name, "critic") for name in ("td3", "ddpg", "iql")],
)
def test_a_target_network_has_a_copy_of_a_module_that_was_given(name, part):
    """Shared, it would follow itself: a target without any delay."""
    with environment(any_kind(name)) as env:
        module = Net(env.observation_spec)
    algorithm = made(name, {part: module})
    kept, learned = (algorithm.model.component[key] for key in (f"target_{part}", part))
    assert any(inner is module for inner in learned.modules())
    assert not {*kept.parameters()} & {*learned.parameters()}
    (copied,) = (inner for inner in kept.modules() if type(inner) is Net)
    assert torch.equal(copied.layer.weight, module.layer.weight)
