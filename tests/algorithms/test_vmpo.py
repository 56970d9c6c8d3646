"""Tests of V-MPO: against a plain transcription of its losses, and of what its weights and bounds promise."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.testing import assert_close

from palaestra.algorithms import VMPO, VMPOConfig
from palaestra.algorithms.vmpo import _emphasis
from palaestra.core import Batch, DiscreteSpec, TensorSpec
from palaestra.nn import NetworkConfig
from tests.algorithms.parts import collected, first_minibatch


def moved(kind, **settings):
    """An algorithm whose policy has moved since it acted, and a minibatch of the unroll it acted in."""
    algorithm, collector = collected("vmpo", kind, **settings)
    batch = first_minibatch(algorithm, collector.buffer)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in algorithm.policy.network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return algorithm, batch


def least(advantages, bound):
    """The temperature of least loss on a fine grid, and the loss written as the paper does."""
    grid = torch.logspace(-3, 3, 20001, dtype=torch.float64)
    mean = (advantages[None] / grid[:, None]).logsumexp(1) - math.log(len(advantages))
    return grid[(grid * bound + grid * mean).argmin()]


@pytest.mark.parametrize("bound", [0.01, 0.1, 1.0])
def test_weights_are_those_of_the_temperature_of_least_loss_in_the_better_half(bound):
    generator = torch.Generator().manual_seed(0)
    advantage = 3 * torch.randn(8, 25, generator=generator)
    valid = (torch.rand(8, 25, generator=generator) < 0.9).float()
    emphasis = _emphasis(advantage, valid, bound)
    rows = sorted(advantage[valid > 0].tolist(), reverse=True)
    best = torch.tensor(rows[: len(rows) // 2 + 1], dtype=torch.float64)
    weights = (best / least(best, bound)).exp()
    wanted = weights / weights.sum() * len(rows)
    found = emphasis[emphasis > 0].sort(descending=True).values
    assert_close(found.double(), wanted, rtol=2e-3, atol=1e-5)
    assert (emphasis[valid == 0] == 0).all()
    assert_close(emphasis.sum() / valid.sum(), torch.tensor(1.0))


def test_equal_advantages_weigh_the_same_and_no_row_none():
    assert_close(_emphasis(torch.full((4,), 2.0), torch.ones(4), 0.1), torch.ones(4))
    assert _emphasis(torch.ones(3), torch.zeros(3), 0.1).tolist() == [0, 0, 0]


def test_weights_do_not_depend_on_the_unit_of_rewards():
    advantage = torch.randn(40, generator=torch.Generator().manual_seed(1))
    large = _emphasis(1e4 * advantage + 50, torch.ones(40), 0.1)
    assert_close(large, _emphasis(advantage, torch.ones(40), 0.1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_losses_are_those_of_a_plain_transcription(kind):
    algorithm, batch = moved(kind, value_cost=0.7, entropy_cost=0.02, mean_bound=0.03, std_bound=0.004)
    with torch.no_grad():
        for name, multiplier in algorithm.multipliers.items():
            multiplier.log.fill_(math.log({"mean": 2.0, "std": 5.0}[name]))
    outputs = algorithm.policy.head(algorithm.policy.features(batch.observation)[0])
    if kind == "discrete":
        new, old = Categorical(logits=outputs), Categorical(logits=batch.old.numbers)
        kls = {"mean": kl_divergence(old, new)}
    else:
        mean, log_std = outputs
        means, stds = batch.old.numbers, batch.old.log_std.exp()
        new, old = Independent(Normal(mean, log_std.exp()), 1), Independent(Normal(means, stds), 1)
        kls = {
            "mean": kl_divergence(old, Independent(Normal(mean, stds), 1)),
            "std": kl_divergence(old, Independent(Normal(means, log_std.exp().expand_as(means)), 1)),
        }
    n = batch.valid.sum()
    policy_loss = -sum(
        e * p for e, p, v in zip(batch.emphasis, new.log_prob(batch.action), batch.valid, strict=True) if v
    )
    values = algorithm.value(batch.observation)
    value_loss = ((values - batch.value_target) ** 2 * batch.valid).sum() / n
    total = policy_loss / n + 0.7 * value_loss - 0.02 * (new.entropy() * batch.valid).sum() / n
    dual = torch.zeros(())
    for name, bound, alpha in (("mean", 0.03, 2.0), ("std", 0.004, 5.0)):
        if name in kls:
            kl = (kls[name] * batch.valid).sum() / n
            total = total + alpha * kl
            dual = dual + algorithm.multipliers[name].log * (bound - kl.detach())
    found = algorithm.losses(batch)
    assert_close(found.terms["vmpo"], total, rtol=1e-4, atol=1e-5)
    parameters = list(algorithm.policy.network.parameters())
    got, wanted = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (found.terms["vmpo"], total))
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other, rtol=1e-3, atol=1e-5)
    logs = [algorithm.multipliers[name].log for name in kls]
    duals = [torch.autograd.grad(loss, logs) for loss in (found.terms["multipliers"], dual)]
    for one, other in zip(*duals, strict=True):
        assert_close(one, other)


def test_before_it_moves_the_policy_is_the_one_that_acted_and_multipliers_fall():
    algorithm, collector = collected("vmpo", "continuous")
    batch = first_minibatch(algorithm, collector.buffer)
    metrics = algorithm.losses(batch).metrics
    assert_close(metrics["kl_mean"], torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(metrics["kl_std"], torch.tensor(0.0), atol=1e-6, rtol=0)
    gradients = algorithm.gradients(batch)
    assert all(gradients.values[f"multipliers.{name}.log"] > 0 for name in ("mean", "std"))


@pytest.mark.parametrize("bound", [0.005, 0.05])
def test_what_paid_becomes_likely_until_the_policy_has_moved_as_far_as_it_may(bound):
    """Four choices of which the last pays; the divergence from even chances goes to the bound, and stays."""
    network = NetworkConfig(hidden_sizes=())
    config = VMPOConfig(network=network, mean_bound=bound, learning_rate=0.01, multiplier_learning_rate=0.03)
    algorithm = VMPO(TensorSpec((1,)), DiscreteSpec(num=4), config)
    with torch.no_grad():
        for parameter in algorithm.policy.network.parameters():
            parameter.zero_()
    action, even = torch.arange(64) % 4, torch.ones(64)
    paid, seen = (action == 3).float(), torch.zeros(64, 1)
    rows = {"observation": seen, "action": action, "advantage": paid, "value": paid, "value_target": 0 * paid}
    rows |= {"valid": even, "emphasis": _emphasis(paid, even, 0.1)}
    batch = Batch.of({**rows, "old": Batch.of({"numbers": torch.zeros(64, 4)})})
    for _ in range(250):
        algorithm.apply(algorithm.gradients(batch))
    probs = algorithm.policy.distribution(seen).probs[0].detach()
    assert probs.argmax() == 3
    assert float((0.25 * (0.25 / probs).log()).sum()) == pytest.approx(bound, rel=0.1)
