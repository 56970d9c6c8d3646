"""MountainCarContinuous-v0 of Gymnasium: the goal is never reached by actions that are random step by step.

Every action is therefore executed for eight frames, in training and evaluation. One env step is then eight frames, and
a budget here is an eighth of what RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo) needs, which explores
by noise that lasts as well (state-dependent exploration, or the Ornstein-Uhlenbeck process).
"""

from __future__ import annotations

from typing import Any

from palaestra.algorithms import (
    A2CConfig,
    DDPGConfig,
    EvolutionStrategiesConfig,
    IMPALAConfig,
    PPGConfig,
    PPOConfig,
    QuantileSACConfig,
    REDQConfig,
    SACConfig,
    TD3Config,
    TRPOConfig,
)
from palaestra.core import Linear
from palaestra.envs import EnvConfig, Wrap
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_NAME = "MountainCarContinuous-v0"
_REPEAT = Wrap("ActionRepeat", repeat=8)
_OFF_POLICY: dict[str, Any] = {
    "learning_rate": Linear(1e-3, 0.0),
    "gamma": 0.995,
    "network": NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
}
_SAMPLED: dict[str, Any] = {
    "learning_rate": Linear(1e-3, 0.0),
    "unroll_length": 128,
    "num_epochs": 10,
    "mini_batch_size": 64,
    "normalize_observation": True,
}
_DETERMINISTIC: dict[str, Any] = {**_OFF_POLICY, "unroll_length": 4, "gradient_steps": 2, "exploration_std": 0.5}


def _env(num_envs: int, **settings: Any) -> EnvConfig:
    return EnvConfig(num_envs=num_envs, wrappers=(_REPEAT,), **settings)


PRESETS: Presets = {
    ("ppo", _NAME): Preset(
        algorithm=PPOConfig(**_SAMPLED),
        env=_env(2, train_wrappers=("NormalizeReward",)),
        trainer=TrainerConfig(total_env_steps=2_500),
    ),
    ("ppg", _NAME): Preset(
        algorithm=PPGConfig(**_SAMPLED, num_policy_phases=4, entropy_cost=0.0),
        env=_env(2, train_wrappers=("NormalizeReward",)),
        trainer=TrainerConfig(total_env_steps=2_500),
    ),
    ("a2c", _NAME): Preset(
        algorithm=A2CConfig(unroll_length=100, entropy_cost=0.0, normalize_observation=True),
        env=_env(4),
        trainer=TrainerConfig(total_env_steps=12_500),
    ),
    ("impala", _NAME): Preset(
        algorithm=IMPALAConfig(
            learning_rate=Linear(7e-4, 0.0), unroll_length=100, entropy_cost=0.0, normalize_observation=True
        ),
        env=_env(4),
        trainer=TrainerConfig(total_env_steps=12_500),
    ),
    ("evolution_strategies", _NAME): Preset(
        algorithm=EvolutionStrategiesConfig(
            learning_rate=Linear(0.2, 0.0), unroll_length=125, noise_std=0.4, normalize_observation=True
        ),
        env=_env(16),
        trainer=TrainerConfig(total_env_steps=12_500),
    ),
    ("trpo", _NAME): Preset(
        algorithm=TRPOConfig(unroll_length=256, num_epochs=20, normalize_observation=True),
        env=_env(2),
        trainer=TrainerConfig(total_env_steps=6_250),
    ),
    ("sac", _NAME): Preset(
        algorithm=SACConfig(**_OFF_POLICY), env=_env(1), trainer=TrainerConfig(total_env_steps=6_250)
    ),
    ("quantile_sac", _NAME): Preset(
        algorithm=QuantileSACConfig(**_OFF_POLICY, num_critics=2),
        env=_env(1),
        trainer=TrainerConfig(total_env_steps=6_250),
    ),
    ("redq", _NAME): Preset(
        algorithm=REDQConfig(**_OFF_POLICY), env=_env(1), trainer=TrainerConfig(total_env_steps=6_250)
    ),
    ("td3", _NAME): Preset(
        algorithm=TD3Config(**_DETERMINISTIC), env=_env(1), trainer=TrainerConfig(total_env_steps=37_500)
    ),
    ("ddpg", _NAME): Preset(
        algorithm=DDPGConfig(**_DETERMINISTIC), env=_env(1), trainer=TrainerConfig(total_env_steps=37_500)
    ),
}
"""Settings by (algorithm, environment)."""
