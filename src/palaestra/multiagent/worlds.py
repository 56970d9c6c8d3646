"""`Worlds`: several worlds stepped together, with seeds, checks of the contract, restarts, and exact resume."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from palaestra.core import ConfigError, EnvError, NonFiniteError, PalaestraError, SpecError, SpecTree, episode_seed
from palaestra.envs import Fault, FaultPolicy
from palaestra.envs.faults import FaultKind, RestartBudget, describe
from palaestra.multiagent.action_log import ActionLog
from palaestra.multiagent.moments import MomentCheck, moment_digest
from palaestra.multiagent.world import AgentSpec, Moment, World

__all__ = ["Worlds"]

_log = logging.getLogger(__name__)


class _Lane:
    """One world and where it is in its stream of episodes."""

    def __init__(self, world: World, seed: int, log: ActionLog, check: MomentCheck) -> None:
        self.world, self.seed, self.log, self.check = world, seed, log, check
        self.number, self.steps, self.over = -1, 0, True

    @property
    def episode_seed(self) -> int:
        return episode_seed(self.seed, self.number)


class Worlds:
    """B worlds of one kind, stepped one after another in this process.

    After the moment in which a world's episode is over, the next `step` begins its next one. Every episode is seeded by
    its lane's seed and its number, so a resumed run replays it: by its actions, checked by a digest.

    Args:
        factories: make one world each, all with the same agents.
        lane_seeds: one for each; fresh ones if `None`.
        faults: what to do about a world that fails: `raise`, or `restart`, which makes it again and begins its next
            episode.

    Raises:
        ConfigError: `faults` says `drop`.
        EnvError: the worlds have different agents, or there is none.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> with Worlds([Meeting, Meeting], lane_seeds=[1, 2]) as worlds:
        ...     moments = worlds.reset()
        ...     moments = worlds.step([{agent: 1 for agent in moment.time_steps} for moment in moments])
        >>> [moment.time_steps["agent_0"].step_type for moment in moments]
        [1, 1]
    """

    resume: Literal["exact"] = "exact"
    """Restored worlds go on with the very same stream."""

    def __init__(
        self,
        factories: Sequence[Callable[[], World]],
        *,
        lane_seeds: Sequence[int] | None = None,
        faults: FaultPolicy | None = None,
    ) -> None:
        if not factories:
            raise EnvError("no worlds were given; at least one is needed")
        self._policy = faults or FaultPolicy()
        if self._policy.on_fault == "drop":
            raise ConfigError("on_fault is 'drop', but worlds cannot go on without one of them; use 'restart'")
        self._factories, self._budget = list(factories), RestartBudget(self._policy)
        worlds = [factory() for factory in factories]
        self.agents: Mapping[str, AgentSpec] = dict(worlds[0].agents)
        """Every agent that may ever act, by name."""
        for number, world in enumerate(worlds):
            if dict(world.agents) != self.agents or world.delayed != worlds[0].delayed:
                raise EnvError(f"world {number} has other agents than world 0; worlds stepped together must be equal")
        self.batch_size = len(worlds)
        """Number of worlds, B."""
        self.delayed = worlds[0].delayed
        """Whether rewards come later than time steps."""
        self.interrupted = False
        """Whether somebody else has stepped them since their collector last did; it then begins new episodes."""
        self.faults: list[Fault] = []
        """Every fault, in order."""
        self.restarted: frozenset[int] = frozenset()
        """Worlds whose running episode broke off in the newest step; their newest moment begins another."""
        seeds = list(lane_seeds) if lane_seeds is not None else np.random.SeedSequence().generate_state(len(worlds))
        if len(seeds) != len(worlds):
            raise EnvError(f"{len(seeds)} lane seeds were given for {len(worlds)} worlds; give one for each")
        self._lanes = [
            _Lane(world, int(seed), ActionLog(self.agents), MomentCheck(self.agents, world.delayed))
            for world, seed in zip(worlds, seeds, strict=True)
        ]

    @property
    def state_spec(self) -> SpecTree | None:
        """Of `World.global_state`; `None` where the worlds have none."""
        return self._lanes[0].world.state_spec

    def reset(self) -> list[Moment]:
        """Starts the next episode of every world; running ones are abandoned."""
        for lane in self._lanes:
            lane.over = True
        return self.step([{} for _ in self._lanes])

    def step(self, actions: Sequence[Mapping[str, Any]]) -> list[Moment]:
        """Executes actions in every world, and starts the next episode of those that are over.

        Args:
            actions: for each world, of the agents that are to act, by name, as their action specs say.

        Raises:
            EnvError: a world failed, and may not be restarted; the message names it, its seed, episode, step and
                actions.
            SpecError: what it emitted breaks the contract, and it may not be restarted.
        """
        before = len(self.faults)
        moments = [
            self._stepped_or_restarted(number, lane, mine)
            for number, (lane, mine) in enumerate(zip(self._lanes, actions, strict=True))
        ]
        self.restarted = frozenset(fault.env_id for fault in self.faults[before:])
        return moments

    def global_state(self) -> list[Any]:
        """The global state of every world, as its newest moment left it."""
        return [lane.world.global_state() for lane in self._lanes]

    def where(self, number: int) -> str:
        """Which episode a world is in, with its seed and step, for messages.

        Args:
            number: of the world.
        """
        lane = self._lanes[number]
        return f"world {number} in episode {lane.number} (seed {lane.episode_seed}), step {lane.steps}"

    def _stepped_or_restarted(self, number: int, lane: _Lane, actions: Mapping[str, Any]) -> Moment:
        while True:
            try:
                return self._stepped(number, lane, actions)
            except PalaestraError:
                if self._policy.on_fault == "raise":
                    raise
                wait_s = self._budget.spend(number, self.faults[-1])
                _log.warning("world %d is made again in %.1f s: %s", number, wait_s, self.faults[-1])
                time.sleep(wait_s)
                with contextlib.suppress(Exception):
                    lane.world.close()
                lane.world, actions = self._factories[number](), {}

    def _stepped(self, number: int, lane: _Lane, actions: Mapping[str, Any]) -> Moment:
        try:
            if lane.over:
                lane.number, lane.steps = lane.number + 1, 0
                lane.log.clear()
                lane.check.clear()
                moment = lane.world.begin_episode(lane.episode_seed)
            else:
                lane.check.require_actions(actions)
                lane.steps += 1
                moment = lane.world.advance(lane.log.add(actions))
            lane.check.take(moment)
        except Exception as error:
            lane.over = True
            raise self._failure(number, lane, actions, error) from error
        lane.over = moment.over
        return moment

    def _failure(self, number: int, lane: _Lane, actions: Any, error: Exception) -> PalaestraError:
        kind: FaultKind = "raised"
        if isinstance(error, SpecError | NonFiniteError):
            kind = "malformed" if isinstance(error, SpecError) else "non-finite"
        what, detail = describe(error)
        fault = Fault(
            env_id=number,
            kind=kind,
            what={"raised": f"raised {what}", "malformed": "broke a rule"}.get(kind, "gave no number"),
            detail=detail,
            episode=lane.number,
            seed=lane.episode_seed,
            step=lane.steps,
            action=repr(dict(actions)) if lane.steps else "",
            handled=self._policy.on_fault,
            time_s=time.time(),
        )
        self.faults.append(fault)
        text = f"{self.where(number)}, with actions {fault.action or 'of none'}, {fault.what}: {detail}"
        return ({"malformed": SpecError, "non-finite": NonFiniteError}.get(kind, EnvError))(text)

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where every world is: seed, episode and actions so far, and a digest of what it showed last."""
        return {
            str(number): {
                "lane_seed": lane.seed,
                "episode": lane.number,
                "over": lane.over,
                "digest": moment_digest(lane.check.newest, self.agents),
                "actions": lane.log.state(),
            }
            for number, lane in enumerate(self._lanes)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[Moment | None]:
        """Replays every world's running episode.

        Args:
            state: from `state_dict`.

        Returns:
            The newest moment of each world; `None` of one whose episode is over, or has none yet.

        Raises:
            EnvError: it is of another number of worlds, or a world does not replay.
        """
        if len(state) != len(self._lanes):
            raise EnvError(f"the saved state is of {len(state)} worlds and this has {len(self._lanes)}")
        return [self._replayed(number, lane, state[str(number)]) for number, lane in enumerate(self._lanes)]

    def _replayed(self, number: int, lane: _Lane, state: Mapping[str, Any]) -> Moment | None:
        lane.seed, lane.number, lane.over = int(state["lane_seed"]), int(state["episode"]), True
        if state["over"]:
            lane.log.clear()
            lane.check.clear()
            return None
        saved = ActionLog(self.agents)
        saved.load_state(state["actions"])
        lane.number -= 1
        moment = self._stepped(number, lane, {})
        for actions in saved.steps():
            moment = self._stepped(number, lane, actions)
        if moment_digest(moment, self.agents) != state["digest"]:
            raise EnvError(
                f"{self.where(number)} does not replay: after the same seed and actions it shows something else. "
                "All of its randomness must come from the seed of `begin_episode`"
            )
        return moment

    def lane_state(self) -> dict[str, np.ndarray]:
        """Every world's seed and episode number."""
        return {
            "lane_seed": np.array([lane.seed for lane in self._lanes]),
            "episode": np.array([lane.number for lane in self._lanes]),
        }

    def load_lane_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over seeds and episode numbers; the next step starts new episodes everywhere.

        Args:
            state: from `lane_state`.
        """
        for lane, seed, number in zip(self._lanes, state["lane_seed"], state["episode"], strict=True):
            lane.seed, lane.number, lane.over = int(seed), int(number), True

    def render(self) -> np.ndarray:
        """A picture of world 0."""
        return self._lanes[0].world.render()

    def close(self) -> None:
        """Frees what the worlds hold. Closing twice is fine."""
        for lane in self._lanes:
            lane.world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
