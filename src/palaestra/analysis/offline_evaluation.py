"""What a policy is worth, by data that others collected: fitted Q evaluation, with an interval.

Papers: Le et al. 2019, https://arxiv.org/abs/1903.00779, algorithm 3 (fitted Q evaluation); Hao et al. 2021,
https://arxiv.org/abs/2102.03607, algorithm 1 (its bootstrap over episodes). Departures: targets come from an average of
the weights and not from the regression before; all members of the bootstrap are trained at once, as one ensemble on the
same minibatches, each with its own weights of episodes; the interval is by Student's t, for which fewer members do.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, RunSeeds, StepType, TimeStep, seeded_initialisation, spec_leaves, tree_map
from palaestra.core.batch import Batch
from palaestra.envs import EnvConfig
from palaestra.nn import EnsembleNetwork, NetworkConfig, without_mask
from palaestra.ops import Interval, t_quantile
from palaestra.policies import ObservationNormalizer, Policy, raw_actions
from palaestra.runs.data import read_for

__all__ = ["OfflineEvaluation", "data_of", "evaluate_offline"]

_ROWS_AT_ONCE = 4096
_MINI_BATCH_SIZE = 256
_LEARNING_RATE = 1e-3
_TAU = 0.05
_OF_THE_DATA = "What is estimated is the return in rewards of the data"


@dataclass(frozen=True)
class OfflineEvaluation:
    """The value of a policy, estimated from data."""

    value: Interval
    """Mean discounted return from the first steps of the data's episodes on, and its 95% interval."""
    gamma: float
    """The discount."""
    steps: int
    """Transitions of the data."""
    episodes: int
    """Episodes whose first step is in the data."""
    moved: float
    """Change of the mean over the second half of the updates."""

    @property
    def settled(self) -> bool:
        """Whether that is at most an eighth of the interval, or 2% of the mean; else more updates are needed."""
        return abs(self.moved) <= max((self.value.high - self.value.low) / 8, 0.02 * abs(self.value.value))

    def __str__(self) -> str:
        end = f"discounted by {self.gamma:g}, from {self.steps:,} steps of {self.episodes:,} episodes"
        if self.settled:
            return f"{self.value} {end}"
        way = "rising" if self.moved > 0 else "falling"
        by = f"{self.value.value:.4g}, by {abs(self.moved):.4g} in the second half of the updates"
        return f"still {way}, to {by}; give more --updates ({end})"

    def to_json(self) -> dict[str, Any]:
        """The fields, and whether the estimate has settled, as JSON values."""
        return {**asdict(self), "settled": self.settled}


