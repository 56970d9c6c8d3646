"""Replayed rows: transitions, what rows keep besides, and action values of them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from palaestra import policies
from palaestra.core import Batch, StepType
from palaestra.ops import n_step_end, n_step_targets

_BatchT = TypeVar("_BatchT", bound=Batch)


class TransitionBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Any
    next_observation: Any
    reward: Tensor
    """Sum of the rewards up to `next_observation`, discounted."""
    bootstrap: Tensor
    """What the next value counts: gamma to the number of steps; 0 where the episode terminated there."""
    index: Tensor


def n_step_transitions(windows: Any, gamma: float, layout: type[_BatchT] = TransitionBatch) -> _BatchT:
    """Reduces n-step windows to transitions.

    Args:
        windows: `buffers.Windows`.
        gamma: discount per env step.
        layout: of what is returned; fields that it adds to `TransitionBatch` are left to the caller, but for `weight`.
    """
    steps = n_step_targets(windows.reward, windows.discount, windows.step_type, gamma=gamma)
    fields: Mapping[str, Any] = {
        "observation": windows.observation,
        "action": windows.action,
        "next_observation": windows.next_observation,
        "reward": steps.reward,
        "bootstrap": steps.bootstrap,
        "index": windows.index,
    }
    return layout.of({**fields, "weight": windows.weight} if "weight" in windows else fields)


def member_transitions(windows: Any, gamma: float) -> TransitionBatch:
    """Reduces n-step windows of a team to transitions, the reward of every member by itself.

    Args:
        windows: `buffers.Windows`, rewards [n+1, N, G].
        gamma: discount per env step.

    Returns:
        Fields [N, ...]; rewards and bootstraps are [N, G].
    """
    members = windows.reward.shape
    discount, step_type = (
        field.unsqueeze(-1).expand(members).flatten(1) for field in (windows.discount, windows.step_type)
    )
    flat = windows.replace(reward=windows.reward.flatten(1), discount=discount, step_type=step_type)
    found = n_step_transitions(flat, gamma)
    reward, bootstrap = (field.unflatten(0, members[1:]) for field in (found.reward, found.bootstrap))
    ends = n_step_end(windows.step_type)
    last = windows.step_type.gather(0, ends[None])[0] == StepType.LAST
    # `alive` of the team's last row says who was cut off; the others have ended
    return found.replace(
        reward=reward, bootstrap=torch.where(last.unsqueeze(-1), bootstrap * found.next_observation.alive, bootstrap)
    )


def kept_besides(drawn: Batch, gamma: float) -> dict[str, Any]:
    """What rows keep beside observation and reward, with one entry for each action, as losses find it.

    Args:
        drawn: an unroll or sequences `[T+1, B]`, or n-step windows; with `env_info` or `untransformed`, or neither.
        gamma: discount per env step, for the rewards of windows.

    Returns:
        `env_info`, what the environment reported when it had executed the action; `untransformed`, with the
        `observation` it was chosen on, the `reward` and the `next_observation`, all from before wrappers changed them.
    """
    found: dict[str, Any] = {}
    rows: Any = drawn
    windows = "next_observation" in drawn
    if "env_info" in drawn:
        found["env_info"] = rows.env_info[1] if windows else rows.env_info[1:]
    if "untransformed" in drawn:
        seen, reward = rows.untransformed.observation, rows.untransformed.reward
        if windows:
            ends, numbers = n_step_end(rows.step_type), torch.arange(reward.shape[1], device=reward.device)
            steps = (column.view(*column.shape, *[1] * (reward.ndim - 2)) for column in (rows.discount, rows.step_type))
            reward = n_step_targets(reward, *(column.expand_as(reward) for column in steps), gamma=gamma).reward
            raw = {"observation": seen[0], "reward": reward, "next_observation": seen[ends, numbers]}
        else:
            raw = {"observation": seen[:-1], "reward": reward[1:], "next_observation": seen[1:]}
        found["untransformed"] = Batch.of(raw)
    return found


class ValueBatch(TransitionBatch):
    """One minibatch; every field is [N, ...]."""

    weight: Tensor
    """Importance weight, in [0, 1]. Only where rows are drawn by priority."""
    noise: Tensor
    """[N, 3, S] of noisy layers: the online network at `observation`, the target network and the online network at
    `next_observation`. Only where layers are noisy."""


def layer_noise(batch: ValueBatch, policy: policies.ValueGreedyPolicy, generator: torch.Generator) -> ValueBatch:
    """Adds the noise of noisy layers, own to every row, if there are any.

    Args:
        batch: transitions.
        policy: whose network may have noisy layers.
        generator: source of the noise.
    """
    if not policy.noise_size:
        return batch
    shape = (len(batch.reward), 3, policy.noise_size)
    return batch.replace(noise=torch.randn(shape, generator=generator))


def layer_noises(batch: ValueBatch) -> tuple[Tensor | None, ...]:
    """The three noises of a minibatch, in the order of `ValueBatch.noise`; each `None` where no layer is noisy.

    Args:
        batch: after `layer_noise`.
    """
    return batch.noise.unbind(1) if "noise" in vars(batch) else (None, None, None)


def weighted_mean(loss: Tensor, batch: Batch) -> Tensor:
    """The mean of all rows' losses, each times its importance weight where rows are drawn by priority.

    Args:
        loss: [N].
        batch: the minibatch, with `weight` [N] where rows are drawn by priority.
    """
    return (batch["weight"] * loss).mean() if "weight" in vars(batch) else loss.mean()
