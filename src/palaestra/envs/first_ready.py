"""`FirstReadyEnvironment`: groups of environments that do not wait for each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, EnvError, SpecError, SpecTree, TensorSpec, TimeStep
from palaestra.envs.environment import Environment
from palaestra.envs.faults import Fault
from palaestra.envs.process import ProcessEnvironment

__all__ = ["FirstReadyEnvironment"]

_SPINS = 100
_NAP_S = 0.0002


@final
class FirstReadyEnvironment(Environment):
    """Returns the time steps of the first n environments that are ready, so that a slow one holds up nobody.

    Each group is a `ProcessEnvironment` of its own, so n is a multiple of the size of a group. `reset` returns all B
    rows; after `send(action, env_id)`, `recv` returns n rows and says in `env_id` whose they are. Which come first
    depends on the clock: every lane's stream is reproducible, their interleaving is not, and a restored run starts new
    episodes.

    Args:
        groups: of equal size.
        num_ready: n.

    Raises:
        ConfigError: n is no multiple of the size of a group, or the groups differ.

    Examples:
        >>> from functools import partial
        >>> from palaestra.envs import load
        >>> groups = [ProcessEnvironment([partial(load, "CartPole-v1")], lane_seeds=[lane]) for lane in range(3)]
        >>> with FirstReadyEnvironment(groups, num_ready=2) as env:
        ...     first = env.reset()
        ...     env.send(torch.zeros(3, dtype=torch.int64), first.env_id)
        ...     some = env.recv()
        ...     env.send(torch.ones(2, dtype=torch.int64), some.env_id)
        >>> len(first.reward), len(some.reward)
        (3, 2)
    """

    seeding = "per_episode"
    resume = "statistical"

    def __init__(self, groups: Sequence[ProcessEnvironment], *, num_ready: int) -> None:
        sizes = {group.batch_size for group in groups}
        size = max(sizes, default=0)
        if len(sizes) != 1 or num_ready % size or not 0 < num_ready <= size * len(groups):
            choices = [size * count for count in range(1, len(groups) + 1)]
            raise ConfigError(
                f"num_ready is {num_ready} with {len(groups)} workers of {sorted(sizes)} environments; "
                f"every worker needs as many, and num_ready is one of {choices}"
            )
        self._groups, self._size, self._num_ready = list(groups), size, num_ready
        self.batch_size = size * len(groups)
        self._lanes = [torch.arange(number * size, (number + 1) * size) for number in range(len(groups))]
        for number, group in enumerate(self._groups):
            group.first_id = number * size
        self._waiting: list[int] = []
        self._latest: list[int] = list(range(len(groups)))

    @property
    def num_ready(self) -> int:
        """Rows of what `recv` returns, n."""
        return self._num_ready

    @property
    def faults(self) -> list[Fault]:
        """Every fault so far, group by group."""
        return [fault for group in self._groups for fault in group.faults]

    @property
    def observation_spec(self) -> SpecTree:
        """Of one observation."""
        return self._groups[0].observation_spec

    @property
    def action_spec(self) -> SpecTree:
        """Of one action."""
        return self._groups[0].action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        """Of one reward."""
        return self._groups[0].reward_spec

    @property
    def env_info_spec(self) -> SpecTree:
        """Of the declared info entries."""
        return self._groups[0].env_info_spec

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for group in self._groups for pid in group.worker_pids]

    def reset(self) -> TimeStep:
        """Starts the next episode everywhere and returns all B rows; actions sent are abandoned."""
        self._waiting = []
        self._latest = list(range(len(self._groups)))
        return self._joined(self._latest, [group.reset() for group in self._groups])

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Hands actions to their workers, which start at once.

        Args:
            action: [m, ...].
            env_id: [m], whole groups; `None` for the environments of the latest time step.

        Raises:
            EnvError: one of them has not been received since the last action.
            SpecError: an action is not allowed, there is not one for each, or a group is incomplete; no environment has
                seen any of them.
        """
        numbers = self._latest if env_id is None else self._numbers(env_id)
        twice = [number for number in numbers if number in self._waiting]
        if twice:
            lanes = self._lanes[twice[0]].tolist()
            raise EnvError(f"environments {lanes} were sent actions twice without recv; every send needs its recv")
        given = set(_lengths(action))
        if given != {len(numbers) * self._size}:
            raise SpecError(f"{len(numbers) * self._size} environments were sent {sorted(given)} actions")
        checked = [
            self._groups[number].checked(_rows(action, slice(place * self._size, (place + 1) * self._size)))
            for place, number in enumerate(numbers)
        ]
        for number, actions in zip(numbers, checked, strict=True):
            self._groups[number].start(actions)
            self._waiting.append(number)

    def recv(self) -> TimeStep:
        """Waits for the first n of the environments that were sent actions; the longest waiting one comes first.

        Raises:
            EnvError: an environment failed, or fewer than n are on their way.
        """
        count = self._num_ready // self._size
        if len(self._waiting) < count:
            raise EnvError(
                f"recv waits for {self._num_ready} environments and {len(self._waiting) * self._size} were sent actions"
            )
        ready = self._first(count)
        self._waiting = [number for number in self._waiting if number not in ready]
        self._latest = ready
        return self._joined(ready, [self._groups[number].recv() for number in ready])

    def state_dict(self) -> dict[str, Any]:
        """Seeds and episode numbers of every lane."""
        states = [group.lane_state() for group in self._groups]
        return {key: np.concatenate([state[key] for state in states]) for key in states[0]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere.

        Args:
            state: from `state_dict`.

        Raises:
            EnvError: it is of another number of environments.
        """
        if len(state["lane_seed"]) != self.batch_size:
            raise EnvError(f"the saved state is of {len(state['lane_seed'])} environments; this has {self.batch_size}")
        self._waiting, self._latest = [], list(range(len(self._groups)))
        for group, lanes in zip(self._groups, self._lanes, strict=True):
            group.load_lane_state({key: np.asarray(state[key])[lanes.numpy()] for key in ("lane_seed", "episode")})

    def render(self) -> np.ndarray:
        """A picture of environment 0."""
        return self._groups[0].render()

    def close(self) -> None:
        """Ends all workers."""
        for group in self._groups:
            group.close()

    def _first(self, count: int) -> list[int]:
        spins = 0
        while True:
            ready = [number for number in self._waiting if self._groups[number].answered]
            if len(ready) >= count:
                return ready[:count]
            spins += 1
            time.sleep(0 if spins < _SPINS else _NAP_S)

    def _numbers(self, env_id: torch.Tensor) -> list[int]:
        ids = env_id.tolist()
        numbers = [lane // self._size for lane in ids[:: self._size]]
        whole = [lane for number in numbers if 0 <= number < len(self._groups) for lane in self._lanes[number].tolist()]
        if whole != ids or len(set(numbers)) < len(numbers):
            raise SpecError(
                f"actions were sent for environments {ids}; workers step {self._size} environments each, "
                "so send back the env_id of a time step"
            )
        return numbers

    def _joined(self, numbers: Iterable[int], parts: Sequence[TimeStep]) -> TimeStep:
        env_id = torch.cat([self._lanes[number] for number in numbers])
        fields = [
            env_id if name == "env_id" else _cat([getattr(part, name) for part in parts], self._size)
            for name in TimeStep._fields
        ]
        return TimeStep(*fields)


def _lengths(action: Any) -> Iterator[int]:
    if isinstance(action, dict | tuple | Batch):
        for value in action.values() if not isinstance(action, tuple) else action:
            yield from _lengths(value)
    else:
        yield len(action)


def _rows(action: Any, rows: slice) -> Any:
    if isinstance(action, dict):
        return {key: _rows(value, rows) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(_rows(value, rows) for value in action)
    return action[rows]


def _cat(values: Sequence[Any], size: int) -> Any:
    """Joins rows; info entries that a group did not report are NaN, as those of a single environment are."""
    if all(isinstance(value, torch.Tensor) for value in values):
        return torch.cat(list(values))
    if not any(isinstance(value, Batch) for value in values):
        return ()
    keys = dict.fromkeys(key for value in values if isinstance(value, Batch) for key in value.keys())  # noqa: SIM118
    missing = torch.full((size,), torch.nan, dtype=torch.float64)
    columns = {
        key: _cat([value[key] if isinstance(value, Batch) and key in value else missing for value in values], size)
        for key in keys
    }
    return Batch.of(columns)
