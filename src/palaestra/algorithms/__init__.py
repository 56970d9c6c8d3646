"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.ddpg import DDPG, DDPGConfig
from palaestra.algorithms.dqn import DQN, DQNBatch, DQNConfig
from palaestra.algorithms.off_policy import OfflineConfig, OffPolicyConfig, Transitions
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACBatch, SACConfig
from palaestra.algorithms.td3 import TD3, TD3Batch, TD3Config

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "ddpg": DDPG,
    "dqn": DQN,
    "ppo": PPO,
    "reinforce": Reinforce,
    "sac": SAC,
    "td3": TD3,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "Algorithm",
    "AlgorithmConfig",
    "DDPGConfig",
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
    "TD3Batch",
    "TD3Config",
    "Transitions",
    "UpdateInfo",
    "mean_metrics",
]
