"""Tests of behaviour cloning, IQL and discrete CQL: what is learned from rows that are fixed."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import (
    BehaviourCloning,
    BehaviourCloningConfig,
    DiscreteCQL,
    DiscreteCQLConfig,
    GradientAlgorithm,
)
from palaestra.core import Batch, DiscreteSpec, Offline, TensorSpec
from palaestra.rollout import OfflineData
from palaestra.training import Trainer, TrainerConfig
from tests.algorithms.parts import CASES, collected
from tests.algorithms.replayed import LINEAR, ROWS, constant, made, prepared

MID, LAST = 1, 2
OFFLINE = [
    (name, kind) for name, kind in CASES if name in ("behaviour_cloning", "cql", "discrete_cql", "iql", "td3_bc")
]


@pytest.mark.parametrize(("name", "kind"), OFFLINE)
def test_an_offline_plan_trains_on_a_loaded_buffer(name, kind):
    """The same trainer: updates take the place of env steps, and no row is added."""
    algorithm, collector = collected(name, kind)
    assert isinstance(algorithm.plan, Offline)
    rows = len(collector.buffer)
    result = Trainer(OfflineData(collector.buffer), algorithm, TrainerConfig(total_env_steps=3)).run()
    assert (result.env_steps, algorithm.policy_version, len(collector.buffer)) == (3, 3, rows)


def test_cloning_maximises_the_likelihood_of_the_actions():
    """The mean negative log-likelihood of a uniform choice among four is log 4."""
    algorithm = BehaviourCloning(TensorSpec((2,)), DiscreteSpec(num=4), BehaviourCloningConfig(network=LINEAR))
    constant(algorithm.model.component["policy"], 0.0)
    batch = Batch.of({"observation": torch.ones(ROWS, 2), "action": torch.tensor([0, 1, 1])})
    assert algorithm.losses(batch).terms["policy"].item() == pytest.approx(math.log(4))
    logits = -algorithm.gradients(batch).values["policy.mlp.layers.0.bias"]
    assert_close(logits, torch.tensor([1 / 3, 2 / 3, 0.0, 0.0]) - 0.25)  # shares in the data minus those of the policy


# -- implicit Q-learning


@pytest.mark.parametrize(("discount", "kind", "target"), [(1.0, MID, 3.8), (1.0, LAST, 3.8), (0.0, LAST, 2.0)])
def test_the_critics_of_iql_learn_from_the_next_value(discount, kind, target):
    """Kostrikov et al., equation (6): no action of the policy is asked for; ALF-26, ALF-28."""
    algorithm = made("iql", gamma=0.9)
    constant(algorithm.model.component["value"], 2.0)
    constant(algorithm.model.component["critic"], 0.0)
    critic = algorithm.losses(prepared(algorithm, 2.0, discount, kind)).terms["critic"]
    assert critic.item() == pytest.approx(2 * target**2, rel=1e-5)


@pytest.mark.parametrize(("q", "loss"), [([3.0, 5.0], 0.7 * 1.0), ([1.0, 5.0], 0.3 * 1.0)])
def test_the_value_of_iql_is_an_expectile_of_the_lesser_target_critic(q, loss):
    """Equation (5), around a value of 2."""
    algorithm = made("iql", expectile=0.7)
    constant(algorithm.model.component["value"], 2.0)
    constant(algorithm.model.component["target_critic"], q)
    assert algorithm.losses(prepared(algorithm, 0.0, 1.0)).terms["value"].item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("advantage", "weight"), [(1.0, math.exp(3.0)), (-1.0, math.exp(-3.0)), (9.0, 100.0)])
def test_iql_imitates_actions_by_their_advantage_up_to_a_limit(advantage, weight):
    """Equation (7) with beta 3."""
    algorithm = made("iql", inverse_temperature=3.0)
    constant(algorithm.model.component["value"], 0.0)
    constant(algorithm.model.component["target_critic"], advantage)
    batch = prepared(algorithm, 0.0, 1.0)
    losses = algorithm.losses(batch)
    log_prob = algorithm.policy.distribution(batch.observation).log_prob(batch.action).mean()
    assert losses.terms["actor"].item() == pytest.approx(-weight * log_prob.item(), rel=1e-4)


# -- conservative Q-learning with discrete actions


def discrete_cql(mask: bool = False) -> GradientAlgorithm:
    spec = {"action_mask": TensorSpec((3,), torch.int8), "x": TensorSpec((2,))} if mask else TensorSpec((2,))
    algorithm = DiscreteCQL(spec, DiscreteSpec(num=3), DiscreteCQLConfig(network=LINEAR, gamma=0.5, huber_delta=100.0))
    for name in ("q", "target_q"):
        constant(algorithm.model.component[name], 0.0)
        with torch.no_grad():
            algorithm.model.component[name].mlp.layers[0].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return algorithm


def test_the_gap_and_the_error_of_discrete_cql_add_up():
    """Kumar et al., equation (4): log-sum-exp of 1, 2, 3 minus the data's 1; the target is 1 + 3 / 2."""
    algorithm = discrete_cql()
    batch = prepared(algorithm, 1.0, 1.0).replace(action=torch.zeros(ROWS, dtype=torch.int64))
    losses = algorithm.losses(batch)
    gap = math.log(sum(math.exp(q) for q in (1, 2, 3))) - 1
    assert losses.metrics["gap"].item() == pytest.approx(gap, rel=1e-5)
    assert losses.terms["q"].item() == pytest.approx(gap + 0.5 * 1.5**2, rel=1e-5)


