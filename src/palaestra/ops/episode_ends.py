"""What an episode end means for learning; nothing else in the code base decides it.

A row is a time step. Row t may be learned from when it is a valid start; its target bootstraps from row t + 1's value
when that row is MID, or LAST with a discount other than 0.

| row | bootstrap the previous value from it | learn its own value |
|---|---|---|
| FIRST, discount 1 | no | yes |
| MID, discount 1 | yes | yes |
| LAST, discount 0 (terminated) | no | no |
| LAST, discount 1 (truncated) | yes | no |
| FIRST or MID, followed by FIRST (a broken fragment) | yes, by the row before it in its own episode | no |

The discount already says whether LAST is bootstrapped from, so the functions that use these helpers multiply by it and
never look for terminated rows.
"""

import torch
from torch import Tensor

from palaestra.core import StepType
from palaestra.ops._arrays import Bool, Int, Integer, shape_error

__all__ = ["n_step_end", "remembered_starts", "valid_starts"]

_FIRST = int(StepType.FIRST)
_LAST = int(StepType.LAST)


def valid_starts(step_type: Integer[Tensor, "T1 *B"], burn_in: int = 0) -> Bool[Tensor, "T1-1 *B"]:
    """Says which rows may be learned from.

        validₜ = (step_typeₜ ≠ LAST) ∧ (step_typeₜ₊₁ ≠ FIRST)

    The table of this module. A MID row that FIRST follows is what a crashed environment leaves behind. To pad a lane
    that is too short, append FIRST rows: none of them is a valid start, nor is the row before them.

    Args:
        step_type: [T+1, B] `StepType` of each row.
        burn_in: so many rows at the front of sequences only lead up to what is learned from.

    Returns:
        [T, B] whether the action taken at row t has an outcome to learn from; row T has no successor and is left out.

    Raises:
        ShapeError: there are fewer than two time steps.

    Examples:
        >>> valid_starts(torch.tensor([0, 1, 2, 0, 1, 0]))
        tensor([ True,  True, False,  True, False])
    """
    if step_type.ndim == 0 or step_type.shape[0] < 2:
        raise shape_error("at least two time steps [T+1, B] are needed, so T >= 1", step_type=step_type)
    starts = (step_type[:-1] != _LAST) & (step_type[1:] != _FIRST)
    starts[:burn_in] = False
    return starts


def remembered_starts(step_type: Integer[Tensor, "T1 *B"], burn_in: int = 0) -> Bool[Tensor, "T1-1 *B"]:
    """Says which rows may be learned from with a memory that runs through all of them, and starts anew at FIRST rows.

    The valid starts, without those behind a gap: a LAST row that no FIRST follows. Rows of another episode begin
    there, of which the memory has not seen the beginning, up to the next FIRST.

    Args:
        step_type: [T+1, B] `StepType` of each row.
        burn_in: see `valid_starts`.

    Returns:
        [T, B].

    Raises:
        ShapeError: there are fewer than two time steps.

    Examples:
        >>> remembered_starts(torch.tensor([1, 2, 1, 1, 0, 1]))
        tensor([ True, False, False, False,  True])
    """
    starts, first = valid_starts(step_type, burn_in), step_type[:-1] == _FIRST
    gap = (step_type[:-2] == _LAST) & ~first[1:]
    gaps = torch.cat((torch.zeros_like(first[:1]), gap)).cumsum(0)
    return starts & (gaps == torch.where(first, gaps, 0).cummax(0).values)  # none since the newest FIRST


def n_step_end(step_type: Integer[Tensor, "n1 *N"]) -> Int[Tensor, "*N"]:
    """Finds the row that an n-step target bootstraps from.

        k = min(n, first row i ≥ 1 that is not a valid start)

    Sutton and Barto 2018, equation (7.1), where T is the end of the episode.

    Args:
        step_type: [n+1, N] `StepType` of the rows of each window; row 0 is a valid start.

    Returns:
        [N] k in 1 .. n: the first LAST row, or the last row before a FIRST that follows no LAST (a broken fragment),
        or n. Where row 0 is no valid start, k is 1 (and `n_step_targets` gives bootstrap 0).

    Raises:
        ShapeError: there are fewer than two rows.

    Examples:
        >>> n_step_end(torch.tensor([[0, 0, 0], [1, 1, 2], [1, 2, 0], [1, 0, 1]]))
        tensor([3, 2, 1])
    """
    if step_type.shape[0] == 2:
        return torch.ones_like(step_type[0], dtype=torch.int64)
    return valid_starts(step_type).cumprod(0).sum(0).clamp_(min=1)
