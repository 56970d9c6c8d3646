"""Tests of `SquashedGaussian`."""

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

from palaestra.core import ShapeError
from palaestra.ops import SquashedGaussian

MEAN = torch.tensor([[0.3, -1.0], [2.0, 0.0]], dtype=torch.float64)
LOG_STD = torch.tensor([[0.0, -1.0], [0.5, -2.0]], dtype=torch.float64)
NOISE = torch.tensor([[0.5, -0.2], [1.5, 2.0]], dtype=torch.float64)


def reference() -> TransformedDistribution:
    return TransformedDistribution(Independent(Normal(MEAN, LOG_STD.exp()), 1), [TanhTransform()])


def test_densities_are_those_of_torch():
    policy = SquashedGaussian(MEAN, LOG_STD)
    action, log_prob = policy.at(NOISE)
    assert_close(action, (MEAN + LOG_STD.exp() * NOISE).tanh())
    assert_close(log_prob, reference().log_prob(action))
    assert_close(policy.log_prob(action), log_prob)


def test_the_density_integrates_to_one():
    """A sum over 20,000 cells; without the slope of tanh it would be another number."""
    policy = SquashedGaussian(torch.tensor([0.4]).double(), torch.tensor([-0.3]).double())
    cells = (torch.arange(20_000).double() + 0.5) / 10_000 - 1
    density = torch.stack([policy.log_prob(a[None]) for a in cells[::10]]).exp()
    assert density.mean().item() * 2 == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("mean", [-60.0, 60.0])
def test_far_out_everything_is_finite(mean):
    """log(1 - tanh(u)^2) in its plain form is minus infinity from |u| = 9 on."""
    parameters = torch.tensor([[mean]]).requires_grad_(), torch.tensor([[-3.0]]).requires_grad_()
    policy = SquashedGaussian(*parameters)
    action, log_prob = policy.at(torch.zeros(1, 1))
    edge = policy.log_prob(action.detach())
    gradients = torch.autograd.grad((log_prob + edge).sum(), parameters)
    assert torch.isfinite(torch.cat((log_prob.detach(), edge.detach(), *(g.flatten() for g in gradients)))).all()


def test_gradients_of_the_reparameterised_sample_are_those_of_finite_differences():
    def energy(mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        action, log_prob = SquashedGaussian(mean, log_std).at(NOISE)
        return action.square().sum() + log_prob.sum()

    assert torch.autograd.gradcheck(energy, (MEAN.clone().requires_grad_(), LOG_STD.clone().requires_grad_()))


def test_samples_and_the_mode_stay_inside():
    policy = SquashedGaussian(MEAN.float(), LOG_STD.float())
    drawn = torch.stack([policy.sample(torch.Generator().manual_seed(seed)) for seed in range(200)])
    assert drawn.abs().max() <= 1
    assert_close(drawn.median(0).values, policy.mode(), atol=0.15, rtol=0)


@pytest.mark.usefixtures("unchecked_shapes")
def test_shapes_that_differ_are_named():
    with pytest.raises(ShapeError, match=r"mean has shape \[2\] and log_std has shape \[3\]"):
        SquashedGaussian(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ShapeError, match="noise has shape"):
        SquashedGaussian(torch.zeros(2), torch.zeros(2)).at(torch.zeros(3))
    with pytest.raises(ShapeError, match="action has shape"):
        SquashedGaussian(torch.zeros(2), torch.zeros(2)).log_prob(torch.zeros(3))


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_density_is_one_graph():
    def density(mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return SquashedGaussian(mean, log_std).at(noise)[1]

    torch.compiler.reset()
    compiled = torch.compile(density, fullgraph=True, backend="eager")
    assert_close(compiled(MEAN, LOG_STD, NOISE), density(MEAN, LOG_STD, NOISE))
