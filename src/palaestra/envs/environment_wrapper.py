"""`EnvironmentWrapper`: a layer around a bare environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from palaestra.core import SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import unstacked

__all__ = ["EnvironmentWrapper"]


class EnvironmentWrapper(SingleEnvironment):
    """A layer around a bare environment that passes everything through.

    Override `advance` and `begin_episode` to change time steps or actions, and the specs of whatever is changed. A
    layer that neither skips steps nor changes observations says `keeps_frames = True`.

    Args:
        env: the layer inside.

    Raises:
        SpecError: a Gymnasium environment was given, without the layer that converts it.

    Examples:
        >>> class SparseReward(EnvironmentWrapper):
        ...     def advance(self, action):
        ...         time_step = self.env.advance(action)
        ...         return time_step._replace(reward=float(time_step.reward > 0))
    """

    keeps_frames: ClassVar[bool] = False
    """Whether every step of this layer is one step of the inner layer, from its FIRST on, with the same observation.
    The frames of a stack are then those of the steps before, and a buffer may store each frame once."""

    def __init__(self, env: SingleEnvironment) -> None:
        if not isinstance(env, SingleEnvironment):
            kind, outer = type(env).__name__, type(self).__name__
            raise SpecError(f"{outer} was given a {kind}; it goes around a SingleEnvironment: GymEnvironment({kind}())")
        self.env = env
        self.env_id = env.env_id

    @property
    def observation_spec(self) -> SpecTree:
        """Of the observation; the inner layer's unless overridden, without `stacked` unless frames are kept."""
        spec = self.env.observation_spec
        return spec if self.keeps_frames else unstacked(spec)

    @property
    def action_spec(self) -> SpecTree:
        """Of the action; the inner layer's unless overridden."""
        return self.env.action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        """Of the reward; the inner layer's unless overridden."""
        return self.env.reward_spec

    @property
    def env_info_spec(self) -> SpecTree:
        """Of the declared info entries; the inner layer's unless overridden."""
        return self.env.env_info_spec

    @property
    def cut_off(self) -> bool:
        """Whether the inner layer's episode would have been cut off where its task ended."""
        return self.env.cut_off

    def begin_episode(self, seed: int) -> TimeStep:
        """Starts an episode in the inner layer.

        Args:
            seed: passed on.
        """
        return self.env.begin_episode(seed)

    def advance(self, action: Any) -> TimeStep:
        """Executes one action in the inner layer.

        Args:
            action: passed on.
        """
        return self.env.advance(action)

    def memory(self) -> dict[str, Any]:
        """What the inner layers carried into the running episode."""
        return self.env.memory()

    def recall(self, memory: dict[str, Any]) -> None:
        """Hands on to the inner layer.

        Args:
            memory: from `memory`.
        """
        self.env.recall(memory)

    def render(self) -> np.ndarray:
        """The inner layer's picture."""
        return self.env.render()

    def close(self) -> None:
        """Closes the inner layer."""
        self.env.close()
