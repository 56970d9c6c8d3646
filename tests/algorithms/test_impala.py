"""Tests of `palaestra.algorithms.impala`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import minibatches
from palaestra.ops import vtrace
from tests.algorithms.parts import collected
from tests.ops.trajectories import Trajectory, vtrace_reference


def prepared(**settings):
    algorithm, collector = collected("impala", "discrete", **settings)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
    return algorithm, collector, algorithm.preprocess(drawn, collector.buffer)


def test_on_policy_without_clipping_it_is_the_actor_critic_gradient():
    """Espeholt et al. 2018, remark 1: with the acting weights all importance weights are 1, so A2C's loss results."""
    impala, _, batch = prepared(value_cost=0.5, entropy_cost=0.0, gamma=0.9)
    a2c, collector = collected("a2c", "discrete", value_cost=0.5, entropy_cost=0.0, gamma=0.9, gae_lambda=1.0)
    state = {key.replace("a2c", "impala"): value for key, value in a2c.model.state_dict().items()}
    impala.model.load_state_dict(state)
    drawn = collector.buffer.draw(a2c.plan, torch.Generator().manual_seed(0))
    on_policy = a2c.losses(a2c.preprocess(drawn, collector.buffer))
    log_prob = a2c.policy.distribution(drawn.observation[:-1]).log_prob(drawn.action).detach()
    ours = impala.losses(
        batch.replace(observation=drawn.observation, action=drawn.action, log_prob=log_prob, reward=drawn.reward)
    )
    assert_close(ours.metrics["value_error"], on_policy.metrics["value_error"])
    assert_close(ours.metrics["policy_gradient"], on_policy.metrics["policy_gradient"])
    assert_close(ours.terms["impala"], on_policy.terms["a2c"])


def test_an_older_policy_is_corrected_for():
    """Equation (1): actions that the acting policy preferred more count less; the mutant without ratios differs."""
    algorithm, _, batch = prepared(entropy_cost=0.0, value_cost=0.0)
    older = batch.replace(log_prob=batch.log_prob + 1.0)
    value = algorithm.value(batch.observation).detach()
    log_prob = algorithm.policy.distribution(batch.observation[:-1]).log_prob(batch.action)
    rows = (value, batch.reward, batch.discount, batch.step_type, (log_prob - older.log_prob).detach())
    trace = vtrace(*rows, gamma=algorithm.config.gamma)
    expected = -(log_prob * trace.advantage * batch.valid).sum() / batch.valid.sum()
    loss = algorithm.losses(older)
    assert_close(loss.terms["impala"], expected)
    assert not torch.allclose(loss.terms["impala"], algorithm.losses(batch).terms["impala"])
    assert loss.metrics["kl"] > 0.3


def test_weights_of_errors_and_of_traces_have_bounds_and_a_decay_of_their_own():
    """Equation (1) and remark 2, by the sums in `vtrace_reference`; ratios are e ** 0.5 = 1.65, within the first bound.

    With the bounds exchanged, or without the decay, both losses are others.
    """
    settings = {"rho_clip": 2.0, "trace_clip": 0.5, "gae_lambda": 0.7, "gamma": 0.9}
    algorithm, _, batch = prepared(entropy_cost=0.0, **settings)
    batch = batch.replace(log_prob=batch.log_prob - 0.5)
    value = algorithm.value(batch.observation).detach()
    log_prob = algorithm.policy.distribution(batch.observation[:-1]).log_prob(batch.action).detach()
    rows = Trajectory(value.double(), batch.reward.double(), 0.9 * batch.discount.double(), batch.step_type)
    ratio = (log_prob - batch.log_prob).double()
    assert_close(ratio, torch.full_like(ratio, 0.5), rtol=1e-4, atol=0)
    target, advantage = vtrace_reference(rows, ratio, rho_clip=2.0, c_clip=0.5, lambda_=0.7)
    count, found = batch.valid.sum(), algorithm.losses(batch).metrics
    error = (((value[:-1] - target) ** 2) * batch.valid).sum() / count
    policy = -(log_prob * advantage * batch.valid).sum() / count
    assert found["value_error"].item() == pytest.approx(error.item(), rel=1e-4)
    assert found["policy_gradient"].item() == pytest.approx(policy.item(), rel=1e-4)


def test_the_row_after_the_unroll_is_bootstrapped_from_and_gets_no_gradient():
    algorithm, _, batch = prepared(entropy_cost=0.0)
    observation = batch.observation.clone().requires_grad_()
    batch = batch.replace(
        observation=observation,
        step_type=torch.ones_like(batch.step_type),
        discount=torch.ones_like(batch.discount),
    )
    loss = algorithm.losses(batch).terms["impala"]
    (gradient,) = torch.autograd.grad(loss, observation)
    assert gradient[:-1].any(-1).sum() == batch.valid.sum()
    assert not gradient[-1].any()
    last = observation.detach().clone()
    last[-1] = 1 - last[-1]
    assert not torch.allclose(algorithm.losses(batch.replace(observation=last)).terms["impala"], loss)


def test_sequences_stay_whole_and_minibatches_take_lanes():
    """ALF-08: with a minibatch size the unroll is divided by environments, in new order every time."""
    algorithm, collector, batch = prepared(mini_batch_sequences=1, num_epochs=2)
    parts = list(minibatches(batch, algorithm.plan, generator=torch.Generator().manual_seed(0)))
    assert len(parts) == 6
    assert {tuple(part.observation.shape[:2]) for part in parts} == {(13, 1)}
    assert {tuple(part.action.shape) for part in parts} == {(12, 1)}
    assert algorithm.update(collector.buffer).gradient_steps == 6


@pytest.mark.parametrize("updates", [1, 3])
def test_the_second_pass_knows_that_the_policy_has_moved(updates):
    """The divergence from the acting policy grows with each pass; targets follow the weights."""
    algorithm, collector, _ = prepared(num_epochs=updates, learning_rate=0.03)
    records = algorithm.update(collector.buffer).records
    kl = [float(record["kl"]) for record in records if "kl" in record]
    assert len(kl) == updates
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl == sorted(kl)


def test_entropy_and_value_error_are_means_over_valid_rows():
    algorithm, _, batch = prepared(entropy_cost=0.5, value_cost=0.0)
    some = torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    batch = batch.replace(valid=batch.valid * some)
    for parameter in algorithm.policy.network.parameters():
        parameter.data.mul_(10)  # so that entropies differ from row to row
    rows = [tuple(row) for row in batch.valid.nonzero().tolist()]
    entropies = [algorithm.policy.distribution(batch.observation[row]).entropy().item() for row in rows]
    assert 0 < len(entropies) < batch.valid.numel()
    losses = algorithm.losses(batch)
    mean = sum(entropies) / len(entropies)
    assert losses.metrics["entropy"].item() == pytest.approx(mean, rel=1e-5)
    total = losses.metrics["policy_gradient"].item() - 0.5 * mean
    assert losses.terms["impala"].item() == pytest.approx(total, rel=1e-5)
