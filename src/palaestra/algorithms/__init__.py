"""Learning: `Algorithm`, and one file per algorithm."""

from typing import Any

from palaestra.algorithms.a2c import *
from palaestra.algorithms.algorithm import *
from palaestra.algorithms.alphazero import *
from palaestra.algorithms.behaviour_cloning import *
from palaestra.algorithms.c51 import *
from palaestra.algorithms.coma import *
from palaestra.algorithms.config import *
from palaestra.algorithms.cql import *
from palaestra.algorithms.crossq import *
from palaestra.algorithms.dagger import *
from palaestra.algorithms.ddpg import *
from palaestra.algorithms.decision_transformer import *
from palaestra.algorithms.discrete_cql import *
from palaestra.algorithms.discrete_sac import *
from palaestra.algorithms.dqn import *
from palaestra.algorithms.dreamer import *
from palaestra.algorithms.evolution_strategies import *
from palaestra.algorithms.exploration_bonus import *
from palaestra.algorithms.flash_sac import *
from palaestra.algorithms.fql import *
from palaestra.algorithms.gradient_algorithm import *
from palaestra.algorithms.imitation import *
from palaestra.algorithms.impala import *
from palaestra.algorithms.iql import *
from palaestra.algorithms.iqn import *
from palaestra.algorithms.maddpg import *
from palaestra.algorithms.mappo import *
from palaestra.algorithms.masac import *
from palaestra.algorithms.munchausen_dqn import *
from palaestra.algorithms.muzero import *
from palaestra.algorithms.parts import *
from palaestra.algorithms.ppg import *
from palaestra.algorithms.ppo import *
from palaestra.algorithms.pqn import *
from palaestra.algorithms.qmix import *
from palaestra.algorithms.qr_dqn import *
from palaestra.algorithms.quantile_sac import *
from palaestra.algorithms.r2d2 import *
from palaestra.algorithms.rainbow import *
from palaestra.algorithms.rebrac import *
from palaestra.algorithms.redq import *
from palaestra.algorithms.reinforce import *
from palaestra.algorithms.rewards import *
from palaestra.algorithms.sac import *
from palaestra.algorithms.sarsa import *
from palaestra.algorithms.steppers import *
from palaestra.algorithms.targets import *
from palaestra.algorithms.td3 import *
from palaestra.algorithms.td3_bc import *
from palaestra.algorithms.together import *
from palaestra.algorithms.trpo import *
from palaestra.algorithms.vmpo import *
from palaestra.algorithms.xqc import *

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "a2c": A2C,
    "alphazero": AlphaZero,
    "behaviour_cloning": BehaviourCloning,
    "c51": C51,
    "coma": COMA,
    "cql": CQL,
    "crossq": CrossQ,
    "dagger": DAgger,
    "ddpg": DDPG,
    "decision_transformer": DecisionTransformer,
    "discrete_cql": DiscreteCQL,
    "discrete_sac": DiscreteSAC,
    "dqn": DQN,
    "dreamer": Dreamer,
    "evolution_strategies": EvolutionStrategies,
    "flash_sac": FlashSAC,
    "fql": FQL,
    "impala": IMPALA,
    "iql": IQL,
    "iqn": IQN,
    "maddpg": MADDPG,
    "mappo": MAPPO,
    "masac": MASAC,
    "munchausen_dqn": MunchausenDQN,
    "muzero": MuZero,
    "ppg": PPG,
    "ppo": PPO,
    "pqn": PQN,
    "qmix": QMIX,
    "qr_dqn": QRDQN,
    "quantile_sac": QuantileSAC,
    "r2d2": R2D2,
    "rainbow": Rainbow,
    "rebrac": ReBRAC,
    "redq": REDQ,
    "reinforce": Reinforce,
    "sac": SAC,
    "sarsa": Sarsa,
    "td3": TD3,
    "td3_bc": TD3BC,
    "trpo": TRPO,
    "vmpo": VMPO,
    "xqc": XQC,
}
"""The algorithms by the name they have on the command line."""
