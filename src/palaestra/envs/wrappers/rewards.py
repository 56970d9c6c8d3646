"""Layers that change what is earned."""

from typing import Any, final

import numpy as np
import torch

from palaestra.core import BoundedSpec, ConfigError, SpecError, TensorSpec, TimeStep
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.wrappers.base import RewardMap, RunningMeanVariance, StatefulWrapper, clipped, square_root

__all__ = ["ClipReward", "NormalizeReward", "ScaleReward", "SparseReward"]

_EPSILON = 1e-8


@final
class ClipReward(RewardMap):
    """Clips rewards; with the defaults to [-1, 1], as the Atari experiments do.

    Of whole numbers the signs are left: how often something is earned, not how much. Episode returns in
    logs and evaluations are those of clipped rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        minimum: smallest reward let through.
        maximum: largest reward let through.

    Raises:
        ConfigError: the minimum is not below the maximum.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ClipReward(load("Pendulum-v1"), minimum=-0.5)
        >>> env.reward_spec.minimum, env.reward_spec.maximum
        (array(-0.5, dtype=float32), array(1., dtype=float32))
    """

    elementwise = True

    def __init__(self, env: SingleEnvironment, minimum: float = -1.0, maximum: float = 1.0) -> None:
        super().__init__(env)
        if not minimum < maximum:
            raise ConfigError(f"ClipReward(minimum={minimum}, maximum={maximum}); the minimum must be below")
        self._minimum, self._maximum = minimum, maximum

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(min(self._minimum, 0.0), max(self._maximum, 0.0))

    def map(self, reward: Any) -> Any:
        return clipped(reward, self._minimum, self._maximum)


@final
class ScaleReward(RewardMap):
    """Multiplies rewards by a number, which changes no optimal policy.

    For tasks whose returns are in the thousands, where a value network would have to grow its weights first.

    Args:
        scale: factor, above 0.

    Raises:
        ConfigError: the scale is not a positive number.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ScaleReward(load("CartPole-v1"), scale=0.25)
        >>> env.reset().reward, env.step(np.int64(0)).reward
        (0.0, 0.25)
    """

    elementwise = True

    def __init__(self, env: SingleEnvironment, scale: float) -> None:
        super().__init__(env)
        if not 0 < scale < np.inf:
            raise ConfigError(f"ScaleReward(scale={scale}); it must be a finite number above 0")
        self._scale = scale

    @property
    def reward_spec(self) -> TensorSpec:
        spec = self.env.reward_spec
        if not isinstance(spec, BoundedSpec):
            return spec
        return self._bounded(spec.minimum * self._scale, spec.maximum * self._scale)

    def map(self, reward: Any) -> Any:
        return reward * self._scale


@final
class SparseReward(RewardMap):
    """Turns a reward above 0 into 1, and any other into 0.

    Shows what an algorithm does without the hints of a shaped reward.

    Examples:
        >>> from palaestra.envs import load
        >>> env = SparseReward(load("Pendulum-v1"))  # rewards are costs
        >>> env.reset().reward, env.step(np.zeros(1, np.float32)).reward
        (0.0, 0.0)
    """

    elementwise = True

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(0.0, 1.0)

    def map(self, reward: Any) -> Any:
        return reward > 0 if isinstance(reward, torch.Tensor) else np.greater(reward, 0).astype(np.float32)


@final
class NormalizeReward(StatefulWrapper, RewardMap):
    """Divides rewards by the standard deviation of the discounted return, so that returns get a variance near 1.

    The mean is not subtracted: that would change which policies are good. Each environment counts for itself. Episode
    returns in logs and evaluations are those of the divided rewards; `EpisodeStatistics` inside keeps the raw ones.

    Args:
        gamma: discount per env step, as the learner's.
        clip: largest absolute value that comes out.

    Raises:
        ConfigError: gamma is not in [0, 1], or the clip not positive.
        SpecError: the reward is a vector.

    Examples:
        >>> from palaestra.envs import load
        >>> env = NormalizeReward(load("Pendulum-v1"))
        >>> _ = env.reset()
        >>> -10 <= env.step(np.zeros(1, np.float32)).reward <= 10
        True
    """

    keeps_frames = True
    learned = True

    def __init__(self, env: SingleEnvironment, gamma: float = 0.99, clip: float = 10.0) -> None:
        super().__init__(env)
        if not (0 <= gamma <= 1 and clip > 0):
            raise ConfigError(f"NormalizeReward(gamma={gamma}, clip={clip}); gamma is in [0, 1] and the clip above 0")
        if env.reward_spec.shape:
            raise SpecError(f"NormalizeReward needs a scalar reward, and this one has shape {env.reward_spec.shape}")
        self.gamma, self._clip = gamma, clip
        self._return = 0.0
        self._running = RunningMeanVariance(())

    @property
    def reward_spec(self) -> TensorSpec:
        return self._bounded(-self._clip, self._clip)

    def begin_episode(self, seed: int) -> TimeStep:
        self._return = 0.0
        return super().begin_episode(seed)

    def map(self, reward: Any) -> Any:
        self._return = self.gamma * self._return + float(reward)
        self._running.update(np.array(self._return))
        return self.divided(reward, self._running.variance)

    def divided(self, reward: Any, variance: Any) -> Any:
        """Rewards divided by the standard deviation, numbers or rows of a batch.

        Args:
            reward: any.
            variance: of the discounted return.
        """
        shifted = variance + _EPSILON
        return clipped(reward / square_root(shifted), -self._clip, self._clip)

    def snapshot(self) -> Any:
        return self._running.snapshot()

    def restore(self, snapshot: Any) -> None:
        self._running.restore(snapshot)
