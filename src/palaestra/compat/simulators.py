"""`EnvWrapper`: an environment with many agents made of an event-driven simulator, after MARO."""

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from palaestra.core import EnvError, TimeStep, restart, termination, transition, truncation
from palaestra.multiagent import MultiAgentEnv, MultiAgentStep

__all__ = ["EnvWrapper"]


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
