"""`Lanes`: the loop that steps bare environments and writes their time steps into rows.

A serial environment runs it on fresh arrays, a worker process on its part of shared memory, so both give the same
stream bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import SpecError, SpecTree, TensorSpec, spec_leaves
from palaestra.envs.driving import begin, replay
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode, digest
from palaestra.envs.nest import flatten, leaf_dtypes

__all__ = ["Infos", "Lanes", "RowMaker", "Rows", "Specs"]

Infos = dict[int, dict[str, float]]
"""Numeric info entries by lane; lanes without any are left out."""


class Specs(NamedTuple):
    """The specs that all environments of a batch share."""

    observation: SpecTree
    """Of an observation."""
    action: SpecTree
    """Of an action."""
    reward: TensorSpec
    """Of a reward."""
    env_info: SpecTree
    """Of declared info entries."""


class Rows(NamedTuple):
    """Arrays that a step is written into, one row for every lane."""

    step_type: np.ndarray
    """int32 [B]."""
    reward: np.ndarray
    """float32 [B] or [B, k]."""
    discount: np.ndarray
    """float32 [B]."""
    observation: list[np.ndarray]
    """One array [B, ...] for every leaf of the observation spec."""


class RowMaker:
    """Makes rows for a batch.

    Args:
        specs: what they hold.
        num_lanes: how many rows, B.
    """

    def __init__(self, specs: Specs, num_lanes: int) -> None:
        leaves = zip(spec_leaves(specs.observation).values(), leaf_dtypes(specs.observation), strict=True)
        self.observation = [((num_lanes, *leaf.shape), dtype) for leaf, dtype in leaves]
        self.reward = (num_lanes, *specs.reward.shape)
        self._num_lanes = num_lanes

    def empty(self) -> Rows:
        """Fresh, uninitialised rows."""
        return Rows(
            np.empty(self._num_lanes, np.int32),
            np.empty(self.reward, np.float32),
            np.empty(self._num_lanes, np.float32),
            [np.empty(shape, dtype) for shape, dtype in self.observation],
        )


class Lanes:
    """Some bare environments.

    Args:
        envs: the outermost layers.
        cursor: element 0 is set to the lane being stepped, so that whoever watches knows which one never came back.

    Attributes:
        specs: that all of them share.
        lane: where the latest call stopped; of interest when it raised.
        over: lanes whose episode ended in the latest step.

    Raises:
        SpecError: they do not share their specs.
    """

    def __init__(self, envs: Sequence[SingleEnvironment], cursor: np.ndarray | None = None) -> None:
        self.envs = list(envs)
        self.specs = _common_specs(self.envs)
        self.lane = 0
        self.over: list[int] = []
        self._cursor = cursor
        self._plain = isinstance(self.specs.observation, TensorSpec)
        self._advance = [env.advance for env in self.envs]
        self._latest: list[Any] = [None] * len(self.envs)

    def step(self, actions: Iterable[Any], seeds: dict[int, int], rows: Rows) -> Infos | None:
        """Executes an action in every lane, or starts an episode there.

        Args:
            actions: one for every lane, as its environment takes it.
            seeds: of the lanes that start an episode instead.
            rows: written completely.

        Returns:
            Numeric info, or `None` where nobody reported any.

        Raises:
            Exception: whatever an environment raised; `lane` says which.
        """
        step_type, reward, discount, observation = rows
        plain, latest, cursor = observation[0] if self._plain else None, self._latest, self._cursor
        infos: Infos | None = None
        over: list[int] = []
        step_type.fill(1)
        discount.fill(1.0)
        lane = 0
        try:
            for lane, (advance, action) in enumerate(zip(self._advance, actions, strict=True)):
                if cursor is not None:
                    cursor[0] = lane
                time_step = advance(action) if lane not in seeds else begin(self.envs[lane], seeds[lane])
                latest[lane] = time_step
                kind, reward[lane], continuation, seen, _, _, _, info = time_step
                if kind != 1:
                    step_type[lane] = kind
                    if kind == 2:
                        over.append(lane)
                if continuation != 1.0:
                    discount[lane] = continuation
                if plain is not None:
                    plain[lane] = seen
                else:
                    for array, leaf in zip(observation, flatten(seen, self.specs.observation), strict=True):
                        array[lane] = leaf
                if info:
                    infos = _add_info(infos, lane, info)
        finally:
            self.lane = lane
        self.over = over
        return infos

    def digests(self) -> list[str]:
        """A digest of every lane's latest time step; empty before its first."""
        spec = self.specs.observation
        return [digest(latest, spec) if latest is not None else "" for latest in self._latest]

    def load(self, episodes: Sequence[Episode]) -> None:
        """Replays a running episode in every lane, and sets `over` to those that need a new one.

        Args:
            episodes: one for every lane.

        Raises:
            EnvError: one does not replay; `lane` says which.
        """
        self.over = []
        for self.lane, (env, episode) in enumerate(zip(self.envs, episodes, strict=True)):
            if self._cursor is not None:
                self._cursor[0] = self.lane
            latest = replay(env, episode)
            self._latest[self.lane] = latest
            if latest is None or latest.step_type == 2:
                self.over.append(self.lane)

    def close(self) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()


def _common_specs(envs: Sequence[SingleEnvironment]) -> Specs:
    if not envs:
        raise SpecError("no environments were given; at least one is needed")
    specs = [Specs(env.observation_spec, env.action_spec, env.reward_spec, env.env_info_spec) for env in envs]
    for lane, other in enumerate(specs):
        if other[:3] != specs[0][:3]:
            raise SpecError(
                f"environment {lane} has the specs {other[:3]} and environment 0 {specs[0][:3]}; "
                "environments of one batch need equal ones"
            )
    return specs[0]


def _add_info(infos: Infos | None, lane: int, info: Any) -> Infos | None:
    numbers: dict[str, float] = {}
    _numbers(info, "", numbers)
    if not numbers:
        return infos
    infos = {} if infos is None else infos
    infos[lane] = numbers
    return infos


def _numbers(info: Any, prefix: str, out: dict[str, float]) -> None:
    for key, value in info.items():
        kind = type(value)
        if kind is float or kind is int or kind is bool or isinstance(value, np.number | np.bool_):
            out[f"{prefix}{key}"] = float(value)
        elif isinstance(value, dict):
            _numbers(value, f"{prefix}{key}/", out)
        elif isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub":
            out[f"{prefix}{key}"] = float(value)
