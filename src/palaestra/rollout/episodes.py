"""Episode statistics: returns, lengths and every numeric `info`, from the rows that environments emit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import Batch, StepType, TimeStep

__all__ = ["Episode", "EpisodeTracker", "episode_metrics"]


class Episode(NamedTuple):
    """One finished episode."""

    episode_return: float
    """Sum of its raw rewards, undiscounted; of a vector reward, over its elements."""
    length: int
    """Its env steps."""
    env_id: int
    """Which environment it ran in."""
    info: dict[str, float]
    """For each numeric `info` entry `x`: its sum `x`, mean `x@mean` and maximum `x@max` over the episode."""


class EpisodeTracker:
    """Turns the rows of several environments into finished episodes.

    Rows are only kept in `add`; the arithmetic is done for many of them at once in `finished`.

    Args:
        num_envs: number of environments.
    """

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._previous = np.full(num_envs, StepType.LAST, np.int32)
        self._info: list[dict[str, list[float]]] = [{} for _ in range(num_envs)]
        self._rewards: list[np.ndarray] = []
        self._step_types: list[np.ndarray] = []
        self._infos: list[Any] = []

    def __len__(self) -> int:
        """Rows that wait for `finished`."""
        return len(self._rewards)

    def add(self, time_step: TimeStep) -> None:
        """Takes one row of every environment.

        Args:
            time_step: as the environment emitted it.
        """
        self._rewards.append(time_step.reward.numpy())
        self._step_types.append(time_step.step_type.numpy())
        self._infos.append(time_step.env_info)

    def finished(self) -> list[Episode]:
        """The episodes that ended in the rows added since the last call, in the order in which they ended."""
        if not self._rewards:
            return []
        reward, step_type = np.stack(self._rewards).astype(np.float64), np.stack(self._step_types)
        if reward.ndim == 3:
            reward = reward.sum(-1)
        total = self._return + reward.cumsum(0)
        length = self._length + (step_type != StepType.FIRST).cumsum(0)
        start, first = np.zeros_like(self._return), np.zeros_like(self._length)
        episodes: list[Episode] = []
        done_rows = 0
        previous = np.concatenate([self._previous[None], step_type[:-1]])
        # a FIRST that follows no LAST begins anew: what a broken fragment had gathered does not count
        broken = (step_type == StepType.FIRST) & (previous == StepType.MID)
        for row, env in np.argwhere((step_type == StepType.LAST) | broken).tolist():
            self._take_info(done_rows, row + 1)
            done_rows = row + 1
            value, steps = total[row, env] - start[env], length[row, env] - first[env]
            if not broken[row, env]:
                episodes.append(Episode(float(value), int(steps), env, _summary(self._info[env])))
            start[env], first[env] = total[row, env], length[row, env]
            self._info[env] = {}
        self._take_info(done_rows, len(reward))
        self._return, self._length, self._previous = total[-1] - start, length[-1] - first, step_type[-1]
        self._rewards, self._step_types, self._infos = [], [], []
        return episodes

    def _take_info(self, start: int, end: int) -> None:
        for info in self._infos[start:end]:
            if not isinstance(info, Batch):
                continue
            for key, values in info.items():
                for env, value in enumerate(values.tolist()):
                    if np.isfinite(value):
                        self._info[env].setdefault(key, []).append(value)

    def state(self) -> dict[str, Any]:
        """What running episodes and waiting rows hold, for a checkpoint."""
        return {
            "return": self._return,
            "length": self._length,
            "previous": self._previous,
            "info": self._info,
            "rewards": list(self._rewards),
            "step_types": list(self._step_types),
            "infos": list(self._infos),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a tracker for as many environments.
        """
        self._return, self._length, self._previous = state["return"], state["length"], state["previous"]
        self._info = [dict(info) for info in state["info"]]
        self._rewards, self._step_types = list(state["rewards"]), list(state["step_types"])
        self._infos = list(state["infos"])


def _summary(info: Mapping[str, list[float]]) -> dict[str, float]:
    summary: dict[str, float] = {}
    for key, values in info.items():
        summary |= {key: sum(values), f"{key}@mean": sum(values) / len(values), f"{key}@max": max(values)}
    return summary


def episode_metrics(episodes: Iterable[Episode] | deque[Episode]) -> dict[str, float]:
    """Averages over episodes.

    Args:
        episodes: usually the newest hundred.

    Returns:
        `return_mean`, `length_mean` and `info/x` for every info entry; empty without episodes.

    Examples:
        >>> episode_metrics([Episode(3.0, 2, 0, {}), Episode(5.0, 4, 1, {})])
        {'return_mean': 4.0, 'length_mean': 3.0}
    """
    episodes = list(episodes)
    if not episodes:
        return {}
    metrics = {
        "return_mean": float(np.mean([episode.episode_return for episode in episodes])),
        "length_mean": float(np.mean([episode.length for episode in episodes])),
    }
    for key in sorted({key for episode in episodes for key in episode.info}):
        values = [episode.info[key] for episode in episodes if key in episode.info]
        metrics[f"info/{key}"] = float(np.mean(values))
    return metrics
