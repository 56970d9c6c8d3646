"""DQN of Stable-Baselines3, as its documentation says: `python sb3.py whole|first|second FOLDER`.

The halves meet between two calls of `learn`, and epsilon does not change: nothing is in the way of equal results.
"""

import sys
from pathlib import Path

import gymnasium
import torch
from parts import generators_hash, hash_of, optimizer_hash, tell
from stable_baselines3 import DQN

HALF, TOTAL = 1_000, 2_000


def parts_of(model):
    """What it has now.

    Args:
        model: a DQN.
    """
    env = model.get_env().envs[0].unwrapped
    return {
        "weights": hash_of(*model.policy.state_dict().values()),
        "optimizer": optimizer_hash(model.policy.optimizer),
        "counters": [model.num_timesteps, model._n_updates],
        "buffer": [model.replay_buffer.size(), hash_of(model.replay_buffer.observations, model.replay_buffer.rewards)],
        "generators": generators_hash(),
        "episode": None if env.state is None else hash_of(env.state),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    env = gymnasium.make("CartPole-v1")
    if what == "second":
        model = DQN.load(folder / "model", env=env, device="cpu")
        model.load_replay_buffer(folder / "buffer")
        tell(**parts_of(model))
        model.learn(TOTAL - HALF, reset_num_timesteps=False)
    else:
        options = {"learning_starts": 200, "exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}
        model = DQN("MlpPolicy", env, seed=1, buffer_size=10_000, device="cpu", **options)
        model.learn(HALF)
        if what == "whole":
            model.learn(TOTAL - HALF, reset_num_timesteps=False)
        else:
            model.save(folder / "model")
            model.save_replay_buffer(folder / "buffer")
    tell(**parts_of(model))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
