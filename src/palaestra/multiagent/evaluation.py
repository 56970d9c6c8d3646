"""What agents and policies earn: `WorldEpisodes`, and `evaluate_agents`, which runs episodes without learning."""

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from palaestra.multiagent.acting import Actor
from palaestra.multiagent.env import Moment
from palaestra.multiagent.envs import Worlds
from palaestra.multiagent.mapping import Role, require_policies
from palaestra.policies import Phase, Policy
from palaestra.rollout import Episode, Evaluation, evaluation_noise, evaluation_of, first_episodes

__all__ = ["evaluate_agents", "play_worlds"]


class WorldEpisodes:
    """Turns moments into finished episodes.

    An episode's return is the sum over all agents, its length the moments that were executed. Its `info` has
    `<agent>/return` and `<agent>/length` (actions taken) of every agent that took part, and `<policy>/return`, the mean
    over the agents of each policy, with the numbers that the world itself reports.

    Args:
        num_worlds: B.
        roles: by policy name.
    """

    def __init__(self, num_worlds: int, roles: Mapping[str, Role]) -> None:
        self._roles = roles
        self._returns: list[dict[str, float]] = [{} for _ in range(num_worlds)]
        self._actions: list[dict[str, int]] = [{} for _ in range(num_worlds)]
        self._lengths = [-1] * num_worlds
        self._finished: list[Episode] = []

    def __len__(self) -> int:
        """Episodes that wait to be taken."""
        return len(self._finished)

    def add(self, world: int, moment: Moment) -> None:
        """Takes what happened.

        Args:
            world: its number.
            moment: that it has come to.
        """
        returns, actions = self._returns[world], self._actions[world]
        self._lengths[world] += 1
        for name, time_step in moment.time_steps.items():
            returns[name] = returns.get(name, 0.0) + float(time_step.reward)
            actions[name] = actions.get(name, -1) + 1 if time_step.step_type else actions.get(name, 0)
        for name, rewards in moment.late_rewards.items():
            returns[name] = returns.get(name, 0.0) + float(sum(rewards))
        if moment.over:
            self._finished.append(self._episode(world, moment.info))
            self.abandon(world)

    def _episode(self, world: int, told: Mapping[str, float]) -> Episode:
        returns, actions = self._returns[world], self._actions[world]
        info = {f"{name}/return": value for name, value in returns.items()}
        info |= {f"{name}/length": float(count) for name, count in actions.items()}
        for policy, role in self._roles.items():
            mine = [returns[name] for name in role.agents if name in returns]
            if mine:
                info[f"{policy}/return"] = sum(mine) / len(mine)
        info |= {name: float(value) for name, value in told.items()}
        return Episode(sum(returns.values()), self._lengths[world], world, info)

    def abandon(self, world: int) -> None:
        """Forgets a world's running episode.

        Args:
            world: its number.
        """
        self._returns[world], self._actions[world], self._lengths[world] = {}, {}, -1

    def finished(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def state(self) -> dict[str, Any]:
        """Running episodes, and those not taken yet, as JSON values."""
        return {
            "returns": self._returns,
            "actions": self._actions,
            "lengths": self._lengths,
            "finished": [list(episode[:4]) for episode in self._finished],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of as many worlds.
        """
        self._returns = [dict(returns) for returns in state["returns"]]
        self._actions = [dict(actions) for actions in state["actions"]]
        self._lengths = list(state["lengths"])
        self._finished = [Episode(*values) for values in state["finished"]]


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
