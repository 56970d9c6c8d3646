"""Acting: collection, evaluation, episode statistics."""

from palaestra.rollout.collector import CollectInfo, Collector
from palaestra.rollout.episodes import Episode, EpisodeTracker, episode_metrics
from palaestra.rollout.evaluation import Evaluation, evaluate

__all__ = ["CollectInfo", "Collector", "Episode", "EpisodeTracker", "Evaluation", "episode_metrics", "evaluate"]
