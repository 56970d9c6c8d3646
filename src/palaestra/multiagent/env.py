"""`MultiAgentEnv`: one environment in which several agents act."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import EnvError, SpecTree, TimeStep

__all__ = ["AgentSpec", "MultiAgentEnv", "MultiAgentStep"]


class AgentSpec(NamedTuple):
    """What one agent sees and does, without leading dimensions."""

    observation: SpecTree
    """Of one observation; a dict's key `action_mask` says which actions are allowed."""
    action: SpecTree
    """Spec of one action."""


class MultiAgentStep(NamedTuple):
    """What has happened in an environment since its agents acted last."""

    time_steps: Mapping[str, TimeStep]
    """By agent, bare. An agent that gets one which is not LAST acts next; an agent that is left out waits."""
    over: bool = False
    """Whether the environment's episode ends here; every agent whose own episode was running gets its LAST then."""
    late_rewards: Mapping[str, Sequence[float]] = {}
    """Of `delayed` environments: rewards by agent, one for each of its actions, in the order of the actions."""
    info: Mapping[str, float] = {}
    """Numbers about the episode, said at its end."""
    next_agents: Collection[str] | None = None
    """Where the episode is cut off: who would have acted next; `None` is everybody who is cut off. A team whose members
    take turns needs it, for its value after the cut is that of whoever would act."""
    unearned_rewards: Mapping[str, float] = {}
    """By agent, what belongs to none of its actions: an ante, or what the end of a game pays to one who has not had a
    turn. Returns, matches and ratings count it, and the agent as one that took part; nobody learns from it."""

    def rewards(self) -> dict[str, float]:
        """All that agents got in this step: with time steps, late, and unearned."""
        rewards = {name: float(time_step.reward) for name, time_step in self.time_steps.items()}
        for name, late in self.late_rewards.items():
            rewards[name] = rewards.get(name, 0.0) + float(sum(late))
        for name, unearned in self.unearned_rewards.items():
            rewards[name] = rewards.get(name, 0.0) + float(unearned)
        return rewards


class MultiAgentEnv(ABC):
    """One environment with several agents: numpy in and out.

    Each agent has episodes of its own, which follow the table of episode ends: FIRST, MID, ..., LAST, with discount 0
    where the agent's task ended and 1 where it was cut off. An agent may appear and die at any step, and come back
    with a new FIRST; when the episode of the environment is over, no agent's episode continues.

    A subclass defines `agents`, `begin_episode` and `advance`.

    Examples:
        >>> from palaestra.multiagent import Meeting
        >>> env = Meeting(num_agents=2, num_cells=3)
        >>> outcome = env.begin_episode(seed=0)
        >>> sorted(outcome.time_steps), outcome.over
        (['agent_0', 'agent_1'], False)
    """

    delayed: bool = False
    """Whether rewards come as `MultiAgentStep.late_rewards`; those in time steps are 0 then."""

    @property
    @abstractmethod
    def agents(self) -> Mapping[str, AgentSpec]:
        """Every agent that may ever act, by name, in an order that never changes."""

    @property
    def state_spec(self) -> SpecTree | None:
        """Of `global_state`; `None` where there is none."""
        return None

    @abstractmethod
    def begin_episode(self, seed: int) -> MultiAgentStep:
        """Starts an episode.

        Args:
            seed: all the randomness of the episode comes from it.

        Returns:
            FIRST time steps of the agents that act first.
        """

    @abstractmethod
    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        """Executes actions and runs until an agent is to act again.

        Args:
            actions: of exactly those agents that got a time step which was not LAST in the step before.
        """

    def global_state(self) -> Any:
        """The state of the whole environment as it is now, which central critics see and agents need not."""
        raise EnvError(f"{type(self).__name__} has no global state")

    def close(self) -> None:  # noqa: B027 - an environment that holds nothing has nothing to do
        """Frees what the environment holds."""

    def render(self) -> np.ndarray:
        """A picture of the environment, uint8 [H, W, 3].

        Raises:
            EnvError: it cannot be drawn.
        """
        raise EnvError(f"{type(self).__name__} cannot be rendered")
