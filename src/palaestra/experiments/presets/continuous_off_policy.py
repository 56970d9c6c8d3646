"""Continuous control of Gymnasium, for actor-critics that learn from replay.

Budgets are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo). MuJoCo's settings are those of the
papers: one env step, one gradient step, two layers of 256 units.
"""

from __future__ import annotations

from palaestra.algorithms import DDPGConfig, QuantileSACConfig, REDQConfig, SACConfig, TD3Config
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_PENDULUM = TrainerConfig(total_env_steps=20_000)
_MUJOCO = TrainerConfig(total_env_steps=1_000_000, eval_episodes=10)
_MUJOCO_NAMES = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")

PRESETS: Presets = {
    ("sac", "Pendulum-v1"): Preset(algorithm=SACConfig(learning_rate=1e-3), trainer=_PENDULUM),
    ("quantile_sac", "Pendulum-v1"): Preset(
        algorithm=QuantileSACConfig(learning_rate=1e-3, num_critics=2), trainer=_PENDULUM
    ),
    ("redq", "Pendulum-v1"): Preset(
        algorithm=REDQConfig(network=NetworkConfig(hidden_sizes=(64, 64), activation="relu")),
        trainer=_PENDULUM,
    ),
    ("td3", "Pendulum-v1"): Preset(algorithm=TD3Config(learning_rate=1e-3, gamma=0.98), trainer=_PENDULUM),
    ("ddpg", "Pendulum-v1"): Preset(algorithm=DDPGConfig(learning_rate=1e-3, gamma=0.98), trainer=_PENDULUM),
    **{("sac", name): Preset(algorithm=SACConfig(learning_starts=10_000), trainer=_MUJOCO) for name in _MUJOCO_NAMES},
    **{("td3", name): Preset(algorithm=TD3Config(learning_starts=10_000), trainer=_MUJOCO) for name in _MUJOCO_NAMES},
    **{("ddpg", name): Preset(algorithm=DDPGConfig(learning_starts=10_000), trainer=_MUJOCO) for name in _MUJOCO_NAMES},
    **{
        ("quantile_sac", name): Preset(algorithm=QuantileSACConfig(learning_starts=10_000), trainer=_MUJOCO)
        for name in _MUJOCO_NAMES
    },
    **{
        ("redq", name): Preset(
            algorithm=REDQConfig(learning_starts=5_000), trainer=TrainerConfig(total_env_steps=125_000)
        )
        for name in _MUJOCO_NAMES
    },
}
"""Settings by (algorithm, environment)."""
