"""DQN of Stable-Baselines3, as its documentation says: `python sb3.py whole|first|second FOLDER`.

The halves meet between two calls of `learn`, so that nothing is in the way of equal results.
"""

import sys
from pathlib import Path

import gymnasium
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

HALF, TOTAL = 1_000, 2_000


def parts_of(model):
    """What it has now.

    Args:
        model: a DQN.
    """
    return {
        "weights": hash_of(*model.policy.state_dict().values()),
        "optimizer": optimizer_hash(model.policy.optimizer),
        "counters": [model.num_timesteps, model._n_updates],
        "buffer": [model.replay_buffer.size(), hash_of(model.replay_buffer.observations, model.replay_buffer.rewards)],
        "generators": generators_hash(),
        "environment": environment_hash(*model.get_env().envs),
        "normaliser": hash_of(model.get_env().obs_rms.mean, model.get_env().obs_rms.var),
        "schedule": model.exploration_rate,
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    if what == "second":
        env = VecNormalize.load(str(folder / "normaliser"), env)
        model = DQN.load(folder / "model", env=env, device="cpu")
        model.load_replay_buffer(folder / "buffer")
        tell(**parts_of(model))
        model.learn(TOTAL - HALF, reset_num_timesteps=False)
    else:
        env = VecNormalize(env, norm_reward=False)
        options = {"learning_starts": 200, "exploration_fraction": 0.8}
        model = DQN("MlpPolicy", env, seed=1, buffer_size=10_000, device="cpu", **options)
        model.learn(HALF)
        if what == "whole":
            model.learn(TOTAL - HALF, reset_num_timesteps=False)
        else:
            model.save(folder / "model")
            model.save_replay_buffer(folder / "buffer")
            env.save(str(folder / "normaliser"))
    tell(**parts_of(model))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
