"""Tuned settings for pairs of algorithm and environment.

Budgets, and the settings of PPO on CartPole-v1, are those of RL Baselines3 Zoo
(https://github.com/DLR-RM/rl-baselines3-zoo); `benchmarks/learning` holds what the settings reach here.
"""

from __future__ import annotations

from palaestra.algorithms import DQNConfig, PPOConfig, ReinforceConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.config import ExperimentConfig, algorithm_class
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS", "preset"]

PRESETS: dict[tuple[str, str], ExperimentConfig] = {
    ("ppo", "CartPole-v1"): ExperimentConfig(
        algorithm=PPOConfig(
            learning_rate=Linear(1e-3, 0.0),
            clip=Linear(0.2, 0.0),
            unroll_length=32,
            num_updates=20,
            gamma=0.98,
            gae_lambda=0.8,
        ),
        env=EnvConfig(name="CartPole-v1", num_envs=8),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("ppo", "Pendulum-v1"): ExperimentConfig(
        algorithm=PPOConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=256,
            num_updates=10,
            mini_batch_size=64,
            gamma=0.9,
            gae_lambda=0.95,
        ),
        env=EnvConfig(name="Pendulum-v1", num_envs=4),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("dqn", "CartPole-v1"): ExperimentConfig(
        algorithm_name="dqn",
        algorithm=DQNConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=64,
            num_updates=32,
            n_step=3,
            target_period=64,
            epsilon=Linear(1.0, 0.04, 0.16),
            mini_batch_size=64,
            normalize_observation=True,
            network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
        ),
        env=EnvConfig(name="CartPole-v1"),
        trainer=TrainerConfig(total_env_steps=50_000),
    ),
    ("dqn", "Acrobot-v1"): ExperimentConfig(
        algorithm_name="dqn",
        algorithm=DQNConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=4,
            num_updates=4,
            gamma=0.995,
            n_step=5,
            target_period=500,
            epsilon=Linear(1.0, 0.02, 0.2),
            network=NetworkConfig(hidden_sizes=(128, 128), activation="relu"),
        ),
        env=EnvConfig(name="Acrobot-v1"),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("dqn", "MountainCar-v0"): ExperimentConfig(
        algorithm_name="dqn",
        algorithm=DQNConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=16,
            num_updates=8,
            capacity=10_000,
            gamma=0.98,
            n_step=5,
            target_period=100,
            epsilon=Linear(1.0, 0.07, 0.2),
            mini_batch_size=64,
            normalize_observation=True,
            network=NetworkConfig(hidden_sizes=(64, 64), activation="relu"),
        ),
        env=EnvConfig(name="MountainCar-v0"),
        trainer=TrainerConfig(total_env_steps=120_000),
    ),
    ("reinforce", "CartPole-v1"): ExperimentConfig(
        algorithm_name="reinforce",
        algorithm=ReinforceConfig(),
        env=EnvConfig(name="CartPole-v1", num_envs=8),
        trainer=TrainerConfig(total_env_steps=200_000),
    ),
}
"""Settings by (algorithm, environment)."""

_NUM_ENVS = {"ppo": 8, "reinforce": 8, "dqn": 1}


def preset(algorithm: str, env_name: str) -> ExperimentConfig:
    """Settings for an algorithm in an environment: tuned ones where there are some, else the algorithm's defaults.

    Args:
        algorithm: its name, for example `"ppo"`.
        env_name: as `EnvConfig.name`.

    Raises:
        ConfigError: there is no such algorithm.

    Examples:
        >>> preset("ppo", "CartPole-v1").algorithm.gamma
        0.98
    """
    kind = algorithm_class(algorithm)
    return PRESETS.get((algorithm, env_name)) or ExperimentConfig(
        algorithm_name=algorithm,
        algorithm=kind.config_class(),
        env=EnvConfig(name=env_name, num_envs=_NUM_ENVS.get(algorithm, 1)),
    )
