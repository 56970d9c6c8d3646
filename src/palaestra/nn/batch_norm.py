"""`BatchNorm`: units normalised by the rows of a minibatch, or by running averages of what minibatches were like."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BatchNorm", "BatchNormLinear", "MixesRows"]

_EPSILON = 1e-3
_SHARE = 0.01  # of the way that running averages go towards each minibatch
_WARM_UP = 100_000  # minibatches after which running averages are good enough to correct a minibatch's own
_MAX_RATIO, _MAX_SHIFT = 3.0, 5.0


class MixesRows(nn.Module):
    """A layer that sees a minibatch as a whole: its call takes `moments`, see `BatchNorm`."""


class BatchNorm(MixesRows):
    """Batch renormalisation of units, with a learned gain g and shift s.

        y = g ⊙ ((x − mean) / √(var + 10⁻³) ⊙ r + d) + s

    With the moments of a minibatch, r = σ / σ' and d = (mean − mean') / σ', where mean' and σ' are the running ones: r
    is clipped to [1/3, 3], d to [−5, 5], and both are held fixed, so that a minibatch is normalised nearly as single
    rows are later. For the first 100,000 minibatches r = 1 and d = 0, which is batch normalisation. Without a
    minibatch, mean and var are the running ones, r = 1 and d = 0.

    Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167; Ioffe 2017, https://arxiv.org/abs/1702.03275, algorithm 1;
    numbers as in the code of Bhatt et al. 2024, https://arxiv.org/abs/1902.05605.

    Args:
        size: units.
        num_members: K, networks side by side, each with moments of its own; 0 for a single one.
        renormalizes: whether r and d are ever other than 1 and 0.
        one_scale: whether the squares of gains and shifts together are kept at a mean of 1; see `CoreModel`.

    Examples:
        >>> norm, moments = BatchNorm(2), []
        >>> x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> norm(x, moments).round().tolist(), norm(x).round().tolist()
        ([[-1.0, -1.0], [1.0, 1.0]], [[1.0, 10.0], [3.0, 30.0]])
        >>> norm.follow(*moments)  # the call changes nothing by itself
        >>> norm.mean
        tensor([0.0200, 0.2000])
    """

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, size: int, num_members: int = 0, *, renormalizes: bool = True, one_scale: bool = False) -> None:
        super().__init__()
        self.size, self.renormalizes = size, renormalizes
        self.one_scale = ("gain", "shift") if one_scale else ()
        shape = (num_members, 1, size) if num_members else (size,)
        self.gain, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, moments: list[Tensor] | None = None, members: Any = None) -> Tensor:
        """The normalised units. Running averages stay as they are; see `follow`.

        Args:
            x: [..., size], or [K, N, size]; a minibatch is [N, size] or [K, N, size].
            moments: gets the mean and the variance of this minibatch, which is normalised by them; `None` takes the
                running averages.
            members: whose units x has; default all K.

        Returns:
            As `x`.
        """
        gain, shift, mean, variance = self.gain, self.shift, self.mean, self.variance
        if members is not None:
            gain, shift, mean, variance = gain[members], shift[members], mean[members], variance[members]
        if moments is None:
            return torch.addcmul(shift, x - mean, gain * (variance + _EPSILON).rsqrt())
        x = x.float()  # of products in bfloat16
        own_variance, own_mean = torch.var_mean(x, -2, correction=0, keepdim=x.ndim == 3)
        std = (own_variance + _EPSILON).sqrt()
        fixed_std, fixed_mean = std.detach(), own_mean.detach()
        moments += [fixed_mean, own_variance.detach()]
        if not self.renormalizes:
            return torch.addcmul(shift, x - own_mean, gain / std)
        running, warm = (variance + _EPSILON).sqrt(), self.steps >= _WARM_UP
        ratio = torch.where(warm, (fixed_std / running).clamp(1 / _MAX_RATIO, _MAX_RATIO), 1.0)
        offset = torch.where(warm, ((fixed_mean - mean) / running).clamp(-_MAX_SHIFT, _MAX_SHIFT), 0.0)
        return torch.addcmul(shift + gain * offset, x - own_mean, gain * ratio / std)

    @torch.no_grad()
    def follow(self, mean: Tensor, variance: Tensor) -> None:
        """Moves the running averages towards a minibatch.

        Args:
            mean: of its units, as a call gave it.
            variance: of its units.
        """
        self.mean.lerp_(mean, _SHARE)
        self.variance.lerp_(variance, _SHARE)
        self.steps += 1


class BatchNormLinear(MixesRows, nn.Linear):
    """A linear layer whose inputs are normalised: y = W norm(x) + b.

    Args:
        in_features: of the input.
        out_features: units.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.norm = BatchNorm(in_features)

    def forward(self, input: Tensor, moments: list[Tensor] | None = None) -> Tensor:
        """The outputs.

        Args:
            input: [..., in_features]; with `moments` a minibatch [N, in_features].
            moments: see `BatchNorm`.

        Returns:
            [..., out_features].
        """
        return super().forward(self.norm(input, moments))


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """The batch normalisations in a module, in the order in which its layers are called.

    Args:
        module: a network, or a part of one.
    """
    return [part for part in module.modules() if isinstance(part, BatchNorm)]
