"""Tests of `palaestra.training.trainer`: signals, and what a resumed run then does."""

import itertools
import os
import signal
import threading
import time

import pytest
import torch

from palaestra.policies import Phase
from palaestra.rollout import evaluate
from palaestra.runtime import signals as runtime_signals
from palaestra.training import CheckpointStore, StoppedError, StopSignals
from palaestra.training.async_evaluation import Evaluator
from tests.algorithms.parts import environment
from tests.training.parts import Hooks, Recorder, evaluation_in, timeless, trainer


def test_where_a_parent_passes_signals_on_a_second_one_is_no_second_wish():
    """F22."""
    with StopSignals(second_ends=False), StopSignals(grace_s=30.0) as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143
    with StopSignals():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError, match="second signal"):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_that_timeout_sends_to_its_child_and_to_its_group_is_one_wish(monkeypatch):
    """F22: also where another part of the run hears the second one; half a second later it is a second wish."""
    now_s = time.monotonic()
    monkeypatch.setattr(runtime_signals.time, "monotonic", lambda: now_s)
    with StopSignals() as outer:
        signal.raise_signal(signal.SIGTERM)
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert outer.exit_code == stop.exit_code == 143
            now_s += 0.6
            with pytest.raises(StoppedError, match="second signal"):
                signal.raise_signal(signal.SIGTERM)
    with StopSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StoppedError, match="second signal"):  # by hand it may be quick
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("hears_hangups")
def test_a_terminal_that_closes_says_so_several_times_and_nobody_has_wished_twice():
    """F22: its shell sends SIGHUP again, and a system then SIGTERM; under `nohup` SIGHUP stays ignored."""
    with StopSignals() as stop:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        assert stop.exit_code == 143
        with pytest.raises(StoppedError, match="second signal"):
            signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_in_the_middle_of_a_long_unroll_saves_there_and_the_run_goes_on_exactly(tmp_path, number, code):
    """F22, F25: not even the unroll is waited for, and what is resumed equals what ran through."""
    whole = trainer("ppo", total=600, unroll_length=50)
    whole.run()
    made = trainer("ppo", total=600, unroll_length=50, checkpoints=CheckpointStore(tmp_path))
    step, count = made.collector.env.step, itertools.count(1)
    made.collector.env.step = lambda action: (
        signal.raise_signal(number) if next(count) == 70 else None,
        step(action),
    )[1]
    result = made.run()
    assert (result.status, result.exit_code) == ("interrupted", code)
    assert made.collector.unfinished
    assert 200 * 0.8 < result.env_steps < 220
    again = trainer("ppo", total=600, unroll_length=50)
    again.load_state(CheckpointStore(tmp_path).load_newest()[1])
    again.run()
    assert again.collector.env_steps == whole.collector.env_steps
    for name, value in whole.algorithm.model.state_dict().items():
        assert torch.equal(value, again.algorithm.model.state_dict()[name])


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_fork_of_an_environment_ends_by_what_it_is_sent(number):
    """F22: a program that it started and ends, say, which would otherwise live on."""
    with StopSignals(), StopSignals() as stop:
        if not (fork := os.fork()):
            signal.raise_signal(number)
            os._exit(0)
        assert os.waitpid(fork, 0)[1] == number
    assert stop.received is None


def test_a_signal_while_an_iteration_begins_saves_before_its_unroll(tmp_path):
    """F22: the unroll, which may be longer than `grace_s`, would know nothing of it; a trainer may run again."""
    store, begun = CheckpointStore(tmp_path), []

    def began(made):
        begun.append(made.collector.env_steps)
        if len(begun) == 3:
            signal.raise_signal(signal.SIGTERM)

    made = trainer("ppo", total=600, unroll_length=50, checkpoints=store, callbacks=[Hooks(iteration_began=began)])
    result = made.run()
    assert (result.status, result.exit_code) == ("interrupted", 143)
    assert store.load_newest()[0] == result.env_steps == begun[2]
    made.train_iter()  # by hand, outside of a run
    assert made.collector.env_steps > result.env_steps
    assert made.run().status == "done"


