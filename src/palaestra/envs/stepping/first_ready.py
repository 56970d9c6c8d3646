"""`FirstReadyEnvironment`: groups of environments that do not wait for each other."""

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import optree
import torch

from palaestra.core import Batch, ConfigError, EnvError, SpecError, TimeStep
from palaestra.envs.contract.attributes import require_lanes
from palaestra.envs.contract.environment import Environment, HasSpecs
from palaestra.envs.contract.episodes import attributes_of, saved_seeds
from palaestra.envs.stepping.lane_environment import LaneEnvironment
from palaestra.envs.supervision.faults import EventLog
from palaestra.runtime import CLOCK

__all__ = ["FirstReadyEnvironment"]

_SPINS = 100
_NAP_S = 0.0002


@final
class FirstReadyEnvironment(HasSpecs, Environment):
    """Returns the time steps of the first n environments that are ready, without waiting for slow ones.

    Each group is a `LaneEnvironment` of its own, with one worker process, so n is a multiple of the size of a group.
    `reset` returns all B rows; after `send(action, env_id)`, `recv` returns n rows and says in `env_id` whose they are.
    Which come first depends on the clock: every lane's stream is reproducible, their interleaving is not, and a
    restored run starts new episodes.

    Args:
        groups: of equal size.
        num_ready: n.

    Raises:
        ConfigError: n is no multiple of the size of a group, or the groups differ.

    Examples:
        >>> from functools import partial
        >>> from palaestra.envs import ProcessDriver, load
        >>> drivers = [ProcessDriver([partial(load, "CartPole-v1")]) for _ in range(3)]
        >>> groups = [LaneEnvironment(driver, lane_seeds=[lane]) for lane, driver in enumerate(drivers)]
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

    def __init__(self, groups: Sequence[LaneEnvironment], *, num_ready: int) -> None:
        sizes = {group.batch_size for group in groups}
        size = max(sizes, default=0)
        if len(sizes) != 1 or num_ready % size or not 0 < num_ready <= size * len(groups):
            choices = [size * count for count in range(1, len(groups) + 1)]
            raise ConfigError(
                f"num_ready is {num_ready} with {len(groups)} workers of {sorted(sizes)} environments; "
                f"every worker needs as many, and num_ready is one of {choices}"
            )
        self.groups = list(groups)
        """Each a `LaneEnvironment`."""
        self.specs, self.info, self.untransformed_spec = groups[0].specs, groups[0].info, groups[0].untransformed_spec
        self._size, self._num_ready = size, num_ready
        self.batch_size = size * len(groups)
        self._lanes = [torch.arange(number * size, (number + 1) * size) for number in range(len(groups))]
        self._faults = EventLog()
        for number, group in enumerate(self.groups):
            group.driver.first_id = number * size
            group.record_in(self._faults)
        self._slices = [slice(start, start + size) for start in range(0, self.batch_size, size)]
        self._waiting: list[int] = []
        self._latest: list[int] = list(range(len(groups)))

    @property
    def num_ready(self) -> int:
        return self._num_ready

    @property
    def faults(self) -> EventLog:
        return self._faults

    def reset(self) -> TimeStep:
        """Starts the next episode everywhere and returns all B rows; actions sent are abandoned."""
        self._waiting = []
        self._latest = list(range(len(self.groups)))
        return self._joined(self._latest, [group.reset() for group in self.groups])

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
        given = {len(leaf) for leaf in optree.tree_leaves(action, is_leaf=_is_list)}
        if given != {len(numbers) * self._size}:
            raise SpecError(f"{len(numbers) * self._size} environments were sent {sorted(given)} actions")
        checked = [
            self.groups[number].checked(optree.tree_map(lambda leaf, at=place: leaf[at], action, is_leaf=_is_list))
            for number, place in zip(numbers, self._slices, strict=False)
        ]
        for number, actions in zip(numbers, checked, strict=True):
            self.groups[number].start(actions)
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
        return self._joined(ready, [self.groups[number].recv() for number in ready])

    def state_dict(self) -> dict[str, Any]:
        """Seeds and episode numbers of every lane."""
        states = [group.lane_state() for group in self.groups]
        state: dict[str, Any] = {key: np.concatenate([one[key] for one in states]) for key in ("lane_seed", "episode")}
        if any("attributes" in one for one in states):
            pairs = [pair for one in states for pair in attributes_of(one, self._size)]
            state["attributes"] = json.dumps(pairs)
        return state

    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        for lane in require_lanes(lanes, self.batch_size):
            self.groups[lane // self._size].set_attr(name, value, [lane % self._size])

    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        chosen = require_lanes(lanes, self.batch_size)
        return [self.groups[lane // self._size].get_attr(name, [lane % self._size])[0] for lane in chosen]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere.

        Raises:
            EnvError: it is of another number of environments.
        """
        saved_seeds(state, self.batch_size)
        self._waiting, self._latest = [], list(range(len(self.groups)))
        pairs = attributes_of(state, self.batch_size)
        for group, rows in zip(self.groups, self._slices, strict=True):
            numbers = {key: np.asarray(state[key])[rows] for key in ("lane_seed", "episode")}
            group.load_lane_state({**numbers, "attributes": json.dumps(pairs[rows])})

    def render(self) -> np.ndarray:
        return self.groups[0].render()

    @property
    def dropped(self) -> set[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {number * self._size + lane for number, group in enumerate(self.groups) for lane in group.dropped}

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each of them, also where closing one fails
            for group in reversed(self.groups):
                stack.callback(group.close)

    def _first(self, count: int) -> list[int]:
        spins = 0
        while True:
            ready = [number for number in self._waiting if self.groups[number].driver.answered]
            if len(ready) >= count:
                return ready[:count]
            spins += 1
            CLOCK.wait(time.sleep, CLOCK.now() + (0 if spins < _SPINS else _NAP_S))

    def _numbers(self, env_id: torch.Tensor) -> list[int]:
        ids = env_id.tolist()
        numbers = [lane // self._size for lane in ids[:: self._size]]
        whole = [lane for number in numbers if 0 <= number < len(self.groups) for lane in self._lanes[number].tolist()]
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


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _cat(values: Sequence[Any], size: int) -> Any:
    """Joins rows; info entries that a group did not report are NaN, as those of a single environment are."""
    if all(isinstance(value, torch.Tensor) for value in values):
        return torch.cat(list(values))
    if all(isinstance(value, TimeStep) for value in values):
        return TimeStep(*(_cat(list(column), size) for column in zip(*values, strict=True)))
    reported = [value if isinstance(value, Batch) else Batch() for value in values]
    keys = dict.fromkeys(key for value in reported for key in value.keys())  # noqa: SIM118
    missing = torch.full((size,), torch.nan, dtype=torch.float64)
    joined = Batch.of({key: _cat([value.get(key, missing) for value in reported], size) for key in keys})
    return joined if keys or all(isinstance(value, Batch) for value in values) else ()
