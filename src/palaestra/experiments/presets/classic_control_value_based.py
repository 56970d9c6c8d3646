"""Classic control of Gymnasium, for the descendants of DQN, for SARSA and for discrete SAC.

Budgets are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo) for DQN and QR-DQN;
`benchmarks/learning` holds what the settings reach here.
"""

from __future__ import annotations

from typing import Any

from palaestra.algorithms import C51Config, DiscreteSACConfig, IQNConfig, QRDQNConfig, RainbowConfig, SarsaConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_CARTPOLE: dict[str, Any] = {
    "learning_rate": Linear(1e-3, 0.0),
    "unroll_length": 64,
    "gradient_steps": 64,
    "gamma": 0.98,
    "n_step": 3,
    "target_period": 128,
    "epsilon": Linear(1.0, 0.04, 0.16),
    "mini_batch_size": 128,
    "normalize_observation": True,
    "network": NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
}
_ACROBOT: dict[str, Any] = {
    "learning_rate": Linear(1e-3, 0.0),
    "unroll_length": 4,
    "gradient_steps": 4,
    "gamma": 0.995,
    "n_step": 5,
    "target_period": 500,
    "epsilon": Linear(1.0, 0.02, 0.2),
    "mini_batch_size": 64,
    "network": NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
}
_MOUNTAIN_CAR: dict[str, Any] = {
    "learning_rate": Linear(2e-3, 0.0),
    "unroll_length": 16,
    "gradient_steps": 8,
    "capacity": 10_000,
    "gamma": 0.98,
    "n_step": 5,
    "target_period": 100,
    "epsilon": Linear(1.0, 0.07, 0.2),
    "mini_batch_size": 64,
    "normalize_observation": True,
    "network": NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
}
_NOISY = NetworkConfig(hidden_sizes=(128, 128), activation="relu", dueling=True, noisy=True)

PRESETS: Presets = {
    ("qr_dqn", "CartPole-v1"): Preset(
        algorithm=QRDQNConfig(**_CARTPOLE, num_quantiles=50), trainer=TrainerConfig(total_env_steps=50_000)
    ),
    ("qr_dqn", "Acrobot-v1"): Preset(
        algorithm=QRDQNConfig(**_ACROBOT, num_quantiles=25), trainer=TrainerConfig(total_env_steps=100_000)
    ),
    ("qr_dqn", "MountainCar-v0"): Preset(
        algorithm=QRDQNConfig(**_MOUNTAIN_CAR, num_quantiles=25), trainer=TrainerConfig(total_env_steps=120_000)
    ),
    ("c51", "CartPole-v1"): Preset(
        algorithm=C51Config(**_CARTPOLE, min_return=0.0, max_return=50.0),
        trainer=TrainerConfig(total_env_steps=50_000),
    ),
    ("c51", "Acrobot-v1"): Preset(
        algorithm=C51Config(**_ACROBOT, min_return=-200.0, max_return=0.0),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("iqn", "CartPole-v1"): Preset(algorithm=IQNConfig(**_CARTPOLE), trainer=TrainerConfig(total_env_steps=50_000)),
    ("iqn", "Acrobot-v1"): Preset(algorithm=IQNConfig(**_ACROBOT), trainer=TrainerConfig(total_env_steps=100_000)),
    ("rainbow", "CartPole-v1"): Preset(
        algorithm=RainbowConfig(**{**_CARTPOLE, "epsilon": 0.0, "network": _NOISY}, min_return=0.0, max_return=50.0),
        trainer=TrainerConfig(total_env_steps=50_000),
    ),
    ("rainbow", "Acrobot-v1"): Preset(
        algorithm=RainbowConfig(**{**_ACROBOT, "epsilon": 0.0, "network": _NOISY}, min_return=-200.0, max_return=0.0),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("discrete_sac", "CartPole-v1"): Preset(
        algorithm=DiscreteSACConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=64,
            gradient_steps=32,
            mini_batch_size=64,
            capacity=50_000,
            n_step=3,
            initial_temperature=0.05,
            temperature_learning_rate=0.0,
            normalize_observation=True,
            network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
        ),
        trainer=TrainerConfig(total_env_steps=50_000),
    ),
    ("sarsa", "CartPole-v1"): Preset(
        algorithm=SarsaConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=8,
            trace_decay=0.98,
            epsilon=Linear(1.0, 0.05, 0.5),
            huber_delta=10.0,
        ),
        env=EnvConfig(num_envs=16),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("sarsa", "Acrobot-v1"): Preset(
        algorithm=SarsaConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=128,
            trace_decay=0.97,
            epsilon=Linear(1.0, 0.05, 0.7),
            huber_delta=10.0,
        ),
        env=EnvConfig(num_envs=8),
        trainer=TrainerConfig(total_env_steps=200_000),
    ),
}
"""Settings by (algorithm, environment)."""
