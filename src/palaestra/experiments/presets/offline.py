"""Classic control of Gymnasium, learned from data: small networks, ten gradient steps an update.

The data is whatever `offline.data` names; the settings were chosen on replay buffers of short runs of SAC and DQN.
"""

from __future__ import annotations

from typing import Any

from palaestra.algorithms import BehaviourCloningConfig, CQLConfig, DiscreteCQLConfig, IQLConfig, TD3BCConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_SMALL: dict[str, Any] = {
    "network": NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
    "learning_rate": 1e-3,
    "mini_batch_size": 128,
    "gradient_steps": 10,
}
_TRAINER = TrainerConfig(total_env_steps=1_000)

PRESETS: Presets = {
    ("behaviour_cloning", "CartPole-v1"): Preset(
        algorithm=BehaviourCloningConfig(**_SMALL), trainer=TrainerConfig(total_env_steps=300)
    ),
    ("behaviour_cloning", "Pendulum-v1"): Preset(
        algorithm=BehaviourCloningConfig(**_SMALL), trainer=TrainerConfig(total_env_steps=300)
    ),
    ("discrete_cql", "CartPole-v1"): Preset(
        algorithm=DiscreteCQLConfig(**_SMALL, conservative_cost=0.5), trainer=_TRAINER
    ),
    ("td3_bc", "Pendulum-v1"): Preset(algorithm=TD3BCConfig(**_SMALL, gamma=0.98, value_weight=10.0), trainer=_TRAINER),
    ("iql", "Pendulum-v1"): Preset(
        algorithm=IQLConfig(**_SMALL, gamma=0.98, expectile=0.9, inverse_temperature=3.0), trainer=_TRAINER
    ),
    ("cql", "Pendulum-v1"): Preset(
        algorithm=CQLConfig(**_SMALL, gamma=0.98, conservative_cost=1.0, num_actions=4), trainer=_TRAINER
    ),
}
"""Settings by (algorithm, environment)."""
