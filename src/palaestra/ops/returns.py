"""What a row turned out to be worth, and how much better its action was than the value said.

Every function is right by the table of `episode_ends`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from palaestra.core import ShapeError, StepType
from palaestra.ops._arrays import Float, Int, Integer, require_one_row_less, require_same_shape, require_time_steps
from palaestra.ops.episode_ends import n_step_end, valid_starts
from palaestra.ops.linear import reverse_linear_recurrence, reverse_linear_steps
from palaestra.ops.losses import importance_ratio

__all__ = [
    "NStep",
    "VTrace",
    "VTraceClip",
    "discounted_returns",
    "episode_returns",
    "gae",
    "lambda_returns",
    "n_step_returns",
    "n_step_targets",
    "vtrace",
]

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)


def discounted_returns(
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    value: Float[Tensor, "T1 *B"] | None = None,
    *,
    gamma: float | Tensor,
) -> Float[Tensor, "T1-1 *B"]:
    """Discounted sums of the rewards up to the end of each episode.

        Gₜ = rₜ₊₁ + γₜ₊₁ Gₜ₊₁,   G is V on rows that are no valid starts and on row T

    Sutton and Barto 2018, equations (3.8) and (3.9).
    Departs from the source: what lies beyond a truncation or the end of the unroll is taken from `value`.

    Args:
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        value: [T+1, B] V(x₀) … V(x_T), units of return. Default 0 everywhere: Monte Carlo returns of what was seen,
            too small where a time limit or the end of the unroll cut the episode short.
        gamma: γ in [0, 1], what a reward one step later counts; a number or a 0-dim tensor.

    Returns:
        [T, B] returns, differentiable; on rows that are no valid starts the value of that row.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.

    Examples:
        >>> reward, discount = torch.ones(4, 1), torch.tensor([[1.0], [1.0], [1.0], [0.0]])
        >>> discounted_returns(reward, discount, torch.tensor([[0], [1], [1], [2]]), gamma=0.5).squeeze()
        tensor([1.7500, 1.5000, 1.0000])
    """
    if value is None:
        value = torch.zeros_like(reward)
    require_time_steps(reward=reward, discount=discount, step_type=step_type, value=value)
    valid = valid_starts(step_type)
    return reverse_linear_recurrence(
        torch.where(valid, reward[1:], value[:-1]), torch.where(valid, gamma * discount[1:], 0.0), value[-1]
    )


def lambda_returns(
    value: Float[Tensor, "T1 *B"],
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
) -> Float[Tensor, "T1-1 *B"]:
    """Mixtures of n-step returns with weights that decay by lambda.

        Gₜ = rₜ₊₁ + γₜ₊₁ ((1 − λ) V(xₜ₊₁) + λ Gₜ₊₁),   G is V on rows that are no valid starts and on row T

    Sutton and Barto 2018, equation (12.18).
    Departs from the source: λ is one number; episodes that were cut off bootstrap from their final observation.

    Args:
        value: [T+1, B] V(x₀) … V(x_T), units of return.
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        gamma: γ in [0, 1], what a reward one step later counts; a number, a 0-dim tensor, or [T, B]. Negative where
            what follows is another player's.
        lambda_: trace decay in [0, 1]; 1 is Monte Carlo, 0 is one-step TD; a number or a 0-dim tensor.

    Returns:
        [T, B] returns, differentiable; on rows that are no valid starts the value itself, so that their error is 0.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.

    Examples:
        >>> value, reward, discount = torch.full((3, 1), 10.0), torch.ones(3, 1), torch.ones(3, 1)
        >>> lambda_returns(value, reward, discount, torch.tensor([[0], [1], [1]]), gamma=0.5, lambda_=0.5).squeeze()
        tensor([5., 6.])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    valid = valid_starts(step_type)
    discount = gamma * discount[1:]
    decay = lambda_ * discount
    one_step = torch.addcmul(reward[1:], discount - decay, value[1:])
    return reverse_linear_recurrence(
        torch.where(valid, one_step, value[:-1]), torch.where(valid, decay, 0.0), value[-1]
    )


