"""DQN of RLlib, as its documentation says: `python rllib_dqn.py whole|first|second FOLDER`.

`save_to_path` with `store_buffer_in_checkpoints`, `restore_from_path`; one process with neither remote runners nor
learners.
"""

import sys
from pathlib import Path

import numpy as np
import ray
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

HALF, TOTAL = 5, 10


def parts_of(algo):
    """What it has now.

    Args:
        algo: a DQN.
    """
    learner, runner, buffer = algo.learner_group._learner, algo.env_runner, algo.local_replay_buffer
    module = learner.module["default_policy"]
    filters = [piece for piece in runner._env_to_module.connectors if isinstance(piece, MeanStdFilter)]
    statistics = filters[0].get_state()
    episodes = [array for episode in buffer.episodes for array in (episode.get_observations(), episode.get_rewards())]
    envs = [env.unwrapped for env in runner.env.unwrapped.envs]
    schedule = runner.module.epsilon_schedule
    schedule.update(runner.num_env_steps_sampled_lifetime)  # as it does itself before each action
    return {
        "weights": hash_of(*module.state_dict().values()),
        "optimizer": optimizer_hash(next(iter(learner._named_optimizers.values()))),
        "counters": [algo.training_iteration, int(runner.num_env_steps_sampled_lifetime)],
        "buffer": [buffer.get_num_timesteps(), hash_of(*map(np.asarray, episodes))],
        "generators": generators_hash(),
        "environment": environment_hash(*envs),
        "normaliser": hash_of(np.frombuffer(repr(statistics).encode(), np.uint8)),
        "schedule": float(schedule.get_current_value()),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=0,
            rollout_fragment_length=4,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_learners=0)
        .training(
            epsilon=[(0, 1.0), (1_000, 0.05)],
            num_steps_sampled_before_learning_starts=200,
            target_network_update_freq=100,
            store_buffer_in_checkpoints=True,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 10_000},
        )
        .reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
        .debugging(seed=1)
    )
    algo = config.build_algo()
    if what == "second":
        algo.restore_from_path(str(folder / "saved"))
        tell(**parts_of(algo))
    for _ in range(TOTAL if what == "whole" else HALF):
        algo.train()
    if what == "first":
        algo.save_to_path(str(folder / "saved"))
    tell(**parts_of(algo))
    algo.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
