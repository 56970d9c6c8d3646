"""MuJoCo of Gymnasium, and of EnvPool.

PPO's settings of HalfCheetah and Walker2d are the tuned ones of RL Baselines3 Zoo
(https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/hyperparams/ppo.yml), with the 512 rows of an unroll from four
environments instead of one, for policies act on four rows as fast as on one. Hopper's there look further ahead than
such an unroll is long, and learn to stand still; it and EnvPool's, where many environments step at once, have the usual
ones for continuous control (Huang et al. 2022, "The 37 implementation details of proximal policy optimization").
Learning sees normalised rewards, evaluation the rewards of the task; the metric `info/episode/return` has the latter in
training as well.
"""

from __future__ import annotations

from dataclasses import replace

from palaestra.algorithms import PPOConfig
from palaestra.core import Linear
from palaestra.envs import EnvConfig
from palaestra.experiments.presets.entry import Preset, Presets
from palaestra.nn import NetworkConfig
from palaestra.training import TrainerConfig

__all__ = ["PRESETS"]

_TRAINER = TrainerConfig(total_env_steps=1_000_000, eval_episodes=10)
_FOUR = EnvConfig(num_envs=4, wrappers=("EpisodeStatistics",), train_wrappers=("NormalizeReward",))
_NETWORK = NetworkConfig(hidden_sizes=(256, 256), activation="relu", initial_log_std=-2.0)

_HALF_CHEETAH = PPOConfig(
    network=_NETWORK,
    normalize_observation=True,
    unroll_length=128,
    mini_batch_size=64,
    num_epochs=20,
    learning_rate=2.0633e-5,
    gamma=0.98,
    gae_lambda=0.92,
    clip=0.1,
    entropy_cost=0.000401762,
    value_cost=0.58096,
    max_grad_norm=0.8,
)
_WALKER = replace(
    _HALF_CHEETAH,
    mini_batch_size=32,
    learning_rate=5.05041e-5,
    gamma=0.99,
    gae_lambda=0.95,
    entropy_cost=0.000585045,
    value_cost=0.871923,
    max_grad_norm=1.0,
)
_MANY = PPOConfig(
    learning_rate=Linear(3e-4, 0.0),
    unroll_length=256,
    num_epochs=10,
    mini_batch_size=64,
    gamma=0.99,
    gae_lambda=0.95,
    normalize_observation=True,
)

PRESETS: Presets = {
    ("ppo", "HalfCheetah-v5"): Preset(algorithm=_HALF_CHEETAH, env=_FOUR, trainer=_TRAINER),
    ("ppo", "Hopper-v5"): Preset(algorithm=replace(_MANY, unroll_length=512), env=_FOUR, trainer=_TRAINER),
    ("ppo", "Walker2d-v5"): Preset(algorithm=_WALKER, env=_FOUR, trainer=_TRAINER),
    **{
        ("ppo", f"envpool:{name}-v*"): Preset(algorithm=_MANY, env=EnvConfig(num_envs=8), trainer=_TRAINER)
        for name in ("HalfCheetah", "Hopper", "Walker2d")
    },
}
"""Settings by (algorithm, environment)."""
