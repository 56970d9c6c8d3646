"""DQN of TorchRL, as its documentation says: `python torchrl_dqn.py whole|first|second FOLDER`.

Its trainer saves all its components to a `Checkpoint`, beside them `GlobalRNGState`; `load_from_file` continues.
"""

import sys
from pathlib import Path

import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell
from tensordict.nn import TensorDictSequential
from torchrl.checkpoint import Checkpoint, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv, VecNormV2
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate
from torchrl.trainers.algorithms import DQNTrainer

HALF, TOTAL = 1_000, 2_000


def parts_of(trainer):
    """What it has now.

    Args:
        trainer: of DQN.
    """
    env = trainer.collector.env
    stored = trainer.replay_buffer[:] if len(trainer.replay_buffer) else {}
    held = [stored["observation"], stored["next", "reward"]] if len(stored) else []
    normaliser = env.transform[0].state_dict()["_extra_state"]
    return {
        "weights": hash_of(*(value for value in trainer.loss_module.state_dict().values() if value is not None)),
        "optimizer": optimizer_hash(trainer.optimizer),
        "counters": [trainer.collected_frames, trainer._optim_count, trainer.collector._frames],
        "buffer": [len(trainer.replay_buffer), hash_of(*held)],
        "generators": generators_hash(),
        "environment": environment_hash(env.base_env._env),
        "normaliser": hash_of(*(normaliser[name] for name in sorted(normaliser))),
        "schedule": float(trainer.greedy_module.eps),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(VecNormV2(in_keys=["observation"]), RewardSum(), StepCounter()))
    env.set_seed(1)
    spec = env.action_spec
    value = QValueActor(MLP(in_features=4, out_features=2, num_cells=[64]), spec=spec, in_keys=["observation"])
    greedy = EGreedyModule(spec=spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=TOTAL)
    collector = Collector(
        env, TensorDictSequential(value, greedy), frames_per_batch=10, total_frames=TOTAL, init_random_frames=200
    )
    loss = DQNLoss(value, delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    trainer = DQNTrainer(
        collector=collector,
        total_frames=HALF if what == "first" else TOTAL,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        replay_buffer=TensorDictReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=32),
        target_net_updater=HardUpdate(loss, value_network_update_interval=25),
        greedy_module=greedy,
        checkpoint=Checkpoint(rng=GlobalRNGState()),
        save_trainer_file=folder / f"{what}.checkpoint",
        save_trainer_interval=TOTAL,
        progress_bar=False,
        enable_logging=False,
    )
    if what == "second":
        trainer.load_from_file(folder / "first.checkpoint")
        tell(**parts_of(trainer))
    trainer.collector.shutdown, shutdown = lambda *_, **__: None, trainer.collector.shutdown
    trainer.train()
    tell(**parts_of(trainer))
    shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
