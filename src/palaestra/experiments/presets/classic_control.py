"""Classic control of Gymnasium.

Budgets, and the settings of PPO on CartPole-v1 and DQN on Acrobot-v1, are those of RL Baselines3 Zoo
(https://github.com/DLR-RM/rl-baselines3-zoo); `benchmarks/learning` holds what the settings reach here.
"""

from __future__ import annotations

from palaestra.algorithms import DQNConfig, EvolutionStrategiesConfig, PPOConfig, ReinforceConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

PRESETS: Presets = {
    ("ppo", "CartPole-v1"): Preset(
        algorithm=PPOConfig(
            learning_rate=Linear(1e-3, 0.0),
            clip=Linear(0.2, 0.0),
            unroll_length=32,
            num_epochs=20,
            gamma=0.98,
            gae_lambda=0.8,
        ),
        env=EnvConfig(num_envs=8),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("ppo", "Pendulum-v1"): Preset(
        algorithm=PPOConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=256,
            num_epochs=10,
            mini_batch_size=64,
            gamma=0.9,
            gae_lambda=0.95,
        ),
        env=EnvConfig(num_envs=4),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("ppo", "Acrobot-v1"): Preset(
        algorithm=PPOConfig(
            learning_rate=Linear(5e-4, 0.0),
            unroll_length=256,
            num_epochs=10,
            gae_lambda=0.94,
            entropy_cost=0.003,
            normalize_observation=True,
        ),
        env=EnvConfig(num_envs=16),
        trainer=TrainerConfig(total_env_steps=1_000_000),
    ),
    ("dqn", "CartPole-v1"): Preset(
        algorithm=DQNConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=64,
            gradient_steps=64,
            gamma=0.98,
            n_step=3,
            target_period=128,
            epsilon=Linear(1.0, 0.04, 0.16),
            normalize_observation=True,
            network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
        ),
        trainer=TrainerConfig(total_env_steps=50_000),
    ),
    ("dqn", "Acrobot-v1"): Preset(
        algorithm=DQNConfig(
            learning_rate=Linear(6.3e-4, 0.0),
            unroll_length=4,
            gradient_steps=4,
            mini_batch_size=128,
            capacity=50_000,
            gamma=0.99,
            target_period=250,
            epsilon=Linear(1.0, 0.1, 0.12),
            network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
        ),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("dqn", "MountainCar-v0"): Preset(
        algorithm=DQNConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=16,
            gradient_steps=8,
            capacity=10_000,
            gamma=0.98,
            n_step=5,
            target_period=100,
            epsilon=Linear(1.0, 0.07, 0.2),
            mini_batch_size=64,
            normalize_observation=True,
            network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
        ),
        trainer=TrainerConfig(total_env_steps=120_000),
    ),
    ("evolution_strategies", "CartPole-v1"): Preset(
        algorithm=EvolutionStrategiesConfig(learning_rate=Linear(0.2, 0.0), noise_std=0.4, normalize_observation=True),
        env=EnvConfig(num_envs=32),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("evolution_strategies", "Acrobot-v1"): Preset(
        algorithm=EvolutionStrategiesConfig(learning_rate=Linear(0.2, 0.0), noise_std=0.4, normalize_observation=True),
        env=EnvConfig(num_envs=32),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("reinforce", "CartPole-v1"): Preset(
        algorithm=ReinforceConfig(learning_rate=Linear(1e-2, 0.0), unroll_length=500),
        env=EnvConfig(num_envs=32),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
}
"""Settings by (algorithm, environment)."""
