"""Acting: collection, evaluation, episode statistics."""

from palaestra.rollout.buffer_for import buffer_for, episode_discount
from palaestra.rollout.collect_info import CollectInfo
from palaestra.rollout.collector import Collector
from palaestra.rollout.episodes import Episode, EpisodeTracker
from palaestra.rollout.evaluation import Evaluation, evaluate, evaluation_of
from palaestra.rollout.inference import InferenceServer, pack, unpack
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
from palaestra.rollout.requests import Callers, RequestError, RequestServer, ServerStatistics

__all__ = [
    "AverageDiscountedReturn",
    "AverageEnvInfo",
    "AverageEpisodeLength",
    "AverageOf",
    "AverageReturn",
    "Callers",
    "CollectInfo",
    "Collector",
    "EnvironmentSteps",
    "Episode",
    "EpisodeTracker",
    "Evaluation",
    "InferenceServer",
    "Metric",
    "NumberOfEpisodes",
    "OfflineData",
    "RequestError",
    "RequestServer",
    "ServerStatistics",
    "buffer_for",
    "default_metrics",
    "episode_discount",
    "evaluate",
    "evaluation_of",
    "pack",
    "unpack",
]
