"""`SerialEnvironment`: environments stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import EnvError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.driving import describe, failure
from palaestra.envs.environment import Environment, SingleEnvironment
from palaestra.envs.episode_log import EpisodeLog
from palaestra.envs.lanes import Lanes
from palaestra.envs.nest import batched_spec, to_batched
from palaestra.envs.vector import ActionReader, batched_time_step, check_all_lanes, check_seeds, fresh_seeds

__all__ = ["SerialEnvironment"]


@final
class SerialEnvironment(Environment):
    """Steps bare environments in this process: no sub-process exists, so a debugger works.

    The fastest choice for environments whose step takes less than about 10 microseconds.

    Args:
        envs: the outermost layers; one batch, all with equal specs.
        lane_seeds: one for each, from `RunSeeds.integer("environments", lane)`; fresh ones if left out.

    Raises:
        SpecError: no environments, other specs, or another number of seeds.

    Examples:
        >>> from palaestra.envs import load
        >>> env = SerialEnvironment([load("CartPole-v1"), load("CartPole-v1")], lane_seeds=[1, 2])
        >>> env.reset().step_type, env.step(torch.tensor([0, 1])).reward
        (tensor([0, 0], dtype=torch.int32), tensor([1., 1.]))
    """

    seeding = "per_episode"
    resume = "exact"

    def __init__(self, envs: Sequence[SingleEnvironment], *, lane_seeds: Sequence[int] | None = None) -> None:
        seeds = list(lane_seeds) if lane_seeds is not None else fresh_seeds(len(envs))
        check_seeds(seeds, len(envs))
        self.batch_size = len(envs)
        self._lanes = Lanes(envs)
        self._specs = self._lanes.specs
        self._log = EpisodeLog(seeds, self._specs.action)
        self._reader = ActionReader(self._specs.action, self.batch_size)
        self._observation_spec = batched_spec(self._specs.observation)
        self._action_spec = batched_spec(self._specs.action)
        self._scalar_actions = isinstance(self._specs.action, TensorSpec) and not self._specs.action.shape
        self._env_id = torch.arange(self.batch_size)
        self._pending: tuple[list[np.ndarray], Iterable[Any]] | None = None

    @property
    def observation_spec(self) -> SpecTree:
        """Of one observation."""
        return self._observation_spec

    @property
    def action_spec(self) -> SpecTree:
        """Of one action."""
        return self._action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        """Of one reward."""
        return self._specs.reward

    @property
    def env_info_spec(self) -> SpecTree:
        """Of the declared info entries."""
        return self._specs.env_info

    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones, and actions sent, are abandoned."""
        self._log.abandon()
        self._pending = self._reader.zeros(), [None] * self.batch_size
        return self.recv()

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Takes the actions; they are executed by `recv`.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received.
        """
        if env_id is not None:
            check_all_lanes(env_id, self.batch_size, "SerialEnvironment")
        if self._pending is not None:
            raise EnvError("send was called twice without recv; every send needs its recv")
        actions = self._reader.read(action)
        self._pending = actions, self._reader.per_lane(actions)

    def recv(self) -> TimeStep:
        """Steps every environment with the actions sent.

        Raises:
            EnvError: an environment failed, or nothing was sent.
        """
        if self._pending is None:
            raise EnvError("recv was called without send; every recv needs its send")
        actions, given = self._pending
        self._pending = None
        log, lanes = self._log, self._lanes
        seeds = log.send(actions)
        try:
            rows, infos = lanes.step(given, seeds)
        except Exception as error:
            raise self._failure(error) from error
        log.due = lanes.over
        if not self._scalar_actions:
            # an environment may have changed its row in place
            actions = log.latest()
        for lane in seeds:
            for array in actions:
                array[lane] = 0
        prev_action = torch.from_numpy(actions[0]) if self._scalar_actions else to_batched(actions, self._specs.action)
        return batched_time_step(rows, prev_action, self._env_id, infos, self._specs.observation)

    def state_dict(self) -> dict[str, Any]:
        """Every lane's episode number, its actions so far, and a digest of its latest observation."""
        if self._pending is not None:
            raise EnvError("state_dict was called between send and recv; receive first")
        return self._log.state_dict(self._lanes.digests())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replays every lane's running episode.

        Args:
            state: from `state_dict`, of a serial or a process environment.

        Raises:
            EnvError: it does not fit, or an environment does not replay.
        """
        episodes = self._log.episodes_of(state)
        self._pending = None
        self._log.restore(episodes, range(self.batch_size))
        try:
            self._lanes.load(episodes)
        except Exception as error:
            raise self._failure(error) from error
        self._log.due = self._lanes.over

    def render(self) -> np.ndarray:
        """A picture of environment 0."""
        return self._lanes.envs[0].render()

    def close(self) -> None:
        """Closes every environment."""
        self._lanes.close()

    def _failure(self, error: Exception) -> EnvError:
        kind, detail = describe(error)
        found = failure(self._log, self._lanes.lane, f"raised {kind}", detail)
        self._log.abandon()
        return found