def test_a_signal_in_the_last_unroll_leaves_its_rest_to_the_resumed_run(tmp_path):
    """F22, F25: the budget may be used up in the middle of an unroll, which is learned from all the same."""
    whole = trainer("ppo", total=170, unroll_length=50)
    whole.run()
    made = trainer("ppo", total=170, unroll_length=50, checkpoints=CheckpointStore(tmp_path))
    step, count = made.collector.env.step, itertools.count(1)
    made.collector.env.step = lambda action: (
        signal.raise_signal(signal.SIGINT) if next(count) == 95 else None,
        step(action),
    )[1]
    result = made.run()
    assert made.collector.unfinished
    assert result.env_steps > 170
    again = trainer("ppo", total=170, unroll_length=50)
    again.load_state(CheckpointStore(tmp_path).load_newest()[1])
    assert again.run().status == "done"
    assert again.collector.env_steps == whole.collector.env_steps
    for name, value in whole.algorithm.model.state_dict().items():
        assert torch.equal(value, again.algorithm.model.state_dict()[name])


def test_a_signal_after_the_last_unroll_leaves_the_end_to_the_resumed_run(tmp_path):
    """F22, F25: its checkpoint is of the same env step, and is written anew when the end is made."""
    store = CheckpointStore(tmp_path)
    last = Hooks(iteration_ended=lambda made, _: signal.raise_signal(signal.SIGINT) if made.progress == 1 else None)
    made = trainer("ppo", total=170, unroll_length=50, checkpoints=store, callbacks=[last])
    assert made.run().status == "interrupted"
    assert not made.collector.unfinished
    assert not store.load_newest()[1]["trainer"]["finished"]
    again = trainer("ppo", total=170, unroll_length=50, checkpoints=store)
    again.load_state(store.load_newest()[1])
    assert again.run().status == "done"
    assert store.load_newest()[1]["trainer"]["finished"]


@pytest.mark.parametrize("moment", ["evaluation_began", "ended"])
def test_a_run_that_ends_early_and_is_interrupted_meanwhile_ends_when_it_resumes(tmp_path, moment):
    """F22: for the same reason and at the same env step; resumed once more it goes on."""
    store, rows = CheckpointStore(tmp_path), Recorder()

    def made(*more, **hooks):
        enough = Hooks(iteration_ended=lambda t, _: t.stop("enough") if t.collector.env_steps == at else None)
        settings = {"total": 120, "unroll_length": 10, "eval_every_steps": 0, "evaluate": evaluation_in()}
        return trainer("ppo", **settings, checkpoints=store, callbacks=[enough, Hooks(**hooks)], loggers=more)

    at = 51  # the end of the second iteration
    interrupted = made(**{moment: lambda _: signal.raise_signal(signal.SIGINT)}).run()
    assert (interrupted.status, interrupted.reason, interrupted.env_steps) == ("interrupted", "", at)
    resumed = made(rows)
    resumed.load_state(store.load_newest()[1])
    result = resumed.run()
    assert (result.status, result.reason, result.env_steps) == ("stopped", "enough", at)
    assert len(rows.rows) == (moment == "evaluation_began")  # else the end is in the log
    again = made()
    again.load_state(store.load_newest()[1])
    assert (again.run().status, again.collector.env_steps) == ("done", 126)


def test_a_step_that_outlasts_the_grace_is_stopped_with_the_last_checkpoint_intact(tmp_path):
    """F22: SIGTERM within grace_s, also where a step hangs."""
    store = CheckpointStore(tmp_path)
    made = trainer("ppo", total=10_000, grace_s=0.05, checkpoint_every_steps=100, checkpoints=store)
    step, gate, count = made.collector.env.step, threading.Event(), itertools.count(1)

    def hanging(action):
        if next(count) == 80:
            signal.raise_signal(signal.SIGTERM)
            gate.wait(30)
        return step(action)

    made.collector.env.step = hanging
    with pytest.raises(StoppedError, match=r"at once, 0.05 s after the signal") as caught:
        made.run()
    assert caught.value.exit_code == 143
    assert store.load_newest()[0] in range(100, 250)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


