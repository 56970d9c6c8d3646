"""`evaluate_agents`: episodes of worlds in which nobody learns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from palaestra.multiagent.actor import Actor
from palaestra.multiagent.collector import require_policies
from palaestra.multiagent.episodes import WorldEpisodes
from palaestra.multiagent.roles import Role
from palaestra.multiagent.worlds import Worlds
from palaestra.policies import Phase, Policy
from palaestra.rollout import Episode, Evaluation, evaluation_noise, evaluation_of, first_episodes

__all__ = ["evaluate_agents", "play_worlds"]


def evaluate_agents(
    policies: Mapping[str, Policy],
    worlds: Worlds,
    roles: Mapping[str, Role],
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seeds: Sequence[int] = (),
    time_limit_s: float | None = None,
) -> Evaluation:
    """Runs exactly so many episodes, shared out evenly over the worlds, so that short ones are not preferred.

    The return of an episode is the sum over its agents; `Evaluation.parts` has the means of what each agent and each
    policy earned, and of what the worlds report. Acting noise comes from generators of the evaluation's own.

    Args:
        policies: by name; each acts in `Phase.EVAL`.
        worlds: reset at the start.
        roles: by policy name.
        episodes: how many.
        deterministic: whether to take the most probable or most valuable actions.
        seeds: the lane seeds that `worlds` were made with, for the record.
        time_limit_s: stop after so many seconds with the episodes that have ended, and a warning.

    Raises:
        ConfigError: the policies do not fit the roles, or no episode ended within the time limit.

    Examples:
        >>> from palaestra.multiagent import Meeting, assign_roles
        >>> from palaestra.policies import RandomPolicy
        >>> worlds = Worlds([Meeting], lane_seeds=[0])
        >>> roles = assign_roles(worlds.agents, {"*": "walkers"})
        >>> policy = RandomPolicy(roles["walkers"].observation_spec, roles["walkers"].action_spec)
        >>> result = evaluate_agents({"walkers": policy}, worlds, roles, episodes=3)
        >>> abs(result.return_mean - 3 * result.parts["walkers/return"]) < 1e-6
        True
    """
    play = play_worlds(policies, worlds, roles, deterministic=deterministic)
    finished = first_episodes(play, worlds.batch_size, episodes, time_limit_s=time_limit_s)
    return dataclasses.replace(
        evaluation_of(finished, list(seeds), deterministic=deterministic), parts=_means(finished)
    )


def play_worlds(
    policies: Mapping[str, Policy], worlds: Worlds, roles: Mapping[str, Role], *, deterministic: bool = True
) -> Generator[list[Episode]]:
    """Steps worlds for ever with policies that do not learn; what they go through in between is theirs to look at.

    Args:
        policies: by name.
        worlds: reset at the start.
        roles: by policy name.
        deterministic: whether to take the most probable or most valuable actions.

    Yields:
        The episodes that ended with each moment, after the first.

    Raises:
        ConfigError: the policies do not fit the roles.
    """
    require_policies(roles, policies)
    record = WorldEpisodes(worlds.batch_size, roles)
    actors = [Actor(policies[name], role, worlds.batch_size, delayed=False) for name, role in roles.items()]
    with evaluation_noise({policy: number for number, policy in enumerate(policies.values())}), torch.inference_mode():
        try:
            moments = worlds.reset()
            while True:
                states: list[Any] = [None] * worlds.batch_size
                if any(role.state_spec is not None for role in roles.values()):
                    states = worlds.global_state()
                for world, moment in enumerate(moments):
                    record.add(world, moment)
                    for actor in actors:
                        actor.take(world, moment, states[world])
                yield record.finished()
                actions: list[dict[str, Any]] = [{} for _ in moments]
                for actor in actors:
                    actor.act(Phase.EVAL, deterministic=deterministic, actions=actions)
                moments = worlds.step(actions)
                for world in worlds.restarted:
                    record.abandon(world)
                    for actor in actors:
                        actor.forget(world)
        finally:
            worlds.interrupted = True


def _means(episodes: Sequence[Episode]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            columns.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}