def test_forbidden_actions_neither_widen_the_gap_nor_raise_the_target():
    """DESIGN.md section 5: the third action, worth 3, is not allowed."""
    algorithm = discrete_cql(mask=True)
    observation = Batch.of({"action_mask": torch.tensor([[1, 1, 0]] * ROWS), "x": torch.zeros(ROWS, 2)})
    batch = prepared(algorithm, 1.0, 1.0).replace(
        action=torch.zeros(ROWS, dtype=torch.int64), observation=observation, next_observation=observation
    )
    losses = algorithm.losses(batch)
    gap = math.log(math.exp(1) + math.exp(2)) - 1
    assert losses.terms["q"].item() == pytest.approx(gap + 0.5 * 1.0**2, rel=1e-5)


def test_td3_with_cloning_pulls_its_actions_to_those_of_the_data():
    """Equation (3) of Fujimoto and Gu 2021: nothing is left of the second term where both are the same."""
    algorithm, collector = collected("td3_bc", "continuous", policy_period=1)
    generator, buffer = torch.Generator().manual_seed(0), collector.buffer
    batch = algorithm.noise(algorithm.preprocess(buffer.draw(algorithm.plan, generator), buffer), generator)
    chosen = algorithm.policy.action(batch.observation).detach()
    assert algorithm.losses(batch.replace(action=chosen)).metrics["distance"].item() == 0.0
    off = chosen + 0.5
    assert algorithm.losses(batch.replace(action=off)).metrics["distance"].item() == pytest.approx(0.25, rel=1e-4)


def test_where_no_action_is_allowed_all_are_in_the_soft_maximum_of_cql():
    """The gap to the maximum over nothing would be -inf, and a value would rise without end."""
    observation = {"observation": TensorSpec((2,)), "action_mask": TensorSpec((3,), torch.bool)}
    algorithm = DiscreteCQL(observation, DiscreteSpec(num=3), DiscreteCQLConfig(network=LINEAR))
    seen = {"observation": torch.ones(2, 2), "action_mask": torch.tensor([[False] * 3, [True, True, False]])}
    rows = {"observation": seen, "next_observation": seen, "action": torch.zeros(2, dtype=torch.int64)}
    batch = Batch.of({**rows, "reward": torch.zeros(2), "bootstrap": torch.zeros(2)})
    constant(algorithm.model.component["q"], 0.0)
    assert algorithm.losses(batch).metrics["gap"].item() == pytest.approx((math.log(3) + math.log(2)) / 2)
