"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.a2c import A2C, A2CBatch, A2CConfig
from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.c51 import C51, C51Config
from palaestra.algorithms.dqn import DQN, DQNConfig
from palaestra.algorithms.impala import IMPALA, IMPALABatch, IMPALAConfig
from palaestra.algorithms.iqn import IQN, IQNBatch, IQNConfig
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.qr_dqn import QRDQN, QRDQNConfig
from palaestra.algorithms.r2d2 import R2D2, R2D2Batch, R2D2Config
from palaestra.algorithms.rainbow import Rainbow, RainbowConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sarsa import Sarsa, SarsaBatch, SarsaConfig
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig, ValueBatch

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "a2c": A2C,
    "c51": C51,
    "dqn": DQN,
    "impala": IMPALA,
    "iqn": IQN,
    "ppo": PPO,
    "qr_dqn": QRDQN,
    "r2d2": R2D2,
    "rainbow": Rainbow,
    "reinforce": Reinforce,
    "sarsa": Sarsa,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "A2C",
    "ALGORITHMS",
    "C51",
    "DQN",
    "IMPALA",
    "IQN",
    "PPO",
    "QRDQN",
    "R2D2",
    "A2CBatch",
    "A2CConfig",
    "Algorithm",
    "AlgorithmConfig",
    "C51Config",
    "DQNConfig",
    "GradientAlgorithm",
    "Gradients",
    "IMPALABatch",
    "IMPALAConfig",
    "IQNBatch",
    "IQNConfig",
    "Losses",
    "PPOBatch",
    "PPOConfig",
    "QRDQNConfig",
    "R2D2Batch",
    "R2D2Config",
    "Rainbow",
    "RainbowConfig",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "Sarsa",
    "SarsaBatch",
    "SarsaConfig",
    "UpdateInfo",
    "ValueBased",
    "ValueBasedConfig",
    "ValueBatch",
    "mean_metrics",
]
