"""What environments that step all their lanes together have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import numpy as np
import torch

from palaestra.core import DiscreteSpec, EnvError, SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.environment import Environment
from palaestra.envs.nest import batched_spec
from palaestra.envs.rows import Specs
from palaestra.envs.vector import ActionReader

__all__ = ["LockstepEnvironment"]


class LockstepEnvironment(Environment):
    """Specs, reading actions, and every send with its recv. A subclass hands actions out and collects time steps.

    Args:
        specs: of one bare environment.
        batch_size: B.
    """

    checks_finite = True
    first_id: int = 0
    """Number of the first environment in messages, where this is a part of a larger batch."""

    def __init__(self, specs: Specs, batch_size: int) -> None:
        self.batch_size = batch_size
        self._specs = specs
        self._reader = ActionReader(specs.action, batch_size)
        self._observation_spec = batched_spec(specs.observation)
        self._action_spec = batched_spec(specs.action)
        self._env_id = torch.arange(batch_size)
        self._everyone = list(range(batch_size))
        self._masked = isinstance(specs.action, DiscreteSpec) and "action_mask" in _keys(specs.observation)
        self._mask: np.ndarray | None = None
        self._sent: list[np.ndarray] | None = None

    @property
    @final
    def observation_spec(self) -> SpecTree:
        """Of one observation."""
        return self._observation_spec

    @property
    @final
    def action_spec(self) -> SpecTree:
        """Of one action."""
        return self._action_spec

    @property
    @final
    def reward_spec(self) -> TensorSpec:
        """Of one reward."""
        return self._specs.reward

    @property
    @final
    def env_info_spec(self) -> SpecTree:
        """Of the declared info entries."""
        return self._specs.env_info

    @final
    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Takes the actions, and starts to execute them where that is possible.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received, or the environment is closed.
            SpecError: an action is NaN, outside its space, or not allowed; no environment has seen any of them.
        """
        if env_id is not None and env_id.tolist() != self._everyone:
            raise SpecError(
                f"{type(self).__name__} steps its {self.batch_size} environments together, and was sent actions for "
                f"{env_id.tolist()}; leave env_id out"
            )
        if self._sent is not None:
            raise EnvError("send was called twice without recv; every send needs its recv")
        self.start(self.checked(action))

    @final
    def checked(self, action: Any) -> list[np.ndarray]:
        """Actions as `start` takes them; environments are not told of them yet.

        Args:
            action: [B, ...].

        Raises:
            SpecError: as for `send`.
        """
        actions = self._reader.read(action)
        wrong = self._reader.wrong(actions) or (self._forbidden(actions[0]) if self._mask is not None else None)
        if wrong is not None:
            raise SpecError(
                f"the action for environment {self.first_id + wrong[0]} has {wrong[1]}{self._where(wrong[0])}"
            )
        return actions

    @final
    def start(self, actions: list[np.ndarray]) -> None:
        """Starts to execute actions, which `recv` then waits for.

        Args:
            actions: from `checked`.
        """
        self._begin(actions)
        self._sent = actions

    @final
    def recv(self) -> TimeStep:
        """Collects the time steps of the actions sent.

        Raises:
            EnvError: an environment failed, or nothing was sent.
            NonFiniteError: an environment emitted NaN or infinity.
        """
        actions = self._sent
        if actions is None:
            raise EnvError("recv was called without send; every recv needs its send")
        self._sent = None
        time_step = self._finish(actions)
        if self._masked:
            mask = time_step.observation.action_mask.numpy().astype(np.bool_)
            mask[time_step.step_type.numpy() == 2] = True
            self._mask = mask
        return time_step

    @abstractmethod
    def _begin(self, actions: list[np.ndarray]) -> None:
        """Hands actions out."""

    @abstractmethod
    def _finish(self, actions: list[np.ndarray]) -> TimeStep:
        """Collects what came of them."""

    @abstractmethod
    def _where(self, lane: int) -> str:
        """Where in its stream a lane is, to be put at the end of a sentence."""

    def _forbidden(self, action: np.ndarray) -> tuple[int, str] | None:
        mask, start = self._mask, self._specs.action.start
        assert mask is not None
        allowed = mask[self._everyone, action - start]
        if allowed.all():
            return None
        lane = int(np.flatnonzero(~allowed)[0])
        choices = (np.flatnonzero(mask[lane]) + start).tolist()
        return lane, f"value {action[lane]}, which its action_mask forbids; it allows {choices}"


def _keys(spec: SpecTree) -> Any:
    return spec if isinstance(spec, dict) else ()
