"""`ThreadDriver`: one environment in a thread of this process, for evaluation and play."""

import contextlib
import functools
import queue
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, final

import numpy as np

from palaestra.core import EnvError, SpecError, computing_thread
from palaestra.envs.contract.boundary import ActionReader
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.contract.episodes import LaneEpisode
from palaestra.envs.contract.rows import Rows, Specs
from palaestra.envs.stepping.driver import Driver, Outcome
from palaestra.envs.stepping.serial import SerialDriver
from palaestra.envs.supervision.faults import ANY_FAULT, Failure, FaultPolicy, Incident, describe
from palaestra.envs.supervision.watchdog import CLOSE_S, watch
from palaestra.runtime import CLOCK

__all__ = ["ThreadDriver"]


@final
class ThreadDriver(Driver):
    """Steps one environment in a thread of its own: `batch_size` is 1, and no process is started.

    The environment is made, stepped and closed in the same thread, as some renderers want it; the caller's thread is
    free between `send` and `recv`, waits with a deadline, and can be interrupted with Ctrl-C. A thread that hangs
    cannot be ended: it is left behind, and ends with the process.

    Args:
        factory: makes the layers.
        faults: what to do when the environment fails, and how long to wait for it.

    Raises:
        SpecError: an environment is given, not what makes it.
        EnvError: the environment cannot be made in time.

    Examples:
        >>> import functools, torch
        >>> from palaestra.envs import LaneEnvironment, load
        >>> with LaneEnvironment(ThreadDriver(functools.partial(load, "CartPole-v1")), lane_seeds=[1]) as env:
        ...     steps = [env.reset(), env.step(torch.tensor([1]))]
        >>> [step.step_type.tolist() for step in steps]
        [[0], [1]]
    """

    batch_size = 1
    first_id = 0

    def __init__(self, factory: Callable[[], SingleEnvironment], *, faults: FaultPolicy = ANY_FAULT) -> None:
        if not callable(factory):
            raise SpecError(f"ThreadDriver was given a {type(factory).__name__}; give a function that makes it")
        self._factory, self.faults = factory, faults
        self._thread = _Thread(factory, faults)
        made = self._wait(self._thread.driver, CLOCK.now() + faults.reset_timeout_s)
        if isinstance(made, Incident):
            raise EnvError(f"the environment was not made within {faults.reset_timeout_s} s. {made.failure.detail}")
        self.specs: Specs = made.specs
        self.reader = ActionReader(self.specs, 1)
        self._answer: Future[Any] = Future()
        self._deadline = 0.0
        self._attributes: dict[str, Any] = {}

    @property
    def answered(self) -> bool:
        return self._answer.done() or CLOCK.now() >= self._deadline

    def submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        self._deadline = CLOCK.now() + (self.faults.reset_timeout_s if seeds else self.faults.timeout_s)
        self._answer = self._thread.call(functools.partial(_stepped, actions, seeds))

    def collect(self) -> Outcome:
        deadline = max(self._deadline, CLOCK.now() + CLOCK.leeway_s)  # all may have been stopped since `submit`
        found = self._wait(self._answer, deadline)
        return (Rows.unknown(self.specs, 1), [], (), [found]) if isinstance(found, Incident) else found

    def restart(
        self, seeds: dict[int, int], *, fatal: bool
    ) -> tuple[dict[int, list[np.ndarray]], Sequence[str]] | Incident:
        if fatal:
            self._thread.leave()  # when the call that hangs ends one day
            self._thread = _Thread(self._factory, self.faults)
            try:
                made = self._wait(self._thread.driver, CLOCK.now() + self.faults.reset_timeout_s)
            except Exception as error:
                kind, detail = describe(error)
                return Incident(Failure(0, "raised", f"could not be made again: {kind}", detail), fatal=True)
            if isinstance(made, Incident):
                return made._replace(failure=made.failure._replace(what="was not made again in time"))
            lost = self._ask(lambda driver: driver.set_attributes({0: self._attributes}))
            if lost is not None:
                return lost
        return self._ask(lambda driver: driver.restart(seeds, fatal=fatal))

    def attributes(self, name: str, lanes: Sequence[int]) -> list[Any] | Incident:
        return self._ask(lambda driver: driver.attributes(name, lanes))

    def set_attributes(self, given: Mapping[int, Mapping[str, Any]]) -> Incident | None:
        self._attributes |= given.get(0, {})
        return self._ask(lambda driver: driver.set_attributes(given))

    def drop(self, lanes: list[int], *, fatal: bool) -> None:
        """It was the only environment, so the run stops."""

    def digests(self) -> list[str] | Incident:
        return self._ask(lambda driver: driver.digests())

    def load(self, episodes: Sequence[LaneEpisode]) -> list[int] | Incident:
        return self._ask(lambda driver: driver.load(episodes))

    def render(self) -> np.ndarray | Incident:
        return self._ask(lambda driver: driver.render())

    def stop(self) -> None:
        self._thread.leave()

    def close(self) -> list[Incident]:
        """Closes the environment in its thread, and waits for that for at most five seconds."""
        self._thread.leave()
        found = self._wait(self._thread.closed, CLOCK.now() + CLOSE_S)
        if isinstance(found, Incident):
            what = f"{found.failure.what} when it was closed"
            return [found._replace(failure=found.failure._replace(what=what))]
        self._thread.thread.join(CLOSE_S)
        return found

    def _ask(self, function: Callable[[SerialDriver], Any]) -> Any:
        return self._wait(self._thread.call(function), CLOCK.now() + self.faults.reset_timeout_s)

    def _wait(self, answer: Future[Any], deadline: float) -> Any:
        while not CLOCK.wait(functools.partial(_is_done, answer), deadline):
            if CLOCK.now() >= deadline:
                what = "did not answer in time and was left behind"
                return Incident(Failure(0, "timeout", what, self._doing()), fatal=True)
        return answer.result()

    def _doing(self) -> str:
        frame = sys._current_frames().get(self._thread.thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "nothing: it has ended"
        return f"Its thread was doing:\n{stack}"


class _Thread:
    """A thread that makes a driver and calls it as it is asked to, one call after another."""

    def __init__(self, factory: Callable[[], SingleEnvironment], faults: FaultPolicy) -> None:
        self.driver: Future[SerialDriver] = Future()
        self.closed: Future[list[Incident]] = Future()
        self._tasks: queue.SimpleQueue[tuple[Callable[[SerialDriver], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.thread = computing_thread(self._run, factory, faults, name="environment")
        self.thread.start()

    def call(self, function: Callable[[SerialDriver], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._tasks.put((function, answer))
        return answer

    def leave(self) -> None:
        self._tasks.put(None)

    def _run(self, factory: Callable[[], SingleEnvironment], faults: FaultPolicy) -> None:
        try:
            driver = SerialDriver([factory], faults=faults, watched=False)
            watch(driver)
        except BaseException as error:
            self.driver.set_exception(error)
            self.closed.set_result([])
            return
        self.driver.set_result(driver)
        while (task := self._tasks.get()) is not None:
            function, answer = task
            try:
                answer.set_result(function(driver))
            except BaseException as error:
                answer.set_exception(error)
        self.closed.set_result(driver.close())


def _is_done(answer: Future[Any], wait_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        answer.exception(wait_s)
    return answer.done()


def _stepped(actions: list[np.ndarray], seeds: dict[int, int], driver: SerialDriver) -> Outcome:
    driver.submit(actions, seeds)
    return driver.collect()
