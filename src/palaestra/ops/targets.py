"""One-step targets of values and action values.

None of them looks at step types: a transition's `bootstrap` says what its next value counts, and a replay buffer gives
out valid starts only. Gradient flows into every argument; wrap the call in `torch.no_grad()` to hold the target fixed.
"""

import torch
from torch import Tensor

from palaestra.ops._arrays import Float, Int, Shaped, require_action_values, require_same_shape, shape_error

__all__ = [
    "categorical_projection",
    "double_q_target",
    "greedy_action",
    "q_target",
    "symexp",
    "symlog",
    "td_target",
    "two_hot",
]


def greedy_action(q: Float[Tensor, "*N A"], action_mask: Shaped[Tensor, "*N A"] | None = None) -> Int[Tensor, "*N"]:
    """The most valuable of the allowed actions.

        a = argmaxₐ Q(x, a)

    Sutton and Barto 2018, equation (2.2).

    Args:
        q: [N, A] action values.
        action_mask: [N, A] which actions are allowed, bool or 0/1; default all.

    Returns:
        [N] int64 in 0 … A − 1; the first of several. Where no action is allowed (often so after an end), all are.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> greedy_action(torch.tensor([[1.0, 5.0]]), torch.tensor([[True, False]]))
        tensor([0])
    """
    if action_mask is not None:
        require_same_shape("[N, A]", q=q, action_mask=action_mask)
        allowed = action_mask.bool()
        q = torch.where(allowed | ~allowed.any(-1, keepdim=True), q, -torch.inf)
    return q.argmax(-1)


def td_target(
    next_value: Float[Tensor, "*N"], reward: Float[Tensor, "*N"], bootstrap: Float[Tensor, "*N"]
) -> Float[Tensor, "*N"]:
    """What a transition says its first state is worth.

        y = r + γ V(x′)

    Sutton and Barto 2018, equation (6.2). With the rewards and bootstraps of `n_step_targets`, equation (7.1).

    Args:
        next_value: [N] value of the state (and, for a critic, the action) to bootstrap from, units of return.
        reward: [N] reward of the transition.
        bootstrap: [N] what the next value counts, in [0, 1]: gamma times continuation, 0 where the episode terminated.

    Returns:
        [N] targets.

    Raises:
        ShapeError: the arrays differ in shape; the message names both.

    Examples:
        >>> td_target(torch.tensor([10.0, 10.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0]))
        tensor([10.,  1.])
    """
    require_same_shape("[N]", next_value=next_value, reward=reward, bootstrap=bootstrap)
    return torch.addcmul(reward, bootstrap, next_value)


def q_target(
    next_q: Float[Tensor, "*N A"],
    reward: Float[Tensor, "*N"],
    bootstrap: Float[Tensor, "*N"],
    action_mask: Shaped[Tensor, "*N A"] | None = None,
) -> Float[Tensor, "*N"]:
    """What a transition says its action was worth, if the best action follows.

        y = r + γ maxₐ Q(x′, a)

    Mnih et al. 2015, https://doi.org/10.1038/nature14236, the target of algorithm 1; van Hasselt et al. 2016,
    https://arxiv.org/abs/1509.06461, equation (3).
    Departs from the papers: the maximum is over allowed actions; where none is allowed (often so after an end) it is
    over all, which `bootstrap` of a terminated episode removes.

    Args:
        next_q: [N, A] action values of the next observation, by the target network.
        reward: [N] reward of the transition.
        bootstrap: [N] what the next value counts, in [0, 1]: gamma times continuation, 0 where the episode terminated.
        action_mask: [N, A] which next actions are allowed, bool or 0/1; default all.

    Returns:
        [N] targets.

    Raises:
        ShapeError: the arrays do not fit together; the message names both.

    Examples:
        >>> next_q, mask = torch.tensor([[1.0, 5.0]]), torch.tensor([[True, False]])
        >>> q_target(next_q, torch.tensor([1.0]), torch.tensor([0.5]), mask)
        tensor([1.5000])
    """
    if action_mask is not None:
        return double_q_target(next_q, next_q, reward, bootstrap, action_mask)
    require_same_shape("[N]", reward=reward, bootstrap=bootstrap)
    require_action_values(next_q=next_q, reward=reward)
    return torch.addcmul(reward, bootstrap, next_q.amax(-1))


def double_q_target(
    next_q_online: Float[Tensor, "*N A"],
    next_q_target: Float[Tensor, "*N A"],
    reward: Float[Tensor, "*N"],
    bootstrap: Float[Tensor, "*N"],
    action_mask: Shaped[Tensor, "*N A"] | None = None,
) -> Float[Tensor, "*N"]:
    """What a transition says its action was worth, with the next action chosen by one network and valued by another.

        y = r + γ Q⁻(x′, argmaxₐ Q(x′, a))

    Van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation (4) with the target network's weights in the
    place of the second set (section "Double DQN").
    Departs from the paper: the maximum is over allowed actions, as in `q_target`.

    Args:
        next_q_online: [N, A] action values of the next observation, by the network that learns.
        next_q_target: [N, A] the same by the target network.
        reward: [N] reward of the transition.
        bootstrap: [N] what the next value counts, in [0, 1]: gamma times continuation, 0 where the episode terminated.
        action_mask: [N, A] which next actions are allowed, bool or 0/1; default all.

    Returns:
        [N] targets.

    Raises:
        ShapeError: the arrays do not fit together; the message names both.

    Examples:
        >>> online, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[30.0, 10.0]])
        >>> double_q_target(online, target, torch.tensor([1.0]), torch.tensor([0.5]))
        tensor([6.])
    """
    require_same_shape("[N, A]", next_q_online=next_q_online, next_q_target=next_q_target)
    require_same_shape("[N]", reward=reward, bootstrap=bootstrap)
    require_action_values(next_q=next_q_target, reward=reward)
    action = greedy_action(next_q_online, action_mask).unsqueeze(-1)
    return torch.addcmul(reward, bootstrap, next_q_target.gather(-1, action).squeeze(-1))


