"""`ProcessEnvironment`: environments in worker processes, several in each, over shared memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Literal, final

import numpy as np

from palaestra.core import EnvError
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.episode_log import Episode
from palaestra.envs.faults import FaultPolicy
from palaestra.envs.lane_environment import Incident, LaneEnvironment, Outcome
from palaestra.envs.pool import WorkerPool
from palaestra.envs.rows import Rows

__all__ = ["Context", "ProcessEnvironment"]

Context = Literal["spawn", "forkserver"]
_CONTEXT: Context = "forkserver" if sys.platform == "linux" else "spawn"


@final
class ProcessEnvironment(LaneEnvironment):
    """Steps environments in worker processes; gives the same stream as `SerialEnvironment`, bit for bit.

    Worth it for environments whose step takes more than about 10 microseconds. Observations, rewards, actions and
    numeric info lie in shared memory, and a semaphore for every worker says when they are ready. A worker that dies or
    hangs is noticed, and named together with the environment it was stepping, its seed, episode, step and action.

    Args:
        factories: one for every environment; each makes its layers, and can be sent to another process (a function of
            a module, or `functools.partial` of one).
        lane_seeds: one for each, from `RunSeeds.integer("environments", lane)`; fresh ones if left out.
        num_workers: W; as many as there are cores, and at most one for every environment, if left out.
        context: how workers start: `forkserver` imports this library once, `spawn` in every worker.
        faults: what to do when an environment fails, and how long to wait for one.
        first_id: number of the first environment in messages, where this is a part of a larger batch.

    Raises:
        ConfigError: the factories cannot be sent to another process.
        EnvError: an environment cannot be made.
        SpecError: no environments, or other specs.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], SingleEnvironment]],
        *,
        lane_seeds: Sequence[int] | None = None,
        num_workers: int | None = None,
        context: Context = _CONTEXT,
        faults: FaultPolicy = FaultPolicy(),  # noqa: B008 - frozen
        first_id: int = 0,
    ) -> None:
        self.first_id = first_id
        self._pool = WorkerPool(factories, num_workers, context, faults, first_id)
        try:
            super().__init__(self._pool.specs, lane_seeds, len(factories), faults)
        except BaseException:
            self._pool.close()
            raise
        self._deadline = 0.0

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._pool.processes]

    @property
    def answered(self) -> bool:
        """Whether `recv` would not wait."""
        return self._pool.poll() or time.monotonic() >= self._deadline

    def _submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        view = self._pool.view
        for target, source in zip(view.action, actions, strict=True):
            target[:] = source
        if seeds:
            view.seed[list(seeds)] = list(seeds.values())
        self._pool.step()
        timeout_s = self._policy.reset_timeout_s if seeds else self._policy.timeout_s
        self._deadline = time.monotonic() + timeout_s

    def _collect(self) -> Outcome:
        info, incidents = self._pool.collect(self._deadline)
        if self._seeds:
            self._pool.view.seed[:] = -1
        step_type, reward, discount, observation = self._pool.view.rows
        rows = Rows(step_type.copy(), reward.copy(), discount.copy(), [array.copy() for array in observation])
        kinds = rows.step_type.tolist()
        over = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
        return rows, over, info, incidents

    def _give_up_step(self) -> None:
        _, incidents = self._pool.collect(self._deadline)
        self._pool.view.seed[:] = -1
        for incident in incidents:
            if incident.fatal:
                self._stop(incident.failure.what)
                raise self._record(incident, "raise").error()

    def _restart(self, seeds: dict[int, int], *, fatal: bool) -> dict[int, list[np.ndarray]] | Incident:
        pool, messages = self._pool, {}
        for number, lanes in pool.workers.items():
            mine = {lane - lanes.start: seeds[lane] for lane in lanes if lane in seeds}
            if mine:
                incident = pool.replace(number) if fatal else None
                if incident is not None:
                    return incident
                messages[number] = ("restart", mine, not fatal)
        for answer in pool.ask(messages).values():
            if isinstance(answer, Incident):
                return answer
            if fatal:
                self._tell_lost(answer)
        return {lane: [array[lane].copy() for array in pool.view.rows.observation] for lane in seeds}

    def _drop(self, lanes: list[int], *, fatal: bool) -> None:
        for number, mine in self._pool.workers.items():
            dropped = [lane - mine.start for lane in lanes if lane in mine]
            if dropped and fatal:
                self._pool.retire(number)
            elif dropped:
                self._pool.ask({number: ("drop", dropped)})

    def _stop(self, because: str) -> None:
        self._ended_by = f"a worker failed ({because})" if because else because
        self._sent = None
        self._pool.kill()

    def _digests(self) -> list[str]:
        answers = self._ask("digests")
        return [answers.get(lane, "") for lane in range(self.batch_size)]

    def _ask(self, what: str) -> dict[int, str]:
        found: dict[int, str] = {}
        workers = self._pool.workers
        for number, answer in self._pool.ask(dict.fromkeys(workers, (what,))).items():
            if isinstance(answer, Incident):
                self._stop(answer.failure.what)
                raise self._record(answer, "raise").error()
            found |= dict(zip(workers[number], answer, strict=True))
        return found

    def _load(self, episodes: Sequence[Episode]) -> list[int] | Incident:
        workers = self._pool.workers
        messages = {number: ("load", episodes[lanes.start : lanes.stop]) for number, lanes in workers.items()}
        over: list[int] = []
        for number, answer in sorted(self._pool.ask(messages).items()):
            if isinstance(answer, Incident):
                if answer.fatal:
                    self._stop(answer.failure.what)
                return answer
            over += [workers[number].start + lane for lane in answer]
        return over

    def render(self) -> np.ndarray:
        """A picture of environment 0.

        Raises:
            EnvError: it draws nothing, it was dropped, or actions sent have not been received.
        """
        self._check_open()
        if self._sent is not None:
            raise EnvError("render was called between send and recv; receive first")
        if 0 not in self._pool.workers:
            raise EnvError("environment 0, which pictures are of, was dropped with its worker")
        answer = self._pool.ask({0: ("render",)})[0]
        if isinstance(answer, Incident):
            raise self._record(answer, "raise").error()
        return answer

    def close(self) -> None:
        """Ends the workers: those that do not end by themselves within five seconds are killed."""
        if not self._ended_by:
            self._ended_by = "it was closed"
            self._pool.close()
