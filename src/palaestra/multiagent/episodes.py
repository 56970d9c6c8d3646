"""`WorldEpisodes`: what every agent and every policy earned in each episode of a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.multiagent.roles import Role
from palaestra.multiagent.world import Moment
from palaestra.rollout import Episode

__all__ = ["WorldEpisodes"]


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
