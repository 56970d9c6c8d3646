"""`Worlds`: several worlds stepped together, with seeds, checks, restarts and exact resume; and worlds by name."""

import contextlib
import functools
import inspect
import logging
import re
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from palaestra.core import (
    ConfigError,
    EnvError,
    NonFiniteError,
    PalaestraError,
    RunSeeds,
    SpecError,
    SpecTree,
    episode_seed,
    import_object,
)
from palaestra.envs import EnvConfig, Fault, FaultPolicy
from palaestra.envs.faults import FaultKind, RestartBudget, describe
from palaestra.multiagent.env import AgentSpec, Moment, World
from palaestra.multiagent.pettingzoo import PREFIX, load_pettingzoo, world_from_pettingzoo
from palaestra.multiagent.rules import ActionLog, MomentCheck, moment_digest

__all__ = ["Worlds", "create_worlds", "is_world", "load_world"]

_log = logging.getLogger(__name__)
_SETTINGS = ("name", "num_envs", "kwargs", "train_kwargs", "vectorization", "on_fault", "max_restarts")
_INSTEAD = {
    "wrappers": "name a function that returns the world wrapped as you want it, `def make() -> World`",
    "chaos": "faults can be injected into environments with one agent only",
    "timeout_s": "a world is stepped in its worker's process; distributed.timeout_s bounds how long that may take",
}
_INSTEAD["reset_timeout_s"] = _INSTEAD["timeout_s"]
_OTHERWISE = "change the world itself"


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


def is_world(name: str) -> bool:
    """Whether an environment's name means one with many agents.

    Args:
        name: as `EnvConfig.name`: `pettingzoo:...`, or `my_package:MyWorld` for a class of a `World` or of PettingZoo,
            or for a function that says in its signature that it returns one.

    Examples:
        >>> is_world("palaestra.multiagent:Meeting"), is_world("CartPole-v1")
        (True, False)
    """
    return name.startswith(PREFIX) or _world_class(name) is not None


def load_world(name: str, kwargs: Mapping[str, Any] | None = None) -> World:
    """One world by name.

    Args:
        name: see `is_world`.
        kwargs: for its constructor.

    Raises:
        ConfigError: there is no such world, or the arguments do not fit.
        MissingExtraError: it needs an optional package.
    """
    given = dict(kwargs or {})
    if name.startswith(PREFIX):
        return load_pettingzoo(name, **given)
    maker = import_object(name)
    try:
        inspect.signature(maker).bind(**given)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be called with {given}: {error}") from None
    made = maker(**given)
    return made if isinstance(made, World) else world_from_pettingzoo(made)


def create_worlds(config: EnvConfig, *, seed: int = 0, lane_seeds: Sequence[int] | None = None) -> Worlds:
    """Several worlds of a configuration.

    Args:
        config: which and how many, the constructor's arguments, and what to do about faults; its other settings mean
            nothing for worlds.
        seed: the run seed that the worlds' seeds are derived from.
        lane_seeds: one for each instead.

    Raises:
        ConfigError: a setting is for environments with one agent.

    Examples:
        >>> create_worlds(EnvConfig(name="palaestra.multiagent:Meeting", num_envs=2)).batch_size
        2
    """
    plain = EnvConfig(name=config.name)
    for setting, value in vars(config).items():
        if setting not in _SETTINGS and value != getattr(plain, setting):
            raise ConfigError(
                f"env.{setting} is {value!r}, but {config.name} has many agents: {_INSTEAD.get(setting, _OTHERWISE)}. "
                f"Of env, these can be set: {', '.join(_SETTINGS)}"
            )
    if config.vectorization not in ("auto", "serial"):
        raise ConfigError(f"env.vectorization is {config.vectorization}; worlds are stepped in this process: serial")
    if lane_seeds is None:
        lane_seeds = [RunSeeds(seed).integer("environments", lane) for lane in range(config.num_envs)]
    make = functools.partial(load_world, config.name, {**config.kwargs, **config.train_kwargs})
    return Worlds([make] * config.num_envs, lane_seeds=lane_seeds, faults=config.faults)


def _world_class(name: str) -> type | None:
    """The class of what a name makes, where that has many agents."""
    if not re.fullmatch(r"[\w.]+:[A-Za-z_][\w.]*", name):
        return None
    try:
        maker = import_object(name)
    except ConfigError:
        return None  # an id of the registry, say; whoever makes it will tell
    kind: Any = maker
    if not isinstance(maker, type):
        try:
            kind = typing.get_type_hints(maker).get("return")
        except (NameError, TypeError):
            return None
    return kind if isinstance(kind, type) and _many_agents(kind) else None


def _many_agents(kind: type) -> bool:
    foreign = ("pettingzoo.utils.env.AECEnv", "pettingzoo.utils.env.ParallelEnv")  # known without importing them
    return issubclass(kind, World) or any(f"{base.__module__}.{base.__qualname__}" in foreign for base in kind.__mro__)
