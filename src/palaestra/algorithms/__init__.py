"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.a2c import A2C, A2CBatch, A2CConfig
from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.c51 import C51, C51Config, categorical_losses
from palaestra.algorithms.ddpg import DDPG, DDPGConfig
from palaestra.algorithms.dqn import DQN, DQNConfig
from palaestra.algorithms.impala import IMPALA, IMPALABatch, IMPALAConfig
from palaestra.algorithms.iqn import IQN, IQNBatch, IQNConfig
from palaestra.algorithms.off_policy import OfflineConfig, OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.ppg import PPG, PPGConfig
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.qr_dqn import QRDQN, QRDQNConfig
from palaestra.algorithms.rainbow import Rainbow, RainbowConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACBatch, SACConfig, Temperature
from palaestra.algorithms.sarsa import Sarsa, SarsaBatch, SarsaConfig
from palaestra.algorithms.td3 import TD3, TD3Batch, TD3Config
from palaestra.algorithms.trpo import TRPO, TRPOConfig
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig, ValueBatch

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "a2c": A2C,
    "c51": C51,
    "ddpg": DDPG,
    "dqn": DQN,
    "impala": IMPALA,
    "iqn": IQN,
    "ppg": PPG,
    "ppo": PPO,
    "qr_dqn": QRDQN,
    "rainbow": Rainbow,
    "reinforce": Reinforce,
    "sac": SAC,
    "sarsa": Sarsa,
    "trpo": TRPO,
    "td3": TD3,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "A2C",
    "ALGORITHMS",
    "C51",
    "DDPG",
    "DQN",
    "IMPALA",
    "IQN",
    "PPG",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "TRPO",
    "A2CBatch",
    "A2CConfig",
    "Algorithm",
    "AlgorithmConfig",
    "C51Config",
    "DDPGConfig",
    "DQNConfig",
    "GradientAlgorithm",
    "Gradients",
    "IMPALABatch",
    "IMPALAConfig",
    "IQNBatch",
    "IQNConfig",
    "Losses",
    "OffPolicyConfig",
    "OfflineConfig",
    "PPGConfig",
    "PPOBatch",
    "PPOConfig",
    "QRDQNConfig",
    "Rainbow",
    "RainbowConfig",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "SACBatch",
    "SACConfig",
    "Sarsa",
    "SarsaBatch",
    "SarsaConfig",
    "TD3Batch",
    "TD3Config",
    "TRPOConfig",
    "Temperature",
    "Transitions",
    "UpdateInfo",
    "ValueBased",
    "ValueBasedConfig",
    "ValueBatch",
    "categorical_losses",
    "mean_metrics",
    "transitions",
]