def n_step_returns(
    value: Float[Tensor, "T1 *B"],
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    *,
    gamma: float | Tensor,
    n: int,
) -> Float[Tensor, "T1-1 *B"]:
    """Returns that bootstrap after n steps, or where the episode or the unroll ends before.

        Gₜ = Σᵢ₌₁ᵏ (Πⱼ₌₁ⁱ⁻¹ γₜ₊ⱼ) rₜ₊ᵢ + (Πⱼ₌₁ᵏ γₜ₊ⱼ) V(xₜ₊ₖ),   k = min(n, steps to a row that is no valid start)

    Sutton and Barto 2018, equation (7.1).
    Departs from the source: where less than n rows are left, the return bootstraps from the last one.

    Args:
        value: [T+1, B] V(x₀) … V(x_T), units of return.
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        gamma: γ in [0, 1], what a reward one step later counts; a number, a 0-dim tensor, or [T, B]. Negative where
            the other player's gain is a loss.
        n: number of rewards, at least 1.

    Returns:
        [T, B] returns, differentiable; on rows that are no valid starts the value itself, so that their error is 0.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.
        ValueError: n is less than 1.

    Examples:
        >>> value, reward, discount = torch.full((4, 1), 8.0), torch.ones(4, 1), torch.ones(4, 1)
        >>> n_step_returns(value, reward, discount, torch.tensor([[0], [1], [1], [1]]), gamma=0.5, n=2).squeeze()
        tensor([3.5000, 3.5000, 5.0000])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    valid = valid_starts(step_type)
    return reverse_linear_steps(
        torch.where(valid, reward[1:], value[:-1]), torch.where(valid, gamma * discount[1:], 0.0), value, n=n
    )


class NStep(NamedTuple):
    """What `n_step_targets` returns: the target of row 0 is `reward + bootstrap * value of row steps`."""

    reward: Float[Tensor, "*N"]
    """[N] discounted sum of the rewards up to row `steps`."""
    bootstrap: Float[Tensor, "*N"]
    """[N] what the value of row `steps` counts: gamma to the power of `steps`, 0 where the episode terminated there."""
    step_type: Integer[Tensor, "n1 *N"]
    """[n+1, N] as it was given."""

    @property
    def steps(self) -> Int[Tensor, "*N"]:
        """[N] k in 1 .. n, the row to bootstrap from: `n_step_end`, computed when it is asked for."""
        return n_step_end(self.step_type)


def n_step_targets(
    reward: Float[Tensor, "n1 *N"],
    discount: Float[Tensor, "n1 *N"],
    step_type: Integer[Tensor, "n1 *N"],
    *,
    gamma: float | Tensor,
) -> NStep:
    """Reduces windows of n + 1 replayed rows to one transition each.

        R = Σᵢ₌₁ᵏ (Πⱼ₌₁ⁱ⁻¹ γⱼ) rᵢ,   Γ = Πⱼ₌₁ᵏ γⱼ,   k = `n_step_end`;   the target of row 0 is R + Γ V(xₖ)

    Sutton and Barto 2018, equation (7.1), without the bootstrap value: which one is the algorithm's choice.

    Args:
        reward: [n+1, N] reward of the action taken at the row before; row 0 is not read.
        discount: [n+1, N] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [n+1, N] `StepType` of each row; row 0 is a valid start.
        gamma: γ in [0, 1], what a reward one step later counts; a number or a 0-dim tensor.

    Returns:
        `NStep` with reward [N], bootstrap [N] and steps [N]. Where row 0 is no valid start, reward and bootstrap are 0.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two rows; the message names both arrays.

    Examples:
        >>> reward, discount = torch.tensor([[9.0], [1.0], [1.0], [5.0]]), torch.ones(4, 1)
        >>> targets = n_step_targets(reward, discount, torch.tensor([[0], [1], [2], [0]]), gamma=0.5)
        >>> targets.reward, targets.bootstrap, targets.steps
        (tensor([1.5000]), tensor([0.2500]), tensor([2]))
    """
    require_same_shape("[n+1, N]", reward=reward, discount=discount, step_type=step_type)
    if reward.shape[0] < 2:
        raise ShapeError(f"reward has shape {list(reward.shape)}; at least two rows [n+1, N] are needed, so n >= 1")
    if reward.shape[0] == 2:
        valid = (step_type[0] != _LAST) & step_type[1].bool()  # FIRST is 0; half the time of `valid_starts`
        return NStep(torch.where(valid, reward[1], 0.0), gamma * discount[1] * valid, step_type)
    count = valid_starts(step_type).cumprod(0)  # [n, N] 1 as long as no row before has been an end
    inside = count > 0
    product = torch.where(inside, gamma * discount[1:], 1.0).cumprod(0)
    gained = torch.where(inside, reward[1:], 0.0)
    total = gained[0] + (product[:-1] * gained[1:]).sum(0)
    return NStep(total, product[-1] * inside[0], step_type)


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
    zeros = reward.new_zeros(reward.shape[0] + 1, reward.shape[1])
    total = zeros.scatter_add(0, episode, reward)  # [E, B] by episode
    whole = zeros.scatter_add(0, episode, (step_type == _LAST).to(reward.dtype))
    whole[0] = 0.0
    count = whole.sum(0)
    return torch.where(count > 0, (total * whole).sum(0) / count.clamp(min=1), reward[1:].sum(0))


@torch.no_grad()
def gae(
    value: Float[Tensor, "T1 *B"],
    reward: Float[Tensor, "T1 *B"],
    discount: Float[Tensor, "T1 *B"],
    step_type: Integer[Tensor, "T1 *B"],
    *,
    gamma: float | Tensor,
    lambda_: float | Tensor,
) -> Float[Tensor, "T1-1 *B"]:
    """Generalised advantage estimates.

        Âₜ = δₜ + λ γₜ₊₁ Âₜ₊₁,   δₜ = rₜ₊₁ + γₜ₊₁ V(xₜ₊₁) − V(xₜ);   Â is 0 on rows that are no valid starts

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equation (16), in the truncated form of Schulman et al.
    2017, https://arxiv.org/abs/1707.06347, equations (11) and (12).
    Departs from the papers: rewards are indexed by the step they arrive with, as in `TimeStep`; γₜ is
    gamma times the continuation, so a truncated episode bootstraps from its final observation, a terminated one
    does not.

    Args:
        value: [T+1, B] V(x₀) … V(x_T), units of return.
        reward: [T+1, B] reward of the action taken at the row before; row 0 is not read.
        discount: [T+1, B] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        gamma: γ in [0, 1], what a reward one step later counts; a number or a 0-dim tensor.
        lambda_: trace decay in [0, 1]; 1 is Monte Carlo, 0 is one-step TD; a number or a 0-dim tensor.

    Returns:
        [T, B] advantages, exactly 0 on rows that are no valid starts; without gradient.

    Raises:
        ShapeError: the arrays differ in shape, or there are fewer than two time steps; the message names both arrays.

    Examples:
        >>> value, reward, discount = torch.zeros(4, 1), torch.ones(4, 1), torch.ones(4, 1)
        >>> gae(value, reward, discount, torch.tensor([[0], [1], [2], [0]]), gamma=1.0, lambda_=1.0).squeeze()
        tensor([2., 1., 0.])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    valid = valid_starts(step_type)
    discount = gamma * discount[1:]
    error = torch.addcmul(reward[1:], discount, value[1:]).sub_(value[:-1])
    return reverse_linear_recurrence(torch.where(valid, error, 0.0), torch.where(valid, lambda_ * discount, 0.0))


