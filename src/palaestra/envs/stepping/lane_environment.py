"""`LaneEnvironment`: bare environments stepped together by a driver, which says where they run.

It checks actions, keeps the log of episodes, and decides what to do when an environment fails.
"""

import functools
import logging
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from palaestra.core import EnvError, TensorSpec, TimeStep
from palaestra.core.errors import is_news
from palaestra.envs.contract.attributes import as_json, require_found, require_lanes
from palaestra.envs.contract.boundary import batched_time_step, require_all, require_idle
from palaestra.envs.contract.environment import Environment, HasSpecs
from palaestra.envs.contract.episodes import EpisodeLog, LaneEpisode, attributes_of, is_forgotten, lane_seeds_of
from palaestra.envs.contract.nest import neutral_rows, to_batched
from palaestra.envs.contract.rows import Rows, chosen_entries, completed, entry_names, put
from palaestra.envs.stepping.driver import Driver
from palaestra.envs.supervision.faults import EventLog, Fault, Handled, Incident, RestartBudget
from palaestra.envs.wrappers.untransformed import split

__all__ = ["LaneEnvironment"]

_log = logging.getLogger(__name__)


@final
class LaneEnvironment(HasSpecs, Environment):
    """Bare environments stepped together; every driver gives the same stream, bit for bit.

    Args:
        driver: `SerialDriver`, `ThreadDriver` or `ProcessDriver`, with the environments.
        lane_seeds: one for each, from `RunSeeds.integer("environments", lane)`; fresh ones if left out.
        info: entries of `env_info` that every time step is to have, as in `EnvConfig`.
        found: entries that such environments report; `None` has a first look at environment 0, before its first
            episode, and takes steps in it.
        auto_reset: whether the step after LAST begins an episode.
        untransformed: whether the outermost layer is `Untransformed`, so that time steps have `untransformed`.

    Raises:
        SpecError: there is another number of seeds, or two are equal.

    Examples:
        >>> from palaestra.envs import SerialDriver, load
        >>> env = LaneEnvironment(SerialDriver([load("CartPole-v1"), load("CartPole-v1")]), lane_seeds=[1, 2])
        >>> env.reset().step_type, env.step(torch.tensor([0, 1])).reward
        (tensor([0, 0], dtype=torch.int32), tensor([1., 1.]))
    """

    seeding = "per_episode"
    resume = "exact"
    checks_finite = True

    def __init__(
        self,
        driver: Driver,
        *,
        lane_seeds: Sequence[int] | None = None,
        info: Sequence[str] = (),
        found: Sequence[str] | None = None,
        untransformed: bool = False,
        auto_reset: bool = True,
    ) -> None:
        self.driver = driver
        """The driver that steps them."""
        try:
            seeds = lane_seeds_of(lane_seeds, driver.batch_size)
        except BaseException:
            driver.close()
            raise
        self.batch_size = driver.batch_size
        self._bare, self._reader, self._policy = driver.specs, driver.reader, driver.faults
        self.specs = self._bare.batched()
        self.auto_reset = auto_reset
        if untransformed:
            both: Any = self.specs.observation
            self.specs, self.untransformed_spec = self.specs._replace(observation=both["seen"]), both["untransformed"]
            self._reader.masked = self._reader.masked_by(self.specs.observation)
        self._scalar_actions = isinstance(self._bare.action, TensorSpec) and not self._bare.action.shape
        self._env_id = torch.arange(self.batch_size)
        self._log = EpisodeLog(seeds, self._bare.action)
        self.dropped = self._log.dropped
        self._budget = RestartBudget(self._policy)
        self._faults, self._first_fault = EventLog(), ""
        self._seeds: dict[int, int] = {}
        self._sent: list[np.ndarray] | None = None
        self._as_ever = torch.inference_mode(False)  # environments may learn, or differentiate, where others infer
        self._ended_by = ""
        self._said_lost = False
        self._defaults: dict[int, dict[str, Any]] = {}  # what attributes were before they were set
        driver.lost = functools.partial(_lost, weakref.ref(self))
        if info:
            if found is None:
                [seen] = self._answer(driver.attributes("env_info_spec", [0]))
                found = list(entry_names(seen.value))
            self.info = chosen_entries(info, found)
        self._says_late = "*" in info

    @property
    def faults(self) -> EventLog:
        return self._faults

    def record_in(self, log: EventLog) -> None:
        """Records faults from now on in a log that is of several.

        Args:
            log: that gets them.
        """
        self._faults = log

    def reset(self) -> TimeStep:
        """Starts the next episode everywhere; running ones, and actions sent, are abandoned."""
        self._check_open()
        self._give_up_step()
        self._log.abandon()
        self.start(neutral_rows(self._bare.action, self.batch_size))
        self._sent = self._reader.zeros()
        return self.recv()

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        """Takes the actions, and starts to execute them where that is possible.

        Args:
            action: [B, ...].
            env_id: all environments, or `None`.

        Raises:
            EnvError: the actions sent before have not been received, or the environment is closed.
            SpecError: an action is NaN, outside its space, or not allowed; no environment has seen any of them.
        """
        if env_id is not None or self._sent is not None:
            require_all(self, env_id, self._sent is not None)
        if not self.auto_reset and self._log.due:
            raise EnvError(
                f"environments {self._log.due} are at the end of an episode, or before their first, and "
                "auto_reset is False; call reset()"
            )
        self.start(self._reader.checked(action, self.driver.first_id, self._where))

    def checked(self, action: Any) -> list[np.ndarray]:
        """Actions as `start` takes them; environments have not seen them yet.

        Args:
            action: [B, ...].

        Raises:
            SpecError: as for `send`.
        """
        return self._reader.checked(action, self.driver.first_id, self._where)

    def start(self, actions: list[np.ndarray]) -> None:
        """Starts to execute actions, which `recv` then waits for.

        Args:
            actions: from `checked`.
        """
        if self._ended_by:
            self._check_open()
        self._seeds = seeds = self._log.send(actions)
        if seeds and self._log.awaiting:
            self._note(self.driver.set_attributes(self._log.take_awaiting(seeds)))
        self.driver.submit(actions, seeds)
        self._sent = actions

    def recv(self) -> TimeStep:
        """Collects the time steps of the actions sent.

        Raises:
            EnvError: an environment failed, or nothing was sent.
            NonFiniteError: an environment emitted NaN or infinity.
        """
        actions, log = self._sent, self._log
        if actions is None:
            raise EnvError("recv was called without send; every recv needs its send")
        self._sent = None
        try:
            with self._as_ever:
                rows, log.due, info, incidents = self.driver.collect()
        except BaseException:  # Ctrl-C, too: which lanes were stepped is not known
            log.abandon()
            raise
        begun: Iterable[int] = self._seeds
        if incidents or log.dropped:
            begun = {*begun, *self._recover(incidents, rows), *log.dropped}
        if not self._scalar_actions:
            # an environment may have changed its row in place
            actions = log.latest()
        for lane in begun:
            for array in actions:
                array[lane] = 0
        prev_action = torch.from_numpy(actions[0]) if self._scalar_actions else to_batched(actions, self._bare.action)
        if self.info:
            info = completed(info, rows.step_type, self.info)
        if self._says_late and info != () and (late := [name for name in info.keys() if name not in self.info]):  # noqa: SIM118
            self._says_late = False
            text = f"info has {', '.join(late)}, which a first look at an episode did not find, so that rows lack it"
            if is_news(text):
                _log.warning("%s; name it in env.info, beside *", text)
        time_step = batched_time_step(rows, prev_action, self._env_id, info, self._bare.observation)
        if self.untransformed_spec is not None:
            time_step = split(time_step)
        if self._reader.masked:
            self._reader.show(time_step)
        return time_step

    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of environments, from their next episode on; saved, and set again where one is remade.

        Args:
            name: of an attribute that a layer of theirs has; the outermost is meant.
            value: a JSON value.
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane, or the value cannot be saved.
            EnvError: actions sent have not been received, or the environment is closed.
        """
        value, chosen = as_json(name, value), require_lanes(lanes, self.batch_size)
        for lane, before in zip(chosen, self.get_attr(name, chosen), strict=True):
            self._defaults.setdefault(lane, {}).setdefault(name, before)
            self._log.awaiting[lane] = {**self._log.awaiting.get(lane, {}), name: value}

    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute of environments is in their running episodes, one value for each.

        Args:
            lanes: numbers of the environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane.
            EnvError: actions sent have not been received, or the environment is closed.
        """
        self._check_open()
        require_idle(self._sent, "attributes were asked for")
        chosen = require_lanes(lanes, self.batch_size)
        while isinstance(found := self.driver.attributes(name, chosen), Incident) and self._is_left(found):
            begun = self._recover([found], Rows.unknown(self._bare, self.batch_size))
            self._log.due = sorted({*self._log.due, *begun} - self._log.dropped)  # the next step shows its first row
        return require_found(name, chosen, self._answer(found))

    def state_dict(self) -> dict[str, Any]:
        """Every lane's episode number, its actions so far, and a digest of its latest observation."""
        self._check_open()
        require_idle(self._sent, "state_dict was called")
        return self._log.state_dict(self._answer(self.driver.digests()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replays every lane's running episode.

        One whose actions were not kept (`EpisodeLog`) is over, and a lane that was dropped is back; `resume` is then
        `statistical`.

        Args:
            state: from `state_dict`, whatever the driver was.

        Raises:
            EnvError: it does not fit, an environment does not replay, or one was dropped.
        """
        self._check_open()
        episodes = self._log.episodes_of(state)
        self.resume = "statistical" if is_forgotten(state) or "dropped" in state else "exact"
        self._restore(episodes)
        given = {lane: {**self._defaults.get(lane, {}), **one.attributes[0]} for lane, one in enumerate(episodes)}
        self._answer(self.driver.set_attributes({lane: found for lane, found in given.items() if found}))
        self._replay(episodes)

    def lane_state(self) -> dict[str, Any]:
        """Every lane's seed and episode number, and what was set, also while steps are on their way."""
        numbers = {"lane_seed": np.array(self._log.lane_seeds), "episode": np.array(self._log.episodes)}
        return numbers | self._log.attributes_text()

    def load_lane_state(self, state: Mapping[str, Any]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere."""
        self._check_open()
        pairs = zip(state["lane_seed"].tolist(), state["episode"].tolist(), strict=True)
        again = [({}, {**before, **after}) for before, after in attributes_of(state, self.batch_size)]
        episodes = [LaneEpisode(*pair, [], "", one) for pair, one in zip(pairs, again, strict=True)]
        self._restore(episodes)
        self._replay(episodes)

    @property
    def carries_over(self) -> bool:
        """Whether a layer of an environment carries something from one episode into the next."""
        return any(":" in mark for mark in self._answer(self.driver.digests()))

    def render(self) -> np.ndarray:
        self._check_open()
        require_idle(self._sent, "render was called")
        return self._answer(self.driver.render())

    def close(self) -> None:
        if not self._ended_by:
            self._ended_by = "it was closed"
            for incident in self.driver.close():
                raise self._record(incident, "raise").error()

    # -- episodes

    def _restore(self, episodes: Sequence[LaneEpisode]) -> None:
        if self._log.dropped:
            lanes = sorted(self._log.dropped)
            raise EnvError(f"environments {lanes} were dropped and cannot be restored; load the state into a new batch")
        self._give_up_step()
        self._reader.mask = None
        self._log.restore(episodes, range(self.batch_size))

    def _replay(self, episodes: Sequence[LaneEpisode]) -> None:
        try:
            self._log.due = self._answer(self.driver.load(episodes))
        except BaseException:
            self._log.abandon()
            raise

    def _give_up_step(self) -> None:
        """Makes sure that a step that was submitted does not disturb the next one."""
        if self._sent is not None:
            self._sent = None
            *_, incidents = self.driver.collect()
            for incident in incidents:
                if incident.fatal:
                    self._note(incident)

    def _where(self, lane: int) -> str:
        number = self._log.episodes[lane]
        return f" (episode {number}, step {self._log.steps(lane) + 1})" if number >= 0 else ""

    # -- faults

    def _recover(self, incidents: Sequence[Incident], rows: Rows) -> list[int]:
        """Does what the policy says; returns the lanes that begin an episode in this very step."""
        leaks = [incident for incident in incidents if incident.failure.kind == "leak"]
        for leak in leaks:
            _log.warning("%s", self._record(leak, "warn"))
        if leaks:
            incidents = [incident for incident in incidents if incident not in leaks]
        if incidents and self._policy.on_fault == "raise":
            faults = [self._record(incident, "raise") for incident in incidents]
            self._log.abandon()
            gone = next((incident for incident in incidents if incident.fatal), None)
            if gone is not None:
                self._stop(gone.failure.what)
            raise faults[0].error()
        begun: list[int] = []
        for incident in incidents:
            lanes = [lane for lane in (incident.failure.lane, *incident.also) if lane not in self._log.dropped]
            if lanes:
                begun += (self._drop if self._policy.on_fault == "drop" else self._restart)(incident, lanes, rows)
        self._log.due = [lane for lane in self._log.due if lane not in begun]
        return begun

    def _drop(self, incident: Incident, lanes: list[int], rows: Rows) -> list[int]:
        fault = self._record(incident, "drop")
        for lane in lanes:
            self._log.drop(lane)
            rows.make_first(lane)
        self.driver.drop(lanes, fatal=incident.fatal)
        if len(self._log.dropped) == self.batch_size:
            self._stop("every environment was dropped")
            raise EnvError(f"the last environment was dropped. The first fault was: {self._first_fault}")
        _log.warning("environments %s are stepped no more: %s", lanes, fault)
        return lanes

    def _restart(self, incident: Incident, lanes: list[int], rows: Rows) -> list[int]:
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
            # if another lane fails to come back, all that it took along are to be started again
            lanes = sorted({*lanes, incident.failure.lane, *incident.also})
            if self._log.awaiting:
                self._note(self.driver.set_attributes(self._log.take_awaiting(lanes)))
            with self._as_ever:
                restarted = self.driver.restart({lane: self._log.restart(lane) for lane in lanes}, fatal=incident.fatal)
            if not isinstance(restarted, Incident):
                break
            incident = restarted
        observations, lost = restarted
        for lane, leaves in observations.items():
            rows.make_first(lane)
            put(rows.observation, lane, leaves)
        names = [layer.partition(":")[2] for layer in lost]
        if names and not self._said_lost and is_news(f"{names} is lost"):
            self._said_lost = True
            _log.warning(
                "what %s carried from earlier episodes (running statistics, counts) is lost with the worker of the "
                "environments that were restarted; they begin from nothing. Said once", ", ".join(names),
            )  # fmt: skip
        return lanes

    def _record(self, incident: Incident, handled: Handled) -> Fault:
        place = self._log.place(incident.failure.lane)
        fault = Fault.of(incident, place, handled=handled, first_id=self.driver.first_id)
        self._faults.append(fault)
        self._first_fault = self._first_fault or str(fault)
        return fault

    def _answer(self, answer: Any) -> Any:
        """A driver's answer; an incident is an error."""
        if isinstance(answer, Incident):
            if answer.fatal:
                self._stop(answer.failure.what)
            raise self._record(answer, "raise").error()
        return answer

    def _note(self, incident: Incident | None) -> None:
        """An incident is an error, unless it is left to the next step."""
        if incident is not None and not self._is_left(incident):
            self._answer(incident)

    def _is_left(self, incident: Incident) -> bool:
        """Whether a worker is gone that is replaced or dropped, which the next step finds again."""
        return incident.fatal and self._policy.on_fault != "raise"

    def _stop(self, because: str) -> None:
        self._ended_by, self._sent = f"an environment failed ({because})", None
        self.driver.stop()

    def _check_open(self) -> None:
        if self._ended_by:
            raise EnvError(f"this {type(self).__name__} has ended: {self._ended_by}")


def _lost(batch: weakref.ref[LaneEnvironment], incident: Incident) -> Fault:
    """The record of a hang that ends this process; the batch may be gone already."""
    env = batch()
    if env is None:
        return Fault.of(incident, (-1, None, 0, None), handled="raise", first_id=0)
    return env._record(incident, "raise")
