"""`ProcessDriver`: environments in worker processes, several in each, over shared memory."""

import collections
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import Batch, ConfigError, EnvError, SpecError
from palaestra.core.computing import num_cores
from palaestra.envs.contract.attributes import Found
from palaestra.envs.contract.boundary import ActionReader
from palaestra.envs.contract.environment import SingleEnvironment
from palaestra.envs.contract.episodes import LaneEpisode
from palaestra.envs.contract.rows import Rows, Specs
from palaestra.envs.stepping.driver import Driver, Outcome
from palaestra.envs.stepping.worker import BUSY, DONE, NEWS, STEP, Seat, View, layout
from palaestra.envs.supervision.faults import ANY_FAULT, Failure, FaultPolicy, Incident
from palaestra.envs.supervision.watchdog import CLOSE_S
from palaestra.runtime import CLOCK, SharedArrays, SupervisedProcess, sendable, stop_all
from palaestra.runtime.supervision import Context

__all__ = ["ProcessDriver"]

_CONTEXT: Context = "forkserver" if sys.platform == "linux" else "spawn"


@final
class ProcessDriver(Driver):
    """Steps environments in worker processes.

    Worth it for environments whose step takes more than about 10 microseconds. Observations, rewards, actions and
    numeric info lie in shared memory, and a semaphore for every worker says when they are ready. A worker that dies or
    hangs is noticed, and named together with the environment it was stepping, its seed, episode, step and action.

    Args:
        factories: one for every environment; each makes its layers, and can be sent to another process: a function of a
            module, `functools.partial` of one, or a lambda.
        num_workers: W; as many as there are cores, and at most one for every environment, if left out.
        context: how workers start: `forkserver` imports this library once, `spawn` in every worker.
        faults: what to do when an environment fails, and how long to wait for one.
        first_id: number of the first environment in messages, where this is a part of a larger batch.

    Raises:
        ConfigError: the factories cannot be sent to another process.
        EnvError: an environment cannot be made.
        SpecError: no environments, or other specs.

    Examples:
        >>> from functools import partial
        >>> from palaestra.envs import LaneEnvironment, load
        >>> factories = [partial(load, "CartPole-v1", env_id=lane) for lane in range(3)]
        >>> with LaneEnvironment(ProcessDriver(factories, num_workers=2), lane_seeds=[1, 2, 3]) as env:
        ...     first = env.reset()
        >>> len(first.reward)
        3
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], SingleEnvironment]],
        *,
        num_workers: int | None = None,
        context: Context = _CONTEXT,
        faults: FaultPolicy = ANY_FAULT,
        first_id: int = 0,
    ) -> None:
        if num_workers is not None and num_workers < 1:
            raise ConfigError(f"num_workers is {num_workers}; it must be at least 1")
        if not factories:
            raise SpecError("no environments were given; at least one is needed")
        self.batch_size, self.faults, self.first_id = len(factories), faults, first_id
        self._factories, self._context = [sendable(make) for make in factories], context
        self._deadline, self._started, self._ready = 0.0, False, False
        self._processes: list[SupervisedProcess] = []
        self._seats: dict[int, Seat] = {}
        self._attributes: dict[int, Mapping[str, Any]] = {}
        self._shared: SharedArrays | None = None
        self._finalizer = weakref.finalize(self, _kill_all, self._processes)
        # every worker gets contiguous lanes, as evenly as can be
        count = min(num_workers or num_cores(), self.batch_size)
        edges = [self.batch_size * number // count for number in range(count + 1)]
        try:
            for number, (start, stop) in enumerate(itertools.pairwise(edges)):
                self._seat(number, range(start, stop))
            self.specs = self._meet()
            self._share(count)
        except BaseException:
            self.close()
            raise
        self.reader = ActionReader(self.specs, self.batch_size)

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._processes]

    # -- starting

    def _seat(self, number: int, lanes: range) -> Seat:
        factories = self._factories[lanes.start : lanes.stop]
        seat = self._seats[number] = Seat(number, lanes, factories, self._context, self.faults, self.first_id)
        self._processes.append(seat.process)
        return seat

    def _meet(self) -> Specs:
        deadline = CLOCK.now() + self.faults.reset_timeout_s
        found: list[Specs] = []
        for seat in self._seats.values():
            met = seat.meet(deadline)
            if isinstance(met, Incident):
                lane, _, what, detail = met.failure
                if "could not be made" in what:
                    raise EnvError(f"environment {self.first_id + lane} {what}: {detail}")
                script = (
                    ". If its own output shows that it ran your script again, put the script's code under "
                    '`if __name__ == "__main__":`'
                )
                text = f"{seat.process.name} {what} while it was making its environments: {detail}"
                raise EnvError(text + (script if met.failure.kind == "died" else ""))
            found.append(met)
            met.require_equal(found[0], self.first_id + seat.lanes.start, self.first_id)
        return found[0]

    def _share(self, num_workers: int) -> None:
        self._shared = shared = SharedArrays(layout(self.specs, self.batch_size, num_workers))
        deadline = CLOCK.now() + self.faults.reset_timeout_s
        for seat in self._seats.values():
            lost = seat.share(shared, deadline)
            if lost is not None:
                raise EnvError(f"{seat.process.name} {lost.failure.what}: {lost.failure.detail}")
        if self.faults.on_fault != "restart":
            shared.seal()
        self._command, self._status, self._reported = (shared[name] for name in ("command", "status", "reported"))
        self._view = View.of(shared, self.specs, slice(0, self.batch_size))
        self._view.seed[:] = -1
        self._ready = True

    # -- a step

    @property
    def answered(self) -> bool:
        busy = [seat for number, seat in self._seats.items() if self._status[number] == BUSY]
        done = not busy or not all(seat.process.alive for seat in busy)
        return done or CLOCK.now() >= self._deadline

    def submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        self._settle(self._seats)
        view = self._view
        for target, source in zip(view.action, actions, strict=True):
            target[:] = source
        if seeds:
            view.seed[list(seeds)] = list(seeds.values())
        self._started = bool(seeds)
        self._command[:] = STEP
        for number, seat in self._seats.items():
            self._status[number] = BUSY
            seat.begin()
        self._deadline = CLOCK.now() + (self.faults.reset_timeout_s if seeds else self.faults.timeout_s)

    def collect(self) -> Outcome:
        info, incidents = self._collect()
        if self._started:
            self._view.seed[:] = -1
        step_type, reward, discount, observation = self._view.rows
        rows = Rows(step_type.copy(), reward.copy(), discount.copy(), [array.copy() for array in observation])
        kinds = rows.step_type.tolist()
        over = [lane for lane, kind in enumerate(kinds) if kind == 2] if 2 in kinds else []
        return rows, over, info, incidents

    def _collect(self) -> tuple[Any, list[Incident]]:
        """Waits for every worker; numeric info as a `Batch` or `()`, and what went wrong."""
        incidents: list[Incident] = []
        columns: dict[str, np.ndarray] = collections.defaultdict(lambda: np.full(self.batch_size, np.nan))
        deadline = max(self._deadline, CLOCK.now() + CLOCK.leeway_s)  # all may have been stopped since `submit`
        for number, seat in self._seats.items():
            lost = seat.wait(deadline)
            if lost is not None:
                incidents.append(lost)
                continue
            status = self._status[number]
            if status == DONE:
                continue
            surplus: Any = {}
            if status == NEWS:
                message = seat.hear(deadline)
                if isinstance(message, Incident):
                    incidents.append(message)
                    continue
                found, names, surplus = message
                seat.keys += names
                incidents += [incident.moved(seat.lanes.start) for incident in found]
                if not (names or surplus or self._reported[number].any()):
                    continue
            self._gather(seat, surplus, columns)
        self._reported[:] = False
        info = Batch.of({key: torch.from_numpy(column) for key, column in columns.items()}) if columns else ()
        return info, incidents

    def _gather(self, seat: Seat, surplus: Mapping[int, Mapping[str, float]], columns: dict[str, np.ndarray]) -> None:
        first, stop = seat.lanes.start, seat.lanes.stop
        values, reported = self._view.info[first:stop].T, self._reported[seat.number].tolist()
        for column, key in enumerate(seat.keys):
            if reported[column]:
                columns[key][first:stop] = values[column]
        for lane, entries in surplus.items():
            for key, value in entries.items():
                columns[key][first + lane] = value

    # -- commands

    def restart(
        self, seeds: dict[int, int], *, fatal: bool
    ) -> tuple[dict[int, list[np.ndarray]], Sequence[str]] | Incident:
        messages: dict[int, dict[str, Any]] = {}
        for number, seat in list(self._seats.items()):
            mine = {lane - seat.lanes.start: seeds[lane] for lane in seat.lanes if lane in seeds}
            if mine:
                incident = self._replace(number) if fatal else None
                if incident is not None:
                    return incident
                messages[number] = {"seeds": mine, "fatal": fatal}
        lost: list[str] = []
        for answer in self._ask("restart", messages).values():
            if isinstance(answer, Incident):
                return answer
            lost += answer
        return {lane: [array[lane].copy() for array in self._view.rows.observation] for lane in seeds}, lost

    def _replace(self, number: int) -> Incident | None:
        """Puts a new worker into the place of one that is gone."""
        assert self._shared is not None
        self._processes.remove(self._seats[number].process)
        seat = self._seat(number, self._seats[number].lanes)
        deadline = CLOCK.now() + self.faults.reset_timeout_s
        met = seat.meet(deadline)
        if isinstance(met, Incident):
            return met
        if met != self.specs:
            failure = Failure(seat.lanes.start, "malformed", "has other specs than before", str(tuple(met)))
            return Incident(failure, fatal=True)
        lost, mine = seat.share(self._shared, deadline), self._of_seat(seat, self._attributes)
        return lost or (self._ask("set_attributes", {number: {"given": mine}})[number] if mine else None)

    def _of_seat(self, seat: Seat, given: Mapping[int, Any]) -> dict[int, Any]:
        return {lane - seat.lanes.start: given[lane] for lane in seat.lanes if lane in given}

    def attributes(self, name: str, lanes: Sequence[int]) -> list[Any] | Incident:
        wanted = {number: [lane for lane in lanes if lane in seat.lanes] for number, seat in self._seats.items()}
        starts = {number: seat.lanes.start for number, seat in self._seats.items()}
        found: dict[int, Any] = {}
        asked = {n: {"name": name, "lanes": [lane - starts[n] for lane in mine]} for n, mine in wanted.items() if mine}
        for number, answer in self._ask("attributes", asked).items():
            if isinstance(answer, Incident):
                return answer
            found |= zip(wanted[number], answer, strict=True)
        return [found.get(lane, Found(True, None)) for lane in lanes]  # of one that was dropped, nothing is known

    def set_attributes(self, given: Mapping[int, Mapping[str, Any]]) -> Incident | None:
        for lane, attributes in given.items():
            self._attributes[lane] = {**self._attributes.get(lane, {}), **attributes}
        alive = {number: seat for number, seat in self._seats.items() if seat.process.alive}  # others when replaced
        shares = {number: {"given": self._of_seat(seat, given)} for number, seat in alive.items()}
        answers = self._ask("set_attributes", {number: share for number, share in shares.items() if share["given"]})
        return next((answer for answer in answers.values() if answer is not None), None)

    def drop(self, lanes: list[int], *, fatal: bool) -> None:
        for number, seat in list(self._seats.items()):
            dropped = [lane - seat.lanes.start for lane in lanes if lane in seat.lanes]
            if dropped and fatal:  # the worker is gone; from now on its lanes show FIRST rows
                self._view.rows.make_first(slice(seat.lanes.start, seat.lanes.stop))
                self._processes.remove(self._seats.pop(number).process)
            elif dropped:
                self._ask("drop", {number: {"lanes": dropped, "fatal": False}})

    def digests(self) -> list[str] | Incident:
        found = [""] * self.batch_size
        for number, answer in self._ask("digests", {number: {} for number in self._seats}).items():
            if isinstance(answer, Incident):
                if answer.fatal and self.faults.on_fault != "raise":
                    continue  # its episodes are lost: the next step finds that it is gone
                return answer
            found[self._seats[number].lanes.start : self._seats[number].lanes.stop] = answer
        return found

    def load(self, episodes: Sequence[LaneEpisode]) -> list[int] | Incident:
        shares = {n: {"episodes": episodes[seat.lanes.start : seat.lanes.stop]} for n, seat in self._seats.items()}
        over: list[int] = []
        for number, answer in sorted(self._ask("load", shares).items()):
            if isinstance(answer, Incident):
                return answer
            over += [self._seats[number].lanes.start + lane for lane in answer]
        return over

    def render(self) -> np.ndarray | Incident:
        if 0 not in self._seats:
            raise EnvError("environment 0, which pictures are of, was dropped with its worker")
        return self._ask("render", {0: {}})[0]

    def _ask(self, what: str, arguments: Mapping[int, dict[str, Any]]) -> dict[int, Any]:
        """Has workers call a method; returns their answers, or the incident that kept one from answering."""
        self._settle(arguments)
        deadline = CLOCK.now() + self.faults.reset_timeout_s
        answers: dict[int, Any] = {}
        for number, given in arguments.items():
            lost = self._seats[number].post((what, given), deadline)
            if lost is not None:
                answers[number] = lost
        return answers | {n: self._seats[n].answer(deadline) for n in arguments if n not in answers}

    def _settle(self, numbers: Iterable[int]) -> None:
        """After Ctrl-C, what workers still answer to the command before is not taken for the next answer."""
        for number in numbers:
            if self._seats[number].owes:
                self._seats[number].settle(CLOCK.now() + self.faults.reset_timeout_s)

    # -- the end

    def stop(self) -> None:
        _kill_all(self._processes)
        self._release()

    def close(self) -> list[Incident]:
        """Ends the workers: those that do not end by themselves within five seconds are killed."""
        found: list[Incident] = []
        if not self._ready:  # no environment has been stepped yet
            _kill_all(self._processes)
        else:
            deadline = CLOCK.now() + CLOSE_S
            seats = [seat for seat in self._seats.values() if seat.process.alive]
            answers = [seat.post(("close", {}), deadline) for seat in seats]
            answers = [answer or seat.answer(deadline) for answer, seat in zip(answers, seats, strict=True)]
            # a worker that somebody has killed by now is closed, too
            found = [one for one in answers if isinstance(one, Incident) and one.failure.kind != "died"]
        stop_all(self._processes, CLOSE_S)
        self._release()
        return found

    def _release(self) -> None:
        """Frees what was held when the workers have ended."""
        self._finalizer.detach()
        self._seats = {}
        if self._shared is not None:
            self._shared.close()


def _kill_all(workers: Iterable[SupervisedProcess]) -> None:
    for worker in workers:
        worker.kill()
