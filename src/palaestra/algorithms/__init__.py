"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.dqn import DQN, DQNBatch, DQNConfig
from palaestra.algorithms.off_policy import OfflineConfig, OffPolicyConfig, Transitions
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACBatch, SACConfig

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "dqn": DQN,
    "ppo": PPO,
    "reinforce": Reinforce,
    "sac": SAC,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "ALGORITHMS",
    "DQN",
    "PPO",
    "SAC",
    "Algorithm",
    "AlgorithmConfig",
    "DQNBatch",
    "DQNConfig",
    "GradientAlgorithm",
    "Gradients",
    "Losses",
    "OffPolicyConfig",
    "OfflineConfig",
    "PPOBatch",
    "PPOConfig",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "SACBatch",
    "SACConfig",
    "Transitions",
    "UpdateInfo",
    "mean_metrics",
]
