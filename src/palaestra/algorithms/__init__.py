"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.a2c import A2C, A2CBatch, A2CConfig
from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from palaestra.algorithms.c51 import C51, C51Config
from palaestra.algorithms.cql import CQL, CQLConfig
from palaestra.algorithms.ddpg import DDPG, DDPGConfig
from palaestra.algorithms.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from palaestra.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from palaestra.algorithms.dqn import DQN, DQNConfig
from palaestra.algorithms.evolution_strategies import EvolutionStrategies, EvolutionStrategiesConfig
from palaestra.algorithms.exploration_bonus import BonusConfig, ExplorationBonus
from palaestra.algorithms.exploration_bonuses import CuriosityModule, RandomNetworkDistillation
from palaestra.algorithms.impala import IMPALA, IMPALABatch, IMPALAConfig
from palaestra.algorithms.iql import IQL, IQLConfig
from palaestra.algorithms.iqn import IQN, IQNBatch, IQNConfig
from palaestra.algorithms.off_policy import OfflineConfig, OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.qr_dqn import QRDQN, QRDQNConfig
from palaestra.algorithms.r2d2 import R2D2, R2D2Batch, R2D2Config
from palaestra.algorithms.rainbow import Rainbow, RainbowConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.redq import REDQ, REDQConfig
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACConfig
from palaestra.algorithms.sarsa import Sarsa, SarsaBatch, SarsaConfig
from palaestra.algorithms.td3 import TD3, TD3Config
from palaestra.algorithms.td3_bc import TD3BC, TD3BCConfig
from palaestra.algorithms.value_based import ValueBased, ValueBasedConfig, ValueBatch

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "a2c": A2C,
    "behaviour_cloning": BehaviourCloning,
    "c51": C51,
    "cql": CQL,
    "ddpg": DDPG,
    "discrete_cql": DiscreteCQL,
    "discrete_sac": DiscreteSAC,
    "dqn": DQN,
    "evolution_strategies": EvolutionStrategies,
    "impala": IMPALA,
    "iql": IQL,
    "iqn": IQN,
    "ppo": PPO,
    "qr_dqn": QRDQN,
    "r2d2": R2D2,
    "rainbow": Rainbow,
    "redq": REDQ,
    "reinforce": Reinforce,
    "sac": SAC,
    "sarsa": Sarsa,
    "td3": TD3,
    "td3_bc": TD3BC,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "A2C",
    "ALGORITHMS",
    "C51",
    "CQL",
    "DDPG",
    "DQN",
    "IMPALA",
    "IQL",
    "IQN",
    "PPO",
    "QRDQN",
    "R2D2",
    "REDQ",
    "SAC",
    "TD3",
    "TD3BC",
    "A2CBatch",
    "A2CConfig",
    "Algorithm",
    "AlgorithmConfig",
    "BehaviourCloning",
    "BehaviourCloningConfig",
    "BonusConfig",
    "C51Config",
    "CQLConfig",
    "CuriosityModule",
    "DDPGConfig",
    "DQNConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "EvolutionStrategies",
    "EvolutionStrategiesConfig",
    "ExplorationBonus",
    "GradientAlgorithm",
    "Gradients",
    "IMPALABatch",
    "IMPALAConfig",
    "IQLConfig",
    "IQNBatch",
    "IQNConfig",
    "Losses",
    "OffPolicyConfig",
    "OfflineConfig",
    "PPOBatch",
    "PPOConfig",
    "QRDQNConfig",
    "R2D2Batch",
    "R2D2Config",
    "REDQConfig",
    "Rainbow",
    "RainbowConfig",
    "RandomNetworkDistillation",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "SACConfig",
    "Sarsa",
    "SarsaBatch",
    "SarsaConfig",
    "TD3BCConfig",
    "TD3Config",
    "Transitions",
    "UpdateInfo",
    "ValueBased",
    "ValueBasedConfig",
    "ValueBatch",
    "mean_metrics",
    "transitions",
]
