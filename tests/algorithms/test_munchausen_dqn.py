"""Munchausen DQN beside a plain transcription of its target."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from palaestra.algorithms import MunchausenDQN, MunchausenDQNConfig
from palaestra.core import Batch, ConfigError, DiscreteSpec, RunSeeds, TensorSpec
from palaestra.nn import NetworkConfig
from tests.algorithms.parts import collected, first_minibatch

SCALE, TEMPERATURE, LEAST, GAMMA = 0.9, 0.03, -1.0, 0.99
NETWORK = NetworkConfig(hidden_sizes=(8,), activation="relu")


def target_of(q: list[float], action: int, reward: float, bootstrap: float, next_q: list[float]) -> float:
    """By the paper, number by number; actions of value -inf are not allowed."""

    def log_policy(values: list[float]) -> list[float]:
        largest = max(values)
        total = sum(math.exp((value - largest) / TEMPERATURE) for value in values)
        return [(value - largest) / TEMPERATURE - math.log(total) for value in values]

    bonus = min(0.0, max(LEAST, TEMPERATURE * log_policy(q)[action]))
    logs = log_policy(next_q)
    soft = sum(
        math.exp(log) * (value - TEMPERATURE * log) for value, log in zip(next_q, logs, strict=True) if log > -1e9
    )
    return reward + SCALE * bonus + bootstrap * soft


@pytest.mark.parametrize("kind", ["discrete", "masked"])
@torch.no_grad()
def test_the_loss_is_that_of_the_paper(kind):
    algorithm, collector = collected("munchausen_dqn", kind, gamma=GAMMA)
    model: Any = algorithm.model.component
    for parameter in model["target_q"].parameters():
        parameter.mul_(1.7)  # another network than the one that learns
    batch = first_minibatch(algorithm, collector.buffer)
    policy: Any = algorithm.policy

    def values(network: Any, observation: Any) -> list[list[float]]:
        q = network(policy.normalize(observation))
        mask = policy.action_mask(observation)
        return (q if mask is None else q.masked_fill(~mask.bool(), -math.inf)).tolist()

    now, after = (values(model["target_q"], seen) for seen in (batch.observation, batch.next_observation))
    rows = zip(now, batch.action.tolist(), batch.reward.tolist(), batch.bootstrap.tolist(), after, strict=True)
    targets = torch.tensor([target_of(*row) for row in rows])
    taken = model["q"](policy.normalize(batch.observation)).gather(-1, batch.action[:, None]).squeeze(-1)
    error = (taken - targets).abs()
    expected = torch.where(error <= 1, error.square() / 2, error - 0.5).mean()
    assert float(algorithm.losses(batch).terms["q"]) == pytest.approx(float(expected), rel=1e-4)


def learner(**settings: Any) -> Any:
    config = MunchausenDQNConfig(network=NETWORK, **settings)
    return MunchausenDQN(TensorSpec((2,)), DiscreteSpec(num=3), config, RunSeeds(0))


def test_each_part_of_the_target_counts():
    """Mutants: no bonus, no clip, hard values."""
    row = {
        "observation": torch.ones(1, 2),
        "action": torch.tensor([0]),
        "next_observation": torch.ones(1, 2),
        "reward": torch.ones(1),
        "bootstrap": torch.ones(1),
        "index": torch.zeros(1, dtype=torch.int64),
    }
    changes: list[dict[str, Any]] = [{}, {"munchausen_scale": 0.0}, {"log_clip": 1e-3}, {"temperature": 1.0}]
    losses = [float(learner(**one).losses(Batch.of(row)).terms["q"].detach()) for one in changes]
    assert len(set(losses)) == len(losses)
    bonus = [float(learner(**one).losses(Batch.of(row)).metrics["munchausen"]) for one in changes]
    assert all(-1 <= one <= 0 for one in bonus) and bonus[2] >= -1.001e-3


@torch.no_grad()
def test_values_far_below_zero_stay_with_the_actions_that_are_allowed():
    """Logits of -3e9 lie below what a mask is often filled with; by hand, the target is the one allowed value."""
    spec = {"x": TensorSpec((2,)), "action_mask": TensorSpec((3,), torch.bool)}
    config = MunchausenDQNConfig(network=NETWORK, munchausen_scale=0.0, temperature=TEMPERATURE)
    algorithm = MunchausenDQN(spec, DiscreteSpec(num=3), config, RunSeeds(0))
    values = {"q": [0.0, 0.0, 0.0], "target_q": [-1e8, -2e8, 0.0]}
    for name, bias in values.items():
        *_, last = (module for module in algorithm.model.component[name].modules() if isinstance(module, nn.Linear))
        last.weight.zero_()
        assert last.bias is not None
        last.bias.copy_(torch.tensor(bias))
    seen = Batch.of({"x": torch.ones(2, 2), "action_mask": torch.tensor([[True, True, False], [False, True, False]])})
    row = {
        "observation": seen,
        "action": torch.ones(2, dtype=torch.int64),
        "next_observation": seen,
        "reward": torch.ones(2),
        "bootstrap": torch.ones(2),
        "index": torch.zeros(2, dtype=torch.int64),
    }
    loss = algorithm.losses(Batch.of(row)).terms["q"]  # pyright: ignore[reportArgumentType]
    assert float(loss) == pytest.approx((1e8 + 2e8) / 2, rel=1e-5)


def test_noisy_layers_are_refused():
    with pytest.raises(ConfigError, match=r"leave network.noisy off"):
        MunchausenDQN(TensorSpec((2,)), DiscreteSpec(num=3), MunchausenDQNConfig(network=NetworkConfig(noisy=True)))
