"""PPO of RSL-RL, as its documentation says: `python rsl_rl_ppo.py whole|first|second FOLDER`; it has no DQN.

`runner.save` has the networks with their normalisers, the optimizer and the iteration. Four CartPoles, pushed by the
sign of the action. An iteration leaves no rows behind, so that there is no buffer.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

HALF, TOTAL = 5, 10


class CartPoles(VecEnv):
    """Gymnasium's vector environment as the runner wants it."""

    num_envs, num_actions, max_episode_length, device, cfg = 4, 1, 500, "cpu", {}

    def __init__(self):
        """Begins the first episodes."""
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        options = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
        self.envs = gymnasium.make_vec("CartPole-v1", self.num_envs, **options)
        self.seen, _ = self.envs.reset(seed=1)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)

    def get_observations(self):
        """Of all environments."""
        return TensorDict({"policy": torch.as_tensor(np.array(self.seen))}, batch_size=[self.num_envs])

    def step(self, actions):
        """One step of all.

        Args:
            actions: of shape (num_envs, 1).
        """
        pushes = (actions[:, 0] > 0).long().numpy()
        self.seen, rewards, terminated, truncated, _ = self.envs.step(pushes)
        dones = torch.as_tensor(terminated | truncated)
        self.episode_length_buf = (self.episode_length_buf + 1) * ~dones
        extras = {"time_outs": torch.as_tensor(truncated)}
        return self.get_observations(), torch.as_tensor(rewards, dtype=torch.float32), dones, extras


def parts_of(runner):
    """What it has now.

    Args:
        runner: of PPO.
    """
    alg = runner.alg
    states = {**alg.actor.state_dict(), **{f"critic.{name}": value for name, value in alg.critic.state_dict().items()}}
    normalisers = [value for name, value in states.items() if "normalizer" in name]
    return {
        "weights": hash_of(*(value for name, value in states.items() if "normalizer" not in name)),
        "optimizer": optimizer_hash(alg.optimizer),
        "counters": [runner.current_learning_iteration, runner.logger.tot_timesteps],
        "generators": generators_hash(),
        "environment": environment_hash(*runner.env.envs.envs),
        "normaliser": hash_of(*normalisers),
        "schedule": [alg.learning_rate, alg.optimizer.param_groups[0]["lr"]],
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
    net = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu", "obs_normalization": True}
    cfg = {
        "num_steps_per_env": 24,
        "save_interval": 1_000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO", "schedule": "adaptive"},
        "actor": {**net, "distribution_cfg": gaussian},
        "critic": net,
    }
    logs = folder / what
    logs.mkdir(parents=True)
    runner = OnPolicyRunner(CartPoles(), cfg, log_dir=str(logs), device="cpu")
    if what == "second":
        runner.load(str(folder / "model.pt"))
        tell(**parts_of(runner))
    runner.learn(TOTAL if what == "whole" else HALF)
    if what == "first":
        runner.save(str(folder / "model.pt"))
    tell(**parts_of(runner))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
