"""Layers that change what is executed."""

from collections import deque
from typing import Any, TypeGuard, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, DiscreteSpec, MultiDiscreteSpec, SpecError, TensorSpec, TimeStep
from palaestra.core.spec import ACTION_MASK, numpy_dtype, spec_leaves
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.contract.nest import copied, flatten, to_rows, unflatten

__all__ = ["ActionRepeat", "NormalizeAction"]


@final
class ActionRepeat(EnvironmentWrapper):
    """Executes every action K times: rewards are summed, the last observation and info are kept, an end cuts it short.

    So does an `action_mask` that forbids the action for the next frame.

    One env step is then up to K frames; `info` counts them as `frames`, so metrics show both. A time limit inside
    (that of `max_episode_steps`) counts frames; put `TimeLimit` outside to count env steps.

    Args:
        repeat: K, at least 1.
        pool: above 1, the observation is the elementwise maximum of so many newest frames, against sprites that are
            drawn in every other frame only.

    Raises:
        ConfigError: a number is below 1, or more frames are pooled than repeated.
        SpecError: nested observations are to be pooled.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ActionRepeat(load("CartPole-v1"), repeat=4)
        >>> _ = env.reset()
        >>> time_step = env.step(np.int64(0))
        >>> time_step.reward, time_step.env_info["frames"]
        (4.0, 4)
    """

    def __init__(self, env: SingleEnvironment, repeat: int = 4, pool: int = 1) -> None:
        super().__init__(env)
        if not (type(repeat) is type(pool) is int and 1 <= pool <= repeat):
            raise ConfigError(f"ActionRepeat(repeat={repeat}, pool={pool}); integers 1 <= pool <= repeat are needed")
        if pool > 1 and not isinstance(env.observation_spec, TensorSpec):
            raise SpecError(f"ActionRepeat(pool={pool}) needs one array as the observation: {env.observation_spec}")
        self._repeat, self._pool = repeat, pool
        spec = env.observation_spec
        self._masks = spec.get(ACTION_MASK) if isinstance(spec, dict) else None

    @property
    def env_info_spec(self) -> Any:
        """With `frames`, the frames of the step."""
        return {**self.env.env_info_spec, "frames": TensorSpec((), torch.int64)}

    def advance(self, action: Any) -> TimeStep:
        total: Any = 0.0
        raw_total: Any = 0.0
        newest: deque[np.ndarray] = deque(maxlen=self._pool)
        frames = 0
        while True:
            time_step = self.env.advance(copied(action))  # which an environment may change
            frames += 1
            total = total + time_step.reward
            raw = time_step.untransformed
            if isinstance(raw, TimeStep):
                raw_total = raw_total + raw.reward
            if self._pool > 1:
                newest.append(np.array(time_step.observation))
            if frames == self._repeat or time_step.step_type == 2 or self._forbidden(time_step, action):
                break
        observation = np.max(newest, axis=0) if self._pool > 1 else time_step.observation
        info = {**(time_step.env_info or {}), "frames": frames}
        raw = raw._replace(reward=raw_total) if isinstance(raw, TimeStep) else raw
        return time_step._replace(observation=observation, reward=total, env_info=info, untransformed=raw)

    def _forbidden(self, time_step: TimeStep, action: Any) -> bool:
        if self._masks is None:
            return False
        masks = dict(
            zip(spec_leaves(self._masks), flatten(time_step.observation[ACTION_MASK], self._masks), strict=True)
        )
        parts = zip(spec_leaves(self.action_spec).items(), flatten(action, self.action_spec), strict=True)
        return any(path in masks and not _allows(masks[path], spec, np.asarray(part)) for (path, spec), part in parts)


def _allows(mask: np.ndarray, spec: TensorSpec, action: np.ndarray) -> bool:
    if isinstance(spec, DiscreteSpec):
        return bool(mask[int(action) - spec.start])
    if isinstance(spec, MultiDiscreteSpec):
        return bool(mask[np.cumsum([0, *spec.nvec[:-1]]) + action.reshape(-1)].all())
    return True


@final
class NormalizeAction(EnvironmentWrapper):
    """Maps [-1, 1] linearly onto the bounds of each continuous action.

    What lies outside of [-1, 1] is refused by a batched environment, and clipped to a bound by a single one. For
    environments whose components have different units, where one exploration noise would fit none of them. Discrete
    components of nested actions stay as they are.

    Raises:
        ConfigError: no action component has two finite bounds.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeAction(load("Pendulum-v1"))  # torque in [-2, 2]
        >>> env.action_spec.minimum, env.action_spec.maximum
        (array([-1.], dtype=float32), array([1.], dtype=float32))
    """

    keeps_frames = True
    elementwise = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._inner = env.action_spec
        leaves = spec_leaves(self._inner)
        if not any(_bounded(spec) for spec in leaves.values()):
            raise ConfigError(f"NormalizeAction finds no action component with two finite bounds: {leaves}")
        self._leaves = [spec if _bounded(spec) else None for spec in leaves.values()]
        specs = [_normal(spec) if _bounded(spec) else spec for spec in leaves.values()]
        self.specs = self.specs._replace(action=unflatten(iter(specs), self._inner))

    def advance(self, action: Any) -> TimeStep:
        pairs = zip(self._leaves, flatten(action, self._inner), strict=True)
        leaves = [leaf if spec is None else _denormalized(np.asarray(leaf), spec) for spec, leaf in pairs]
        return self.env.advance(unflatten(iter(leaves), self._inner))

    def action_rows(self, action: Any) -> Any:
        """The same for a batch.

        Args:
            action: tensors [B, ...].
        """
        pairs = zip(self._leaves, flatten(action, self._inner), strict=True)
        return to_rows((leaf if spec is None else _denormalized(leaf, spec) for spec, leaf in pairs), self._inner)


def _bounded(spec: TensorSpec) -> TypeGuard[BoundedSpec]:
    return isinstance(spec, BoundedSpec) and spec.dtype.is_floating_point and spec.bounded


def _normal(spec: TensorSpec) -> BoundedSpec:
    return BoundedSpec(spec.shape, spec.dtype, minimum=np.array(-1.0), maximum=np.array(1.0))


def _denormalized(value: Any, spec: BoundedSpec) -> Any:
    low, high = spec.minimum, spec.maximum
    if isinstance(value, torch.Tensor):
        value = value.to(spec.dtype)
        low, high = (torch.tensor(bound).to(value) for bound in (low, high))
        return (low + (value + 1) * 0.5 * (high - low)).clamp(low, high)
    # rounding may leave the bounds by one unit in the last place
    return np.clip(low + (value + 1) * 0.5 * (high - low), low, high).astype(numpy_dtype(spec.dtype))
