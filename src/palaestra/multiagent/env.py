"""`MultiAgentEnv`: one environment in which several agents act; and `EnvWrapper`, which makes one of your simulator."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from palaestra.core import EnvError, SpecTree, TimeStep, restart, termination, transition, truncation

__all__ = ["AgentSpec", "EnvWrapper", "MultiAgentEnv", "MultiAgentStep"]


class AgentSpec(NamedTuple):
    """What one agent sees and does, without leading dimensions."""

    observation: SpecTree
    """Of one observation; a dict's key `action_mask` says which actions are allowed."""
    action: SpecTree
    """Of one action."""


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


class _Decision(NamedTuple):
    """Actions that wait for their rewards."""

    tick: int
    actions: Mapping[str, Any]
    info: Any


class EnvWrapper(MultiAgentEnv):
    """An environment made of an event-driven simulator, which runs by itself until it needs decisions of some agents.

    A subclass knows the simulator and defines how to start and run it, what an agent sees (`get_state`), how actions
    are passed to the simulator (`to_env_action`), and what they earned (`get_reward`). The rest is here: who acts
    when, transitions that wait until their rewards are known, ends of episodes.

    Args:
        reward_eval_delay: ticks after which an action's reward is asked for, at least 0; at the end of an episode all
            that are still open are asked for.

    Raises:
        EnvError: the delay is negative.

    Examples:
        >>> from palaestra.core import DiscreteSpec, TensorSpec
        >>> from palaestra.multiagent import AgentSpec
        >>> class Shop(EnvWrapper):  # the simulator is a stock of goods that sells one each tick
        ...     agents = {"buyer": AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2))}
        ...
        ...     def start(self, seed):
        ...         self.tick, self.stock = 0, 1
        ...         return ["buyer"]
        ...
        ...     def run(self, env_action):
        ...         self.tick, self.stock = self.tick + 1, self.stock + env_action - 1
        ...         return ["buyer"] if self.tick < 3 else []
        ...
        ...     def get_state(self, agent):
        ...         return np.array([self.stock], np.float32)
        ...
        ...     def to_env_action(self, actions):
        ...         return int(actions["buyer"])
        ...
        ...     def get_reward(self, actions, tick, info):
        ...         return {"buyer": float(self.stock >= 0)}
        >>> import numpy as np
        >>> shop = Shop(reward_eval_delay=1)
        >>> shop.begin_episode(seed=0).time_steps["buyer"].observation, shop.advance({"buyer": 0}).late_rewards
        (array([1.], dtype=float32), {'buyer': [1.0]})
    """

    delayed = True
    terminated: bool = False
    """Whether the episode that has just ended came to an end by itself, so that nothing can be earned after it; else it
    was cut off, as by the simulator's last tick. `start` or `run` may set it."""
    next_agents: Sequence[str] | None = None
    """Whose decisions the simulator would have needed next where the episode was cut off; `run` may set it."""
    tick: int = 0
    """The simulator's time; `start` and `run` set it."""

    def __init__(self, *, reward_eval_delay: int = 0) -> None:
        if reward_eval_delay < 0:
            raise EnvError(f"reward_eval_delay is {reward_eval_delay} ticks; it must be at least 0")
        self.reward_eval_delay = reward_eval_delay
        self.tracker: dict[str, float] = {}
        """Numbers about the running episode, which `post_step` may keep; reported when it ends."""
        self._open: deque[_Decision] = deque()
        self._earned: dict[str, float] = {}  # by each agent's newest action that was evaluated, so far
        self._began: set[str] = set()

    # -- what a subclass defines

    @abstractmethod
    def start(self, seed: int) -> Sequence[str]:
        """Begins an episode of the simulator and runs it until it needs decisions.

        Args:
            seed: all the randomness of the episode comes from it.

        Returns:
            The agents whose decisions it needs; none where the episode is over at once.
        """

    @abstractmethod
    def run(self, env_action: Any) -> Sequence[str]:
        """Hands decisions to the simulator and runs it until it needs others.

        Args:
            env_action: from `to_env_action`.

        Returns:
            The agents whose decisions it needs; none where the episode is over.
        """

    @abstractmethod
    def get_state(self, agent: str) -> Any:
        """What an agent sees now, as its observation spec says.

        Args:
            agent: its name.
        """

    @abstractmethod
    def to_env_action(self, actions: Mapping[str, Any]) -> Any:
        """What the simulator gets, with all that it needs to know besides.

        Args:
            actions: by agent, as their action specs say.
        """

    @abstractmethod
    def get_reward(self, actions: Mapping[str, Any], tick: int, info: Any) -> Mapping[str, float]:
        """What actions have earned; asked once for every call of `run`, in order.

        Args:
            actions: by agent, that were taken together.
            tick: when; at least `reward_eval_delay` ticks ago, or the episode is over.
            info: what `get_transition_info` said then.

        Returns:
            By agent; one that is left out earned nothing. What an agent earned that did not act then counts with its
            last action before; if it has not acted yet, it is an unearned reward.
        """

    def get_transition_info(self) -> Any:
        """What `get_reward` will need to know about this step, asked before actions are executed."""
        return None

    def post_step(self) -> None:
        """Called after every run of the simulator; a place to write to `tracker`."""

    # -- the environment

    @final
    def begin_episode(self, seed: int) -> MultiAgentStep:
        self._open.clear()
        self._earned.clear()
        self._began, self.tracker, self.terminated, self.next_agents = set(), {}, False, None
        deciding = self.start(seed)
        return MultiAgentStep(self._asked(deciding)) if deciding else MultiAgentStep({}, True, {}, dict(self.tracker))

    @final
    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        self._open.append(_Decision(self.tick, dict(actions), self.get_transition_info()))
        deciding = self.run(self.to_env_action(actions))
        self.post_step()
        rewards, unearned = self._evaluated(deciding)
        if deciding:
            return MultiAgentStep(self._asked(deciding), False, rewards, unearned_rewards=unearned)
        end = termination if self.terminated else truncation
        time_steps = {agent: end(self.get_state(agent), 0.0) for agent in self.agents if agent in self._began}
        return MultiAgentStep(time_steps, True, rewards, dict(self.tracker), self.next_agents, unearned)

    def _asked(self, deciding: Sequence[str]) -> dict[str, TimeStep]:
        """Time steps of the agents that are to act."""
        time_steps: dict[str, TimeStep] = {}
        for agent in deciding:
            if agent not in self.agents:
                raise EnvError(f"the simulator asks agent {agent!r}; the agents are {list(self.agents)}")
            state = self.get_state(agent)
            time_steps[agent] = transition(state, 0.0) if agent in self._began else restart(state)
            self._began.add(agent)
        return time_steps

    def _evaluated(self, deciding: Sequence[str]) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Rewards that are known by now, and those that are unearned.

        An action's are known when its agent has acted again, or the episode is over.
        """
        rewards: dict[str, list[float]] = {}
        unearned: dict[str, float] = {}
        while self._open and (not deciding or self.tick - self._open[0].tick >= self.reward_eval_delay):
            decision = self._open.popleft()
            earned = self.get_reward(decision.actions, decision.tick, decision.info)
            if unknown := set(earned) - set(self.agents):
                raise EnvError(
                    f"get_reward gave rewards to {sorted(unknown)} for tick {decision.tick}; the agents are "
                    f"{list(self.agents)}"
                )
            self._earned |= dict.fromkeys(decision.actions, 0.0)
            for agent, reward in earned.items():
                paid = self._earned if agent in self._earned else unearned
                paid[agent] = paid.get(agent, 0.0) + float(reward)
            following = self._open[0].actions if self._open else deciding or self._earned
            for agent in [agent for agent in self._earned if agent in following]:
                rewards.setdefault(agent, []).append(self._earned.pop(agent))
        return rewards, unearned