class _Data:
    """The rows of a data set in the order of time, lane by lane, and what a policy would do at each.

    Args:
        policy: acts deterministically.
        buffer: of its environment.
    """

    def __init__(self, policy: Policy, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self.rows = np.concatenate([buffer.in_time_order(lane) for lane in range(buffer.num_lanes)])
        kind = buffer.take("step_type", self.rows).numpy()
        first = kind == StepType.FIRST
        new_lane = np.concatenate([[True], np.diff(self.rows % buffer.num_lanes) != 0])
        inside = buffer.is_start(self.rows) & ~np.append(new_lane[1:], True)  # nothing follows a lane's last row
        self.transitions = np.flatnonzero(inside)
        """Number of the first row of each transition; the next row is its other one."""
        self.first = np.flatnonzero(inside & first)
        """Numbers of the rows where an episode begins."""
        numbers = np.cumsum(first | new_lane)
        known = np.unique(numbers[self.transitions])
        self.num_episodes, self.episode = len(known), torch.from_numpy(np.searchsorted(known, numbers))
        self.discount = buffer.take("discount", self.rows).float()
        reward = buffer.take("reward", self.rows).float()
        self.unit = reward.square().mean().sqrt().clamp(min=1e-8)
        """A reward of the usual size."""
        self.reward = reward / self.unit
        self.done = _executed(policy, buffer.take("action", self.rows))
        self.chosen = _in_parts(self._choice(policy), self.rows)

    def _choice(self, policy: Policy) -> Callable[[np.ndarray], Any]:
        def choose(rows: np.ndarray) -> Any:
            step_type, observation = (self._buffer.take(name, rows) for name in ("step_type", "observation"))
            return _executed(
                policy, policy.act(TimeStep(step_type, observation=observation), deterministic=True).action
            )

        return choose

    def pairs(self, where: Any, actions: Any) -> Batch:
        """Observations and actions.

        Args:
            where: [N] which rows.
            actions: those that were `done`, or those that are `chosen`.
        """
        observation = self._buffer.take("observation", self.rows[where])
        return Batch.of({"observation": observation, "action": actions[where]})


def evaluate_offline(
    policy: Policy,
    data: str | ReplayBuffer,
    *,
    gamma: float = 0.99,
    updates: int = 10_000,
    members: int = 20,
    seed: int = 0,
    updated: Callable[[], object] = lambda: None,
) -> OfflineEvaluation:
    """Estimates the discounted return of a policy that acts deterministically, without its environment.

    The interval is that of the data's episodes. It holds where the data shows what the policy would do: actions that
    nobody took near a state have no value there that data could tell. Where a time limit cut an episode, its value goes
    on behind it.

    Args:
        policy: to be evaluated; one without a memory.
        data: a folder with a saved buffer, `minari:DATASET`, or `d4rl:FILE`; or a buffer, such as what
            `ReplayBuffer.load` or `data_of` has read of one.
        gamma: the discount, in [0, 1).
        updates: gradient steps. Values spread over 20 updates by one step of the environment.
        members: of the bootstrap, at least 2.
        seed: of weights, minibatches and the bootstrap.
        updated: called after every gradient step.

    Raises:
        ConfigError: an argument is outside its range, the policy has a memory, or the data is of another environment or
            has fewer than two episodes.
        CheckpointError: the data is damaged.
    """
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma is {gamma}; it must be at least 0 and below 1")
    if members < 2 or updates < 1:
        raise ConfigError(f"members is {members} and updates is {updates}; give at least 2 members and 1 update")
    if policy.state_spec:
        raise ConfigError(f"{type(policy).__name__} has a memory, which data does not hold; evaluate one without")
    rows = _Data(policy, data_of(policy, data))
    if len(rows.first) < 2:
        named = data if isinstance(data, str) else "the data"
        raise ConfigError(f"{named} has the first steps of {len(rows.first)} episodes; an interval needs two or more")
    generator = RunSeeds(seed).generator("minibatches")
    drawn = torch.randint(rows.num_episodes, (members, rows.num_episodes), generator=generator)
    weight = torch.zeros(drawn.shape).scatter_add_(1, drawn, torch.ones(drawn.shape))  # how often each has each episode
    with seeded_initialisation(RunSeeds(seed).integer("initialisation")):
        value = _Values(policy, members)
    value.see(rows)
    counts = weight.T[rows.episode[rows.first]]
    begun = counts.sum(0) > 0  # a member may have drawn no first step of an episode
    if begun.sum() < 2:
        raise ConfigError(f"of {members} members {int(begun.sum())} drew a first step of an episode; give more members")

    def worth() -> Tensor:
        """[members] discounted returns from the first steps on."""
        first = _in_parts(lambda part: value(rows.pairs(part, rows.chosen)).T, rows.first)  # [starts, members]
        return ((counts * first).sum(0)[begun] / counts.sum(0)[begun]).double() * rows.unit / (1 - gamma)

    halfway = worth()
    for number in _fit(value, rows, weight, gamma, updates, generator):
        halfway = worth() if number == updates // 2 else halfway
        updated()
    last = worth()
    moved = float(last.mean()) - float(halfway.mean())
    return OfflineEvaluation(interval_of_members(last), gamma, len(rows.transitions), len(rows.first), moved)


def interval_of_members(worths: Tensor) -> Interval:
    """By Student's t: the spread of a few members is an estimate, and their mean strays by it, too."""
    mean, count = float(worths.mean()), len(worths)
    half = t_quantile(count - 1) * (1 + 1 / count) ** 0.5 * float(worths.std())
    return Interval(mean, mean - half, mean + half)


def data_of(policy: Policy, data: str | ReplayBuffer, env: EnvConfig | None = None) -> ReplayBuffer:
    """Data for `evaluate_offline`, with actions as the policy samples them.

    Args:
        policy: to be evaluated.
        data: a folder with a saved buffer, `minari:DATASET`, or `d4rl:FILE`; or a buffer.
        env: of the policy: data of another environment is refused, and a warning says how else they differ.

    Raises:
        ConfigError: it is of another environment.
        CheckpointError: it is damaged.
    """
    task = env and replace(env, train_wrappers=(), train_kwargs={})
    return read_for(policy, data, task, rewards=_OF_THE_DATA, learns=False, new=isinstance(data, str))


class _Values(nn.Module):
    """Action values by every member of the bootstrap."""

    def __init__(self, policy: Policy, members: int) -> None:
        super().__init__()
        spec = {"observation": without_mask(policy.observation_spec), "action": policy.raw_action_spec}
        self.network = EnsembleNetwork(spec, 1, members, NetworkConfig(hidden_sizes=(64, 64), activation="relu"))
        known = any(leaf.dtype.is_floating_point for leaf in spec_leaves(spec).values())
        self.normalizer = ObservationNormalizer(spec) if known else None

    def see(self, rows: _Data) -> None:
        """Takes the mean and spread of what was observed and done.

        Args:
            rows: the data.
        """
        if self.normalizer is not None:
            for start in range(0, len(rows.transitions), _ROWS_AT_ONCE):
                some = rows.transitions[start : start + _ROWS_AT_ONCE]
                self.normalizer.merge(self.normalizer.increment(rows.pairs(some, rows.done)))

    def forward(self, pairs: Batch) -> Tensor:
        """[members, N].

        Args:
            pairs: observations and actions, leaves [N, ...].
        """
        return self.network(self.normalizer(pairs) if self.normalizer else pairs)[..., 0]


def _fit(
    value: _Values, rows: _Data, weight: Tensor, gamma: float, updates: int, generator: torch.Generator
) -> Iterator[int]:
    """Regressions on rewards and the value of what the policy does next; yields how many have been made.

    Episodes are weighted as each member drew them. Values are in units of a usual reward for ever; none lies beyond
    that of the least or the greatest reward for ever.
    """
    low, high = rows.reward.min().clamp(max=0), rows.reward.max().clamp(min=0)
    target = copy.deepcopy(value).requires_grad_(False)
    optimizer = torch.optim.Adam(value.network.parameters(), _LEARNING_RATE, fused=True)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, updates)
    for number in range(updates):
        drawn = torch.randint(len(rows.transitions), (_MINI_BATCH_SIZE,), generator=generator)
        now = rows.transitions[drawn.numpy()]
        after = now + 1
        with torch.no_grad():
            further = target(rows.pairs(after, rows.chosen)).clamp(low, high)
            wanted = (1 - gamma) * rows.reward[after] + gamma * rows.discount[after] * further
        error = (value(rows.pairs(now, rows.done)) - wanted).square()  # [members, N]
        optimizer.zero_grad()
        (weight[:, rows.episode[now]] * error).mean(1).sum().backward()
        optimizer.step()
        decay.step()
        with torch.no_grad():
            for ours, average in zip(value.network.parameters(), target.network.parameters(), strict=True):
                average.lerp_(ours, _TAU)
        yield number + 1


def _executed(policy: Policy, action: Any) -> Any:
    """What the environment executes where a policy samples an action, in the policy's units."""
    return raw_actions(policy.env_action(action), policy.action_spec, policy.raw_action_spec)


@torch.no_grad()
def _in_parts(function: Callable[[np.ndarray], Any], rows: np.ndarray) -> Any:
    """What a function says of many rows, asked for a few thousand at a time."""
    parts = [function(rows[start : start + _ROWS_AT_ONCE]) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    return tree_map(lambda *leaves: torch.cat(leaves), *parts)
