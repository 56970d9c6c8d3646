"""`EvaluationWorker`: evaluations by a worker that training does not wait for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from palaestra.core import PalaestraError
from palaestra.rollout import Evaluation, NoEpisodeError
from palaestra.runtime import Call, Runtime, WorkerDiedError
from palaestra.training.async_evaluation import Patience, Work

__all__ = ["EvaluationWorker"]

_SLICE_S = 1.0


class EvaluationWorker:
    """For `Trainer(evaluate=...)` with `eval_async`: what evaluates, and a worker that does it elsewhere.

    Evaluations are made one after another. A worker that ends is replaced and begins its evaluation again, which gives
    the same result. One that does not answer in time is replaced as well, and of that evaluation nothing comes.

    Args:
        runtime: where the worker lives; it is started with the first evaluation.
        evaluate: a function of a module or a `functools.partial` of one: evaluates the policy that it is given.
        timeout_s: how long an answer may take; only time in which somebody asks for it counts.
    """

    def __init__(self, runtime: Runtime, evaluate: Callable[[Any], Evaluation], *, timeout_s: float = math.inf) -> None:
        self._runtime, self._worker, self._timeout_s = runtime, "", timeout_s
        self.sent = evaluate
        """What a `Work` for the worker is made of."""

    def __call__(self, policy: Any) -> Evaluation:
        """Evaluates in this process.

        Args:
            policy: to evaluate; all of them by name where there are several.
        """
        return self.sent(policy)

    def close(self) -> None:
        """Closes what evaluating in this process has kept."""
        if (close := getattr(self.sent, "close", None)) is not None:
            close()

    def submit(self, work: Work) -> _Pending:
        """Evaluates elsewhere.

        Args:
            work: the evaluation.

        Returns:
            Says by `done()` whether it is over, and by `result()` what came of it.
        """
        if not self._worker:
            beside = {"CPU": 0.0}  # else on a cluster whose CPUs the other workers have it would wait for ever
            self._worker = self._runtime.start(_Evaluator, name="evaluation", resources=beside)
        return _Pending(self._runtime, self._worker, work, self._timeout_s)


class _Evaluator:
    """Worker that evaluates."""

    def evaluate(self, work: Work) -> Evaluation | NoEpisodeError:
        try:
            return work()
        except NoEpisodeError as error:  # an answer, and no fault of the worker
            return error


class _Pending:
    """An evaluation on its way."""

    def __init__(self, runtime: Runtime, worker: str, work: Work, timeout_s: float) -> None:
        self._runtime, self._worker, self._work, self._patience = runtime, worker, work, Patience(timeout_s)
        self._call: Call | None = runtime.call(worker, "evaluate", work)
        self._value: Evaluation | None = None
        self._error: PalaestraError | None = None

    def done(self) -> bool:
        self._look(0.0)
        return self._call is None

    def result(self) -> Evaluation:
        while self._call is not None:
            self._look(_SLICE_S)
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def _look(self, timeout_s: float) -> None:
        if self._call is None:
            return
        for result in self._runtime.wait([self._call], timeout_s=timeout_s):
            self._call, self._value, self._error = None, result.value, result.error
            if isinstance(result.value, NoEpisodeError):
                self._error = result.value
            if isinstance(result.error, WorkerDiedError):
                try:
                    if self._runtime.status()[self._worker].state == "dead":
                        self._runtime.restart(self._worker)
                except WorkerDiedError as error:
                    self._error = error
                else:
                    self._call = self._runtime.call(self._worker, "evaluate", self._work)
                    self._patience = Patience(self._patience.most_s)
        if self._call is not None and self._patience.is_over():
            what = f"did not answer within {self._patience.most_s:g} s"
            with contextlib.suppress(WorkerDiedError):  # that has been restarted too often, as whoever is next finds
                self._runtime.restart(self._worker, what)
            self._runtime.wait([self._call], timeout_s=0.0)  # its end is no answer
            self._call, self._error = None, NoEpisodeError(f"the worker that evaluates {what}")
