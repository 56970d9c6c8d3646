"""Layers that change or sum what is earned, around a batch: rewards reach them before they are rounded, as in lanes."""

from collections.abc import Sequence
from typing import Any, final

import torch

from palaestra.core import Batch, TimeStep
from palaestra.envs.contract.environment import Environment, layer_of
from palaestra.envs.contract.nest import like
from palaestra.envs.wrappers.base import RewardMap
from palaestra.envs.wrappers.batched import BatchedLayer
from palaestra.envs.wrappers.episode_ends import EpisodeStatistics
from palaestra.envs.wrappers.rewards import NormalizeReward

__all__ = []


@layer_of(RewardMap)
@final
class RewardMapLayer(BatchedLayer):
    """An elementwise map of rewards around a batch."""

    def change(self, time_step: TimeStep) -> TimeStep:
        if self.earned is None:
            return super().change(time_step)
        self.exact = super().change(time_step._replace(reward=self.earned)).reward
        return time_step._replace(reward=self.exact.float())


@layer_of(EpisodeStatistics)
@final
class EpisodeStatisticsLayer(BatchedLayer):
    """`EpisodeStatistics` around a batch; sums and lengths of running episodes are saved with it."""

    def __init__(self, env: Environment, kind: type[EpisodeStatistics], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env, kind, args, kwargs)
        shape = (self.batch_size, *env.reward_spec.shape)
        self.lane_arrays["return"] = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self.lane_arrays["length"] = torch.zeros(self.batch_size, dtype=torch.float64, device=self.device)

    def change(self, time_step: TimeStep) -> TimeStep:
        lanes, first, last = time_step.env_id, time_step.first, time_step.step_type == 2
        totals = self.lane_arrays["return"][lanes] + _exactly(self, time_step)
        totals = totals.masked_fill(like(first, totals), 0)
        lengths = (self.lane_arrays["length"][lanes] + 1).masked_fill(first, 0)
        self.keep("return", lanes, totals)
        self.keep("length", lanes, lengths)
        if not last.any():
            return time_step
        names = (
            [f"episode/return/{index}" for index in range(totals.shape[1])] if totals.ndim > 1 else ["episode/return"]
        )
        found = dict(time_step.env_info.items()) if isinstance(time_step.env_info, Batch) else {}
        unknown = torch.full_like(lengths, torch.nan)
        for name, column in zip([*names, "episode/length"], [*totals.reshape(len(lanes), -1).T, lengths], strict=True):
            found[name] = torch.where(last, column, found.get(name, unknown))
        return time_step._replace(env_info=Batch.of(found))


@layer_of(NormalizeReward)
@final
class NormalizeRewardLayer(BatchedLayer):
    """`NormalizeReward` around a batch: each environment counts for itself, and its statistics are saved."""

    layer: NormalizeReward
    learned = True

    def __init__(self, env: Environment, kind: type[NormalizeReward], args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(env, kind, args, kwargs)
        for name in ("return", "count", "mean", "square"):
            self.lane_arrays[name] = torch.zeros(self.batch_size, dtype=torch.float64, device=self.device)

    def change(self, time_step: TimeStep) -> TimeStep:
        """As `RunningMeanVariance`, for all lanes at once."""
        lanes, first, reward = time_step.env_id, time_step.first, _exactly(self, time_step)
        total, count, mean, square = (self.lane_arrays[name][lanes] for name in ("return", "count", "mean", "square"))
        total = (self.layer.gamma * total + reward).masked_fill(first, 0)
        before = (total - mean).masked_fill(first, 0)  # no reward, nothing to count
        count = count + ~first
        mean = mean + before / count.clamp(min=1)
        square = square + before * (total - mean)
        for name, rows in zip(("return", "count", "mean", "square"), (total, count, mean, square), strict=True):
            self.keep(name, lanes, rows)
        self.exact = self.layer.divided(reward, square / count.clamp(min=1))
        return time_step._replace(reward=self.exact.float())


def _exactly(layer: BatchedLayer, time_step: TimeStep) -> torch.Tensor:
    """Rewards as float64, as the environments gave them where that is known."""
    return time_step.reward.double() if layer.earned is None else layer.earned
