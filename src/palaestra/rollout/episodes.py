"""Finished episodes, from the rows that environments emit, and what a run reports about them."""

import copy
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch

from palaestra.core import Batch, StepType, TimeStep, as_array

__all__ = [
    "AverageOf",
    "EnvironmentSteps",
    "Episode",
    "EpisodeTracker",
    "Metric",
    "NumberOfEpisodes",
    "default_metrics",
    "info_summary",
    "reported",
]

_NONE = -1  # the step type of a lane that had no step
_MANY_ROWS = 32
_OF_NOW = "waiting", "gamma", "_arrived", "_aside"  # of a tracker: what is in no checkpoint
_Gathered = tuple[float, float, int]  # sum, largest and number of the values of an entry of `info`


class Episode(NamedTuple):
    """One finished episode."""

    episode_return: float
    """Sum of its raw rewards, undiscounted; of vectors of rewards, over their elements too, and `info` has the sum of
    each element k as `reward_<k>`."""
    length: int
    """Its env steps."""
    env_id: int
    """Which environment it ran in."""
    info: dict[str, float]
    """For each numeric `info` entry `x`: its sum `x`, mean `x@mean` and maximum `x@max` over the episode's env steps.

    An entry that the environment itself calls `x@mean` or `x@step` has only its mean, `x@max` only its maximum. Values
    that are not finite are skipped.
    """
    discounted_return: float = math.nan
    """Its rewards discounted from its first step on; NaN where no discount is known."""


