"""Means and variances: of the valid rows of a batch, and of a stream that arrives in pieces; intervals of means."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.ops._arrays import Float, Num, Shaped, require_same_shape
from palaestra.ops.losses import is_constant, masked_mean

__all__ = ["Moments", "centered_ranks", "mean_interval", "merge", "moments_of", "standardize", "t_quantile", "variance"]


def standardize(x: Float[Tensor, "*N"], valid: Shaped[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Shifts and scales the valid rows to mean 0 and standard deviation 1.

        yᵢ = validᵢ (xᵢ − x̄) / (σ + 10⁻⁸),   x̄ and σ over valid rows

    The population's standard deviation, so one valid row gives 0 and not NaN.

    Args:
        x: [N] any quantity per row.
        valid: [N] bool or 0/1, which rows count.

    Returns:
        [N] standardised rows, exactly 0 where not valid; all 0 where the valid rows are one number to rounding.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> standardize(torch.tensor([1.0, 3.0, 50.0]), torch.tensor([True, True, False]))
        tensor([-1.,  1.,  0.])
    """
    centred = x - masked_mean(x, valid)
    centred = torch.where(valid.bool() & ~is_constant(x, valid), centred, 0.0)
    return centred / (masked_mean(centred.square(), valid).sqrt() + 1e-8)


class Moments(NamedTuple):
    """What is left of a stream of rows: enough for its mean and variance, and to merge it with another stream."""

    count: Float[Tensor, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    """0-dim float64: number of rows; exact up to 2⁵³."""
    mean: Float[Tensor, "..."]
    """float64: mean of the rows; 0 when there are none."""
    m2: Float[Tensor, "..."]
    """float64: sum of squared differences from the mean."""


def moments_of(x: Num[Tensor, "..."], dims: int | Sequence[int] = 0) -> Moments:
    """Reduces rows to their moments.

        count = N,   mean = Σ xᵢ / N,   m2 = Σ (xᵢ − mean)²

    Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115, the two-pass algorithm, in float64.

    Args:
        x: [N, ...] any numbers; rows may have several axes, as in [T, B, ...].
        dims: the axes that number the rows: 0 for [N, ...], (0, 1) for [T, B, ...].

    Returns:
        `Moments` of the remaining shape, without gradient; count 0 when x has no rows.

    Examples:
        >>> moments_of(torch.tensor([[1.0, 10.0], [3.0, 10.0]])).mean
        tensor([ 2., 10.], dtype=torch.float64)
    """
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    x = x.detach().to(torch.float64)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    mean = x.sum(axes, keepdim=True) / max(count, 1)
    m2 = (x - mean).square_().sum(axes)
    return Moments(torch.full((), float(count), dtype=torch.float64, device=x.device), mean.sum(axes), m2)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of two streams together.

        n = nₐ + n_b,   mean = meanₐ + δ n_b / n,   m2 = m2ₐ + m2_b + δ² nₐ n_b / n,   δ = mean_b − meanₐ

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
    Stanford STAN-CS-79-773.

    Args:
        a: one stream; may be empty.
        b: the other, of the same shape.

    Returns:
        `Moments` of both; whatever the grouping and order of merges, the same to rounding.

    Raises:
        ShapeError: the means differ in shape; the message names both.

    Examples:
        >>> merge(moments_of(torch.tensor([1.0, 2.0])), moments_of(torch.tensor([6.0]))).mean
        tensor(3., dtype=torch.float64)
    """
    require_same_shape("of one shape to be merged", a_mean=a.mean, b_mean=b.mean)
    count = a.count + b.count
    delta = b.mean - a.mean
    weight = b.count / count.clamp(min=1)
    return Moments(count, torch.addcmul(a.mean, delta, weight), a.m2 + b.m2 + delta.square() * (a.count * weight))


def variance(moments: Moments) -> Float[Tensor, "..."]:
    """Variance of the rows, as of a whole population.

        σ² = m2 / max(1, count)

    Args:
        moments: of a stream.

    Returns:
        float64, at least 0, of the mean's shape; 0 when there are no rows.

    Examples:
        >>> variance(moments_of(torch.tensor([1.0, 3.0])))
        tensor(1., dtype=torch.float64)
    """
    return moments.m2 / moments.count.clamp(min=1)


def centered_ranks(score: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Ranks of scores, evenly spaced with mean 0: how good each is among the others, whatever their units.

        uᵢ = (rankᵢ − (N − 1) / 2) / (N − 1),   rank from 0 for the worst; equal scores share their mean rank

    Wierstra et al. 2014, https://jmlr.org/papers/v15/wierstra14a.html, section 3.1, in the form of Salimans et al.
    2017, https://arxiv.org/abs/1703.03864, section 2.1.

    Args:
        score: [N], at least two.

    Returns:
        [N] in [-0.5, 0.5], without gradient.

    Examples:
        >>> centered_ranks(torch.tensor([3.0, -70.0, 5.0]))
        tensor([ 0.0000, -0.5000,  0.5000])
    """
    below = (score[None, :] < score[:, None]).sum(1)
    equal = (score[None, :] == score[:, None]).sum(1) - 1
    count = score.numel()
    return (below.to(score.dtype) + 0.5 * equal - 0.5 * (count - 1)) / max(count - 1, 1)


def mean_interval(values: Iterable[float]) -> tuple[float, float]:
    """95% interval of a mean by Student's t, which holds for few values, too; one value has none but itself.

    Args:
        values: one for each run or episode.
    """
    array = np.asarray(list(values), np.float64)[:, None]
    mean, half = float(array.mean()), float(half_width(array, 0)[0])
    return mean - half, mean + half


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of what is left when a quarter is cut off at either end.

    Agarwal et al. 2021, https://arxiv.org/abs/2108.13264. The count cut off at either end is rounded down.

    Args:
        values: [..., n, points]; averaged over the last but one dimension.

    Examples:
        >>> iqm(np.array([[0.0], [1.0], [2.0], [99.0]]))
        array([1.5])
    """
    count = values.shape[-2]
    cut = count // 4
    return np.sort(values, axis=-2)[..., cut : count - cut, :].mean(axis=-2)


def half_width(values: np.ndarray, cut: int) -> np.ndarray:
    """Half of the 95% interval of a mean over runs, by Student's t: [n, points] -> [points].

    Tukey and McLaughlin 1963, Sankhya A 25, 331 to 352, where runs are cut off: those count as the last
    that is not.

    Args:
        values: of n runs.
        cut: how many are cut off at either end.
    """
    count = len(values)
    kept = count - 2 * cut
    if count < 2:
        return np.zeros(values.shape[-1])
    ordered = np.sort(values, axis=0)
    spread = ordered.clip(ordered[cut], ordered[count - 1 - cut]).std(axis=0, ddof=1)
    return t_quantile(kept - 1) * spread * np.sqrt(count) / kept


def t_quantile(degrees_of_freedom: int) -> float:
    """97.5% quantile of Student's t, from |t| = √ν tan φ, where the density of φ is in proportion to cos(φ)^(ν − 1).

    Args:
        degrees_of_freedom: ν, at least 1.

    Examples:
        >>> round(t_quantile(1), 3), round(t_quantile(4), 3), round(t_quantile(1000), 3)
        (12.706, 2.776, 1.962)
    """
    ends = np.linspace(0.0, np.pi / 2, 20_001)
    mass = np.append(0.0, np.cumsum(np.cos((ends[1:] + ends[:-1]) / 2) ** (degrees_of_freedom - 1)))
    return float(np.sqrt(degrees_of_freedom) * np.tan(np.interp(0.95 * mass[-1], mass, ends)))
