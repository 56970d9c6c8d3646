"""DQN of Palaestra: `python ours.py whole|first|second FOLDER`."""

import sys
from pathlib import Path

import palaestra
from benchmarks.resume.parts import hash_of, tell
from palaestra.training import Callback

HALF, TOTAL = 1_000, 2_000
SETTINGS = {
    "trainer__total_env_steps": TOTAL,
    "env__num_envs": 1,
    "algorithm__learning_starts": 200,
    "algorithm__epsilon": 0.1,
    "run__seed": 1,
    "run__num_threads": 1,
}


class StopAtHalf(Callback):
    """Ends the run in its middle, wherever its episode is."""

    def iteration_ended(self, trainer, updates):
        """Asks for the end.

        Args:
            trainer: of the run.
            updates: not looked at.
        """
        if trainer.progress >= HALF / TOTAL:
            trainer.stop("half of it")


def main(what: str, folder: Path) -> None:
    """Runs one of the three.

    Args:
        what: the whole run, its first half, or the rest.
        folder: of the runs.
    """
    if what == "second":
        done = palaestra.resume(str(folder / "halves"))
    else:
        name, callbacks = ("whole", []) if what == "whole" else ("halves", [StopAtHalf()])
        where = {"run__directory": str(folder), "run__name": name}
        done = palaestra.train("dqn", "CartPole-v1", callbacks=callbacks, **SETTINGS, **where)
    tell(env_steps=done.result.env_steps, weights=hash_of(*done.policy.state_dict().values()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
