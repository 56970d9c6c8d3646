"""Which networks follow which others, and when, is what the algorithm says, whatever its settings are called."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from palaestra import Linear
from palaestra.algorithms import DQN, DQNConfig, Positive, Targets
from palaestra.core import ConfigError
from palaestra.nn import CoreModel, OptimizerOption
from tests.algorithms.parts import collected


@dataclasses.dataclass(frozen=True, kw_only=True)
class MunchausenConfig(DQNConfig):
    """Whose `tau` is a temperature, as its paper calls it."""

    tau: Positive[float] = 0.03
    target_memory_size: int = 3


class Munchausen(DQN):
    config_class = MunchausenConfig


def updates(number: int, **settings: object) -> tuple[DQN, list[float]]:
    """An algorithm of one's own, and how far its target network moved in each of so many gradient steps."""
    seen, collector = collected("dqn", "discrete")
    config = MunchausenConfig(**{**vars(seen.config), "gradient_steps": 1, **settings})
    algorithm = Munchausen(seen.policy.observation_spec, seen.policy.raw_action_spec, config)
    moved = []
    for _ in range(number):
        before = parameters(algorithm.target_network)
        algorithm.update(collector.buffer)
        moved.append((parameters(algorithm.target_network) - before).abs().sum().item())
    return algorithm, moved


def parameters(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def test_a_setting_called_tau_changes_nothing_of_a_target_period():
    algorithm, moved = updates(8, target_period=6)
    assert [step for step, distance in enumerate(moved, start=1) if distance] == [6]
    assert not torch.equal(parameters(algorithm.network), parameters(algorithm.target_network))


@pytest.mark.parametrize(
    ("follows", "rule", "message"),
    [
        ({"slow": "fast"}, {}, r"period=None and tau=None; say after how many gradient steps"),
        ({"slow": "fast"}, {"period": 0}, r"period=0 and tau=None; .* at least 1"),
        ({"slow": "quick"}, {"tau": 0.5}, r"Targets follow \['quick'\], but the components are \['fast', 'slow'\]"),
    ],
)
def test_targets_that_cannot_be_are_refused(follows, rule, message):
    model = CoreModel({"fast": nn.Linear(1, 1), "slow": nn.Linear(1, 1)}, {"fast": OptimizerOption()})
    with pytest.raises(ConfigError, match=message):
        Targets(model, follows, **rule)


@pytest.mark.parametrize("shared", ["all", "a part"])
def test_a_target_that_has_parameters_of_what_it_follows_is_refused(shared):
    fast = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    slow = fast if shared == "all" else nn.Sequential(fast[0], nn.Linear(1, 1))
    model = CoreModel({"fast": fast, "slow": slow}, {"fast": OptimizerOption()})
    with pytest.raises(ConfigError, match="slow has parameters of fast, which it is to follow; give it copies"):
        Targets(model, {"slow": "fast"}, period=1)


def test_what_is_frozen_may_be_shared():
    frozen = nn.Linear(1, 1).requires_grad_(False)
    fast, slow = (nn.Sequential(frozen, nn.Linear(1, 1)) for _ in range(2))
    Targets(CoreModel({"fast": fast, "slow": slow}, {"fast": OptimizerOption()}), {"slow": "fast"}, period=1)
    assert torch.equal(fast[1].weight, slow[1].weight)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"period": 2}, [0.0, 8.0, 8.0, 8.0]),
        ({"tau": 0.5}, [4.0, 6.0, 7.0, 7.5]),
        ({"tau": 0.5, "period": 2}, [0.0, 4.0, 4.0, 6.0]),
        ({"tau": Linear(0.5, 0.25)}, [2.0, 3.5, 4.625, 5.46875]),
    ],
)
def test_targets_begin_as_copies_and_follow_as_they_are_told(rule, expected):
    """`set_progress(1.0)` is the end of a schedule."""
    fast = nn.Linear(1, 1, bias=False)
    model = CoreModel({"fast": fast, "any name": nn.Linear(1, 1, bias=False)}, {"fast": OptimizerOption()})
    nn.init.zeros_(fast.weight)
    targets = Targets(model, {"any name": "fast"}, **rule)
    assert model.component["any name"].weight.item() == 0
    nn.init.constant_(fast.weight, 8.0)
    targets.set_progress(1.0)
    found = []
    for step in range(1, 5):
        targets.step(step)
        found.append(model.component["any name"].weight.item())
    assert found == expected
