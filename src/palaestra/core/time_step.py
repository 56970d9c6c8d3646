"""What an environment emits: `TimeStep`, and the only ways to write a legal one.

An episode is FIRST, MID, ..., MID, LAST. `discount` is continuation and not gamma: it is 0 exactly where the episode
terminated. The four legal pairs, and what learning does with them:

| step_type, discount | bootstrap the previous value from it | learn its own value |
|---|---|---|
| FIRST, 1 | no | yes |
| MID, 1 | yes | yes |
| LAST, 0 (terminated) | no | no |
| LAST, 1 (truncated) | yes | no |
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch

from palaestra.core.errors import ShapeError, SpecError

__all__ = ["StepType", "TimeStep", "check_time_step", "restart", "termination", "transition", "truncation"]


class StepType(IntEnum):
    """Where in its episode a time step lies."""

    FIRST = 0
    """The step after a reset; its reward is 0 and its previous action is zeros."""
    MID = 1
    """Any step that is neither the first nor the last."""
    LAST = 2
    """The end of the episode; its observation is the true final one."""


class TimeStep(NamedTuple):
    """One step of one environment (no leading dimension) or of B environments (every leaf of leading shape [B]).

    A bare environment emits numpy arrays and Python numbers, a batched one torch tensors.
    """

    step_type: Any = ()
    """`StepType` as int32."""
    reward: Any = ()
    """float32; the reward of `prev_action`, 0 at FIRST. A vector reward has shape [B, k]."""
    discount: Any = ()
    """float32 continuation: 0 where the episode terminated, else 1."""
    observation: Any = ()
    """A nest of arrays, obtained after `prev_action` was executed."""
    prev_action: Any = ()
    """The action just executed; zeros of the action spec at FIRST."""
    env_id: Any = ()
    """int64; which environment of the batch this step comes from."""
    untransformed: Any = ()
    """The whole time step before observation or reward transforms; `()` where nothing transforms."""
    env_info: Any = ()
    """Numeric entries of the environment's `info`, NaN where an environment did not report one."""

    @property
    def first(self) -> Any:
        """Whether an episode begins here."""
        return self.step_type == StepType.FIRST

    @property
    def last(self) -> Any:
        """Whether an episode ends here, for whatever reason; Gym's old `done`."""
        return self.step_type == StepType.LAST

    @property
    def terminated(self) -> Any:
        """Whether an episode ends here and nothing comes after it."""
        return (self.step_type == StepType.LAST) & (self.discount == 0)

    @property
    def truncated(self) -> Any:
        """Whether an episode is cut off here although the task continues (a time limit)."""
        return (self.step_type == StepType.LAST) & (self.discount != 0)


def restart(observation: Any, *, reward: Any = 0.0, **fields: Any) -> TimeStep:
    """The first step of one environment's episode.

    Args:
        observation: what the reset returned.
        reward: zeros; give them where the reward is a vector.
        fields: further ones of `TimeStep`, such as `prev_action` (zeros of the action spec), `env_id` and `env_info`.

    Raises:
        SpecError: the reward is not 0; nothing was done yet that could earn one.

    Examples:
        >>> restart(np.zeros(2)).first
        True
    """
    if np.any(_numpy(reward) != 0):
        raise SpecError(f"the reward of a first step is {reward}; it must be 0, since no action came before")
    return TimeStep(0, reward, 1.0, observation, **fields)


def transition(observation: Any, reward: Any, **fields: Any) -> TimeStep:
    """A step in the middle of one environment's episode.

    Args:
        observation: what the environment showed after `prev_action`.
        reward: what `prev_action` earned.
        fields: further ones of `TimeStep`, such as `prev_action` (the action executed), `env_id` and `env_info`.
    """
    return TimeStep(1, reward, 1.0, observation, **fields)


def termination(observation: Any, reward: Any, **fields: Any) -> TimeStep:
    """The last step of an episode that ended by itself: its value is 0.

    Args:
        observation: the final observation.
        reward: what `prev_action` earned.
        fields: further ones of `TimeStep`, as for `transition`.
    """
    return TimeStep(2, reward, 0.0, observation, **fields)


def truncation(observation: Any, reward: Any, **fields: Any) -> TimeStep:
    """The last step of an episode that was cut off: the task would have continued, so its value counts.

    Args:
        observation: the final observation.
        reward: what `prev_action` earned.
        fields: further ones of `TimeStep`, as for `transition`.
    """
    return TimeStep(2, reward, 1.0, observation, **fields)


def check_time_step(time_step: TimeStep) -> None:
    """Refuses every pair of step type and discount that is not in the table above.

    Args:
        time_step: bare, or of leading shape [B] or [T, B].

    Raises:
        SpecError: a pair is illegal; the message names the first environment.
        ShapeError: step types and discounts differ in shape.

    Examples:
        >>> check_time_step(TimeStep(1, 0.0, 0.0))
        Traceback (most recent call last):
            ...
        palaestra.core.errors.SpecError: environment 0 emitted (MID, discount 0.0): discount is 0 only with LAST, else 1
    """
    step_type, discount = _numpy(time_step.step_type), _numpy(time_step.discount)
    if step_type.shape != discount.shape:
        raise ShapeError(f"step_type has shape {step_type.shape} and discount {discount.shape}; they must be equal")
    legal = np.isin(step_type, (0, 1, 2)) & ((discount == 1) | ((discount == 0) & (step_type == StepType.LAST)))
    if not legal.all():
        index = int(np.flatnonzero(~legal)[0])
        kind = int(step_type.flat[index])
        name = StepType(kind).name if kind in (0, 1, 2) else f"step type {kind}"
        ids = _numpy(time_step.env_id)
        lanes = step_type.shape[-1] if step_type.ndim else 1
        env = int(ids.flat[index]) if ids.shape == step_type.shape else index % lanes
        raise SpecError(
            f"environment {env} emitted ({name}, discount {float(discount.flat[index])}): "
            "discount is 0 only with LAST, else 1"
        )


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
