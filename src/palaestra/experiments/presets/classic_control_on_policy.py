"""Classic control of Gymnasium, for A2C, TRPO, IMPALA and PPG.

Budgets are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo) for A2C and TRPO; IMPALA has
A2C's, PPG PPO's. `benchmarks/learning` holds what the settings reach here.
"""

from __future__ import annotations

from palaestra.algorithms import A2CConfig, IMPALAConfig, PPGConfig, TRPOConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

# Rewards are down to -16 a step: without normalisation the error of values leaves nothing for the policy.
_PENDULUMS = EnvConfig(num_envs=8, train_wrappers=("NormalizeReward(gamma=0.9)",))

PRESETS: Presets = {
    ("a2c", "CartPole-v1"): Preset(
        algorithm=A2CConfig(learning_rate=Linear(2e-3, 0.0), unroll_length=8, entropy_cost=0.0, gae_lambda=0.95),
        env=EnvConfig(num_envs=8),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("a2c", "Acrobot-v1"): Preset(
        algorithm=A2CConfig(learning_rate=Linear(2e-3, 0.0), entropy_cost=0.0, normalize_observation=True),
        env=EnvConfig(num_envs=16),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("a2c", "Pendulum-v1"): Preset(
        algorithm=A2CConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=8,
            gamma=0.9,
            gae_lambda=0.9,
            value_cost=0.4,
            entropy_cost=0.0,
            normalize_observation=True,
        ),
        env=_PENDULUMS,
        trainer=TrainerConfig(total_env_steps=1_000_000),
    ),
    ("trpo", "CartPole-v1"): Preset(
        algorithm=TRPOConfig(unroll_length=512, gae_lambda=0.98, num_epochs=20),
        env=EnvConfig(num_envs=2),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("trpo", "Acrobot-v1"): Preset(
        algorithm=TRPOConfig(unroll_length=1024, num_epochs=20, normalize_observation=True),
        env=EnvConfig(num_envs=2),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("trpo", "Pendulum-v1"): Preset(
        algorithm=TRPOConfig(unroll_length=1024, gamma=0.9, num_epochs=15),
        env=EnvConfig(num_envs=2),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("ppg", "CartPole-v1"): Preset(
        algorithm=PPGConfig(
            learning_rate=Linear(1e-3, 0.0),
            clip=Linear(0.2, 0.0),
            unroll_length=32,
            num_epochs=20,
            num_policy_phases=16,
            gamma=0.98,
            gae_lambda=0.8,
            entropy_cost=0.0,
        ),
        env=EnvConfig(num_envs=8),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("ppg", "Acrobot-v1"): Preset(
        algorithm=PPGConfig(
            learning_rate=Linear(5e-4, 0.0),
            num_epochs=10,
            gae_lambda=0.94,
            entropy_cost=0.0,
            normalize_observation=True,
        ),
        env=EnvConfig(num_envs=16),
        trainer=TrainerConfig(total_env_steps=1_000_000),
    ),
    ("ppg", "Pendulum-v1"): Preset(
        algorithm=PPGConfig(
            learning_rate=Linear(1e-3, 0.0),
            unroll_length=256,
            num_epochs=10,
            mini_batch_size=64,
            num_policy_phases=8,
            gamma=0.9,
            entropy_cost=0.0,
        ),
        env=EnvConfig(num_envs=4),
        trainer=TrainerConfig(total_env_steps=100_000),
    ),
    ("impala", "CartPole-v1"): Preset(
        algorithm=IMPALAConfig(learning_rate=Linear(2e-3, 0.0), entropy_cost=0.0),
        env=EnvConfig(num_envs=8),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("impala", "Acrobot-v1"): Preset(
        algorithm=IMPALAConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=5,
            entropy_cost=0.0,
            max_grad_norm=0.5,
            normalize_observation=True,
        ),
        env=EnvConfig(num_envs=16),
        trainer=TrainerConfig(total_env_steps=500_000),
    ),
    ("impala", "Pendulum-v1"): Preset(
        algorithm=IMPALAConfig(
            learning_rate=Linear(2e-3, 0.0),
            unroll_length=8,
            gamma=0.9,
            gae_lambda=0.9,
            entropy_cost=0.0,
            max_grad_norm=0.5,
            normalize_observation=True,
        ),
        env=_PENDULUMS,
        trainer=TrainerConfig(total_env_steps=1_000_000),
    ),
}
"""Settings by (algorithm, environment)."""
