"""Tests of `palaestra.algorithms.dqn`."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import DQN, DQNConfig, ValueBatch
from palaestra.buffers import Windows
from palaestra.core import Batch, DiscreteSpec, Linear, MultiBinarySpec, TensorSpec, TimeStep
from palaestra.nn import NetworkConfig
from palaestra.policies import Phase
from tests.algorithms.parts import collected

FIRST, MID, LAST = 0, 1, 2


def linear(**settings: Any) -> DQN:
    """Two actions whose values are the two numbers of the observation, in the online and the target network."""
    config = DQNConfig(network=NetworkConfig(hidden_sizes=()), gamma=0.5, **settings)
    algorithm = DQN(TensorSpec((2,)), DiscreteSpec(num=2), config)
    weights(algorithm.model.component["q"], torch.eye(2))
    weights(algorithm.model.component["target_q"], torch.eye(2))
    return algorithm


def weights(network: Any, matrix: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(matrix if parameter.ndim == 2 else torch.zeros_like(parameter))


def row(observation: Any, action: int, next_observation: Any, reward: float, discount: float) -> ValueBatch:
    return ValueBatch.of(
        {
            "observation": torch.tensor([observation]),
            "action": torch.tensor([action]),
            "next_observation": torch.tensor([next_observation]),
            "reward": torch.tensor([reward]),
            "bootstrap": torch.tensor([discount]),
            "index": torch.tensor([0]),
        }
    )


@pytest.mark.parametrize(("double", "target"), [(False, 8.0), (True, -2.0)])
def test_double_q_learning_asks_the_online_network_for_the_action(double, target):
    """Mnih et al. equation (2), van Hasselt et al. equation (4): the target network says 8 and -2, online likes 1."""
    algorithm = linear(double=double, huber_delta=100.0)
    weights(algorithm.model.component["target_q"], torch.tensor([[2.0, 0.0], [0.0, -0.4]]))
    batch = row([1.0, 0.0], 0, [4.0, 5.0], reward=1.0, discount=0.5)
    error = 1.0 - (1.0 + 0.5 * target)  # Q(s, 0) is 1
    assert algorithm.losses(batch).terms["q"].item() == pytest.approx(error**2 / 2)


def test_the_loss_is_quadratic_near_the_target_and_linear_far_from_it():
    near = row([1.0, 0.0], 0, [0.0, 0.0], reward=1.5, discount=0.0)
    far = row([1.0, 0.0], 0, [0.0, 0.0], reward=11.0, discount=0.0)
    algorithm = linear(huber_delta=1.0)
    assert algorithm.losses(near).terms["q"].item() == pytest.approx(0.5**2 / 2)
    assert algorithm.losses(far).terms["q"].item() == pytest.approx(10 - 0.5)


def test_no_gradient_flows_through_the_target():
    """A target that moved with the online network would have another gradient: here it is that of Q(s, 0) alone."""
    algorithm = linear(double=True)
    gradient = algorithm.gradients(row([1.0, 0.0], 0, [0.0, 7.0], reward=0.0, discount=0.5)).values
    assert all(key.startswith("q.") for key in gradient)
    matrix = next(value for value in gradient.values() if value.ndim == 2)
    assert_close(matrix, torch.tensor([[-1.0, 0.0], [0.0, 0.0]]))  # delta clipped to 1, in row 0 only


def test_n_step_targets_respect_the_end_of_an_episode():
    """TS-14, TS-21, TS-22: G = r1 + gamma r2 + gamma² max Q; a termination stops it, a time limit bootstraps."""
    algorithm = linear(n_step=2)
    windows = Windows.of(
        {
            "observation": torch.zeros(4, 2),
            "action": torch.zeros(4, dtype=torch.int64),
            "next_observation": torch.zeros(4, 2),
            "reward": torch.tensor([[9.0, 9.0, 9.0, 9.0], [1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 5.0, 5.0]]),
            "discount": torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]]),
            "step_type": torch.tensor([[MID] * 4, [MID, MID, LAST, LAST], [MID, LAST, FIRST, FIRST]]),
            "policy_info": Batch(),
            "index": torch.arange(4),
        }
    )
    batch = algorithm.preprocess(windows, source=None)
    assert_close(batch.reward, torch.tensor([2.0, 2.0, 1.0, 1.0]))
    assert_close(batch.bootstrap, torch.tensor([0.25, 0.0, 0.0, 0.5]))


def test_the_target_network_follows_every_target_period_gradient_steps():
    """PARL-14, PARL-29, TS-12: it is equal right after a copy, and stays as it is in between."""
    algorithm, collector = collected("dqn", "discrete", target_period=3, gradient_steps=1)
    online, target = (algorithm.model.component[name] for name in ("q", "target_q"))

    def equal() -> bool:
        pairs = zip(online.parameters(), target.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    seen = [equal()]
    for _ in range(6):
        algorithm.update(collector.buffer)
        seen.append(equal())
    assert seen == [True, False, False, True, False, False, True]
    assert not any(p.requires_grad for p in target.parameters())


def test_epsilon_applies_when_collecting_and_in_no_other_phase():
    """TS-16, TS-17: with epsilon 1 collecting is uniform; update and evaluation are greedy."""
    algorithm, collector = collected("dqn", "discrete", epsilon=1.0)
    policy = algorithm.policy
    observation = torch.rand(400, *collector.env.observation_spec.shape, generator=torch.Generator().manual_seed(0))
    greedy = policy.greedy(observation)
    step = TimeStep(observation=observation)
    for phase in (Phase.UPDATE, Phase.EVAL):
        assert torch.equal(policy.act(step, phase=phase).action, greedy)
    counts = np.bincount(policy.act(step, phase=Phase.COLLECT).action.numpy(), minlength=3)
    assert (np.abs(counts / 400 - 1 / 3) < 0.1).all()


def test_an_update_never_explores(monkeypatch):
    """TS-17: nothing in an update asks the exploration."""
    algorithm, collector = collected("dqn", "discrete", epsilon=1.0)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("explored inside an update")

    monkeypatch.setattr(algorithm.policy.exploration, "explore", refuse)
    assert algorithm.update(collector.buffer).gradient_steps == 2


def test_epsilon_follows_its_schedule():
    """MARO-46: a function of env steps."""
    algorithm = linear(epsilon=Linear(1.0, 0.1, 0.5))
    found = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        algorithm.set_progress(progress)
        found.append(algorithm.policy.exploration.strength)
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_forbidden_actions_do_not_raise_the_target():
    """DESIGN.md section 5: the action mask is honoured when bootstrapping."""
    spec = {"position": TensorSpec((2,)), "action_mask": MultiBinarySpec((2,))}
    config = DQNConfig(network=NetworkConfig(hidden_sizes=()), huber_delta=100.0)
    algorithm = DQN(spec, DiscreteSpec(num=2), config)
    for name in ("q", "target_q"):
        weights(algorithm.model.component[name], torch.eye(2))

    def observation(position: list[float], mask: list[int]) -> Batch:
        return Batch.of({"action_mask": torch.tensor([mask]), "position": torch.tensor([position])})

    batch = row([0.0, 0.0], 0, [0.0, 0.0], reward=0.0, discount=1.0).replace(
        observation=observation([0.0, 0.0], [1, 1]), next_observation=observation([1.0, 9.0], [1, 0])
    )
    assert algorithm.losses(batch).terms["q"].item() == pytest.approx(0.5)  # the target is 1, not 9


def test_the_dueling_network_learns_too():
    """Wang et al. equation (9): an option of the network."""
    network = NetworkConfig(hidden_sizes=(8,), dueling=True)
    algorithm, collector = collected("dqn", "discrete", network=network)
    names = {name.split(".")[0] for name, _ in algorithm.model.component["q"].named_parameters()}
    assert {"value", "advantage"} <= names
    assert np.isfinite(algorithm.update(collector.buffer).metrics["q"])


def test_weights_of_a_draw_weigh_its_errors_and_the_errors_are_its_priorities():
    """Schaul et al. 2016, algorithm 1: w delta, and p = |delta|."""
    algorithm = linear(huber_delta=100.0, prioritized=True)
    one, two = (row([1.0, 0.0], 0, [0.0, 0.0], reward=reward, discount=0.0) for reward in (3.0, -1.0))  # Q(s, 0) is 1
    batch = one.cat([one, two]).replace(weight=torch.tensor([0.25, 1.0]))
    losses = algorithm.losses(batch)
    assert losses.terms["q"].item() == pytest.approx((0.25 * 2**2 / 2 + 1.0 * 2**2 / 2) / 2)
    assert losses.priority.tolist() == [2.0, 2.0]