class Endless:
    """An evaluation that would take for ever; the process is asked to end in each of its steps."""

    steps = 0

    def __call__(self, policy):
        with environment("discrete", 2, seed=77) as env:
            step = env.step

            def stepped(action):
                signal.raise_signal(signal.SIGTERM)
                time_step = step(action)  # what steps environments is not struck by an exception
                self.steps += 1
                return time_step

            env.step = stepped
            return evaluate(policy, env, episodes=10**9)


EVALUATED = {"eval_every_steps": 240, "checkpoint_every_steps": 0}


def test_a_signal_in_an_evaluation_breaks_it_off(tmp_path):
    """F22: however long it would have taken; the policy is as it was before."""
    evaluation = Endless()
    made = trainer("ppo", total=600, **EVALUATED, evaluate=evaluation, checkpoints=CheckpointStore(tmp_path))
    generator = made.algorithm.policy.generator
    result = made.run()
    assert (result.status, result.exit_code, evaluation.steps) == ("interrupted", 143, 1)
    assert made.algorithm.policy.generator is generator
    assert made.algorithm.policy.phase is Phase.COLLECT


@pytest.mark.parametrize("total", [600, 250], ids=["on the way", "at the end"])
def test_a_run_whose_evaluation_was_broken_off_goes_on_with_it(tmp_path, total):
    """F22, F25: results, rows and the last checkpoint are those of a run that nobody interrupted."""
    rows, returns, ends = {}, {}, {}
    for name, first in (("whole", None), ("cut", Endless())):
        store, rows[name], returns[name] = CheckpointStore(tmp_path / name), Recorder(), []
        parts = {"loggers": [rows[name]], "checkpoints": store, **EVALUATED}
        seen = Hooks(evaluated=lambda t, done, to=returns[name]: to.append((done.env_steps, done.evaluation.returns)))
        made = trainer("ppo", total=total, evaluate=evaluation_in(), callbacks=[seen], **parts)
        if first is not None:
            assert trainer("ppo", total=total, evaluate=first, **parts).run().status == "interrupted"
            made.load_state(store.load_newest()[1])
        assert made.run().status == "done"
        ends[name] = store.load_newest()[1]["trainer"]
    assert returns["cut"] == returns["whole"]
    assert timeless(rows["cut"]) == timeless(rows["whole"])
    for name in ("evaluation", "finished", "evaluation_broken_off", "position"):  # the checkpoint was written anew
        assert ends["cut"][name] == ends["whole"][name]
    assert not list((tmp_path / "cut").glob(".tmp-*"))


def test_sigterm_after_ctrl_c_stops_at_once_with_143(tmp_path):
    """F22."""

    class Impatient(Recorder):
        def metrics(self, row):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    made = trainer("ppo", total=10_000, log_every_steps=100, loggers=[Impatient()])
    with pytest.raises(StoppedError) as caught:
        made.run()
    assert caught.value.exit_code == 143


def test_a_second_signal_while_loggers_close_leaves_nothing_open(monkeypatch):
    """F22: neither workers nor the process that evaluates."""
    closed = list[str]()

    class Stopped(Recorder):
        def close(self) -> None:
            raise StoppedError("at once, by a second signal", 130)

    monkeypatch.setattr(Evaluator, "close", lambda self: closed.append("evaluator"))
    made = trainer("ppo", total=30, loggers=[Stopped()], evaluate=evaluation_in())
    monkeypatch.setattr(made.learner, "close", lambda: closed.append("learner"))
    with pytest.raises(StoppedError):
        made.run()
    assert closed == ["learner", "evaluator"]


def test_what_was_learned_without_new_env_steps_is_saved(tmp_path):
    """F22: with a fractional `unroll_length` most iterations take none."""
    store = CheckpointStore(tmp_path)
    made = trainer("dqn", unroll_length=0.25, checkpoints=store)
    while made.collector.env_steps < 30:
        made.train_iter()
    made.save()
    made.train_iter()
    made.save()
    step, state = store.load_newest()
    assert (step, state["trainer"]["iterations"]) == (30, made.state()["trainer"]["iterations"])
