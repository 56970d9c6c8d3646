"""What Gymnasium's registry holds."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["RegisteredEnvironment", "registered_environments"]


# Shells around environments of Gymnasium's predecessors; they cannot be made by their name alone.
_ADAPTERS = ("GymV21Environment", "GymV26Environment")


class RegisteredEnvironment(NamedTuple):
    """An environment that can be named."""

    name: str
    """Its id."""
    suite: str
    """Which family it is of, for example `classic_control`."""
    max_episode_steps: int | None
    """Its registered time limit."""
    native: bool
    """Whether it has a vectorised version of its own."""


def registered_environments() -> list[RegisteredEnvironment]:
    """The newest version of every environment in the registry, by suite and name.

    Examples:
        >>> [env for env in registered_environments() if env.name == "CartPole-v1"][0].suite
        'classic_control'
    """
    newest: dict[tuple[str | None, str], EnvSpec] = {}
    for spec in gymnasium.registry.values():
        if spec.name in _ADAPTERS:
            continue
        key = (spec.namespace, spec.name)
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    found = [
        RegisteredEnvironment(spec.id, _suite(spec), spec.max_episode_steps, spec.vector_entry_point is not None)
        for spec in newest.values()
    ]
    return sorted(found, key=lambda env: (env.suite, env.name))


def _suite(spec: EnvSpec) -> str:
    """`classic_control` of `gymnasium.envs.classic_control.cartpole:CartPoleEnv`; else the package."""
    if spec.namespace:
        return spec.namespace
    place = spec.entry_point.__module__ if callable(spec.entry_point) else str(spec.entry_point)
    parts = place.split(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]
