"""`CheckFinite`: NaN and infinity are named where they appear."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import NonFiniteError, TimeStep, spec_leaves
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper
from palaestra.envs.nest import flatten

__all__ = ["CheckFinite"]


@final
class CheckFinite(EnvironmentWrapper):
    """Refuses an observation or a reward that is NaN or infinite, at the very layer where it stands.

    The library checks what it collects anyway; between two layers this shows which of them is to blame.

    Args:
        env: the layer inside.

    Raises:
        NonFiniteError: raised while stepping; the message names the leaf, the index and the value.

    Examples:
        >>> from palaestra.envs import load
        >>> CheckFinite(load("CartPole-v1")).reset().observation.shape
        (4,)
    """

    keeps_frames = True

    def __init__(self, env: SingleEnvironment) -> None:
        super().__init__(env)
        self._inner = env.observation_spec
        self._paths = list(spec_leaves(self._inner))

    def begin_episode(self, seed: int) -> TimeStep:
        """Checks the first observation.

        Args:
            seed: passed on.
        """
        return self._checked(self.env.begin_episode(seed))

    def advance(self, action: Any) -> TimeStep:
        """Checks what the inner layer returns.

        Args:
            action: passed on.
        """
        return self._checked(self.env.advance(action))

    def _checked(self, time_step: TimeStep) -> TimeStep:
        self._require("reward", time_step.reward)
        for path, leaf in zip(self._paths, flatten(time_step.observation, self._inner), strict=True):
            self._require(f"observation {path!r}" if path else "observation", leaf)
        return time_step

    def _require(self, name: str, value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where = f" at index {list(index)}" if index else ""
        raise NonFiniteError(
            f"{type(self.env).__name__} returned the {name} with {array[index]}{where}; look at that layer, or clip"
        )
