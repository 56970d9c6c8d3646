"""How much better an action was than the value said: GAE and V-trace, right by the table of `episode_ends`."""

from typing import NamedTuple

import torch
from torch import Tensor

from palaestra.ops._shapes import require_one_row_less, require_time_steps
from palaestra.ops._typing import Float, Integer
from palaestra.ops.episode_ends import valid_starts
from palaestra.ops.recurrence import reverse_linear_recurrence

__all__ = ["VTrace", "VTraceClip", "gae", "vtrace"]


@torch.no_grad()
def gae(
    value: Float[Tensor, "T1 *B"],
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    *,
    lambda_: float | Tensor,
) -> Float[Tensor, "T1-1 *B"]:
    """Generalised advantage estimates.

        Âₜ = δₜ + λ γₜ₊₁ Âₜ₊₁,   δₜ = rₜ₊₁ + γₜ₊₁ V(xₜ₊₁) − V(xₜ);   Â is 0 on rows that are no valid starts

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equation (16), in the truncated form of Schulman et al.
    2017, https://arxiv.org/abs/1707.06347, equations (11) and (12).
    Departs from the papers: rewards are indexed by the step they arrive with, as in `TimeStep`; the discount is per
    step and holds the continuation, so a truncated episode bootstraps from its final observation, a terminated one
    does not.

    Args:
        value: [T+1, B] V(x₀) … V(x_T), units of return.
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] gamma times continuation, in [0, 1]; 0 where the episode terminated; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        lambda_: trace decay in [0, 1]; 1 is Monte Carlo, 0 is one-step TD; a number or a 0-dim tensor.

    Returns:
        [T, B] advantages, exactly 0 on rows that are no valid starts; without gradient.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.

    Examples:
        >>> value, reward, discount = torch.zeros(4, 1), torch.ones(4, 1), torch.ones(4, 1)
        >>> gae(value, reward, discount, torch.tensor([[0], [1], [2], [0]]), lambda_=1.0).squeeze()
        tensor([2., 1., 0.])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    valid = valid_starts(step_type)
    discount = discount[1:]
    error = torch.addcmul(reward[1:], discount, value[1:]).sub_(value[:-1])
    return reverse_linear_recurrence(torch.where(valid, error, 0.0), torch.where(valid, lambda_ * discount, 0.0))


class VTraceClip(NamedTuple):
    """Upper bounds of importance weights in `vtrace`."""

    rho: float = 1.0
    """ρ̄, bound of the weight of each error; it decides which policy's value is learned (infinite: the learner's)."""
    c: float = 1.0
    """c̄ ≤ ρ̄, bound of the traces; it decides how fast corrections travel, not what is learned."""


_PAPER_CLIP = VTraceClip()


class VTrace(NamedTuple):
    """What `vtrace` returns; both without gradient."""

    target: Float[Tensor, "T *B"]
    """[T, B] vₜ, what the value at row t should be; the value itself on rows that are no valid starts."""
    advantage: Float[Tensor, "T *B"]
    """[T, B] what multiplies the gradient of log π(aₜ|xₜ), importance weight included; 0 on those rows."""


@torch.no_grad()
def vtrace(
    value: Float[Tensor, "T1 *B"],
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    log_ratio: Float[Tensor, "T1-1 *B"],
    *,
    clip: VTraceClip = _PAPER_CLIP,
    lambda_: float | Tensor = 1.0,
) -> VTrace:
    """Off-policy corrected values and advantages (V-trace).

        vₜ = V(xₜ) + δₜ + γₜ₊₁ cₜ (vₜ₊₁ − V(xₜ₊₁)),   δₜ = ρₜ (rₜ₊₁ + γₜ₊₁ V(xₜ₊₁) − V(xₜ))
        ρₜ = min(ρ̄, πₜ/μₜ),   cₜ = λ min(c̄, πₜ/μₜ),   v is V on rows that are no valid starts
        advantageₜ = ρₜ (rₜ₊₁ + γₜ₊₁ (λ vₜ₊₁ + (1 − λ) V(xₜ₊₁)) − V(xₜ))

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, equation (1), remarks 1 and 2, section 4.2.
    Departs from the paper: rewards are indexed by the step they arrive with, as in `TimeStep`; with λ < 1 the advantage
    mixes vₜ₊₁ and V(xₜ₊₁), so that on-policy it is `gae` (with λ = 1 it is the paper's).

    Args:
        value: [T+1, B] V(x₀) … V(x_T), units of return.
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] gamma times continuation, in [0, 1]; 0 where the episode terminated; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        log_ratio: [T, B] log π(aₜ|xₜ) − log μ(aₜ|xₜ), nats; not read on rows that are no valid starts.
        clip: ρ̄ and c̄; default both 1, as in the paper.
        lambda_: trace decay in [0, 1]; a number or a 0-dim tensor.

    Returns:
        `VTrace(target [T, B], advantage [T, B])`, without gradient.

    Raises:
        ShapeError: the arrays differ in shape, or log_ratio does not have one row less; the message names both arrays.

    Examples:
        >>> zeros, ones, mid = torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1, dtype=torch.int32)
        >>> vtrace(zeros, ones, ones, mid, torch.zeros(2, 1)).target.squeeze()
        tensor([2., 1.])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    require_one_row_less(value=value, log_ratio=log_ratio)
    valid = valid_starts(step_type)
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=clip.rho)
    discount = discount[1:]
    error = torch.addcmul(reward[1:], discount, value[1:]).sub_(value[:-1]).mul_(rho)
    error = torch.where(valid, error, 0.0)
    decay = lambda_ * discount
    correction = reverse_linear_recurrence(error, torch.where(valid, decay * ratio.clamp(max=clip.c), 0.0))
    next_correction = torch.cat((correction[1:], torch.zeros_like(correction[:1])))  # vₜ₊₁ − V(xₜ₊₁)
    advantage = torch.addcmul(error, torch.where(valid, decay * rho, 0.0), next_correction)
    return VTrace(value[:-1] + correction, advantage)
