"""Worlds by name, and the configuration of who acts in them."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palaestra.core import ConfigError, RunSeeds, SpecTree, import_object
from palaestra.envs import EnvConfig
from palaestra.multiagent.pettingzoo import PREFIX, load_pettingzoo, world_from_pettingzoo
from palaestra.multiagent.roles import Role, assign_roles
from palaestra.multiagent.world import AgentSpec, World
from palaestra.multiagent.worlds import Worlds

__all__ = ["AgentsConfig", "create_worlds", "is_world", "load_world"]

_SETTINGS = ("name", "num_envs", "kwargs", "train_kwargs", "vectorization", "on_fault", "max_restarts")
_INSTEAD = {
    "wrappers": "name a function that returns the world wrapped as you want it, `def make() -> World`",
    "chaos": "faults can be injected into environments with one agent only",
    "timeout_s": "a world is stepped in its worker's process; distributed.timeout_s bounds how long that may take",
}
_INSTEAD["reset_timeout_s"] = _INSTEAD["timeout_s"]
_OTHERWISE = "change the world itself"


@dataclass(frozen=True, kw_only=True)
class AgentsConfig:
    """Who acts by which policy, where an environment has many agents."""

    mapping: dict[str, Any] = field(default_factory=dict)
    """From names of agents, or patterns such as `buyer_*`, to names of policies; the first that fits counts. Without,
    `sharing` decides."""
    sharing: Literal["shared", "separate"] = "shared"
    """One policy for all agents that see and do the same things, or a policy for each."""
    policies: dict[str, Any] = field(default_factory=dict)
    """What policies are that do not learn by the run's algorithm: its name, or `{algorithm: dqn, epsilon: 0.1}`; or
    `random`; or a rule, `my_package:function`, from a batch of observations to one of actions."""
    global_state: bool = True
    """Whether central critics see the world's global state, where it has one; else what all members see."""

    def mapping_for(self, agents: Mapping[str, AgentSpec]) -> dict[str, str]:
        """From agents or patterns to policies.

        Args:
            agents: of the world.
        """
        if self.mapping:
            return {pattern: str(policy) for pattern, policy in self.mapping.items()}
        if self.sharing == "separate":
            return {name: re.sub(r"\W", "_", name) for name in agents}
        kinds: list[AgentSpec] = []
        for spec in agents.values():
            if spec not in kinds:
                kinds.append(spec)
        if len(kinds) == 1:
            return {"*": "shared"}
        return {name: f"shared_{kinds.index(spec)}" for name, spec in agents.items()}

    def roles(
        self, agents: Mapping[str, AgentSpec], *, joint: Collection[str] | None, state_spec: SpecTree | None
    ) -> dict[str, Role]:
        """The roles of all policies.

        Args:
            agents: of the world.
            joint: policies that learn for a team; `None` is all.
            state_spec: of the world's global state.

        Raises:
            ConfigError: see `assign_roles`.
        """
        mapping = self.mapping_for(agents)
        teams = set(mapping.values()) if joint is None else joint
        return assign_roles(agents, mapping, joint=teams, state_spec=state_spec if self.global_state else None)


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
