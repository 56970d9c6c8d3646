"""Tests of `palaestra.training.async_evaluation`; processes that evaluate are in tests/cli/test_asynchronous.py."""

import functools
import itertools
import math
import multiprocessing
import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from palaestra.distributed.evaluation import EvaluationWorker
from palaestra.policies import Phase, Policy
from palaestra.rollout import Evaluation, NoEpisodeError
from palaestra.runs.build import TrainingEvaluation
from palaestra.runtime import LocalRuntime, ProcessRuntime, RestartPolicy
from palaestra.training import CheckpointStore
from palaestra.training.async_evaluation import Evaluator, Work
from tests.algorithms.parts import environment, make
from tests.experiments.parts import config_of
from tests.training.parts import Hooks, evaluation_in, trainer

RESULT = Evaluation(1.0, 0.0, (1.0, 1.0), 10.0, 1, [0], deterministic=False, returns=[1.0])


class Elsewhere:
    """An evaluation that is over after some questions whether it is."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self, policy: Policy) -> Evaluation:
        raise AssertionError("not here")

    def submit(self, work: Work) -> "Elsewhere":
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


def test_evaluations_that_take_longer_than_the_time_between_them_do_not_gather(policy, caplog):
    """Each was a copy of the policy, in memory and in every checkpoint."""
    under_way: list[int] = []

    class Slow(Elsewhere):
        def submit(self, work: Work) -> "Slow":
            return Slow(30)

    evaluator = Evaluator(Slow(0), asynchronous=True)
    found = []
    for env_steps in range(40):
        found += evaluator.make(env_steps, policy) or []
        under_way.append(len(evaluator.state()))
    assert max(under_way) == 8
    found += evaluator.made(wait=True) or []
    assert [one[0] for one in found] == [*range(40)]
    assert caplog.text.count("training waits for the first of 8 evaluations") == 1


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

    def submit(self, work: Work) -> "Elsewhere":
        if self.left:
            return super().submit(work)
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


def test_a_run_says_how_long_another_process_may_take(tmp_path):
    config = config_of(tmp_path, trainer__eval_time_limit_s=5.0, distributed__timeout_s=2.0)
    evaluate: Any = _never
    assert TrainingEvaluation(evaluate, config).timeout_s == 7.0
    for path, value in (("trainer__eval_time_limit_s", None), ("agents__self_play__pool_size", 1)):
        assert TrainingEvaluation(evaluate, config_of(tmp_path, **{path: value})).timeout_s == math.inf


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


class Pool:
    """In place of the other process, whose first evaluation hangs."""

    made: ClassVar[list["Pool"]] = []
    _processes = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.made.append(self)

    def submit(self, *arguments: Any) -> Future[Evaluation]:
        future = Future[Evaluation]()
        if len(self.made) > 1:
            future.set_result(RESULT)
        return future

    def shutdown(self, **options: Any) -> None:
        """It is ended."""


def test_a_process_of_its_own_that_hangs_costs_one_evaluation_and_not_the_end_of_training(policy, monkeypatch, caplog):
    monkeypatch.setattr("palaestra.training.async_evaluation.ProcessPoolExecutor", Pool)
    evaluate: Any = evaluation_in()
    evaluate.timeout_s = 0.0
    evaluator = Evaluator(evaluate, asynchronous=True)
    evaluator.load_state([{"env_steps": at, "policy": policy.state_dict()} for at in (10, 20)], policy)
    assert [env_steps for env_steps, _, _ in evaluator.made(wait=True)] == [20]
    assert "no evaluation at 10 env steps: the process that evaluates did not answer within 0 s" in caplog.text
    assert len(Pool.made) == 2


def _of_version(policy: Policy) -> Evaluation:
    """Hangs with the first; the return says whether tiny numbers are 0."""
    if policy.version == 1:
        threading.Event().wait()
    return replace(RESULT, return_mean=(torch.full((64,), 1e-30) * 1e-10).count_nonzero().item())


@pytest.mark.fault
def test_the_other_process_is_ended_where_it_hangs_and_computes_as_training_does(policy):
    evaluate: Any = functools.partial(_of_version)
    evaluator, before = Evaluator(evaluate, asynchronous=True), set(multiprocessing.active_children())
    ((_, evaluation, _),) = evaluator.make(0, policy, wait=True)
    assert evaluation.return_mean == 0, "denormal numbers count as 0"
    (process,) = set(multiprocessing.active_children()) - before
    evaluate.timeout_s, policy.version = 0.5, 1
    assert evaluator.make(10, policy, wait=True) == []
    process.join(timeout=30)
    assert process.exitcode is not None
    evaluate.timeout_s, policy.version = math.inf, 2
    assert [env_steps for env_steps, _, _ in evaluator.make(20, policy, wait=True)] == [20]
    evaluator.close()


def test_an_evaluation_that_nobody_asked_for_in_time_is_not_late(policy, monkeypatch):
    """While a learner computes nobody listens."""
    with LocalRuntime() as runtime:
        evaluate = evaluation_in()
        pending = EvaluationWorker(runtime, evaluate, timeout_s=50.0).submit(Work(evaluate, policy))
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 60.0)
        assert pending.result().episodes


class Opponents:
    """Whom an evaluation plays against, as they are when it is sent."""

    def __init__(self) -> None:
        self.now = 0.0

    def __reduce__(self) -> Any:
        return float, (self.now,)


def _against(opponents: Any, policy: Policy) -> Evaluation:
    return replace(RESULT, return_mean=float(getattr(opponents, "now", opponents)))


@pytest.mark.parametrize("dies", [False, True])
def test_an_evaluation_plays_against_those_who_were_there_when_it_began(dies, policy):
    """However late it is made: also again, where the process that should make it died."""
    opponents = Opponents()
    evaluate = functools.partial(_against, opponents)
    with LocalRuntime() as runtime:
        worker: Any = Broken(1, evaluate) if dies else EvaluationWorker(runtime, evaluate)
        evaluator = Evaluator(worker, asynchronous=True)
        opponents.now = 1.0
        evaluator.make(10, policy)
        opponents.now = 2.0
        ((_, evaluation, _),) = evaluator.made(wait=True) or ()
    assert evaluation.return_mean == 1.0


class Broken(Elsewhere):
    """Another process dies before it answers."""

    def __init__(self, questions: int, sent: Any) -> None:
        super().__init__(questions)
        self.sent = sent

    def result(self) -> Evaluation:
        raise BrokenProcessPool("it was killed")
