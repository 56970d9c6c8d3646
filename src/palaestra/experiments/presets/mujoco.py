"""MuJoCo of Gymnasium, in worker processes, and of EnvPool.

The settings of PPO are the usual ones for continuous control (Huang et al. 2022, "The 37 implementation details of
proximal policy optimization"). Learning sees normalised rewards, evaluation the rewards of the task; the metric
`info/episode/return` has the latter in training as well.
"""

from __future__ import annotations

from palaestra.algorithms import PPOConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_PPO = PPOConfig(
    learning_rate=Linear(3e-4, 0.0),
    unroll_length=256,
    num_updates=10,
    mini_batch_size=64,
    gamma=0.99,
    gae_lambda=0.95,
    normalize_observation=True,
)
_TRAINER = TrainerConfig(total_env_steps=1_000_000, eval_episodes=10)
_ENV = EnvConfig(
    num_envs=8, vectorization="process", wrappers=("EpisodeStatistics",), train_wrappers=("NormalizeReward",)
)

PRESETS: Presets = {
    ("ppo", "HalfCheetah-v5"): Preset(algorithm=_PPO, env=_ENV, trainer=_TRAINER),
    ("ppo", "Hopper-v5"): Preset(algorithm=_PPO, env=_ENV, trainer=_TRAINER),
    ("ppo", "Walker2d-v5"): Preset(algorithm=_PPO, env=_ENV, trainer=_TRAINER),
    **{
        ("ppo", f"envpool:{name}-v*"): Preset(algorithm=_PPO, env=EnvConfig(num_envs=8), trainer=_TRAINER)
        for name in ("HalfCheetah", "Hopper", "Walker2d")
    },
}
"""Settings by (algorithm, environment)."""
