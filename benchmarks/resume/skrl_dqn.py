"""DQN of skrl, as its documentation says: `python skrl_dqn.py whole|first|second FOLDER`.

`agent.save` has the networks, the optimizer and the scaler of observations, `memory.save` the buffer.
"""

import sys
from pathlib import Path

import gymnasium
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from skrl.agents.torch.dqn import DQN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

HALF, TOTAL = 1_000, 2_000


class QNetwork(DeterministicMixin, Model):
    """One value an action."""

    def __init__(self, env):
        """As wide as CartPole needs.

        Args:
            env: wrapped.
        """
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

    def compute(self, inputs, role=""):
        """Values.

        Args:
            inputs: with observations.
            role: not looked at.
        """
        return self.net(inputs["observations"]), {}


def parts_of(agent, memory, env, steps):
    """What it has now.

    Args:
        agent: a DQN.
        memory: of it.
        env: of Gymnasium.
        steps: how many env steps its trainer counts.
    """
    tensors = [tensor for model in agent.models.values() for tensor in model.state_dict().values()]
    held = [memory.tensors["observations"], memory.tensors["rewards"]]
    return {
        "weights": hash_of(*tensors),
        "optimizer": optimizer_hash(agent.optimizer),
        "counters": [steps, agent._update_counter],
        "buffer": [len(memory), hash_of(*held)],
        "generators": generators_hash(),
        "environment": environment_hash(env),
        "normaliser": hash_of(*agent._observation_preprocessor.state_dict().values()),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    set_seed(1)
    gym = gymnasium.make("CartPole-v1")
    gym.reset(seed=1)
    gym.action_space.seed(1)
    env = wrap_env(gym, verbose=False)
    asked = []

    def epsilon(timestep, timesteps):
        if what == "second" and not asked:
            tell(schedule=1 - timestep / TOTAL)
        asked.append(timestep)
        return 1 - timestep / TOTAL

    memory = RandomMemory(memory_size=10_000, device="cpu")
    agent = DQN(
        models={"q_network": QNetwork(env), "target_q_network": QNetwork(env)},
        memory=memory,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg={
            "exploration_scheduler": epsilon,
            "learning_starts": 200,
            "update_interval": 4,
            "target_update_interval": 7,
            "observation_preprocessor": RunningStandardScaler,
            "observation_preprocessor_kwargs": {"size": env.observation_space, "device": "cpu"},
            "experiment": {"directory": str(folder), "write_interval": 0, "checkpoint_interval": 0},
        },
    )
    cfg = {"timesteps": TOTAL if what == "whole" else HALF, "headless": True, "disable_progressbar": True}
    trainer = SequentialTrainer(env=env, agents=agent, cfg=cfg)
    if what == "second":
        agent.load(str(folder / "agent.pt"))
        memory.load(str(next((folder / "memories").glob("*.pt"))))
        tell(**parts_of(agent, memory, gym, 0))
    trainer.train()
    if what == "first":
        agent.save(str(folder / "agent.pt"))
        memory.save(str(folder))
    steps = asked[-1] + 1
    tell(**parts_of(agent, memory, gym, steps), schedule=1 - steps / TOTAL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
