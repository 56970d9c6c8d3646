"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.a2c import A2C, A2CBatch, A2CConfig
from palaestra.algorithms.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    AdvantageBatch,
    JointActorCritic,
    JointConfig,
    MinibatchConfig,
)
from palaestra.algorithms.algorithm import Algorithm, AlgorithmConfig
from palaestra.algorithms.behaviour_cloning import BehaviourCloning, BehaviourCloningBatch, BehaviourCloningConfig
from palaestra.algorithms.c51 import C51, C51Config
from palaestra.algorithms.compiled import CompiledSteps
from palaestra.algorithms.cql import CQL, CQLBatch, CQLConfig
from palaestra.algorithms.ddpg import DDPG, DDPGConfig
from palaestra.algorithms.deterministic import DeterministicActorCritic, SmoothedBatch
from palaestra.algorithms.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from palaestra.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from palaestra.algorithms.dqn import DQN, DQNConfig
from palaestra.algorithms.evolution_strategies import EvolutionStrategies, EvolutionStrategiesConfig
from palaestra.algorithms.exploration_bonus import BonusConfig, ExplorationBonus
from palaestra.algorithms.exploration_bonuses import CuriosityModule, RandomNetworkDistillation, exploration_bonus
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.impala import IMPALA, IMPALABatch, IMPALAConfig
from palaestra.algorithms.iql import IQL, IQLConfig
from palaestra.algorithms.iqn import IQN, IQNBatch, IQNConfig
from palaestra.algorithms.maddpg import MADDPG, MADDPGBatch, MADDPGConfig
from palaestra.algorithms.mappo import MAPPO, MAPPOBatch, MAPPOConfig
from palaestra.algorithms.memory import memory_fields, memory_of
from palaestra.algorithms.off_policy import (
    BootstrapConfig,
    NStepConfig,
    OfflineConfig,
    OffPolicyConfig,
    ReplayConfig,
    TransitionConfig,
    Transitions,
    transitions,
)
from palaestra.algorithms.ppg import PPG, PPGConfig
from palaestra.algorithms.ppo import PPO, PPOBatch, PPOConfig
from palaestra.algorithms.qmix import QMIX, Mixer, QMIXConfig
from palaestra.algorithms.qr_dqn import QRDQN, QRDQNConfig
from palaestra.algorithms.quantile_sac import QuantileSAC, QuantileSACConfig
from palaestra.algorithms.r2d2 import R2D2, R2D2Batch, R2D2Config
from palaestra.algorithms.rainbow import Rainbow, RainbowConfig
from palaestra.algorithms.records import (
    Gradients,
    Losses,
    StepResult,
    UpdateInfo,
    mean_metrics,
    require_finite_gradients,
)
from palaestra.algorithms.redq import REDQ, REDQBatch, REDQConfig
from palaestra.algorithms.reinforce import Reinforce, ReinforceBatch, ReinforceConfig
from palaestra.algorithms.sac import SAC, SACConfig
from palaestra.algorithms.sarsa import Sarsa, SarsaBatch, SarsaConfig
from palaestra.algorithms.soft import SoftActorCritic, SoftBatch, SoftConfig, Temperature
from palaestra.algorithms.td3 import TD3, TD3Config
from palaestra.algorithms.td3_bc import TD3BC, TD3BCBatch, TD3BCConfig
from palaestra.algorithms.trpo import TRPO, TRPOConfig
from palaestra.algorithms.trust_region import FixedPolicy
from palaestra.algorithms.value_based import QLearning, QLearningConfig, ValueBased, ValueBasedConfig, ValueBatch

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
    "maddpg": MADDPG,
    "mappo": MAPPO,
    "ppg": PPG,
    "ppo": PPO,
    "qmix": QMIX,
    "qr_dqn": QRDQN,
    "quantile_sac": QuantileSAC,
    "r2d2": R2D2,
    "rainbow": Rainbow,
    "redq": REDQ,
    "reinforce": Reinforce,
    "sac": SAC,
    "sarsa": Sarsa,
    "td3": TD3,
    "td3_bc": TD3BC,
    "trpo": TRPO,
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
    "MADDPG",
    "MAPPO",
    "PPG",
    "PPO",
    "QMIX",
    "QRDQN",
    "R2D2",
    "REDQ",
    "SAC",
    "TD3",
    "TD3BC",
    "TRPO",
    "A2CBatch",
    "A2CConfig",
    "ActorCritic",
    "ActorCriticConfig",
    "AdvantageBatch",
    "Algorithm",
    "AlgorithmConfig",
    "BehaviourCloning",
    "BehaviourCloningBatch",
    "BehaviourCloningConfig",
    "BonusConfig",
    "BootstrapConfig",
    "C51Config",
    "CQLBatch",
    "CQLConfig",
    "CompiledSteps",
    "CuriosityModule",
    "DDPGConfig",
    "DQNConfig",
    "DeterministicActorCritic",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "EvolutionStrategies",
    "EvolutionStrategiesConfig",
    "ExplorationBonus",
    "FixedPolicy",
    "GradientAlgorithm",
    "Gradients",
    "IMPALABatch",
    "IMPALAConfig",
    "IQLConfig",
    "IQNBatch",
    "IQNConfig",
    "JointActorCritic",
    "JointConfig",
    "Losses",
    "MADDPGBatch",
    "MADDPGConfig",
    "MAPPOBatch",
    "MAPPOConfig",
    "MinibatchConfig",
    "Mixer",
    "NStepConfig",
    "OffPolicyConfig",
    "OfflineConfig",
    "PPGConfig",
    "PPOBatch",
    "PPOConfig",
    "QLearning",
    "QLearningConfig",
    "QMIXConfig",
    "QRDQNConfig",
    "QuantileSAC",
    "QuantileSACConfig",
    "R2D2Batch",
    "R2D2Config",
    "REDQBatch",
    "REDQConfig",
    "Rainbow",
    "RainbowConfig",
    "RandomNetworkDistillation",
    "Reinforce",
    "ReinforceBatch",
    "ReinforceConfig",
    "ReplayConfig",
    "SACConfig",
    "Sarsa",
    "SarsaBatch",
    "SarsaConfig",
    "SmoothedBatch",
    "SoftActorCritic",
    "SoftBatch",
    "SoftConfig",
    "StepResult",
    "TD3BCBatch",
    "TD3BCConfig",
    "TD3Config",
    "TRPOConfig",
    "Temperature",
    "TransitionConfig",
    "Transitions",
    "UpdateInfo",
    "ValueBased",
    "ValueBasedConfig",
    "ValueBatch",
    "exploration_bonus",
    "mean_metrics",
    "memory_fields",
    "memory_of",
    "require_finite_gradients",
    "transitions",
]