class EpisodeTracker:
    """Turns the rows of several environments into finished episodes.

    Rows only wait; the arithmetic is done for many of them at once in `finished`.

    Args:
        num_envs: number of environments.
        gamma: discount of discounted returns; `None` computes none.
    """

    def __init__(self, num_envs: int, gamma: float | None = None) -> None:
        self.gamma = gamma
        """Discount of discounted returns, or none."""
        self._return, self._discounted = np.zeros(num_envs), np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._previous = np.full(num_envs, StepType.LAST, np.int32)
        self._gathered: list[dict[str, _Gathered]] = [{} for _ in range(num_envs)]  # of `info` in running episodes
        self.waiting: list[tuple[torch.Tensor, torch.Tensor, Any]] = []
        """Reward [B], step type [B] and `env_info` of the newest rows of all environments: appended by whoever steps
        them, in every step, for which a call would take longer than the step's share of the arithmetic."""
        self._rewards: list[Any] = []
        self._step_types: list[Any] = []
        self._infos: list[Any] = []
        self._held: list[Episode] = []  # found when this unroll began
        self._arrived: Any = None  # on a GPU: the moment when it has all rows
        self._aside: Any = None  # a stream of operations that do not wait for those of learning

    def add(self, time_step: TimeStep, lanes: np.ndarray | None = None) -> None:
        """Takes one row of every environment, or of some.

        Args:
            time_step: as the environment emitted it.
            lanes: [n] whose rows they are; `None` is all.
        """
        if lanes is None:
            self.waiting.append((time_step.reward, time_step.step_type, time_step.env_info))
            return
        self._take_waiting()
        info, count = time_step.env_info, len(self._return)
        if isinstance(info, Batch):
            info = info.map(lambda leaf: torch.from_numpy(_spread(as_array(leaf.double()), lanes, count, np.nan)))
        self._rewards.append(_spread(as_array(time_step.reward), lanes, count, 0)[None])
        self._step_types.append(_spread(as_array(time_step.step_type), lanes, count, _NONE)[None])
        self._infos.append(info)
        self._arrived = None

    def _take_waiting(self) -> None:
        if not self.waiting:
            return
        rewards, step_types, infos = zip(*self.waiting, strict=True)
        self._rewards.append(_block(torch.stack(rewards)))  # [T, B]
        self._step_types.append(_block(torch.stack(step_types)))
        self._infos += infos
        self.waiting.clear()
        self._arrived = None

    def extend(self, reward: torch.Tensor, step_type: torch.Tensor) -> None:
        """Takes many rows of every environment, of time steps without `env_info`.

        Args:
            reward: [T, B].
            step_type: [T, B].
        """
        self._take_waiting()
        self._rewards.append(_block(reward))
        self._step_types.append(_block(step_type))
        self._infos += [()] * len(reward)
        if reward.is_cuda:
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(reward.device))

    def begin(self) -> None:
        """An unroll begins: the time to look at rows on a GPU, which has learned from them until now and goes on."""
        if self._arrived is not None and not self.waiting and len(self._infos) >= _MANY_ROWS:
            self._held = self.finished()

    def reported(self) -> list[Episode]:
        """`finished` at the end of an unroll, of many rows together; of those on a GPU, what `begin` has found."""
        if (self._arrived is None or self.waiting) and len(self._infos) + len(self.waiting) >= _MANY_ROWS:
            return self.finished()
        held, self._held = self._held, []
        return held

    def finished(self) -> list[Episode]:
        """The episodes that ended in the rows added since the last call, in the order in which they ended."""
        self._take_waiting()
        held, self._held = self._held, []
        if not self._rewards:
            return held
        if self._arrived is None:
            return held + self._finished()
        self._aside = self._aside or torch.cuda.Stream(self._rewards[-1].device)
        self._aside.wait_event(self._arrived)
        self._arrived = None
        with torch.cuda.stream(self._aside):
            return held + self._finished()

    def _finished(self) -> list[Episode]:
        rewards, step_type = (_joined(_in_one_place(blocks)) for blocks in (self._rewards, self._step_types))
        elements = rewards if rewards.ndim == 3 else None
        reward = _exact(rewards) if elements is None else _exact(rewards).sum(-1)
        reward = reward * (step_type > StepType.FIRST)  # that of a FIRST row came of no action
        total = _running(self._return, reward)
        length = _running(self._length, step_type > StepType.FIRST)
        discounted = _running(self._discounted, self._weighted(reward, step_type, length))
        previous = _previous(_joined([self._previous[None], step_type]))
        # a FIRST that follows no LAST begins anew: what a broken fragment had gathered does not count
        broken = (step_type == StepType.FIRST) & (previous[:-1] == StepType.MID)
        ends = ((step_type == StepType.LAST) | broken).nonzero()
        rows, envs = ends.T if isinstance(ends, torch.Tensor) else ends
        sums = (total, length, discounted)
        at_ends = _fetched([rows, envs, broken[rows, envs], *(values[rows, envs] for values in sums)])
        newest = _fetched([*(values[-1] for values in sums), previous[-1]])
        rows, envs, unfinished = at_ends[:3].astype(np.int64)
        since, begun = _since_the_last(at_ends[3:], envs, len(self._return))
        self._return, self._discounted = newest[0] - begun[0], newest[2] - begun[2]
        self._length, self._previous = (newest[1] - begun[1]).astype(np.int64), newest[3].astype(np.int32)
        infos = self._infos_of(rows.tolist(), envs.tolist(), step_type, elements)
        self._rewards, self._step_types, self._infos = [], [], []
        values, steps, worths = since[0].tolist(), since[1].astype(np.int64).tolist(), since[2].tolist()
        if self.gamma is None:
            worths = [math.nan] * len(worths)
        episodes = map(Episode, values, steps, envs.tolist(), infos, worths)
        return list(itertools.compress(episodes, (unfinished == 0).tolist()))

    def _infos_of(self, rows: list[int], envs: list[int], step_type: Any, elements: Any) -> list[dict[str, float]]:
        """What episodes that ended in these rows and environments have gathered."""
        noted = elements is not None or any(isinstance(info, Batch) for info in self._infos)
        if not noted and not any(self._gathered):
            return [{} for _ in rows]
        columns, infos = self._columns(step_type, elements), list[dict[str, float]]()
        done = np.zeros(len(self._gathered), np.int64)  # [B] rows that are in `_gathered`
        for row, env in zip(rows, envs, strict=True):
            gathered = self._gathered[env]
            for key, (values, counts) in columns.items():
                inside = counts[done[env] : row + 1, env]
                if inside.any():
                    _gather(gathered, key, values[done[env] : row + 1, env][inside])
            done[env] = row + 1
            infos.append(info_summary(gathered) if gathered else {})
            if gathered:
                self._gathered[env] = {}
        for key, (values, counts) in columns.items():
            left = counts & (np.arange(len(counts))[:, None] >= done)
            for env in np.flatnonzero(left.any(0)).tolist():
                _gather(self._gathered[env], key, values[left[:, env], env])
        return infos

    def _columns(self, step_type: Any, elements: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By name [T, B] what the rows report, and where that counts: finite, and of an action."""
        columns: dict[str, np.ndarray] = {}
        for row, info in enumerate(self._infos):
            named = {} if elements is None else {f"reward_{k}": values for k, values in enumerate(elements[row].T)}
            if isinstance(info, Batch):
                named |= dict(info.items())
            for key, values in named.items():
                if key not in columns:
                    columns[key] = np.full(step_type.shape, np.nan)
                columns[key][row] = as_array(values)
        acted = as_array(step_type) > StepType.FIRST  # what a reset reports came of no action
        return {key: (values, np.isfinite(values) & acted) for key, values in columns.items()}

    def _weighted(self, reward: Any, step_type: Any, length: Any) -> Any:
        """[T, B] rewards times gamma to the number of env steps before them in their episode."""
        if self.gamma is None:
            return reward * 0.0
        before = length * (step_type == StepType.FIRST)  # env steps before the episode began
        if isinstance(before, torch.Tensor):
            return reward * self.gamma ** _exact((length - 1 - before.cummax(0).values).clip(0))
        number = (length - 1 - np.maximum.accumulate(np.asfortranarray(before), 0)).clip(0)
        if (most := number.max(initial=0) + 1) > number.size:
            return reward * self.gamma**number
        return reward * (self.gamma ** np.arange(most))[number]

    def abandon(self) -> None:
        """Forgets running episodes; those that have ended are reported next."""
        ended = self.finished()
        self.__dict__.update(EpisodeTracker(len(self._return), self.gamma).__dict__)
        self._held = ended

    def state(self) -> dict[str, Any]:
        """What running episodes and waiting rows hold, for a checkpoint."""
        self._take_waiting()
        state = {name.removeprefix("_"): copy.copy(value) for name, value in vars(self).items() if name not in _OF_NOW}
        for name in ("rewards", "step_types"):
            state[name] = [row for block in state[name] for row in as_array(block)]
        return state | {"held": [list(episode) for episode in self._held]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues the episodes that were running when `state` was called.

        Args:
            state: of a tracker for as many environments.
        """
        for name, value in copy.deepcopy(state).items():
            setattr(self, f"_{name}", [row[None] for row in value] if name in ("rewards", "step_types") else value)
        self.waiting.clear()
        self._held, self._arrived = [Episode(*parts) for parts in state["held"]], None


def _gather(gathered: dict[str, _Gathered], key: str, values: np.ndarray) -> None:
    """Adds values [n] of an entry to what a running episode has, one after another."""
    total, largest, count = gathered.get(key, (0.0, -math.inf, 0))
    sums = np.cumsum(np.append(total, values))
    gathered[key] = float(sums[-1]), max(largest, float(values.max())), count + len(values)


def _block(values: torch.Tensor) -> Any:
    """Rows as numpy's, which adds few numbers sooner; those on a device stay there."""
    return values.numpy() if values.is_cpu else values


def _in_one_place(blocks: Sequence[Any]) -> Sequence[Any]:
    """Rows on a device come here where others are: those of single lanes always are."""
    return [*map(as_array, blocks)] if any(isinstance(block, np.ndarray) for block in blocks) else blocks


def _joined(blocks: Sequence[Any]) -> Any:
    """[T, B, ...] on a device if any block is there."""
    devices = [block.device for block in blocks if isinstance(block, torch.Tensor)]
    if not devices:
        return np.concatenate(blocks)
    return torch.cat([torch.as_tensor(block, device=devices[0]) for block in blocks])


def _running(start: np.ndarray, values: Any) -> Any:
    """[T, B] sums of each column up to and with each row, beginning with [B] numbers."""
    values = _joined([start[None], values])
    return (values if isinstance(values, torch.Tensor) else np.asfortranarray(values)).cumsum(0)[1:]


def _fetched(columns: Sequence[Any]) -> np.ndarray:
    """[n, ...] numbers, from a device all at once."""
    columns = [_exact(column) for column in columns]
    return as_array(torch.stack(columns)) if isinstance(columns[0], torch.Tensor) else np.stack(columns)


def _since_the_last(sums: np.ndarray, envs: np.ndarray, num_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """What running sums [K, n] have gained in each of these environments since their number before.

    Returns:
        [K, n]; and each environment's newest number, [K, num_envs], 0 where there is none.
    """
    order = np.argsort(envs, kind="stable")
    before, newest = np.zeros_like(sums), np.zeros((len(sums), num_envs))
    again = envs[order[1:]] == envs[order[:-1]]
    before[:, order[1:][again]] = sums[:, order[:-1][again]]
    last = order[np.append(~again, True)] if len(order) else order
    newest[:, envs[last]] = sums[:, last]
    return sums - before, newest


def _exact(values: Any) -> Any:
    return values.double() if isinstance(values, torch.Tensor) else values.astype(np.float64)


def info_summary(info: Mapping[str, tuple[float, float, int]]) -> dict[str, float]:
    """What an episode's `info` has of entries that were gathered over its env steps; see `Episode`.

    Args:
        info: sum, largest and number of its values, by the name of the entry.
    """
    summary: dict[str, float] = {}
    for key, (total, largest, count) in info.items():
        mean = total / count
        if key.startswith("reward/"):
            summary[key] = total
        elif key.endswith(("@mean", "@step")):
            summary[key] = mean
        elif key.endswith("@max"):
            summary[key] = largest
        else:
            summary |= {key: total, f"{key}@mean": mean, f"{key}@max": largest}
    return summary


def _spread(rows: np.ndarray, lanes: np.ndarray, num_lanes: int, rest: float) -> np.ndarray:
    full = np.full((num_lanes, *rows.shape[1:]), rest, rows.dtype)
    full[lanes] = rows
    return full


def _previous(step_type: Any) -> Any:
    """[T, B] the newest step type of each lane, up to and with each row."""
    if (step_type != _NONE).all():
        return step_type
    rows = np.where(step_type != _NONE, np.arange(len(step_type))[:, None], 0)
    return np.take_along_axis(step_type, np.maximum.accumulate(rows, 0), 0)


class Metric(ABC):
    """Numbers about a run, from its episodes; append one to `trainer.metrics`.

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


class _Count(Metric):
    """A number that grows."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.count = 0
        """So far."""

    def result(self) -> Mapping[str, float]:
        return {self.name: self.count}

    def state(self) -> Any:
        return self.count

    def load_state(self, state: Any) -> None:
        self.count = state


@final
class EnvironmentSteps(_Count):
    """`env_steps`: actions executed over all environments; resets do not count."""

    name = "env_steps"

    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        self.count = env_steps


@final
class NumberOfEpisodes(_Count):
    """`episodes`: finished so far."""

    name = "episodes"

    def add(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        self.count += len(episodes)


class AverageOf(Metric):
    """The mean of a number, or of several, over the newest episodes. Values that are not finite are skipped.

    Of more episodes at once than the window has, it takes some from all over them: those of workers come one worker
    after another.

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
        number, window = len(episodes), self._newest.maxlen
        count = number if window is None else min(number, window)
        for place in range(count):
            value = self.value(episodes[place * number // count])
            named = {self.name + key: float(x) for key, x in value.items()} if isinstance(value, Mapping) else None
            self._newest.append({self.name: float(value)} if named is None else named)  # pyright: ignore[reportArgumentType]

    def result(self) -> Mapping[str, float]:
        columns: dict[str, list[float]] = {}
        for values in self._newest:
            for name, value in values.items():
                if math.isfinite(value):
                    columns.setdefault(name, []).append(value)
        return {name: math.fsum(columns[name]) / len(columns[name]) for name in sorted(columns)}

    def state(self) -> Any:
        return [dict(values) for values in self._newest]

    def load_state(self, state: Any) -> None:
        self._newest = deque((dict(values) for values in state), maxlen=self._newest.maxlen)


def default_metrics() -> list[Metric]:
    """New ones of those that every run has.

    Env steps and episodes so far; and of the newest 100 episodes the means of raw, undiscounted returns, of lengths in
    env steps, of returns that are discounted from the first step on, and of numeric `info` entries; see `Episode`.
    """
    return [
        EnvironmentSteps(),
        NumberOfEpisodes(),
        AverageOf("return_mean", lambda episode: episode.episode_return),
        AverageOf("length_mean", lambda episode: episode.length),
        AverageOf("discounted_return_mean", lambda episode: episode.discounted_return),
        AverageOf("", lambda episode: reported(episode.info) if episode.info else episode.info),
    ]


_TERM = re.compile(r"(?:reward_terms/|reward[/_]|rew_|Episode_Reward/|Episode/rew_)(?!\d+$)([^@]+)")


def reported(info: Mapping[str, float]) -> dict[str, float]:
    """What an episode's `info` is called in metrics: parts of its reward by their names, and everything else.

    Args:
        info: parts are `reward/x` as this library's environments call them, `reward_x` as Gymnasium's robots do, or as
            those of Isaac Lab, legged_gym and mjlab.

    Examples:
        >>> reported({"reward/near": 1.0, "Episode_Reward/upright": 0.5, "cost": 3.0})
        {'info/Episode_Reward/upright': 0.5, 'info/cost': 3.0, 'reward/near': 1.0, 'reward/upright': 0.5}
    """
    found = {f"info/{name}": value for name, value in info.items() if not name.startswith("reward/")}
    terms = ((_TERM.fullmatch(name), value) for name, value in info.items())
    return found | {f"reward/{match[1]}": value for match, value in terms if match}
