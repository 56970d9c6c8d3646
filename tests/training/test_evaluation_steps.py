"""When a trainer evaluates: a period, seconds, or a list of env steps."""

import pytest

from palaestra.core import ConfigError
from palaestra.training import CheckpointStore, TrainerConfig
from tests.training.parts import Hooks, evaluation_in, trainer


def test_evaluations_may_come_at_a_list_of_steps(tmp_path):
    """MARO-47: each once: before training, as soon as its env steps are reached, at the end; also of a resumed run."""
    steps: list[int] = []

    def made(until):
        one = trainer(
            "ppo",
            total=400,
            callbacks=[
                Hooks(iteration_ended=lambda t, updates: t.collector.env_steps >= until and t.stop("see you later"))
            ],
            eval_at_steps=(0, 30, 100, 110, 310),
            evaluate=lambda policy: (steps.append(one.collector.env_steps), evaluation_in()(policy))[1],
            checkpoints=CheckpointStore(tmp_path / "checkpoints"),
        )
        return one

    first = made(200)
    first.run()
    length = first.collector.env_steps // first._iterations
    again = made(400)
    again.load_state(CheckpointStore(tmp_path / "checkpoints").load_newest()[1])
    again.run()

    def reached(step):
        return -(-step // length) * length

    wanted = [0, *sorted({reached(step) for step in (30, 100, 110)}), reached(200), reached(310), reached(400)]
    assert steps == wanted
    assert len(steps) >= 6


def test_two_periods_of_evaluation_are_refused():
    """F27, MARO-47."""
    with pytest.raises(ConfigError, match=r"eval_every_s is 3 and trainer.eval_every_steps is 100; give one"):
        TrainerConfig(eval_every_s=3, eval_every_steps=100)
    with pytest.raises(ConfigError, match=r"eval_every_steps is 10 and trainer.eval_at_steps is \(5,\); give one"):
        TrainerConfig(eval_every_steps=10, eval_at_steps=(5,))
    with pytest.raises(ConfigError, match=r"eval_at_steps is \(5, 5\); give increasing numbers from 0 on"):
        TrainerConfig(eval_at_steps=(5, 5))
