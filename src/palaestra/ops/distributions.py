"""Distributions over actions: the part of `torch.distributions` that acting and losses need, at a fraction of its cost.

They check no values and keep no batch-shape bookkeeping; leading axes are whatever the parameters have. The classes are
marked `no_type_check` so that no run-time type checker wraps their methods: `torch.compile` cannot see through the
wrapper of an object that is made inside the graph.
"""

import math
from typing import no_type_check

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from palaestra.core import SpecError
from palaestra.ops._arrays import Float, Integer, Shaped, require_same_shape, shape_error

__all__ = ["Categorical", "DiagonalGaussian", "SquashedGaussian", "check_action_mask"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@no_type_check
class Categorical:
    """One of A actions, with probabilities in proportion to exp(logits) among the allowed ones.

        log p(a) = lₐ − log Σ exp(l)

    Huang and Ontañón 2022, https://arxiv.org/abs/2006.14171, on masks: the logits of forbidden actions are replaced by
    the lowest finite number, so their probability is exactly 0, and so is the gradient of their logits.
    The number is finite so that no 0 times infinity appears in entropies or gradients; a divergence that ought to be
    infinite is huge instead.

    Args:
        logits: [N, A] unnormalised log-probabilities, nats.
        mask: [N, A] which actions are allowed, bool or 0/1; default all. Where none is allowed (often so after
            an end), all are.

    Raises:
        ShapeError: logits and mask differ in shape; the message names both.

    Examples:
        >>> policy = Categorical(torch.zeros(3), torch.tensor([True, True, False]))
        >>> policy.probs, policy.entropy()
        (tensor([0.5000, 0.5000, 0.0000]), tensor(0.6931))
    """

    __slots__ = ("_log_probs", "logits")

    def __init__(self, logits: Float[Tensor, "*N A"], mask: Shaped[Tensor, "*N A"] | None = None) -> None:
        if mask is not None:
            require_same_shape("[N, A]", logits=logits, mask=mask)
            allowed = mask.bool()
            allowed = allowed | ~allowed.any(-1, keepdim=True)
            logits = torch.where(allowed, logits, torch.finfo(logits.dtype).min)
        self.logits = logits
        self._log_probs: Tensor | None = None

    @property
    def log_probs(self) -> Float[Tensor, "*N A"]:
        """[N, A] log-probabilities of all actions, nats; computed once."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

    @property
    def probs(self) -> Float[Tensor, "*N A"]:
        """[N, A] probabilities of all actions."""
        return self.log_probs.exp()

    def log_prob(self, action: Integer[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """Log-probabilities of the given actions.

        Args:
            action: [N] in 0 … A − 1.

        Returns:
            [N] nats, differentiable in the logits.

        Raises:
            ShapeError: action is not [N]; the message names both arrays.

        Examples:
            >>> Categorical(torch.zeros(4)).log_prob(torch.tensor(2))
            tensor(-1.3863)
        """
        if action.shape != self.logits.shape[:-1]:
            raise shape_error("logits must be [N, A] and action [N]", logits=self.logits, action=action)
        return self.log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Float[Tensor, "*N"]:
        """Entropies −Σ p log p; forbidden actions add 0.

        Returns:
            [N] nats, in [0, log A], differentiable in the logits.

        Examples:
            >>> Categorical(torch.zeros(4)).entropy()
            tensor(1.3863)
        """
        log_probs = self.log_probs if self._log_probs is None else self._log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def mode(self) -> Integer[Tensor, "*N"]:
        """The most probable actions; the first of them where several are.

        Returns:
            [N] int64, in 0 … A − 1.

        Examples:
            >>> Categorical(torch.tensor([0.0, 2.0, 1.0])).mode()
            tensor(1)
        """
        return self.logits.argmax(-1)

    def sample(self, generator: Generator | None = None) -> Integer[Tensor, "*N"]:
        """Draws one action per row: the first to arrive in a race of exponential clocks.

            a = argmaxₐ (lₐ − log Eₐ),   Eₐ ~ Exp(1)

        Maddison et al. 2014, https://arxiv.org/abs/1411.0030, section 2 (−log E is a Gumbel variable).

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            [N] int64, in 0 … A − 1; never a forbidden action.

        Examples:
            >>> Categorical(torch.zeros(3), torch.tensor([0, 1, 0])).sample(torch.Generator().manual_seed(0))
            tensor(1)
        """
        return self.sample_from(self.noise(generator))

    def noise(self, generator: Generator | None = None) -> Float[Tensor, "*N A"]:
        """The random numbers of one `sample`: logarithms of exponential clocks.

        Args:
            generator: whose numbers; torch's global one by default.

        Returns:
            [N, A].
        """
        return torch.empty_like(self.logits).exponential_(generator=generator).log_()  # no clock is 0

    def sample_from(self, noise: Float[Tensor, "*N A"]) -> Integer[Tensor, "*N"]:
        """`sample` with random numbers drawn before: compiled code draws none.

        Args:
            noise: [N, A] from `noise`, of any distribution of this shape.

        Returns:
            [N] int64, in 0 … A − 1; never a forbidden action.
        """
        return (self.logits - noise).argmax(-1)

    def kl(self, other: "Categorical") -> Float[Tensor, "*N"]:
        """Divergence KL(self ‖ other) = Σ p (log p − log q); actions that self forbids add 0.

        Args:
            other: over the same actions.

        Returns:
            [N] nats, at least 0 to rounding, differentiable in both distributions' logits. Where other forbids what
            self allows the divergence is infinite; it is then a number of the order of the largest finite one.

        Raises:
            ShapeError: the logits differ in shape; the message names both.

        Examples:
            >>> Categorical(torch.zeros(2)).kl(Categorical(torch.tensor([0.0, 1.0])))
            tensor(0.1201)
        """
        require_same_shape("[N, A]", logits=self.logits, other_logits=other.logits)
        return finite((self.probs * (self.log_probs - other.log_probs)).sum(-1))


@no_type_check
class DiagonalGaussian:
    """A vector of A independent normal variables, as one action.

        log p(a) = −Σᵢ ((aᵢ − μᵢ)² / (2 σᵢ²) + log σᵢ + ½ log 2π)

    Args:
        mean: [N, A] μ, units of the action.
        log_std: [N, A], or [A] for all rows alike; log σ.

    Raises:
        ShapeError: log_std is neither; the message names both.

    Examples:
        >>> policy = DiagonalGaussian(torch.zeros(5, 2), torch.zeros(2))
        >>> policy.log_prob(torch.zeros(5, 2)).shape, policy.entropy().shape
        (torch.Size([5]), torch.Size([5]))
    """

    __slots__ = ("log_std", "mean")

    def __init__(self, mean: Float[Tensor, "*N A"], log_std: Float[Tensor, "..."]) -> None:
        # not `log_std.shape != mean.shape`: for export, that says that N is not A
        fits = mean.ndim > 0 and log_std.ndim in (1, mean.ndim) and log_std.shape == mean.shape[-log_std.ndim :]
        if not fits:
            raise shape_error("mean must be [N, A] and log_std [N, A] or [A]", mean=mean, log_std=log_std)
        self.mean = mean
        self.log_std = log_std

    def log_prob(self, action: Float[Tensor, "*N A"]) -> Float[Tensor, "*N"]:
        """Log-densities of the given actions, summed over the action's dimensions.

        Args:
            action: [N, A] units of the action.

        Returns:
            [N] nats, differentiable in mean, log_std and action.

        Raises:
            ShapeError: action and mean differ in shape; the message names both.

        Examples:
            >>> DiagonalGaussian(torch.zeros(2), torch.zeros(2)).log_prob(torch.tensor([1.0, -1.0]))
            tensor(-2.8379)
        """
        require_same_shape("[N, A]", action=action, mean=self.mean)
        distance = (action - self.mean) * (-self.log_std).exp()
        return distance.square().sum(-1) * -0.5 - (self.log_std + _HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Float[Tensor, "*N"]:
        """Differential entropies Σᵢ (log σᵢ + ½ log 2πe).

        Returns:
            [N] nats, any sign, differentiable in log_std; a view of one number where log_std is [A].

        Examples:
            >>> DiagonalGaussian(torch.zeros(1), torch.zeros(1)).entropy()
            tensor(1.4189)
        """
        return (self.log_std + (0.5 + _HALF_LOG_TWO_PI)).sum(-1).expand(self.mean.shape[:-1])

    def mode(self) -> Float[Tensor, "*N A"]:
        """The most probable actions: the means.

        Returns:
            [N, A] units of the action.

        Examples:
            >>> DiagonalGaussian(torch.tensor([3.0]), torch.zeros(1)).mode()
            tensor([3.])
        """
        return self.mean

    def sample(self, generator: Generator | None = None) -> Float[Tensor, "*N A"]:
        """Draws one action per row: a = μ + σ ε, ε ~ N(0, 1).

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            [N, A] units of the action, differentiable in mean and log_std (act under `torch.no_grad()`).

        Examples:
            >>> DiagonalGaussian(torch.tensor([3.0]), torch.tensor([-90.0])).sample()
            tensor([3.])
        """
        return self.sample_from(self.noise(generator))

    def noise(self, generator: Generator | None = None) -> Float[Tensor, "*N A"]:
        """The random numbers of one `sample`: standard normal ones.

        Args:
            generator: whose numbers; torch's global one by default.

        Returns:
            [N, A].
        """
        return torch.empty_like(self.mean).normal_(generator=generator)

    def sample_from(self, noise: Float[Tensor, "*N A"]) -> Float[Tensor, "*N A"]:
        """`sample` with random numbers drawn before: compiled code draws none.

        Args:
            noise: [N, A] from `noise`, of any distribution of this shape.

        Returns:
            [N, A] units of the action.
        """
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def kl(self, other: "DiagonalGaussian") -> Float[Tensor, "*N"]:
        """Divergence KL(self ‖ other) = Σᵢ (log σ′ᵢ − log σᵢ + (σᵢ² + (μᵢ − μ′ᵢ)²) / (2 σ′ᵢ²) − ½).

        Args:
            other: over actions of the same dimensions.

        Returns:
            [N] nats, at least 0 to rounding, differentiable in both distributions' parameters.

        Raises:
            ShapeError: the means differ in shape; the message names both.

        Examples:
            >>> narrow, wide = torch.tensor([0.0]), torch.tensor([1.0])
            >>> DiagonalGaussian(torch.zeros(1), narrow).kl(DiagonalGaussian(torch.zeros(1), wide))
            tensor(0.5677)
        """
        require_same_shape("[N, A]", mean=self.mean, other_mean=other.mean)
        log_scale = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return (0.5 * ((2 * log_scale).exp() + distance.square() - 1) - log_scale).sum(-1)


def check_action_mask(mask: Shaped[Tensor, "*N A"]) -> None:
    """Refuses a mask that leaves some row without any action. It reads values, so it is for tests and debugging.

    Args:
        mask: [N, A] which actions are allowed, bool or 0/1.

    Raises:
        SpecError: a row allows nothing; the message names the first one.

    Examples:
        >>> check_action_mask(torch.tensor([[True, False], [False, True]]))
    """
    empty = (~mask.bool().any(-1)).reshape(-1)
    if empty.any():
        row = int(empty.nonzero()[0])
        raise SpecError(
            f"action_mask allows none of the {mask.shape[-1]} actions in row {row} of {empty.numel()} "
            f"({int(empty.sum())} such rows); each row must allow at least one: end the episode where no action is left"
        )


@no_type_check
def finite(nats: Tensor) -> Tensor:
    """Numbers beyond the largest finite ones as those: their sums would be infinite, and the differences of these NaN.

    Args:
        nats: log-probabilities or divergences.
    """
    limits = torch.finfo(nats.dtype)
    return nats.clamp(limits.min, limits.max)


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
