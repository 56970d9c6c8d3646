"""`ThreadEnvironment`: one environment in a thread of this process, for evaluation and play."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, final

import numpy as np

from palaestra.core import EnvError, SpecError
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode
from palaestra.envs.faults import Failure, FaultPolicy, describe
from palaestra.envs.lane_environment import Incident, LaneEnvironment, Outcome
from palaestra.envs.lanes import Lanes
from palaestra.envs.rows import neutral_rows
from palaestra.envs.vector import batched_info

__all__ = ["ThreadEnvironment"]

_CLOSE_S = 5.0


@final
class ThreadEnvironment(LaneEnvironment):
    """Steps one environment in a thread of its own: `batch_size` is 1, and no process is started.

    It gives the stream of a `SerialEnvironment`. The environment is made, stepped and closed in the same thread, as
    some renderers want it; the caller's thread is free between `send` and `recv`, waits with a deadline, and can be
    interrupted with Ctrl-C. A thread that hangs cannot be ended: it is left behind, and ends with the process.

    Args:
        factory: makes the layers.
        lane_seeds: one seed, from `RunSeeds.integer("evaluation")`; a fresh one if left out.
        faults: what to do when the environment fails, and how long to wait for it.

    Raises:
        SpecError: there is another number of seeds.
        EnvError: the environment cannot be made in time.

    Examples:
        >>> import functools, torch
        >>> from palaestra.envs import load
        >>> with ThreadEnvironment(functools.partial(load, "CartPole-v1"), lane_seeds=[1]) as env:
        ...     steps = [env.reset(), env.step(torch.tensor([1]))]
        >>> [step.step_type.tolist() for step in steps]
        [[0], [1]]
    """

    def __init__(
        self,
        factory: Callable[[], SingleEnvironment],
        *,
        lane_seeds: Sequence[int] | None = None,
        faults: FaultPolicy = FaultPolicy(),  # noqa: B008 - frozen
    ) -> None:
        if not callable(factory):
            raise SpecError(f"ThreadEnvironment was given a {type(factory).__name__}; give a function that makes it")
        self._factory, self._policy = factory, faults
        self._thread = _Thread(factory, faults.strict)
        try:
            lanes = self._thread.lanes.result(faults.reset_timeout_s)
        except TimeoutError:
            raise EnvError(f"the environment was not made within {faults.reset_timeout_s} s. {self._doing()}") from None
        super().__init__(lanes.specs, lane_seeds, 1, faults)
        self._answer: Future[Any] | None = None
        self._deadline = 0.0

    def _submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        given = self._reader.per_lane(actions)
        timeout_s = self._policy.reset_timeout_s if seeds else self._policy.timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._answer = self._thread.call(lambda lanes: (*lanes.step(given, seeds), lanes.over))

    def _collect(self) -> Outcome:
        assert self._answer is not None
        found = self._wait(self._answer, self._deadline)
        if isinstance(found, Incident):
            return neutral_rows(self._specs, 1), [], (), [found]
        rows, infos, failures, over = found
        info = () if infos is None else batched_info(infos, 1)
        return rows, over, info, [Incident(failure) for failure in failures]

    def _wait(self, answer: Future[Any], deadline: float) -> Any:
        try:
            return answer.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            what = "did not answer in time and was left behind"
            return Incident(Failure(0, "timeout", what, self._doing()), fatal=True)

    def _ask(self, function: Callable[[Lanes], Any]) -> Any:
        self._check_open()
        return self._wait(self._thread.call(function), time.monotonic() + self._policy.reset_timeout_s)

    def _doing(self) -> str:
        return f"Its thread was doing:\n{self._thread.stack()}"

    def _give_up_step(self) -> None:
        assert self._answer is not None
        found = self._wait(self._answer, self._deadline)
        if isinstance(found, Incident):
            self._stop(found.failure.what)
            raise self._record(found, "raise").error()

    def _restart(self, seeds: dict[int, int], *, fatal: bool) -> dict[int, list[np.ndarray]] | Incident:
        if fatal:
            self._thread = _Thread(self._factory, self._policy.strict)
            try:
                self._thread.lanes.result(self._policy.reset_timeout_s)
            except TimeoutError:
                return Incident(Failure(0, "timeout", "was not made again in time", self._doing()), fatal=True)
            except Exception as error:
                kind, detail = describe(error)
                return Incident(Failure(0, "raised", f"could not be made again: {kind}", detail), fatal=True)
        found = self._ask(lambda lanes: (lanes.restart(0, seeds[0], again=not fatal), lanes.envs[0].memory()))
        if isinstance(found, Incident):
            return found
        restarted, layers = found
        if isinstance(restarted, Failure):
            return Incident(restarted)
        if fatal:
            self._tell_lost(layers)
        return {0: restarted}

    def _drop(self, lanes: list[int], *, fatal: bool) -> None:
        """The only environment: the caller stops the run."""

    def _stop(self, because: str) -> None:
        self._ended_by = because
        self._thread.leave()

    def _digests(self) -> list[str]:
        return self._asked(lambda lanes: lanes.digests())

    def _load(self, episodes: Sequence[Episode]) -> list[int] | Incident:
        found = self._ask(lambda lanes: lanes.load(episodes) or lanes.over)
        return Incident(found) if isinstance(found, Failure) else found

    def render(self) -> np.ndarray:
        """A picture of the environment."""
        return self._asked(lambda lanes: lanes.envs[0].render())

    def _asked(self, function: Callable[[Lanes], Any]) -> Any:
        found = self._ask(function)
        if isinstance(found, Incident):
            self._stop(found.failure.what)
            raise self._record(found, "raise").error()
        return found

    def close(self) -> None:
        """Closes the environment in its thread, and waits for that for at most five seconds."""
        if not self._ended_by:
            self._ended_by = "it was closed"
            self._thread.close(_CLOSE_S)


class _Thread:
    """A thread that makes an environment and does with it what it is told, one thing after another."""

    def __init__(self, factory: Callable[[], SingleEnvironment], strict: bool) -> None:
        self.lanes: Future[Lanes] = Future()
        self._tasks: queue.SimpleQueue[tuple[Callable[[Lanes], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(factory, strict), name="environment", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Lanes], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._tasks.put((function, answer))
        return answer

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "nothing: it has ended"

    def leave(self) -> None:
        self._tasks.put(None)

    def close(self, timeout_s: float) -> None:
        self.leave()
        self._thread.join(timeout_s)

    def _run(self, factory: Callable[[], SingleEnvironment], strict: bool) -> None:
        try:
            lanes = Lanes([factory()], [factory], strict=strict)
        except BaseException as error:
            self.lanes.set_exception(error)
            return
        self.lanes.set_result(lanes)
        while (task := self._tasks.get()) is not None:
            function, answer = task
            try:
                answer.set_result(function(lanes))
            except BaseException as error:
                answer.set_exception(error)
        lanes.close()
