"""Tests of `palaestra.training.async_evaluation`; processes that evaluate are in tests/cli/test_asynchronous.py."""

import functools
import itertools
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from palaestra.distributed.evaluation import EvaluationWorker
from palaestra.policies import Phase, Policy
from palaestra.rollout import Evaluation, NoEpisodeError
from palaestra.runtime import LocalRuntime, ProcessRuntime, RestartPolicy
from palaestra.training import CheckpointStore
from palaestra.training.async_evaluation import Evaluator
from tests.algorithms.parts import environment, make
from tests.training.parts import Hooks, evaluation_in, trainer

RESULT = Evaluation(1.0, 0.0, (1.0, 1.0), 10.0, 1, [0], deterministic=False, returns=[1.0])


class Elsewhere:
    """An evaluation that is over after some questions whether it is."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self, policy: Policy) -> Evaluation:
        raise AssertionError("not here")

    def submit(self, policy: Policy) -> "Elsewhere":
        return self

    def done(self) -> bool:
        self.left -= 1
        return self.left < 0

    def result(self) -> Evaluation:
        return RESULT


@pytest.fixture
def policy():
    with environment("discrete", 1, 0) as env:
        return make("ppo", env, 0).policy


def test_training_does_not_wait_for_an_evaluation_elsewhere(policy):
    """What is over is handed out later, in order; waiting is asked for."""
    elsewhere = Elsewhere(questions=3)
    evaluator = Evaluator(elsewhere, asynchronous=True)
    assert evaluator.make(10, policy) == []
    assert evaluator.made() == []
    assert elsewhere.left == 1
    ((env_steps, result, evaluated),) = evaluator.made(wait=True)
    assert (env_steps, result) == (10, RESULT)
    assert evaluated is not policy
    assert policy.phase is not Phase.EVAL


class Gone(Elsewhere):
    """A process that is no longer there when it is asked again."""

    def __call__(self, policy: Policy) -> Evaluation:
        return RESULT

    def submit(self, policy: Policy) -> "Elsewhere":
        if self.left:
            return super().submit(policy)
        raise BrokenProcessPool("it was killed")


def test_where_the_process_has_died_meanwhile_evaluations_go_on_here(policy, caplog):
    """F3: also what waited there; in their order."""
    gone = Gone(questions=3)
    evaluator = Evaluator(gone, asynchronous=True)
    assert evaluator.make(10, policy) == []
    gone.left = 0
    assert [env_steps for env_steps, _, _ in evaluator.make(20, policy) or ()] == [10, 20]
    assert "the main process does it from now on" in caplog.text
    assert [env_steps for env_steps, _, _ in evaluator.make(30, policy) or ()] == [30]


def test_several_that_wait_to_begin_are_made_here_in_their_order_once_each(policy):
    """F3, F25: a resumed run asks a process that does not come back."""
    gone = Gone(questions=1)
    evaluator = Evaluator(gone, asynchronous=True)
    gone.left = 0
    evaluator.load_state([{"env_steps": at, "policy": policy.state_dict()} for at in (10, 20, 30)], policy)
    assert [env_steps for env_steps, _, _ in evaluator.made() or ()] == [10, 20, 30]
    assert evaluator.state() == []


def test_episodes_that_never_end_cost_an_evaluation_elsewhere_and_not_the_run(policy, caplog):
    """As they do here; the worker that evaluates has not failed."""
    with LocalRuntime() as runtime:
        evaluator = Evaluator(EvaluationWorker(runtime, _never), asynchronous=True)
        assert evaluator.make(10, policy) is not None
        assert evaluator.made(wait=True) == []
    assert "there is no evaluation at 10 env steps: none has ended" in caplog.text


def _never(policy: Policy) -> Evaluation:
    raise NoEpisodeError("none has ended")


def test_a_signal_just_before_an_evaluation_breaks_it_off(policy):
    """F22: until the run is over; a trainer that runs again evaluates again."""
    evaluator = Evaluator(evaluation_in())
    evaluator.break_off()
    assert evaluator.make(10, policy) is None
    evaluator.close()
    assert len(evaluator.make(10, policy) or ()) == 1


def test_the_process_that_evaluates_ends_with_the_run(monkeypatch):
    closed = []
    monkeypatch.setattr(Evaluator, "close", lambda self: closed.append(self))
    trainer("ppo", total=10, evaluate=evaluation_in()).run()
    assert len(closed) == 1


def test_only_the_last_evaluation_of_a_run_is_waited_for(monkeypatch):
    waited: list[bool] = []
    make_one = Evaluator.make

    def noted(self: Evaluator, *arguments: Any, wait: bool) -> Any:
        waited.append(wait)
        return make_one(self, *arguments, wait=wait)

    monkeypatch.setattr(Evaluator, "make", noted)
    trainer("ppo", total=120, eval_every_steps=40, evaluate=evaluation_in()).run()
    assert len(waited) > 2
    assert waited == [False] * (len(waited) - 1) + [True]


def test_an_evaluation_under_way_at_a_signal_is_made_by_the_resumed_run(tmp_path):
    """F22: it waits in another process, which ends with the run."""
    evaluate = Elsewhere(questions=10**9)
    store = CheckpointStore(tmp_path)
    made = trainer("ppo", total=400, eval_every_steps=40, eval_async=True, evaluate=evaluate, checkpoints=store)
    step, count = made.collector.env.step, itertools.count(1)
    made.collector.env.step = lambda action: (
        signal.raise_signal(signal.SIGINT) if next(count) == 70 else None,
        step(action),
    )[1]
    assert made.run().status == "interrupted"
    alone = trainer("ppo", total=400)
    alone.load_state(CheckpointStore(tmp_path).load_newest()[1])  # it evaluates no more
    assert alone.run().evaluation is None

    def evaluated(load: bool) -> list[tuple[int, float]]:
        found = list[tuple[int, float]]()
        run = trainer("ppo", total=400, eval_every_steps=40, evaluate=evaluation_in())
        run.callbacks.append(Hooks(evaluated=lambda _, one: found.append((one.env_steps, one.evaluation.return_mean))))
        if load:
            run.load_state(CheckpointStore(tmp_path).load_newest()[1])
        run.run()
        return found

    assert evaluated(load=True) == evaluated(load=False)


def _hangs(folder: Path, policy: Policy) -> Evaluation:
    """The first time."""
    if not (folder / "hung").exists():
        (folder / "hung").touch()
        threading.Event().wait()
    return RESULT


@pytest.mark.fault
@pytest.mark.parametrize("max_restarts", [0, 3])
def test_an_evaluation_that_hangs_elsewhere_is_left_out(max_restarts, tmp_path, policy, caplog):
    """F4: it would hang here as well; the next one is made by a new worker, or here where there may be none."""
    with ProcessRuntime(RestartPolicy(max_restarts=max_restarts, backoff_s=0.01)) as runtime:
        evaluate = functools.partial(_hangs, tmp_path)
        evaluator = Evaluator(EvaluationWorker(runtime, evaluate, timeout_s=2.0), asynchronous=True)
        assert evaluator.make(10, policy) == []
        assert evaluator.made(wait=True) == []
        assert "no evaluation at 10 env steps: the worker that evaluates did not answer within 2 s" in caplog.text
        assert [env_steps for env_steps, _, _ in evaluator.make(20, policy, wait=True) or ()] == [20]
        assert runtime.restarted == min(max_restarts, 1)


def test_an_evaluation_that_nobody_asked_for_in_time_is_not_late(policy):
    """While a learner computes nobody listens."""
    with LocalRuntime() as runtime:
        evaluate = evaluation_in()
        pending = EvaluationWorker(runtime, evaluate, timeout_s=50.0).submit(policy)
        pending._asked_s -= 60.0
        assert pending.result().episodes
