"""Terms of a loss, one number per row, and the means that reduce them.

Rows that may not be learned from are left out by `masked_mean`, so a term may hold anything finite there.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from palaestra.ops._arrays import Bool, Float, Shaped, require_same_shape, shape_error

__all__ = [
    "approximate_kl",
    "clipped_surrogate",
    "clipped_value_error",
    "expectile_loss",
    "explained_variance",
    "huber",
    "importance_ratio",
    "masked_mean",
    "mean_of",
    "policy_gradient",
    "quantile_huber",
    "row_weights",
    "squared_errors",
    "weighted_sum",
]

# What `torch.nn.functional` calls, too, after checks that take longer than the losses of a minibatch.
_huber_loss, _mse_loss = torch.ops.aten.huber_loss.default, torch.ops.aten.mse_loss.default
_EACH, _MEAN = 0, 1  # how they reduce rows
_MOST_NATS = 80.0  # of a log ratio: e^88 is the largest number of single precision, and infinity times 0 is none


def importance_ratio(log_ratio: Shaped[Tensor, "*B"]) -> Shaped[Tensor, "*B"]:
    """How much likelier actions are under one policy than under another: at most e^80, so that it is never infinite.

    Args:
        log_ratio: log π(a|x) − log μ(a|x), in nats.

    Examples:
        >>> importance_ratio(torch.tensor([0.0, 1000.0])).isfinite()
        tensor([True, True])
    """
    return log_ratio.clamp(max=_MOST_NATS).exp()


def expectile_loss(error: Float[Tensor, "*N"], *, expectile: float) -> Float[Tensor, "*N"]:
    """Squared error that weighs errors of one sign more; its minimum is at an expectile of the targets.

        L = |τ − 1{e < 0}| e²

    Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169, equation (5); Newey and Powell 1987,
    https://doi.org/10.2307/1911031.

    Args:
        error: [N] target minus prediction.
        expectile: τ in (0, 1); 0.5 is half the squared error, more raises the prediction.

    Returns:
        [N] losses, differentiable.

    Raises:
        ValueError: the expectile is not inside (0, 1).

    Examples:
        >>> expectile_loss(torch.tensor([2.0, -2.0]), expectile=0.75)
        tensor([3., 1.])
    """
    if not 0 < expectile < 1:
        raise ValueError(f"expectile is {expectile}; it must lie inside (0, 1)")
    squared = error.square()
    return torch.where(error < 0, (1 - expectile) * squared, expectile * squared)


def huber(error: Float[Tensor, "*N"], *, delta: float) -> Float[Tensor, "*N"]:
    """Squared error that turns linear where the error is large.

        L = e² / 2  if |e| ≤ δ,  else δ (|e| − δ / 2)

    Huber 1964, https://doi.org/10.1214/aoms/1177703732; δ = 1 is the clipped error of Mnih et al. 2015.

    Args:
        error: [N] prediction minus target.
        delta: δ > 0, where it turns linear, in units of the error; also the largest gradient.

    Returns:
        [N] losses, differentiable.

    Raises:
        ValueError: delta is not positive.

    Examples:
        >>> huber(torch.tensor([0.5, -3.0]), delta=1.0)
        tensor([0.1250, 2.5000])
    """
    if delta <= 0:
        raise ValueError(f"delta is {delta}; it must be positive: the error from which the loss grows linearly")
    return _huber_loss(error, torch.zeros_like(error), _EACH, delta)


def policy_gradient(log_prob: Float[Tensor, "*N"], advantage: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The loss whose gradient is the policy gradient.

        L = −log π(a|x) Â

    Williams 1992, https://doi.org/10.1007/BF00992696; Schulman et al. 2017, https://arxiv.org/abs/1707.06347,
    equation (2), negated to be minimised.

    Args:
        log_prob: [N] log π(a|x) of the policy that learns, nats.
        advantage: [N] how much better the action was than expected, units of return; held fixed.

    Returns:
        [N] losses, differentiable in log_prob only.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> policy_gradient(torch.tensor([-0.5, -2.0]), torch.tensor([2.0, -1.0]))
        tensor([ 1., -2.])
    """
    require_same_shape("[N]", log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


def clipped_surrogate(
    log_ratio: Float[Tensor, "*N"],
    advantage: Float[Tensor, "*N"],
    *,
    epsilon: float | Tensor,
    dual: float | None = None,
) -> Float[Tensor, "*N"]:
    """The loss of a policy that may move only so far from the one that acted.

        L = −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â),   ρ = exp(log ratio)

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation (7), negated to be minimised. With `dual`, an
    action that was worse than expected loses at most c times that, however likely it has become:

        L = −max(min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â), c Â)  where Â < 0

    Ye et al. 2020, https://arxiv.org/abs/1912.09729, the dual-clipped objective.

    Args:
        log_ratio: [N] log π(a|x) − log μ(a|x), μ being the policy that acted; nats.
        advantage: [N] how much better the action was than expected; held fixed.
        epsilon: ε > 0, how far the ratio may leave 1; a number or a 0-dim tensor.
        dual: c > 1, the largest ratio that counts where the advantage is negative; `None` is no limit.

    Returns:
        [N] losses, differentiable in log_ratio only.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> clipped_surrogate(torch.tensor([2.0, 0.5, 0.5]).log(), torch.tensor([1.0, 1.0, -1.0]), epsilon=0.25)
        tensor([-1.2500, -0.5000,  0.7500])
        >>> clipped_surrogate(torch.tensor([9.0]).log(), torch.tensor([-1.0]), epsilon=0.25, dual=3.0)
        tensor([3.])
    """
    if log_ratio.shape != advantage.shape:
        require_same_shape("[N]", log_ratio=log_ratio, advantage=advantage)
    gain = -advantage.detach()
    ratio = log_ratio.clamp(max=_MOST_NATS).exp()  # `importance_ratio`, without a call
    with torch.no_grad():  # max(ρ g, clipped g), whose gradient is that of whichever it is
        clipped = ratio.clamp(1 - epsilon, 1 + epsilon)  # pyright: ignore[reportCallIssue, reportArgumentType]
        is_clipped = (clipped - ratio) * gain > 0
    loss = torch.where(is_clipped, clipped, ratio) * gain
    return loss if dual is None else torch.where(gain > 0, torch.minimum(loss, dual * gain), loss)


def clipped_value_error(
    value: Float[Tensor, "*N"], old_value: Float[Tensor, "*N"], target: Float[Tensor, "*N"], *, epsilon: float | Tensor
) -> Float[Tensor, "*N"]:
    """The squared error of a value that may move only so far from what it was.

        L = max((V − y)², (V₀ + clip(V − V₀, −ε, ε) − y)²)

    Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, section 3, value function clipping.

    Args:
        value: [N] V, of the network that learns.
        old_value: [N] V₀, before the update; held fixed.
        target: [N] y; held fixed.
        epsilon: ε > 0, how far the value may move, in its own units.

    Returns:
        [N] losses, differentiable in value only; without gradient where moving on would go beyond ε.

    Raises:
        ShapeError: the arrays differ in shape; the message names them.

    Examples:
        >>> value, old, target = torch.tensor([1.0, 0.1]), torch.zeros(2), torch.full((2,), 2.0)
        >>> clipped_value_error(value, old, target, epsilon=0.5)
        tensor([2.2500, 3.6100])
    """
    require_same_shape("[N]", value=value, old_value=old_value, target=target)
    old_value, target = old_value.detach(), target.detach()
    clipped = old_value + (value - old_value).clamp(-epsilon, epsilon)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return torch.maximum((value - target).square(), (clipped - target).square())


def mean_of(x: Float[Tensor, "*N"]) -> Float[Tensor, ""]:
    """Mean over all elements.

        x̄ = 1/N Σᵢ xᵢ

    Args:
        x: [N], or of any shape.

    Returns:
        0-dim mean, differentiable; 0 when there is no element.

    Examples:
        >>> mean_of(torch.tensor([1.0, 2.0])), mean_of(torch.empty(0))
        (tensor(1.5000), tensor(0.))
    """
    return x.mean() if x.numel() else x.sum()


def masked_mean(x: Float[Tensor, "*N"], valid: Shaped[Tensor, "*N"]) -> Float[Tensor, ""]:
    """Mean over the rows that may be learned from.

        x̄ = Σ validᵢ xᵢ / max(1, Σ validᵢ)

    Departs from a plain mean: rows that are not valid are not read, so a NaN there changes nothing.

    Args:
        x: [N] any quantity per row.
        valid: [N] bool or 0/1, which rows count.

    Returns:
        0-dim mean, differentiable in x; 0 when no row is valid.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> masked_mean(torch.tensor([1.0, 2.0, 100.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    require_same_shape("[N]", x=x, valid=valid)
    return torch.where(valid.bool(), x, 0.0).sum() / valid.sum().clamp(min=1)


@torch.no_grad()
def row_weights(valid: Shaped[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Weight of each row in a mean over the rows that may be learned from.

        wᵢ = validᵢ / max(1, Σ validᵢ)

    With them a masked mean is one dot product, `w @ x`, where `masked_mean` takes several operations. Unlike there, x
    has to be finite on all rows.

    Args:
        valid: [N] bool or 0/1, which rows count.

    Returns:
        [N] weights that sum to 1; zeros when no row is valid.

    Examples:
        >>> row_weights(torch.tensor([1.0, 1.0, 0.0])) @ torch.tensor([1.0, 2.0, 100.0])
        tensor(1.5000)
    """
    return valid / valid.sum().clamp(min=1)


@torch.no_grad()
def explained_variance(
    value: Float[Tensor, "*N"], target: Float[Tensor, "*N"], valid: Shaped[Tensor, "*N"]
) -> Float[Tensor, ""]:
    """How much of the targets' variance the values explain; a diagnosis of a critic.

        1 − Var[target − value] / Var[target]

    The coefficient of determination, except that a constant offset of the values is forgiven.

    Args:
        value: [N] predictions.
        target: [N] what they should be.
        valid: [N] bool or 0/1, which rows count.

    Returns:
        0-dim, at most 1: 1 is perfect, 0 is no better than a constant, negative is worse. 0 when the targets do not
        vary. Without gradient.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> target = torch.tensor([1.0, 2.0, 3.0])
        >>> explained_variance(target + 5.0, target, torch.ones(3))
        tensor(1.)
    """
    require_same_shape("[N]", value=value, target=target, valid=valid)
    total = _variance(target, valid)
    unexplained = _variance(target - value, valid)
    return torch.where((total > 0) & ~is_constant(target, valid), 1 - unexplained / total, 0.0)


def _variance(x: Tensor, valid: Tensor) -> Tensor:
    return masked_mean((x - masked_mean(x, valid)).square(), valid)


@torch.no_grad()
def is_constant(x: Float[Tensor, "*N"], valid: Shaped[Tensor, "*N"]) -> Bool[Tensor, ""]:
    """Whether the valid rows are one number, to rounding: then how far they are from their mean is rounding, too.

        max xᵢ − min xᵢ < ε |x₁|,   over valid rows, x₁ the first of them, ε of the dtype

    Args:
        x: [N] any quantity per row.
        valid: [N] bool or 0/1, which rows count.

    Returns:
        0-dim bool; False where a valid row is NaN or infinite, or where there is no row.

    Examples:
        >>> is_constant(torch.tensor([10.1, 10.1, 7.0]), torch.tensor([True, True, False]))
        tensor(True)
    """
    if not x.numel():
        return torch.zeros((), dtype=torch.bool, device=x.device)
    keep = valid.bool()
    first = x.reshape(-1).index_select(0, keep.byte().argmax().reshape(1))[0]
    low, high = torch.where(keep, x, first).aminmax()
    return high - low < torch.finfo(x.dtype).eps * first.abs()


@torch.no_grad()
def approximate_kl(log_ratio: Float[Tensor, "*N"], valid: Shaped[Tensor, "*N"]) -> Float[Tensor, ""]:
    """Estimates how far the policy has moved from the one that acted, from its actions alone.

        KL(μ ‖ π) ≈ mean(ρ − 1 − log ρ),   ρ = π(a|x) / μ(a|x)

    Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3: unbiased, never negative, and of less variance
    than the mean of −log ρ.

    Args:
        log_ratio: [N] log π(a|x) − log μ(a|x), nats.
        valid: [N] bool or 0/1, which rows count.

    Returns:
        0-dim, nats, at least 0; 0 when no row is valid. Without gradient.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> approximate_kl(torch.tensor([0.0, 1.0]), torch.ones(2))
        tensor(0.3591)
    """
    return masked_mean(log_ratio.expm1() - log_ratio, valid)


def squared_errors(prediction: Float[Tensor, "K *N"], target: Float[Tensor, "*N"]) -> Float[Tensor, ""]:
    """The mean squared error of each member of an ensemble, added up.

        L = Σₖ 1/N Σᵢ (ŷₖᵢ − yᵢ)²

    Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, the critics' loss of algorithm 1, for any number of them.

    Args:
        prediction: [K, N] of K members.
        target: [N] what all of them should have said.

    Returns:
        [] loss, differentiable; 0 when there is no row.

    Raises:
        ShapeError: the members' rows are not the target's; the message names both.

    Examples:
        >>> squared_errors(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 3.0]))
        tensor(7.)
    """
    if prediction.ndim == 0 or prediction.shape[1:] != target.shape:
        needed = "prediction must be [K, N] and target [N], one row for each member's row"
        raise shape_error(needed, prediction=prediction, target=target)
    if not target.numel():
        return prediction.sum()
    return len(prediction) * _mse_loss(prediction, target.expand_as(prediction), _MEAN)


def weighted_sum(x: Float[Tensor, "*N"], weight: Float[Tensor, "*N"]) -> Float[Tensor, ""]:
    """Σ wᵢ xᵢ; with `row_weights`, the mean over valid rows.

    Args:
        x: [N], or of any shape.
        weight: of the same shape.

    Returns:
        0-dim, differentiable in both.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> weighted_sum(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]]))
        tensor(1.)
    """
    if x.shape != weight.shape:
        require_same_shape("[N]", x=x, weight=weight)
    return torch.dot(weight, x) if x.ndim == 1 else (weight * x).sum()


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
        ValueError: delta is not positive and finite.

    Examples:
        >>> quantile_huber(torch.tensor([[0.0]]), torch.tensor([[3.0, -3.0]]), torch.tensor([0.9]))
        tensor([1.2500])
    """
    if not 0 < delta < math.inf:
        raise ValueError(f"delta is {delta}; it must be positive and finite: from there on the loss grows linearly")
    if quantile.shape[:-1] != target.shape[:-1] or fraction.shape not in (quantile.shape, quantile.shape[-1:]):
        needed = "they must be [N, Q], [N, Q'] and [N, Q] or [Q]"
        raise shape_error(needed, quantile=quantile, target=target, fraction=fraction)
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
