"""`World`: one environment in which several agents act, together or each at its own times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import EnvError, SpecTree, TimeStep

__all__ = ["AgentSpec", "Moment", "World"]


class AgentSpec(NamedTuple):
    """What one agent sees and does, without leading dimensions."""

    observation: SpecTree
    """Of one observation; a dict's key `action_mask` says which actions are allowed."""
    action: SpecTree
    """Of one action."""


class Moment(NamedTuple):
    """What has happened in a world since its agents acted last."""

    time_steps: Mapping[str, TimeStep]
    """By agent, bare. Whoever gets one that is not LAST acts next; an agent that is left out waits."""
    over: bool = False
    """Whether the episode of the world ends here; every agent whose own episode was running gets its LAST then."""
    late_rewards: Mapping[str, Sequence[float]] = {}
    """Of `delayed` worlds: rewards by agent, one for each of its actions, in the order of the actions."""
    info: Mapping[str, float] = {}
    """Numbers about the episode, said at its end."""


class World(ABC):
    """One environment with several agents: numpy in and out.

    Each agent has episodes of its own, which follow the table of episode ends: FIRST, MID, ..., LAST, with discount 0
    where the agent's task ended and 1 where it was cut off. An agent may appear and die at any moment, and come back
    with a new FIRST; when the episode of the world is over, no agent's episode goes on.

    A subclass defines `agents`, `begin_episode` and `advance`.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> world = Meeting(num_agents=2, num_cells=3)
        >>> moment = world.begin_episode(seed=0)
        >>> sorted(moment.time_steps), moment.over
        (['agent_0', 'agent_1'], False)
    """

    delayed: bool = False
    """Whether rewards come as `Moment.late_rewards`; those in time steps are 0 then."""

    @property
    @abstractmethod
    def agents(self) -> Mapping[str, AgentSpec]:
        """Every agent that may ever act, by name, in an order that never changes."""

    @property
    def state_spec(self) -> SpecTree | None:
        """Of `global_state`; `None` where there is none."""
        return None

    @abstractmethod
    def begin_episode(self, seed: int) -> Moment:
        """Starts an episode.

        Args:
            seed: all the randomness of the episode comes from it.

        Returns:
            FIRST time steps of the agents that act first.
        """

    @abstractmethod
    def advance(self, actions: Mapping[str, Any]) -> Moment:
        """Executes actions and goes on until somebody is to act again.

        Args:
            actions: of exactly those agents that got a time step which was not LAST in the moment before.
        """

    def global_state(self) -> Any:
        """The state of the whole world as it is now, which central critics see and agents need not."""
        raise EnvError(f"{type(self).__name__} has no global state")

    def close(self) -> None:  # noqa: B027 - a world that holds nothing has nothing to do
        """Frees what the world holds."""

    def render(self) -> np.ndarray:
        """A picture of the world, uint8 [H, W, 3].

        Raises:
            EnvError: it cannot be drawn.
        """
        raise EnvError(f"{type(self).__name__} cannot be rendered")
