"""Linear systems whose matrix is known by its products only."""

from collections.abc import Callable

import torch
from torch import Tensor

from palaestra.ops._typing import Float

__all__ = ["conjugate_gradient"]


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
