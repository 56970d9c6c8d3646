"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.dqn import DQN, DQNBatch, DQNConfig
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {"dqn": DQN, "ppo": PPO, "reinforce": Reinforce}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "ALGORITHMS",
    "DQN",
    "PPO",
    "Algorithm",
    "AlgorithmConfig",
    "DQNBatch",
    "DQNConfig",
    "GradientAlgorithm",
    "Gradients",
    "Losses",
    "PPOBatch",
    "PPOConfig",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "UpdateInfo",
    "mean_metrics",
]
