"""DQN of d3rlpy, as its documentation says: `python d3rlpy_dqn.py whole|first|second FOLDER`.

`save` has networks and optimizer, `ReplayBuffer.dump` the episodes; `set_grad_step` gets the count, which no file has.
"""

import json
import sys
from pathlib import Path

import d3rlpy
import gymnasium
import torch
from parts import environment_hash, generators_hash, hash_of, optimizer_hash, tell

HALF, TOTAL = 1_000, 2_000


class Explorer(d3rlpy.algos.LinearDecayEpsilonGreedy):
    """Epsilon that falls over the run, and a note of the step that it is asked for."""

    asked: list[int]

    def sample(self, algo, x, step):
        """Actions.

        Args:
            algo: a DQN.
            x: observations.
            step: of this call of `fit_online`.
        """
        if not self.asked:
            tell(schedule=self.compute_epsilon(step))
        self.asked.append(step)
        return super().sample(algo, x, step)


def parts_of(algo, buffer, env, step):
    """What it has now.

    Args:
        algo: a DQN.
        buffer: of it.
        env: of it.
        step: how many env steps it counts.
    """
    modules = algo.impl.modules
    tensors = [*modules.q_funcs.state_dict().values(), *modules.targ_q_funcs.state_dict().values()]
    episodes = [array for episode in buffer.episodes for array in (episode.observations, episode.rewards)]
    return {
        "weights": hash_of(*tensors),
        "optimizer": optimizer_hash(modules.optim.optim),
        "counters": [step, algo.grad_step],
        "buffer": [buffer.transition_count, hash_of(*episodes)],
        "generators": generators_hash(),
        "environment": environment_hash(env),
    }


def main(what, folder):
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: for what is saved.
    """
    torch.set_num_threads(1)
    d3rlpy.seed(1)
    env = gymnasium.make("CartPole-v1")
    d3rlpy.envs.seed_env(env, 1)
    explorer = Explorer(start_epsilon=1.0, end_epsilon=0.05, duration=TOTAL)
    explorer.asked = [] if what == "second" else [0]
    if what == "second":
        algo = d3rlpy.load_learnable(str(folder / "model.d3"))
        algo.set_grad_step(json.loads((folder / "grad_step.json").read_text()))
        with (folder / "buffer.h5").open("rb") as file:
            buffer = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.FIFOBuffer(10_000))
        tell(**parts_of(algo, buffer, env, 0))
    else:
        algo = d3rlpy.algos.DQNConfig(batch_size=32, target_update_interval=25).create()
        buffer = d3rlpy.dataset.create_fifo_replay_buffer(10_000, env=env)
        algo.build_with_env(env)
    algo.fit_online(
        env,
        buffer,
        explorer,
        n_steps=TOTAL if what == "whole" else HALF,
        n_steps_per_epoch=HALF,
        update_interval=4,
        update_start_step=200,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    steps = explorer.asked[-1]
    if what == "first":
        algo.save(str(folder / "model.d3"))
        (folder / "grad_step.json").write_text(json.dumps(algo.grad_step))
        with (folder / "buffer.h5").open("w+b") as file:
            buffer.dump(file)
    tell(**parts_of(algo, buffer, env, steps), schedule=explorer.compute_epsilon(steps + 1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
