"""Attributes of environments with many agents that are set while these are stepped: what a curriculum changes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from palaestra.envs.contract.attributes import Found, find_attribute, write_attributes
from palaestra.multiagent.env import MultiAgentEnv

__all__ = ["LaneAttributes", "is_many_agents"]

_FOREIGN = ("pettingzoo.utils.env.AECEnv", "pettingzoo.utils.env.ParallelEnv")  # known without importing them
_INNER = ("env", "_env", "aec_env")


class LaneAttributes:
    """What was set of one environment: what its running episode began with, and what its next one begins with."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self._awaiting: dict[str, Any] = {}
        self._before: dict[str, Any] = {}  # what attributes were before they were set

    def find(self, env: MultiAgentEnv, name: str) -> Found:
        """An attribute as it is now.

        Args:
            env: whose.
            name: of it.
        """
        return find_attribute(layers_of(env), name)

    def wait_for(self, env: MultiAgentEnv, values: Mapping[str, Any]) -> None:
        """Has attributes set with the next episode.

        Args:
            env: whose.
            values: by name, as JSON has them.
        """
        self._note(env, values)
        self._awaiting |= values

    def begin(self, env: MultiAgentEnv) -> None:
        """Sets what waits for an episode that begins.

        Args:
            env: in which.
        """
        if self._awaiting:
            write_attributes(layers_of(env), self._awaiting)
            self._given, self._awaiting = {**self._given, **self._awaiting}, {}

    def set_again(self) -> None:
        """Has everything set before the next episode: the environment was made again."""
        self._awaiting = {**self._given, **self._awaiting}

    def state(self) -> str:
        """Attributes that were set, as text; empty if none were."""
        pair = self._given, self._awaiting
        return json.dumps(pair) if any(pair) else ""

    def load_state(self, env: MultiAgentEnv, state: str) -> dict[str, Any]:
        """Sets what a running episode began with, and puts everything else back to what it was.

        Args:
            env: that replays the episode.

        Returns:
            What waits for the next episode, to be given to `wait_for` when this one was replayed.
        """
        self._given, waiting = json.loads(state or "[{}, {}]")
        self._awaiting = {}
        self._note(env, self._given)
        write_attributes(layers_of(env), {**self._before, **self._given})
        return waiting

    def _note(self, env: MultiAgentEnv, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._before:
                self._before[name] = self.find(env, name).value


def is_many_agents(kind: type) -> bool:
    """Whether a class is of an environment with many agents, ours or PettingZoo's.

    Args:
        kind: the class.
    """
    return issubclass(kind, MultiAgentEnv) or any(
        f"{base.__module__}.{base.__qualname__}" in _FOREIGN for base in kind.__mro__
    )


def layers_of(env: Any) -> list[Any]:
    """An environment and what it wraps, PettingZoo's wrappers too, the outermost first."""
    layers = [env]
    while inner := [one for name in _INNER if _is_env(one := vars(layers[-1]).get(name))]:
        layers.append(inner[0])
    return layers


def _is_env(value: Any) -> bool:
    return isinstance(value, gymnasium.Env) or is_many_agents(type(value))
