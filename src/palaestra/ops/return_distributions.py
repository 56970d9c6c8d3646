"""Distributions of returns: the projection of C51, the loss of quantile regression.

Gradient flows into every argument; wrap targets in `torch.no_grad()` to hold them fixed.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from palaestra.core import ShapeError
from palaestra.ops._shapes import require_same_shape
from palaestra.ops._typing import Float

__all__ = ["categorical_projection", "quantile_huber"]


def categorical_projection(
    next_probs: Float[Tensor, "*N Q"],
    support: Float[Tensor, "Q"],
    reward: Float[Tensor, "*N"],
    discount: Float[Tensor, "*N"],
) -> Float[Tensor, "*N Q"]:
    """The distribution of r + γ Z, brought back onto the atoms of Z.

        mᵢ = Σⱼ pⱼ max(0, 1 − |clip(r + γ zⱼ, z₁, z_Q) − zᵢ| / Δz),   Δz = (z_Q − z₁) / (Q − 1)

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation (7).

    Args:
        next_probs: [N, Q] p, probabilities of the atoms of the next return.
        support: [Q] z, evenly spaced and rising, units of return; at least two atoms.
        reward: [N] reward of the transition.
        discount: [N] gamma times continuation, in [0, 1]; 0 where the episode terminated.

    Returns:
        [N, Q] probabilities of the same atoms; their mean is r + γ E[Z] where nothing is clipped.

    Raises:
        ShapeError: the arrays do not fit together; the message names both.

    Examples:
        >>> support = torch.tensor([0.0, 1.0, 2.0])
        >>> categorical_projection(torch.tensor([[0.0, 0.0, 1.0]]), support, torch.tensor([0.5]), torch.tensor([0.5]))
        tensor([[0.0000, 0.5000, 0.5000]])
    """
    require_same_shape("[N]", reward=reward, discount=discount)
    if next_probs.shape != (*reward.shape, *support.shape) or support.numel() < 2:
        raise ShapeError(
            f"next_probs has shape {list(next_probs.shape)}, support {list(support.shape)} and reward "
            f"{list(reward.shape)}; they must be [N, Q], [Q] and [N], with Q of at least 2"
        )
    low, high = support[0], support[-1]
    count = support.numel()
    moved = torch.minimum(torch.maximum(reward.unsqueeze(-1) + discount.unsqueeze(-1) * support, low), high)  # [N, Q]
    place = ((moved - low) * ((count - 1) / (high - low))).clamp(0, count - 1)
    below = place.detach().floor().clamp(max=count - 2)
    share = place - below  # of the atom above
    index = below.long()
    projected = torch.zeros_like(next_probs)
    projected = projected.scatter_add(-1, index, next_probs * (1 - share))
    return projected.scatter_add(-1, index + 1, next_probs * share)


def quantile_huber(
    quantile: Float[Tensor, "*N Q"],
    target: Float[Tensor, "*N Q2"],
    fraction: Float[Tensor, "*N Q"] | Float[Tensor, "Q"],
    *,
    delta: float = 1.0,
) -> Float[Tensor, "*N"]:
    """The loss whose minimum is at the quantiles of the targets, with a soft corner.

        L = Σᵢ 1/Q′ Σⱼ |τᵢ − 1{uᵢⱼ < 0}| huber(uᵢⱼ) / δ,   uᵢⱼ = yⱼ − θᵢ

    Dabney et al. 2018a, https://arxiv.org/abs/1710.10044, equations (9) and (10); Dabney et al. 2018b,
    https://arxiv.org/abs/1806.06923, equation (3), with fractions that may differ from row to row.

    Args:
        quantile: [N, Q] θ, predicted quantiles, units of return.
        target: [N, Q'] y, samples or quantiles of the target, held fixed.
        fraction: [N, Q], or [Q] for all rows alike; τ in (0, 1).
        delta: δ > 0, the error from which the loss grows linearly.

    Returns:
        [N] losses, differentiable in quantile only.

    Raises:
        ShapeError: the arrays do not fit together; the message names both.
        ValueError: delta is not positive.

    Examples:
        >>> quantile_huber(torch.tensor([[0.0]]), torch.tensor([[3.0, -3.0]]), torch.tensor([0.9]))
        tensor([1.2500])
    """
    if delta <= 0:
        raise ValueError(f"delta is {delta}; it must be positive: the error from which the loss grows linearly")
    if quantile.shape[:-1] != target.shape[:-1] or fraction.shape not in (quantile.shape, quantile.shape[-1:]):
        raise ShapeError(
            f"quantile has shape {list(quantile.shape)}, target {list(target.shape)} and fraction "
            f"{list(fraction.shape)}; they must be [N, Q], [N, Q'] and [N, Q] or [Q]"
        )
    # Sums over the targets on each side of θ, near and far, come from running sums over the sorted targets: Q log Q'
    # numbers for each row instead of Q Q'. float64, and centred, because squares are subtracted. Centred after sorting,
    # because torch 2.13 compiles a target that only arithmetic reads into a buffer that its rows overwrite.
    center = target.detach().mean(-1, keepdim=True)
    sample = (target.detach().sort(-1).values - center).double()  # [N, Q']
    theta, tau = (quantile - center).double(), fraction.double()
    count = sample.shape[-1]
    linear, square = (pad(sums.cumsum(-1), (1, 0)) for sums in (sample, sample * sample))  # [N, Q'+1]
    with torch.no_grad():
        edges = torch.cat((theta - delta, theta, theta + delta), -1)
        ends = torch.searchsorted(sample, edges)  # [N, 3 Q] how many targets lie below
        linear_at, square_at, below = linear.gather(-1, ends), square.gather(-1, ends), ends.double()
    (n1, n2, n3), (s1, s2, s3), (r1, r2, r3) = (x.chunk(3, -1) for x in (below, linear_at, square_at))
    far_below = delta * (n1 * (theta - 0.5 * delta) - s1)
    near_below = 0.5 * (r2 - r1) - theta * (s2 - s1) + 0.5 * (n2 - n1) * theta.square()
    near_above = 0.5 * (r3 - r2) - theta * (s3 - s2) + 0.5 * (n3 - n2) * theta.square()
    far_above = delta * (linear[..., -1:] - s3 - (count - n3) * (theta + 0.5 * delta))
    loss = (1 - tau) * (far_below + near_below) + tau * (near_above + far_above)
    return loss.sum(-1).to(quantile.dtype) / (count * delta)
