"""`ActionMask`: which actions are allowed, as part of the observation."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from palaestra.core import ConfigError, DiscreteSpec, EnvError, MultiBinarySpec, SpecTree, TimeStep
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.wrappers.base import TimeStepMap

__all__ = ["ActionMask"]

_MASK = "action_mask"


@final
class ActionMask(TimeStepMap):
    """Moves the mask that an environment reports in its `info` into the observation's key `action_mask`.

    There policies honour it: when acting, exploring, learning and bootstrapping. An observation that is no dict becomes
    the key `observation`. Executing an action that the mask forbids is an error here, not an undefined step.

    Args:
        env: the layer inside, with discrete actions.
        key: of the `info` entry: 1 or true for each action that is allowed.

    Raises:
        ConfigError: the actions are not discrete, or the observation has such a key already.
        EnvError: raised while stepping: there is no such entry, it has another length, or the action is forbidden.

    Examples:
        >>> from palaestra.envs import load
        >>> env = ActionMask(load("Taxi-v4"))
        >>> env.reset().observation["action_mask"].shape
        (6,)
    """

    def __init__(self, env: SingleEnvironment, key: str = _MASK) -> None:
        super().__init__(env)
        spec, actions = env.observation_spec, env.action_spec
        if not isinstance(actions, DiscreteSpec):
            raise ConfigError(f"ActionMask needs discrete actions, and these are {actions}")
        if isinstance(spec, dict) and _MASK in spec:
            raise ConfigError(f"the observation has the key {_MASK!r} already; leave ActionMask out")
        self._key, self._num, self._start = key, actions.num, actions.start
        self._nested = isinstance(spec, dict)
        self._mask = np.ones(self._num, np.int8)
        observation = spec if self._nested else {"observation": spec}
        self._spec: SpecTree = {**observation, _MASK: MultiBinarySpec((self._num,))}

    @property
    def observation_spec(self) -> SpecTree:
        """A dict with the mask."""
        return self._spec

    def advance(self, action: Any) -> TimeStep:
        """Executes an action that is allowed.

        Args:
            action: checked against the latest mask.
        """
        if not self._mask[int(action) - self._start]:
            allowed = (np.flatnonzero(self._mask) + self._start).tolist()
            raise EnvError(f"action {int(action)} is forbidden by the mask; allowed are {allowed}")
        return super().advance(action)

    def change(self, time_step: TimeStep) -> TimeStep:
        """Adds the mask to the observation.

        Args:
            time_step: of the inner layer.
        """
        info = time_step.env_info or {}
        if self._key not in info:
            raise EnvError(f"the info has no {self._key!r}, only {list(info)}; report the mask with every step")
        mask = np.array(info[self._key]).astype(np.int8)
        if mask.shape != (self._num,):
            raise EnvError(f"the mask in info[{self._key!r}] has shape {mask.shape}, and there are {self._num} actions")
        self._mask = mask
        observation = time_step.observation if self._nested else {"observation": time_step.observation}
        return time_step._replace(observation={**observation, _MASK: mask})
