"""When a trainer evaluates: a period, seconds, or a list of env steps."""

import signal
from types import SimpleNamespace

import pytest

from palaestra.core import ConfigError
from palaestra.training import CheckpointStore, TrainerConfig
from tests.training.parts import Hooks, Recorder, evaluation_in, kept, timeless, trainer


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
    length = first.collector.env_steps // kept(first)["iterations"]
    again = made(400)
    again.load_state(CheckpointStore(tmp_path / "checkpoints").load_newest()[1])
    again.run()

    def reached(step):
        return -(-step // length) * length

    wanted = [0, *sorted({reached(step) for step in (30, 100, 110)}), reached(200), reached(310), reached(400)]
    assert steps == wanted
    assert len(steps) >= 6


@pytest.mark.parametrize(("session", "expected"), [(1000, "---E---E---E--E"), (2, "---E---EE---E--E")])
def test_seconds_between_evaluations_are_those_between_the_end_of_one_and_the_next(monkeypatch, session, expected):
    """Longer ones than the period came after every iteration; sessions shorter than it never had one.

    The second one is made twice where a signal breaks it off.
    """
    clock, calls, state = [0.0], [], {}
    monkeypatch.setattr("palaestra.training.console.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def passed(what, seconds):
        calls.append(what)
        clock[0] += seconds
        if what == "-" and calls.count("-") % session == 0:
            signal.raise_signal(signal.SIGTERM)

    hooks = Hooks(iteration_ended=lambda *_: passed("-", 1.0))
    for _ in range(20):
        made = trainer(
            "ppo",
            total=330,
            eval_every_s=3.0,
            evaluate=lambda policy: (passed("E", 10.0), evaluation_in()(policy))[1],
            callbacks=[hooks],
        )
        if state:
            made.load_state(state)
        if made.run().status == "done":
            break
        state = made.state()
    assert "".join(calls) == expected
    state = made.state()
    del state["trainer"]["seconds"]["evaluated"]  # as older versions saved it
    made.load_state(state)


def test_two_periods_of_evaluation_are_refused():
    """F27, MARO-47."""
    with pytest.raises(ConfigError, match=r"eval_every_s is 3 and trainer.eval_every_steps is 100; give one"):
        TrainerConfig(eval_every_s=3, eval_every_steps=100)
    with pytest.raises(ConfigError, match=r"eval_every_steps is 10 and trainer.eval_at_steps is \(5,\); give one"):
        TrainerConfig(eval_every_steps=10, eval_at_steps=(5,))
    with pytest.raises(ConfigError, match=r"eval_at_steps is \(5, 5\); give increasing numbers from 0 on"):
        TrainerConfig(eval_at_steps=(5, 5))


def test_a_row_of_metrics_has_the_evaluation_of_its_own_env_steps():
    """Where both are due at once the evaluation comes first, so that no curve lags behind by a row."""
    made, rows = dict[int, float](), Recorder()
    hooks = Hooks(evaluated=lambda _, result: made.update({result.env_steps: result.evaluation.return_mean}))
    periods = {"eval_every_steps": 100, "log_every_steps": 100}
    trainer("ppo", total=400, **periods, evaluate=evaluation_in(), loggers=[rows], callbacks=[hooks]).run()
    logged = {int(row["env_steps"]): row["eval/return_mean"] for row in rows.rows}
    assert logged == made
    assert len(made) == 4


def test_an_evaluation_that_a_signal_broke_off_is_in_the_row_of_its_env_steps_all_the_same(tmp_path):
    """F22, F25: the row waits for it and is written by the resumed run, as is what else was due then."""
    whole, cut, store = Recorder(), Recorder(), CheckpointStore(tmp_path)
    settings = {"total": 400, "eval_every_steps": 100, "log_every_steps": 100, "checkpoint_every_steps": 100}
    trainer("ppo", **settings, evaluate=evaluation_in(), loggers=[whole]).run()

    def struck(policy):
        signal.raise_signal(signal.SIGTERM)
        return evaluation_in()(policy)

    assert trainer("ppo", **settings, evaluate=struck, loggers=[cut], checkpoints=store).run().env_steps < 200
    assert not cut.rows
    again = trainer("ppo", **settings, evaluate=evaluation_in(), loggers=[cut], checkpoints=store)
    again.load_state(store.load_newest()[1])
    again.run()
    assert timeless(cut) == timeless(whole)