def categorical_projection(
    next_probs: Float[Tensor, "*N Q"],
    support: Float[Tensor, "Q"],
    reward: Float[Tensor, "*N"],
    bootstrap: Float[Tensor, "*N"],
) -> Float[Tensor, "*N Q"]:
    """The distribution of r + γ Z, brought back onto the atoms of Z.

        mᵢ = Σⱼ pⱼ max(0, 1 − |clip(r + γ zⱼ, z₁, z_Q) − zᵢ| / Δz),   Δz = (z_Q − z₁) / (Q − 1)

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, equation (7).

    Args:
        next_probs: [N, Q] p, probabilities of the atoms of the next return.
        support: [Q] z, evenly spaced and rising, units of return; at least two atoms.
        reward: [N] reward of the transition.
        bootstrap: [N] what the next value counts, in [0, 1]: gamma times continuation, 0 where the episode terminated.

    Returns:
        [N, Q] probabilities of the same atoms; their mean is r + γ E[Z] where nothing is clipped.

    Raises:
        ShapeError: the arrays do not fit together; the message names both.

    Examples:
        >>> support = torch.tensor([0.0, 1.0, 2.0])
        >>> categorical_projection(torch.tensor([[0.0, 0.0, 1.0]]), support, torch.tensor([0.5]), torch.tensor([0.5]))
        tensor([[0.0000, 0.5000, 0.5000]])
    """
    require_same_shape("[N]", reward=reward, bootstrap=bootstrap)
    if next_probs.shape != (*reward.shape, *support.shape) or support.numel() < 2:
        needed = "they must be [N, Q], [Q] and [N], with Q of at least 2"
        raise shape_error(needed, next_probs=next_probs, support=support, reward=reward)
    low, high = support[0], support[-1]
    count = support.numel()
    moved = torch.minimum(torch.maximum(reward.unsqueeze(-1) + bootstrap.unsqueeze(-1) * support, low), high)  # [N, Q]
    place = ((moved - low) * ((count - 1) / (high - low))).clamp(0, count - 1)
    below = place.detach().floor().clamp(max=count - 2)
    share = place - below  # of the atom above
    index = below.long()
    projected = torch.zeros_like(next_probs)
    projected = projected.scatter_add(-1, index, next_probs * (1 - share))
    return projected.scatter_add(-1, index + 1, next_probs * share)


def symlog(x: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Numbers of any size, brought near 0.

        symlog(x) = sign(x) ln(|x| + 1)

    Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2, section "Robust predictions".

    Args:
        x: [N] of any unit.

    Examples:
        >>> symlog(torch.tensor([-1.0, 0.0, 1000.0]))
        tensor([-0.6931,  0.0000,  6.9088])
    """
    return x.sign() * x.abs().log1p()


def symexp(x: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The inverse of `symlog`.

        symexp(x) = sign(x) (exp(|x|) − 1)

    Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2, section "Robust predictions".

    Args:
        x: [N].

    Examples:
        >>> symexp(symlog(torch.tensor([-3.0, 0.0, 8.0])))
        tensor([-3.,  0.,  8.])
    """
    return x.sign() * x.abs().expm1()


def two_hot(value: Float[Tensor, "*N"], bins: Float[Tensor, "Q"]) -> Float[Tensor, "*N Q"]:
    """Probabilities of the two bins beside a number, whose mean it is.

        pₖ = (bₖ₊₁ − x) / (bₖ₊₁ − bₖ),   pₖ₊₁ = 1 − pₖ,   bₖ ≤ x ≤ bₖ₊₁

    Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2, section "Robust predictions".

    Args:
        value: [N] x; beyond the outermost bins it is cut.
        bins: [Q] rising, at least two, with any spaces between.

    Returns:
        [N, Q], without gradient.

    Raises:
        ShapeError: there are fewer than two bins.

    Examples:
        >>> two_hot(torch.tensor([1.5, 9.0]), torch.tensor([-1.0, 1.0, 3.0]))
        tensor([[0.0000, 0.7500, 0.2500],
                [0.0000, 0.0000, 1.0000]])
    """
    if bins.ndim != 1 or len(bins) < 2:
        raise shape_error("bins must be [Q], with Q of at least 2", bins=bins)
    value = value.detach().contiguous()
    below = (torch.bucketize(value, bins, right=True) - 1).clamp(0, len(bins) - 2)
    low, high = bins[below], bins[below + 1]
    share = ((value - low) / (high - low)).clamp(0, 1).unsqueeze(-1)  # of the bin above
    empty = share.new_zeros(*value.shape, len(bins))
    return empty.scatter(-1, below.unsqueeze(-1), 1 - share).scatter(-1, below.unsqueeze(-1) + 1, share)