class VTraceClip(NamedTuple):
    """Upper bounds of importance weights in `vtrace`, and how its traces decay."""

    rho: float = 1.0
    """ρ̄, bound of the weight of each error; it decides which policy's value is learned (infinite: the learner's)."""
    c: float = 1.0
    """c̄ ≤ ρ̄, bound of the traces; it decides how fast corrections travel, not what is learned."""
    lambda_: float | Tensor = 1.0
    """λ of remark 2, decay of the traces in [0, 1]; a number or a 0-dim tensor."""


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
    gamma: float | Tensor,
    clip: VTraceClip = _PAPER_CLIP,
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
        discount: [T+1, B] continuation: 0 where the episode terminated, else 1; row 0 is not read.
        step_type: [T+1, B] `StepType` of each row.
        log_ratio: [T, B] log π(aₜ|xₜ) − log μ(aₜ|xₜ), nats; not read on rows that are no valid starts.
        gamma: γ in [0, 1], what a reward one step later counts; a number or a 0-dim tensor.
        clip: ρ̄, c̄ and λ; by default all 1, as in the paper.

    Returns:
        `VTrace(target [T, B], advantage [T, B])`, without gradient.

    Raises:
        ShapeError: the arrays differ in shape, or log_ratio does not have one row less; the message names both arrays.

    Examples:
        >>> zeros, ones, mid = torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1, dtype=torch.int32)
        >>> vtrace(zeros, ones, ones, mid, torch.zeros(2, 1), gamma=1.0).target.squeeze()
        tensor([2., 1.])
    """
    require_time_steps(value=value, reward=reward, discount=discount, step_type=step_type)
    require_one_row_less(value=value, log_ratio=log_ratio)
    valid = valid_starts(step_type)
    ratio = importance_ratio(log_ratio)
    rho = ratio.clamp(max=clip.rho)
    discount = gamma * discount[1:]
    error = torch.addcmul(reward[1:], discount, value[1:]).sub_(value[:-1]).mul_(rho)
    error = torch.where(valid, error, 0.0)
    decay = clip.lambda_ * discount
    correction = reverse_linear_recurrence(error, torch.where(valid, decay * ratio.clamp(max=clip.c), 0.0))
    next_correction = torch.cat((correction[1:], torch.zeros_like(correction[:1])))  # vₜ₊₁ − V(xₜ₊₁)
    advantage = torch.addcmul(error, torch.where(valid, decay * rho, 0.0), next_correction)
    return VTrace(value[:-1] + correction, advantage)
