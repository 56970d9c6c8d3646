"""Shape annotations, and shape checks that cost a few comparisons: they read no values, so they wait for no device.

The annotations are `jaxtyping`'s names where it is loaded, plain `Annotated` everywhere else. `jaxtyping` is a tool of
the tests: its pytest plugin loads it, and then the shapes below can be checked; a training run does not import it. A
type checker always reads `Float[Tensor, "T1 B"]` as `Tensor`.

Letters as in the docs: T time, B lanes, N rows, A actions or action dimensions. `T1` stands for T + 1 time steps, so
`[T1-1, B]` is what belongs to the T of them that have a successor; `n1` stands for the n + 1 rows of a window.
"""

import sys
from typing import TYPE_CHECKING

from torch import Tensor

from palaestra.core import ShapeError

if not TYPE_CHECKING and sys.modules.get("jaxtyping"):
    from jaxtyping import Bool, Float, Int, Integer, Num, Shaped
else:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Integer
    from typing import Annotated as Num
    from typing import Annotated as Shaped

__all__ = ["Bool", "Float", "Int", "Integer", "Num", "Shaped"]


def shape_error(needed: str, **arrays: Tensor) -> ShapeError:
    """The error of arrays that do not fit together: their names, their shapes and what is needed.

    Args:
        needed: the end of the message.
        arrays: the arrays by name.

    Examples:
        >>> import torch
        >>> str(shape_error("x must be [N]", x=torch.zeros(2, 3), y=torch.zeros(2)))
        'x has shape [2, 3] and y has shape [2]; x must be [N]'
    """
    *shapes, last = (f"{name} has shape {list(array.shape)}" for name, array in arrays.items())
    return ShapeError(f"{', '.join(shapes)} and {last}; {needed}" if shapes else f"{last}; {needed}")


def require_same_shape(needed: str, **arrays: Tensor) -> None:
    """Refuses arrays that differ in shape.

    Args:
        needed: the shape they all must have, in words.
        arrays: the arrays by name; the first is the one the others are compared with.

    Raises:
        ShapeError: names the first array, the one that differs, both shapes and what is needed.
    """
    expected = None  # `tensor.shape` makes a new object whenever it is asked for
    for name, array in arrays.items():
        shape = array.shape
        if expected is None:
            expected = shape
        elif shape != expected:
            first_name, first = next(iter(arrays.items()))
            raise shape_error(f"both must be {needed}", **{first_name: first, name: array})


def require_time_steps(**arrays: Tensor) -> None:
    """Refuses arrays that are not all `[T+1, B]` with T of at least 1.

    Args:
        arrays: the arrays by name.

    Raises:
        ShapeError: two shapes differ, or there is no second time step.
    """
    require_same_shape("[T+1, B]: row t is time step t, its reward belongs to the action before it", **arrays)
    name, first = next(iter(arrays.items()))
    if first.ndim == 0 or first.shape[0] < 2:
        raise shape_error("at least two time steps [T+1, B] are needed, so T >= 1", **{name: first})


def require_one_row_less(**arrays: Tensor) -> None:
    """Refuses a pair of arrays unless the second has one row of time less than the first.

    Args:
        arrays: two arrays by name, `[T+1, B]` and `[T, B]`.

    Raises:
        ShapeError: names both arrays, their shapes and what is needed.
    """
    (name, array), (short_name, short) = arrays.items()
    if short.shape[1:] != array.shape[1:] or short.shape[0] != array.shape[0] - 1:
        raise shape_error(f"{name} must be [T+1, B] and {short_name} [T, B], one row for each action", **arrays)


def require_action_values(**arrays: Tensor) -> None:
    """Refuses a pair of arrays unless the first is the second's shape and one axis of actions more.

    Args:
        arrays: two arrays by name, `[N, A]` and `[N]`.

    Raises:
        ShapeError: names both arrays, their shapes and what is needed.
    """
    (name, array), (row_name, row) = arrays.items()
    if array.ndim == 0 or array.shape[:-1] != row.shape:
        raise shape_error(
            f"{name} must be [N, A] and {row_name} [N], one number for each row of action values", **arrays
        )
