"""What environments made of bare ones have in common: seeds, the log of episodes, and what to do when one fails."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch

from palaestra.core import EnvError, TensorSpec, TimeStep
from palaestra.envs.episode_log import Episode, EpisodeLog
from palaestra.envs.faults import Failure, Fault, FaultPolicy, RestartBudget
from palaestra.envs.lockstep import LockstepEnvironment
from palaestra.envs.nest import to_batched
from palaestra.envs.rows import Rows, Specs
from palaestra.envs.vector import batched_time_step, check_seeds, fresh_seeds

__all__ = ["Incident", "LaneEnvironment", "Outcome"]

_log = logging.getLogger(__name__)


class Incident(NamedTuple):
    """A failure, and the other lanes that it cost their episode."""

    failure: Failure
    """What went wrong, with the lane of the batch."""
    also: tuple[int, ...] = ()
    """Other lanes of the worker that is gone."""
    memory_bytes: int | None = None
    """Peak memory of that worker."""
    fatal: bool = False
    """Whether the worker is gone, so that nothing of it can be stepped any more."""


Outcome = tuple[Rows, list[int], Any, Sequence[Incident]]
"""Rows that nobody writes to any more, lanes whose episode ended, info (a `Batch` or `()`), and what went wrong."""


class LaneEnvironment(LockstepEnvironment):
    """Bare environments stepped together; a subclass says where.

    Args:
        specs: that all of them share.
        lane_seeds: one for each; fresh ones if `None`.
        batch_size: B.
        faults: what to do when one fails.
    """

    seeding = "per_episode"
    resume = "exact"

    def __init__(self, specs: Specs, lane_seeds: Sequence[int] | None, batch_size: int, faults: FaultPolicy) -> None:
        super().__init__(specs, batch_size)
        seeds = list(lane_seeds) if lane_seeds is not None else fresh_seeds(batch_size)
        check_seeds(seeds, batch_size)
        self._log = EpisodeLog(seeds, specs.action)
        self._policy, self._budget = faults, RestartBudget(faults)
        self._seeds: dict[int, int] = {}
        self._scalar_actions = isinstance(specs.action, TensorSpec) and not specs.action.shape
        self._ended_by = ""
        self._recorded: list[Fault] = []
        self._told = False

    @property
    @final
    def faults(self) -> Sequence[Fault]:
        """Every fault so far, the oldest first."""
        return self._recorded

    @final
    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones, and actions sent, are abandoned."""
        self._check_open()
        if self._sent is not None:
            self._sent = None
            self._give_up_step()
        self._log.abandon()
        self._begin(self._reader.neutral())
        self._sent = self._reader.zeros()
        return self.recv()

    @final
    def state_dict(self) -> dict[str, Any]:
        """Every lane's episode number, its actions so far, and a digest of its latest observation."""
        self._check_open()
        if self._sent is not None:
            raise EnvError("state_dict was called between send and recv; receive first")
        return self._log.state_dict(self._digests())

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replays every lane's running episode.

        Args:
            state: from `state_dict`, of a serial, thread or process environment.

        Raises:
            EnvError: it does not fit, or an environment does not replay.
        """
        self._check_open()
        episodes = self._log.episodes_of(state)
        if self._sent is not None:
            self._sent = None
            self._give_up_step()
        self._mask = None
        self._log.restore(episodes, range(self.batch_size))
        loaded = self._load(episodes)
        if isinstance(loaded, Incident):
            fault = self._record(loaded, "raise")
            self._log.abandon()
            raise fault.error()
        self._log.due = loaded

    @final
    def lane_state(self) -> dict[str, np.ndarray]:
        """Every lane's seed and episode number, also while steps are on their way."""
        return {"lane_seed": np.array(self._log.lane_seeds), "episode": np.array(self._log.episodes)}

    @final
    def load_lane_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere.

        Args:
            state: from `lane_state`.
        """
        self._check_open()
        if self._sent is not None:
            self._sent = None
            self._give_up_step()
        seeds, numbers = state["lane_seed"].tolist(), state["episode"].tolist()
        self._mask = None
        episodes = [Episode(seed, number, [], "") for seed, number in zip(seeds, numbers, strict=True)]
        self._log.restore(episodes, range(self.batch_size))

    # -- what a subclass provides

    @abstractmethod
    def _submit(self, actions: list[np.ndarray], seeds: dict[int, int]) -> None:
        """Starts a step: an action in every lane, but an episode with its seed in some."""

    @abstractmethod
    def _collect(self) -> Outcome:
        """Waits for that step."""

    @abstractmethod
    def _give_up_step(self) -> None:
        """Makes sure that a step that was submitted does not disturb the next one."""

    @abstractmethod
    def _restart(self, seeds: dict[int, int], *, fatal: bool) -> dict[int, list[np.ndarray]] | Incident:
        """Makes the environments of some lanes (with a new worker, if the old one is gone) and starts episodes."""

    @abstractmethod
    def _drop(self, lanes: list[int], *, fatal: bool) -> None:
        """Steps these lanes no more; their rows are FIRST and show what they showed before."""

    @abstractmethod
    def _stop(self, because: str) -> None:
        """A worker is gone and the run stops: ends what is left."""

    @abstractmethod
    def _digests(self) -> list[str]:
        """A digest of every lane's latest observation."""

    @abstractmethod
    def _load(self, episodes: Sequence[Episode]) -> list[int] | Incident:
        """Replays episodes; returns the lanes whose next step starts one."""

    # -- a step

    @final
    def _begin(self, actions: list[np.ndarray]) -> None:
        if self._ended_by:
            self._check_open()
        self._seeds = self._log.send(actions)
        self._submit(actions, self._seeds)

    @final
    def _finish(self, actions: list[np.ndarray]) -> TimeStep:
        try:
            rows, over, info, incidents = self._collect()
        except BaseException:  # Ctrl-C, too: nobody knows which lanes were stepped
            self._log.abandon()
            raise
        log = self._log
        log.due = over
        begun: Iterable[int] = self._seeds
        if incidents:
            begun = {*begun, *self._recover(incidents, rows)}
        if log.dropped:
            begun = {*begun, *log.dropped}
        if not self._scalar_actions:
            # an environment may have changed its row in place
            actions = log.latest()
        if begun:
            for array in actions:
                for lane in begun:
                    array[lane] = 0
        prev_action = torch.from_numpy(actions[0]) if self._scalar_actions else to_batched(actions, self._specs.action)
        return batched_time_step(rows, prev_action, self._env_id, info, self._specs.observation)

    def _recover(self, incidents: Sequence[Incident], rows: Rows) -> list[int]:
        """Does what the policy says; returns the lanes that begin an episode in this very step."""
        if self._policy.on_fault == "raise":
            faults = [self._record(incident, "raise") for incident in incidents]
            self._log.abandon()
            gone = next((incident for incident in incidents if incident.fatal), None)
            if gone is not None:
                self._stop(gone.failure.what)
            raise faults[0].error()
        begun: list[int] = []
        for incident in incidents:
            begun += self._go_on(incident, rows)
        return begun

    def _go_on(self, incident: Incident, rows: Rows) -> list[int]:
        lanes = [lane for lane in (incident.failure.lane, *incident.also) if lane not in self._log.dropped]
        if not lanes:
            return []
        if self._policy.on_fault == "drop":
            fault = self._record(incident, "drop")
            for lane in lanes:
                self._log.drop(lane)
                rows.step_type[lane], rows.reward[lane], rows.discount[lane] = 0, 0.0, 1.0
            self._drop(lanes, fatal=incident.fatal)
            self._log.due = [lane for lane in self._log.due if lane not in lanes]
            if len(self._log.dropped) == self.batch_size:
                self._stop("every environment was dropped")
                raise EnvError(f"the last environment was dropped. The first fault was: {self._recorded[0]}")
            _log.warning("environments %s are stepped no more: %s", lanes, fault)
            return lanes
        while True:
            fault = self._record(incident, "restart")
            try:
                wait_s = self._budget.spend(incident.failure.lane, fault)
            except EnvError:
                self._log.abandon()
                self._stop("the budget of restarts is spent")
                raise
            _log.warning("environments %s begin a new episode in %.1f s: %s", lanes, wait_s, fault)
            time.sleep(wait_s)
            # whichever lane fails to come back, all that it took along are to be started again
            lanes = sorted({*lanes, incident.failure.lane, *incident.also})
            restarted = self._restart({lane: self._log.restart(lane) for lane in lanes}, fatal=incident.fatal)
            if not isinstance(restarted, Incident):
                break
            incident = restarted
        for lane, leaves in restarted.items():
            rows.step_type[lane], rows.reward[lane], rows.discount[lane] = 0, 0.0, 1.0
            for array, leaf in zip(rows.observation, leaves, strict=True):
                array[lane] = leaf
        self._log.due = [lane for lane in self._log.due if lane not in lanes]
        return lanes

    @final
    def _tell_lost(self, layers: Iterable[str]) -> None:
        """Says once what a worker took along that nobody can ask any more."""
        names = [layer.partition(":")[2] for layer in layers]
        if names and not self._told:
            self._told = True
            _log.warning(
                "what %s carried from earlier episodes (running statistics, counts) is lost with the worker of the "
                "environments that were restarted; they begin from nothing. Said once", ", ".join(names),
            )  # fmt: skip

    def _record(self, incident: Incident, handled: Any) -> Fault:
        also = tuple(self.first_id + lane for lane in incident.also)
        fields = {"also": also, "memory_bytes": incident.memory_bytes}
        env_id = self.first_id + incident.failure.lane
        fault = Fault.of(self._log, incident.failure, handled=handled, env_id=env_id, **fields)
        self._recorded.append(fault)
        return fault

    @final
    def _where(self, lane: int) -> str:
        number = self._log.episodes[lane]
        return f" (episode {number}, step {self._log.steps(lane) + 1})" if number >= 0 else ""

    @final
    def _check_open(self) -> None:
        if self._ended_by:
            raise EnvError(f"this {type(self).__name__} has ended: {self._ended_by}")
