"""What a run says about its episodes: counts and averages, and metrics of your own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from palaestra.rollout.episodes import Episode

__all__ = [
    "AverageDiscountedReturn",
    "AverageEnvInfo",
    "AverageEpisodeLength",
    "AverageOf",
    "AverageReturn",
    "EnvironmentSteps",
    "Metric",
    "NumberOfEpisodes",
    "default_metrics",
]


class Metric(ABC):
    """Numbers about a run, from its episodes; hand one to `Trainer(metrics=[*default_metrics(), MyMetric()])`.

    Examples:
        >>> class LongestEpisode(Metric):
        ...     longest = 0
        ...
        ...     def add(self, env_steps, episodes):
        ...         self.longest = max([self.longest, *(episode.length for episode in episodes)])
        ...
        ...     def result(self):
        ...         return {"length_max": self.longest}
        ...
        ...     def state(self):
        ...         return self.longest
        ...
        ...     def load_state(self, state):
        ...         self.longest = state
    """

    @abstractmethod
    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Takes what has happened since the last call.

        Args:
            env_steps: of the run so far.
            episodes: that have ended.
        """

    @abstractmethod
    def result(self) -> Mapping[str, float]:
        """The numbers by name; nothing where there is nothing to say yet."""

    @abstractmethod
    def state(self) -> Any:
        """Everything `result` depends on, in JSON values, so that a resumed run reports the same."""

    @abstractmethod
    def load_state(self, state: Any) -> None:
        """Puts back what `state` gave.

        Args:
            state: from `state`.
        """


@final
class EnvironmentSteps(Metric):
    """`env_steps`: actions executed over all environments; resets are none."""

    def __init__(self) -> None:
        self.count = 0
        """So far."""

    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Metric.add`."""
        self.count = env_steps

    def result(self) -> Mapping[str, float]:
        """See `Metric.result`."""
        return {"env_steps": self.count}

    def state(self) -> Any:
        """See `Metric.state`."""
        return self.count

    def load_state(self, state: Any) -> None:
        """See `Metric.load_state`."""
        self.count = state


@final
class NumberOfEpisodes(Metric):
    """`episodes`: that have ended."""

    def __init__(self) -> None:
        self.count = 0
        """So far."""

    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Metric.add`."""
        self.count += len(episodes)

    def result(self) -> Mapping[str, float]:
        """See `Metric.result`."""
        return {"episodes": self.count}

    def state(self) -> Any:
        """See `Metric.state`."""
        return self.count

    def load_state(self, state: Any) -> None:
        """See `Metric.load_state`."""
        self.count = state


class AverageOf(Metric):
    """The mean of a number, or of several, over the newest episodes. Values that are not finite are skipped.

    Args:
        name: of the metric; of several, what comes before their own names.
        value: gives the number of an episode, or numbers by name.
        window: how many episodes.

    Examples:
        >>> solved = AverageOf("success_rate", lambda episode: episode.episode_return >= 195)
        >>> solved.add(500, [Episode(200.0, 200, 0, {}), Episode(50.0, 50, 1, {})])
        >>> solved.result()
        {'success_rate': 0.5}
    """

    def __init__(
        self, name: str, value: Callable[[Episode], float | Mapping[str, float]], *, window: int = 100
    ) -> None:
        self.name, self.value = name, value
        self._newest: deque[dict[str, float]] = deque(maxlen=window)

    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """See `Metric.add`."""
        for episode in episodes:
            value = self.value(episode)
            named = {self.name + key: float(x) for key, x in value.items()} if isinstance(value, Mapping) else None
            self._newest.append({self.name: float(value)} if named is None else named)  # pyright: ignore[reportArgumentType]

    def result(self) -> Mapping[str, float]:
        """See `Metric.result`."""
        columns: dict[str, list[float]] = {}
        for values in self._newest:
            for name, value in values.items():
                if math.isfinite(value):
                    columns.setdefault(name, []).append(value)
        return {name: math.fsum(columns[name]) / len(columns[name]) for name in sorted(columns)}

    def state(self) -> Any:
        """See `Metric.state`."""
        return [dict(values) for values in self._newest]

    def load_state(self, state: Any) -> None:
        """See `Metric.load_state`."""
        self._newest = deque((dict(values) for values in state), maxlen=self._newest.maxlen)


@final
class AverageReturn(AverageOf):
    """`return_mean`: raw, undiscounted.

    Args:
        window: how many episodes.
    """

    def __init__(self, *, window: int = 100) -> None:
        super().__init__("return_mean", lambda episode: episode.episode_return, window=window)


@final
class AverageEpisodeLength(AverageOf):
    """`length_mean`: env steps.

    Args:
        window: how many episodes.
    """

    def __init__(self, *, window: int = 100) -> None:
        super().__init__("length_mean", lambda episode: episode.length, window=window)


@final
class AverageDiscountedReturn(AverageOf):
    """`discounted_return_mean`: from the first step of each episode on, with the algorithm's discount.

    Args:
        window: how many episodes.
    """

    def __init__(self, *, window: int = 100) -> None:
        super().__init__("discounted_return_mean", lambda episode: episode.discounted_return, window=window)


@final
class AverageEnvInfo(AverageOf):
    """`info/x`, `info/x@mean` and `info/x@max` of every numeric `info` entry `x`; see `Episode.info`.

    Args:
        window: how many episodes.
    """

    def __init__(self, *, window: int = 100) -> None:
        super().__init__("info/", lambda episode: episode.info, window=window)


def default_metrics() -> list[Metric]:
    """New ones of those that every run has."""
    return [
        EnvironmentSteps(),
        NumberOfEpisodes(),
        AverageReturn(),
        AverageEpisodeLength(),
        AverageDiscountedReturn(),
        AverageEnvInfo(),
    ]
