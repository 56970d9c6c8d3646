"""`SquashedGaussian`: a normal distribution pressed into a box."""

import math
from typing import no_type_check

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from palaestra.ops._shapes import require_same_shape
from palaestra.ops._typing import Float

__all__ = ["SquashedGaussian"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_LOG_TWO = math.log(2.0)
_EDGE = 1.0 - 2.0**-23  # the largest float32 action whose inverse is finite, with one bit to spare


@no_type_check
class SquashedGaussian:
    """A vector of A independent normal variables, each pressed into (-1, 1) by tanh.

        a = tanh(u),   u ~ N(μ, σ²),   log p(a) = log N(u; μ, σ) − Σᵢ log(1 − tanh²(uᵢ))

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, appendix C, equation (26).
    Departs from the paper: log(1 − tanh²(u)) is computed as 2 (log 2 − u − softplus(−2u)), which neither overflows nor
    needs a small number added.

    Args:
        mean: [N, A] μ, before the squashing.
        log_std: [N, A] log σ.

    Raises:
        ShapeError: the two differ in shape; the message names both.

    Examples:
        >>> policy = SquashedGaussian(torch.zeros(5, 2), torch.zeros(5, 2))
        >>> policy.mode().shape, policy.log_prob(torch.zeros(5, 2)).shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    __slots__ = ("log_std", "mean")

    def __init__(self, mean: Float[Tensor, "*N A"], log_std: Float[Tensor, "*N A"]) -> None:
        require_same_shape("[N, A]", mean=mean, log_std=log_std)
        self.mean = mean
        self.log_std = log_std

    def mode(self) -> Float[Tensor, "*N A"]:
        """The squashed means: the medians of the actions, and what is taken as the best ones.

        Returns:
            [N, A] in [-1, 1].

        Examples:
            >>> SquashedGaussian(torch.tensor([0.0, 50.0]), torch.zeros(2)).mode()
            tensor([0., 1.])
        """
        return self.mean.tanh()

    def sample(self, generator: Generator | None = None) -> Float[Tensor, "*N A"]:
        """Draws one action per row.

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            [N, A] in [-1, 1].
        """
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, self.log_std.exp(), noise).tanh()

    def at(self, noise: Float[Tensor, "*N A"]) -> tuple[Float[Tensor, "*N A"], Float[Tensor, "*N"]]:
        """The actions that given noise leads to, and their log-densities: the reparameterised sample.

        Args:
            noise: [N, A] standard normal numbers.

        Returns:
            [N, A] in [-1, 1] and [N] nats, both differentiable in mean and log_std.

        Raises:
            ShapeError: the noise is not [N, A]; the message names both arrays.

        Examples:
            >>> SquashedGaussian(torch.zeros(1), torch.zeros(1)).at(torch.zeros(1))
            (tensor([0.]), tensor(-0.9189))
        """
        require_same_shape("[N, A]", noise=noise, mean=self.mean)
        u = torch.addcmul(self.mean, self.log_std.exp(), noise)
        # the distance to the mean in standard deviations is the noise itself
        log_prob = noise.square() * -0.5 - self.log_std - _log_slope(u)
        return u.tanh(), log_prob.sum(-1) - _HALF_LOG_TWO_PI * noise.shape[-1]

    def log_prob(self, action: Float[Tensor, "*N A"]) -> Float[Tensor, "*N"]:
        """Log-densities of the given actions.

        Args:
            action: [N, A] in [-1, 1]; an action on the edge, where rounding puts some, is taken a little inside.

        Returns:
            [N] nats, differentiable in mean and log_std.

        Raises:
            ShapeError: action and mean differ in shape; the message names both.

        Examples:
            >>> SquashedGaussian(torch.zeros(1), torch.zeros(1)).log_prob(torch.zeros(1))
            tensor(-0.9189)
        """
        require_same_shape("[N, A]", action=action, mean=self.mean)
        u = action.clamp(-_EDGE, _EDGE).atanh()
        distance = (u - self.mean) * (-self.log_std).exp()
        return (distance.square() * -0.5 - self.log_std - _log_slope(u)).sum(-1) - _HALF_LOG_TWO_PI * u.shape[-1]


def _log_slope(u: Tensor) -> Tensor:
    """Log of tanh's derivative at u."""
    return 2 * (_LOG_TWO - u - softplus(-2 * u))
