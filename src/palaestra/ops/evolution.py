"""What evolution strategies compute from the returns of a population."""

import torch
from torch import Tensor

from palaestra.core import StepType
from palaestra.ops._shapes import require_same_shape, require_time_steps
from palaestra.ops._typing import Float, Integer

__all__ = ["centered_ranks", "episode_returns"]

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)


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
    return (below + 0.5 * equal - 0.5 * (count - 1)) / max(count - 1, 1)


def episode_returns(reward: Float[Tensor, "T1 B"], step_type: Integer[Tensor, "T1 B"]) -> Float[Tensor, "B"]:
    """The mean undiscounted return of the episodes of each lane that both begin and end within an unroll.

        Rₑ = Σ rₜ over the rows of episode e,   e from its FIRST to its LAST row

    A lane without such an episode counts what it got in the whole unroll: the tail of one episode and the head of the
    next, in as many time steps for every such lane, wherever its episodes begin.

    Args:
        reward: [T+1, B] reward of the action taken at the row before.
        step_type: [T+1, B] `StepType` of each row.

    Returns:
        [B] units of reward.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.

    Examples:
        >>> reward = torch.tensor([[9.0], [1.0], [0.0], [2.0], [3.0]])
        >>> episode_returns(reward, torch.tensor([[1], [2], [0], [1], [2]]))
        tensor([5.])
    """
    require_time_steps(reward=reward, step_type=step_type)
    require_same_shape("[T+1, B]", reward=reward, step_type=step_type)
    episode = (step_type == _FIRST).long().cumsum(0)  # [T+1, B] 0 for what began before the unroll
    zeros = torch.zeros(reward.shape[0] + 1, reward.shape[1], device=reward.device)
    total = zeros.scatter_add(0, episode, reward)  # [E, B] by episode
    whole = zeros.scatter_add(0, episode, (step_type == _LAST).to(reward.dtype))
    whole[0] = 0.0
    count = whole.sum(0)
    return torch.where(count > 0, (total * whole).sum(0) / count.clamp(min=1), reward[1:].sum(0))
