"""Atari games of ale-py, stepped by its C++ pool.

Settings are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo) for all games. Learning sees the
signs of rewards, evaluation the scores.
"""

from __future__ import annotations

from palaestra.algorithms import DQNConfig, PPOConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

# The picture's 512 features go straight into the output layer.
_NETWORK = NetworkConfig(hidden_sizes=(), activation="relu")


_CLIPPED = {"reward_clipping": True}

PRESETS: Presets = {
    ("ppo", "ALE/*"): Preset(
        algorithm=PPOConfig(
            learning_rate=Linear(2.5e-4, 0.0),
            clip=Linear(0.1, 0.0),
            unroll_length=128,
            num_epochs=4,
            mini_batch_size=256,
            entropy_cost=0.01,
            network=_NETWORK,
        ),
        env=EnvConfig(num_envs=8, vectorization="native", train_kwargs=_CLIPPED),
        trainer=TrainerConfig(total_env_steps=10_000_000, eval_episodes=10),
    ),
    ("dqn", "ALE/*"): Preset(
        algorithm=DQNConfig(
            learning_rate=1e-4,
            unroll_length=1,
            gradient_steps=2,
            mini_batch_size=32,
            capacity=100_000,
            learning_starts=50_000,
            target_period=1_000,
            epsilon=Linear(1.0, 0.01, 0.1),
            network=_NETWORK,
        ),
        env=EnvConfig(num_envs=8, vectorization="native", train_kwargs=_CLIPPED),
        trainer=TrainerConfig(total_env_steps=10_000_000, eval_episodes=10),
    ),
}
"""Settings for every game."""
