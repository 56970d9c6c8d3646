"""Tests of `categorical_projection` and `quantile_huber`."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import categorical_projection, huber, quantile_huber

SUPPORT = torch.linspace(-2, 3, 6)
GENERATOR = torch.Generator().manual_seed(0)
PROBS = torch.rand(4, 6, generator=GENERATOR).softmax(-1)
REWARD = torch.tensor([0.3, -1.0, 40.0, -40.0])
DISCOUNT = torch.tensor([0.9, 0.0, 0.5, 1.0])


def projected_atom_by_atom(probs, support, reward, discount):
    """Bellemare et al. 2017, equation (7), as it stands there."""
    low, high, step = support[0], support[-1], support[1] - support[0]
    rows = []
    for p, r, d in zip(probs.tolist(), reward.tolist(), discount.tolist(), strict=True):
        row = [0.0] * len(support)
        for p_j, z_j in zip(p, support.tolist(), strict=True):
            moved = min(max(r + d * z_j, low), high)
            for i, z_i in enumerate(support.tolist()):
                row[i] += min(max(1 - abs(moved - z_i) / step, 0.0), 1.0) * p_j
        rows.append(row)
    return torch.tensor(rows)


def test_the_projection_is_equation_7():
    expected = projected_atom_by_atom(PROBS, SUPPORT, REWARD, DISCOUNT)
    assert_close(categorical_projection(PROBS, SUPPORT, REWARD, DISCOUNT), expected)


def test_the_projection_keeps_probabilities_and_the_mean_of_what_is_not_clipped():
    projected = categorical_projection(PROBS, SUPPORT, REWARD, DISCOUNT)
    assert_close(projected.sum(-1), torch.ones(4))
    reward, discount = 0.1 * REWARD[:2], 0.5 * DISCOUNT[:2]
    inside = categorical_projection(PROBS[:2], SUPPORT, reward, discount)
    assert_close(inside @ SUPPORT, reward + discount * (PROBS[:2] @ SUPPORT))


def test_a_projection_that_moves_nothing_is_the_identity():
    """So atoms that fall onto atoms lose nothing; with l = u, a mutant of the usual code drops their mass."""
    assert_close(categorical_projection(PROBS, SUPPORT, torch.zeros(4), torch.ones(4)), PROBS)


def test_a_terminated_row_is_worth_its_reward_for_certain():
    """ALF-25: the mutant that bootstraps spreads over the atoms."""
    reward = torch.tensor([1.0])
    certain = categorical_projection(PROBS[:1], SUPPORT, reward, torch.zeros(1))
    assert_close(certain, torch.tensor([[0.0, 0, 0, 1, 0, 0]]))
    assert categorical_projection(PROBS[:1], SUPPORT, reward, torch.ones(1))[0, 3] < 0.5


def test_returns_beyond_the_atoms_count_as_the_outermost():
    projected = categorical_projection(PROBS, SUPPORT, REWARD, DISCOUNT)
    assert_close(projected[2], torch.tensor([0.0, 0, 0, 0, 0, 1]))
    assert_close(projected[3], torch.tensor([1.0, 0, 0, 0, 0, 0]))


def pinball_row_by_row(quantile, target, fraction, delta):
    """Dabney et al. 2018, equations (9) and (10), divided by delta as in the IQN paper."""
    losses = []
    for theta, y, tau in zip(quantile.tolist(), target.tolist(), fraction.tolist(), strict=True):
        total = 0.0
        for theta_i, tau_i in zip(theta, tau, strict=True):
            for y_j in y:
                u = y_j - theta_i
                loss = 0.5 * u * u if abs(u) <= delta else delta * (abs(u) - 0.5 * delta)
                total += abs(tau_i - (u < 0)) * loss / delta / len(y)
        losses.append(total)
    return torch.tensor(losses)


@pytest.mark.parametrize("delta", [0.1, 1.0, 5.0])
def test_the_quantile_loss_is_the_papers(delta):
    quantile, target = 3 * torch.randn(4, 5, generator=GENERATOR), 3 * torch.randn(4, 7, generator=GENERATOR)
    fraction = torch.rand(4, 5, generator=GENERATOR)
    assert_close(
        quantile_huber(quantile, target, fraction, delta=delta), pinball_row_by_row(quantile, target, fraction, delta)
    )
    shared = fraction[0]
    assert_close(
        quantile_huber(quantile, target, shared, delta=delta),
        pinball_row_by_row(quantile, target, shared.expand(4, 5), delta),
    )


def test_at_the_median_it_is_half_the_huber_loss():
    quantile, target = torch.randn(9, 1, generator=GENERATOR), torch.randn(9, 1, generator=GENERATOR)
    loss = quantile_huber(quantile, target, torch.tensor([0.5]), delta=0.7)
    assert_close(loss, 0.5 * huber((quantile - target)[:, 0], delta=0.7) / 0.7)


@pytest.mark.slow
def test_its_minimum_is_at_the_quantiles_and_a_mutant_without_fractions_is_at_the_median():
    target = torch.linspace(0, 10, 101)[None]
    fraction = torch.tensor([0.1, 0.5, 0.9])

    def fitted(at):
        quantile = torch.full((1, 3), 5.0, requires_grad=True)
        for _ in range(2000):
            (gradient,) = torch.autograd.grad(quantile_huber(quantile, target, at, delta=0.05).sum(), quantile)
            quantile = (quantile - 0.1 * gradient).detach().requires_grad_()
        return quantile.detach()[0]

    assert_close(fitted(fraction), torch.tensor([1.0, 5.0, 9.0]), atol=0.1, rtol=0)
    assert_close(fitted(torch.full((3,), 0.5)), torch.full((3,), 5.0), atol=0.1, rtol=0)


def test_targets_get_no_gradient():
    quantile, target = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    quantile_huber(quantile, target, torch.tensor([0.25, 0.75])).sum().backward()
    assert quantile.grad is not None
    assert target.grad is None


@pytest.mark.usefixtures("unchecked_shapes")
def test_wrong_shapes_and_numbers_are_named():
    with pytest.raises(
        ShapeError, match=r"next_probs has shape \[4, 5\], support has shape \[6\] and reward has shape \[4\]"
    ):
        categorical_projection(PROBS[:, :5], SUPPORT, REWARD, DISCOUNT)
    with pytest.raises(ShapeError, match="with Q of at least 2"):
        categorical_projection(PROBS[:, :1], SUPPORT[:1], REWARD, DISCOUNT)
    with pytest.raises(
        ShapeError, match=r"quantile has shape \[4, 6\], target has shape \[3, 6\] and fraction has shape \[6\]"
    ):
        quantile_huber(PROBS, PROBS[:3], SUPPORT)
    for delta in (0.0, math.inf):
        with pytest.raises(ValueError, match=f"delta is {delta}"):
            quantile_huber(PROBS, PROBS, SUPPORT, delta=delta)


def test_the_loss_of_a_small_delta_approaches_the_pinball_loss():
    quantile, target, tau = torch.tensor([[0.0]]), torch.tensor([[2.0, -3.0]]), torch.tensor([0.3])
    exact = (0.3 * 2.0 + 0.7 * 3.0) / 2
    assert math.isclose(float(quantile_huber(quantile, target, tau, delta=1e-4)), exact, rel_tol=1e-3)
