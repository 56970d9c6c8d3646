"""DQN of Tianshou 2, as its documentation says: `python tianshou_dqn.py whole|first|second FOLDER`.

`save_checkpoint_fn` saves the algorithm's state and the buffer after the first epoch; `resume_from_log` continues.
"""

import pickle
import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils import TensorboardLogger
from tianshou.utils.net.common import Net
from torch.utils.tensorboard import SummaryWriter

HALF, TOTAL = 1_000, 2_000


def parts_of(algorithm, collector, trained):
    """What it has now.

    Args:
        algorithm: a DQN.
        collector: with its buffer and environments.
        trained: env steps and gradient steps.
    """
    tensors = [value for name, value in algorithm.state_dict().items() if isinstance(value, torch.Tensor)]
    buffer = collector.buffer
    return {
        "weights": hash_of(*tensors),
        "optimizer": optimizer_hash(algorithm._optimizers[0]._optim),
        "counters": trained,
        "buffer": [len(buffer), hash_of(buffer.obs, buffer.rew) if len(buffer) else ""],
        "generators": generators_hash(),
        "environment": environment_hash(collector.env.workers[0].env),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    np.random.seed(1)
    torch.manual_seed(1)
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    envs.seed(1)
    model = Net(state_shape=4, action_shape=2, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=model, action_space=gymnasium.spaces.Discrete(2), eps_training=0.1)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=100)
    buffer = VectorReplayBuffer(10_000, 1)
    trained = []
    if what == "second":
        algorithm.load_state_dict(torch.load(folder / "algorithm.pt", weights_only=False))
        buffer = pickle.loads((folder / "buffer.pkl").read_bytes())
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset(reset_buffer=False)

    def save(epoch, env_step, gradient_step):
        trained[:] = [env_step, gradient_step]
        if what == "first":
            torch.save(algorithm.state_dict(), folder / "algorithm.pt")
            (folder / "buffer.pkl").write_bytes(pickle.dumps(buffer))
        return str(folder)

    writer = SummaryWriter(str(folder / ("whole" if what == "whole" else "halves")))
    logger = TensorboardLogger(writer, save_interval=1)
    if what == "second":
        tell(**parts_of(algorithm, collector, list(logger.restore_data()[1:])))
    params = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=1 if what == "first" else 2,
        epoch_num_steps=HALF,
        collection_step_num_env_steps=10,
        update_step_num_gradient_steps_per_sample=0.1,
        save_checkpoint_fn=save,
        resume_from_log=what == "second",
        logger=logger,
        verbose=False,
        show_progress=False,
    )
    algorithm.create_trainer(params).run(reset_collectors=False)
    writer.close()
    tell(**parts_of(algorithm, collector, trained))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
