"""Distributions over actions with several parts: independent choices, switches, and nests of any distributions.

They have the methods of `Categorical` and `DiagonalGaussian`: `log_prob`, `entropy`, `mode`, `sample`, `kl`.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, no_type_check

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad, softplus

from palaestra.core import Batch
from palaestra.ops._arrays import Float, Integer, Shaped, require_same_shape, shape_error
from palaestra.ops.distributions import Categorical, finite

__all__ = ["Joint", "MultiBernoulli", "MultiCategorical"]


@no_type_check
class MultiCategorical:
    """K independent choices as one action, choice k among nₖ actions.

        log p(a) = Σₖ log pₖ(aₖ)

    Args:
        logits: [N, n₁ + ... + n_K] unnormalised log-probabilities of all choices, one after another, nats.
        nvec: (n₁, ..., n_K).
        mask: of the logits' shape and order, which actions are allowed, bool or 0/1; default all. Where a choice
            allows none (often so after an end), it allows all.

    Raises:
        ShapeError: logits, mask and nvec do not fit together.

    Examples:
        >>> policy = MultiCategorical(torch.zeros(5), (2, 3))
        >>> policy.mode(), policy.log_prob(torch.tensor([1, 2])), policy.entropy()
        (tensor([0, 0]), tensor(-1.7918), tensor(1.7918))
    """

    __slots__ = ("choices",)

    def __init__(
        self, logits: Float[Tensor, "*N A"], nvec: Sequence[int], mask: Shaped[Tensor, "*N A"] | None = None
    ) -> None:
        if logits.shape[-1] != sum(nvec):
            needed = f"for choices among {tuple(nvec)} actions its last axis must be {sum(nvec)}"
            raise shape_error(needed, logits=logits)
        lowest = torch.finfo(logits.dtype).min
        if mask is not None:
            require_same_shape("[N, A]", logits=logits, mask=mask)
            choices = mask.bool().split(list(nvec), -1)
            allowed = torch.cat([one | ~one.any(-1, keepdim=True) for one in choices], -1)
            logits = torch.where(allowed, logits, lowest)
        if len(set(nvec)) == 1:
            rows = logits.unflatten(-1, (len(nvec), nvec[0]))
        else:  # shorter choices are filled up with actions of probability 0
            parts = logits.split(list(nvec), -1)
            rows = torch.stack([pad(part, (0, max(nvec) - part.shape[-1]), value=lowest) for part in parts], -2)
        self.choices = Categorical(rows)  # [N, K, max nₖ]

    def log_prob(self, action: Integer[Tensor, "*N K"]) -> Float[Tensor, "*N"]:
        """Log-probabilities of the given actions.

        Args:
            action: [N, K], element k in 0 … nₖ − 1.

        Returns:
            [N] nats, differentiable in the logits; finite, however many choices are forbidden ones.

        Raises:
            ShapeError: action is not [N, K]; the message names both arrays.
        """
        return finite(self.choices.log_prob(action).sum(-1))

    def entropy(self) -> Float[Tensor, "*N"]:
        """Sums of the choices' entropies.

        Returns:
            [N] nats, differentiable in the logits.
        """
        return self.choices.entropy().sum(-1)

    def mode(self) -> Integer[Tensor, "*N K"]:
        """The most probable actions.

        Returns:
            [N, K] int64.
        """
        return self.choices.mode()

    def sample(self, generator: Generator | None = None) -> Integer[Tensor, "*N K"]:
        """Draws one action per row.

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            [N, K] int64; never a forbidden action.
        """
        return self.choices.sample(generator)

    def kl(self, other: "MultiCategorical") -> Float[Tensor, "*N"]:
        """Divergence KL(self ‖ other), summed over choices.

        Args:
            other: over the same choices.

        Returns:
            [N] nats, at least 0 to rounding; finite, however many choices other forbids, as those of `Categorical`.

        Raises:
            ShapeError: the choices differ.
        """
        return finite(self.choices.kl(other.choices).sum(-1))


@no_type_check
class MultiBernoulli:
    """A independent switches as one action.

        log p(a) = Σᵢ (aᵢ lᵢ − log(1 + exp lᵢ))

    Args:
        logits: [N, A] log-odds of 1 against 0.

    Examples:
        >>> policy = MultiBernoulli(torch.tensor([0.0, 50.0]))
        >>> policy.mode(), policy.log_prob(torch.tensor([1, 1])), policy.entropy()
        (tensor([0, 1], dtype=torch.int8), tensor(-0.6931), tensor(0.6931))
    """

    __slots__ = ("logits",)

    def __init__(self, logits: Float[Tensor, "*N A"]) -> None:
        self.logits = logits

    def log_prob(self, action: Shaped[Tensor, "*N A"]) -> Float[Tensor, "*N"]:
        """Log-probabilities of the given actions.

        Args:
            action: [N, A] of 0 and 1.

        Returns:
            [N] nats, differentiable in the logits.

        Raises:
            ShapeError: action and logits differ in shape; the message names both.
        """
        require_same_shape("[N, A]", action=action, logits=self.logits)
        return (action * self.logits - softplus(self.logits)).sum(-1)

    def entropy(self) -> Float[Tensor, "*N"]:
        """Sums of the switches' entropies.

        Returns:
            [N] nats, in [0, A log 2], differentiable in the logits.
        """
        return (softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(-1)

    def mode(self) -> Integer[Tensor, "*N A"]:
        """The most probable actions; 0 where both are as probable.

        Returns:
            [N, A] int8.
        """
        return (self.logits > 0).to(torch.int8)

    def sample(self, generator: Generator | None = None) -> Integer[Tensor, "*N A"]:
        """Draws one action per row.

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            [N, A] int8.
        """
        draw = torch.empty_like(self.logits).uniform_(generator=generator)
        return (draw < self.logits.sigmoid()).to(torch.int8)

    def kl(self, other: "MultiBernoulli") -> Float[Tensor, "*N"]:
        """Divergence KL(self ‖ other), summed over switches.

        Args:
            other: over the same switches.

        Returns:
            [N] nats, at least 0 to rounding.

        Raises:
            ShapeError: the logits differ in shape; the message names both.
        """
        require_same_shape("[N, A]", logits=self.logits, other_logits=other.logits)
        between = self.logits.sigmoid() * (self.logits - other.logits)
        return (between + softplus(other.logits) - softplus(self.logits)).sum(-1)


@no_type_check
class Joint:
    """Independent distributions by name, as one action: a `Batch` of their actions. Parts may be joint themselves.

        log p(a) = Σ log p_name(a_name)

    Args:
        parts: distributions over the same rows.

    Examples:
        >>> policy = Joint({"gear": Categorical(torch.zeros(2)), "pedals": MultiBernoulli(torch.ones(2))})
        >>> policy.mode().pedals, policy.log_prob(policy.mode())
        (tensor([1, 1], dtype=torch.int8), tensor(-1.3197))
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def log_prob(self, action: Any) -> Float[Tensor, "*N"]:
        """Log-probabilities of the given actions: sums over the parts.

        Args:
            action: a `Batch` with one entry for each part.

        Returns:
            [N] nats; densities where a part is continuous. Finite, however many parts are forbidden.
        """
        return finite(reduce(torch.add, [part.log_prob(action[name]) for name, part in self.parts.items()]))

    def entropy(self) -> Float[Tensor, "*N"]:
        """Sums of the parts' entropies.

        Returns:
            [N] nats; of any sign where a part is continuous.
        """
        return reduce(torch.add, [part.entropy() for part in self.parts.values()])

    def mode(self) -> Batch:
        """The most probable action of every part.

        Returns:
            A `Batch` with one entry for each part.
        """
        return Batch.of({name: part.mode() for name, part in self.parts.items()})

    def sample(self, generator: Generator | None = None) -> Batch:
        """Draws one action per row.

        Args:
            generator: source of the noise; default torch's global one.

        Returns:
            A `Batch` with one entry for each part.
        """
        return Batch.of({name: part.sample(generator) for name, part in self.parts.items()})

    def kl(self, other: "Joint") -> Float[Tensor, "*N"]:
        """Divergence KL(self ‖ other), summed over parts.

        Args:
            other: with the same parts.

        Returns:
            [N] nats, at least 0 to rounding; finite, however many parts other forbids, as those of `Categorical`.
        """
        return finite(reduce(torch.add, [part.kl(other.parts[name]) for name, part in self.parts.items()]))
