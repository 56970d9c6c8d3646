"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from palaestra.algorithms.cql import CQL, CQLConfig
from palaestra.algorithms.ddpg import DDPG, DDPGConfig
from palaestra.algorithms.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from palaestra.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from palaestra.algorithms.dqn import DQN, DQNBatch, DQNConfig
from palaestra.algorithms.evolution_strategies import EvolutionStrategies, EvolutionStrategiesConfig
from palaestra.algorithms.iql import IQL, IQLConfig
from palaestra.algorithms.off_policy import OfflineConfig, OffPolicyConfig, Transitions, transitions
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.records import Gradients, Losses, UpdateInfo, mean_metrics
from palaestra.algorithms.redq import REDQ, REDQConfig
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACConfig
from palaestra.algorithms.td3 import TD3, TD3Config
from palaestra.algorithms.td3_bc import TD3BC, TD3BCConfig

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "behaviour_cloning": BehaviourCloning,
    "cql": CQL,
    "ddpg": DDPG,
    "discrete_cql": DiscreteCQL,
    "discrete_sac": DiscreteSAC,
    "dqn": DQN,
    "evolution_strategies": EvolutionStrategies,
    "iql": IQL,
    "ppo": PPO,
    "redq": REDQ,
    "reinforce": Reinforce,
    "sac": SAC,
    "td3": TD3,
    "td3_bc": TD3BC,
}
"""The algorithms by the name they have on the command line."""

__all__ = [
    "ALGORITHMS",
    "CQL",
    "DDPG",
    "DQN",
    "IQL",
    "PPO",
    "REDQ",
    "SAC",
    "TD3",
    "TD3BC",
    "Algorithm",
    "AlgorithmConfig",
    "BehaviourCloning",
    "BehaviourCloningConfig",
    "CQLConfig",
    "DDPGConfig",
    "DQNBatch",
    "DQNConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "EvolutionStrategies",
    "EvolutionStrategiesConfig",
    "GradientAlgorithm",
    "Gradients",
    "IQLConfig",
    "Losses",
    "OffPolicyConfig",
    "OfflineConfig",
    "PPOBatch",
    "PPOConfig",
    "REDQConfig",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "SACConfig",
    "TD3BCConfig",
    "TD3Config",
    "Transitions",
    "UpdateInfo",
    "mean_metrics",
    "transitions",
]
