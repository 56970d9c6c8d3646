"""Linear recurrences that run backward in time without a loop over time, and linear systems known by products."""

from collections.abc import Callable

import torch
from torch import Tensor

from palaestra.ops._arrays import Float, require_same_shape, shape_error

__all__ = ["conjugate_gradient", "reverse_linear_recurrence", "reverse_linear_steps"]


def reverse_linear_recurrence(
    a: Float[Tensor, "T *B"], b: Float[Tensor, "T *B"], initial: Float[Tensor, "*B"] | None = None
) -> Float[Tensor, "T *B"]:
    """Solves a first-order linear recurrence from the end to the beginning.

        xₜ = aₜ + bₜ xₜ₊₁,   x_T = initial

    Blelloch 1990, "Prefix Sums and Their Applications", section 1.4; Kogge and Stone 1973. Each round doubles the
    number of rows that aₜ already sums over, so T rows take ⌈log₂ T⌉ rounds. Only products and sums of the inputs
    appear, no quotient of cumulative products: a zero in b separates what is before it from what is after it exactly.
    Departs from the source: the scan runs backward in time.

    Args:
        a: [T, ...] what each row adds; finite (0 times infinity is NaN).
        b: [T, ...] the factor on the next row's solution.
        initial: [...] the solution after the last row; default 0.

    Returns:
        x [T, ...], differentiable in all arguments.

    Raises:
        ShapeError: a, b and initial do not fit together; the message names both arrays.

    Examples:
        >>> reverse_linear_recurrence(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5]), torch.tensor(4.0))
        tensor([1.5000, 1.0000, 3.0000])
    """
    require_same_shape("[T, ...]", a=a, b=b)
    if initial is not None:
        if initial.shape != a.shape[1:]:
            raise shape_error(f"initial must be {list(a.shape[1:])}, one row of a", a=a, initial=initial)
        a = torch.cat((a[:-1], torch.addcmul(a[-1:], b[-1:], initial.unsqueeze(0))))
    num_rows, shift = a.shape[0], 1
    while shift < num_rows:
        # aₜ sums over rows t .. t + shift − 1 and bₜ is their product; rows whose sum reaches the end are done.
        head = torch.addcmul(a[:-shift], b[: num_rows - shift], a[shift:])
        a = torch.cat((head, a[num_rows - shift :]))
        if 2 * shift < num_rows:
            b = b[: num_rows - 2 * shift] * b[shift : num_rows - shift]
        shift *= 2
    return a


def reverse_linear_steps(
    a: Float[Tensor, "T *B"], b: Float[Tensor, "T *B"], x: Float[Tensor, "T1 *B"], *, n: int
) -> Float[Tensor, "T *B"]:
    """Applies n steps of a linear recurrence to every row at once.

        x⁽⁰⁾ₜ = xₜ,   x⁽ᵐ⁺¹⁾ₜ = aₜ + bₜ x⁽ᵐ⁾ₜ₊₁,   x⁽ᵐ⁾_T = x_T;   the result is x⁽ⁿ⁾

    Sutton and Barto 2018, equation (7.1), as a recurrence over the number of steps. It is computed by squaring the
    map of n steps, so it takes 2 ⌈log₂ n⌉ rounds. With n of at least T it is `reverse_linear_recurrence`.

    Args:
        a: [T, ...] what each row adds; finite.
        b: [T, ...] the factor on the next row.
        x: [T+1, ...] where the steps start from; row T stays as it is.
        n: number of steps, at least 1.

    Returns:
        x⁽ⁿ⁾ [T, ...], differentiable in a, b and x.

    Raises:
        ShapeError: a and b differ, or x does not have one row more; the message names both arrays.
        ValueError: n is less than 1.

    Examples:
        >>> a, b, x = torch.ones(3), torch.ones(3), torch.tensor([10.0, 20.0, 30.0, 40.0])
        >>> reverse_linear_steps(a, b, x, n=2)
        tensor([32., 42., 41.])
    """
    require_same_shape("[T, ...]", a=a, b=b)
    if x.shape[1:] != a.shape[1:] or x.shape[0] != a.shape[0] + 1:
        raise shape_error("x must have one row more than a", a=a, x=x)
    if n < 1:
        raise ValueError(f"n is {n}; at least 1 step is needed")
    num_rows, shift = a.shape[0], 1
    if n >= num_rows:
        return reverse_linear_recurrence(a, b, x[-1])
    # Row T is the constant map to x_T, so a map that runs past the end has a zero factor and stays as it is.
    a, b = torch.cat((a, x[-1:])), torch.cat((b, torch.zeros_like(b[:1])))
    while True:
        if n & shift:
            x = torch.cat((torch.addcmul(a[:-shift], b[:-shift], x[shift:]), a[-shift:]))
        if 2 * shift > n:
            return x[:-1]
        head = torch.addcmul(a[:-shift], b[:-shift], a[shift:])
        a, b = torch.cat((head, a[-shift:])), torch.cat((b[:-shift] * b[shift:], b[-shift:]))
        shift *= 2


@torch.no_grad()
def conjugate_gradient(
    product: Callable[[Tensor], Tensor], right: Float[Tensor, "P"], *, num_steps: int
) -> Float[Tensor, "P"]:
    """An approximate solution of A x = b for a positive definite matrix A.

        α = rᵀr / pᵀAp,   x ← x + α p,   r′ = r − α A p,   p ← r′ + (r′ᵀr′ / rᵀr) p

    Hestenes and Stiefel 1952, https://doi.org/10.6028/jres.049.044, equation (3:1), from x = 0.

    Args:
        product: A times a vector; called without gradients unless it enables them itself.
        right: [P] b.
        num_steps: at most so many products; P of them solve the system exactly, but for rounding.

    Returns:
        [P] x, without gradient; 0 where b is.

    Examples:
        >>> matrix = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
        >>> conjugate_gradient(lambda vector: matrix @ vector, torch.tensor([2.0, 2.0]), num_steps=2)
        tensor([1.0000, 0.5000])
    """
    tiny = torch.finfo(right.dtype).tiny
    x, residual, direction = torch.zeros_like(right), right, right
    square = residual @ residual
    for _ in range(num_steps):
        image = product(direction)
        alpha = square / (direction @ image).clamp(min=tiny)
        x = x + alpha * direction
        residual = residual - alpha * image
        before, square = square, residual @ residual
        direction = residual + square / before.clamp(min=tiny) * direction
    return x
