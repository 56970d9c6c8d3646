"""Acting: collection, evaluation, episode statistics."""

from palaestra.rollout.collect_info import CollectInfo
from palaestra.rollout.collector import Collector
from palaestra.rollout.episodes import Episode, EpisodeTracker
from palaestra.rollout.evaluation import Evaluation, evaluate
from palaestra.rollout.metrics import (
    AverageDiscountedReturn,
    AverageEnvInfo,
    AverageEpisodeLength,
    AverageOf,
    AverageReturn,
    EnvironmentSteps,
    Metric,
    NumberOfEpisodes,
    default_metrics,
)
from palaestra.rollout.offline import OfflineData

__all__ = [
    "AverageDiscountedReturn",
    "AverageEnvInfo",
    "AverageEpisodeLength",
    "AverageOf",
    "AverageReturn",
    "CollectInfo",
    "Collector",
    "EnvironmentSteps",
    "Episode",
    "EpisodeTracker",
    "Evaluation",
    "Metric",
    "NumberOfEpisodes",
    "OfflineData",
    "default_metrics",
    "evaluate",
]
