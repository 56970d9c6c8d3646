"""`MultiAgentEnv` as a PettingZoo environment; imported only where PettingZoo is, by `parallel_env` and `aec_env`."""

from typing import Any

import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from palaestra.core import EnvError
from palaestra.envs import space_from_spec
from palaestra.envs.contract.nest import neutral
from palaestra.multiagent.env import MultiAgentEnv, MultiAgentStep

__all__ = ["AsAECEnv", "AsParallelEnv"]


class _Spaces:
    """Spaces of an environment's agents, always the same objects, and seeds for its episodes."""

    def __init__(self, env: MultiAgentEnv) -> None:
        self.env = env
        self.possible_agents = list(env.agents)
        self.agents: list[str] = []
        self.metadata = {"name": type(env).__name__, "render_modes": ["rgb_array"]}
        self.render_mode = "rgb_array"
        self.observation_spaces = {name: space_from_spec(spec.observation) for name, spec in env.agents.items()}
        self.action_spaces = {name: space_from_spec(spec.action) for name, spec in env.agents.items()}
        self._rng = np.random.default_rng()
        self._earned: dict[str, float] = {}  # not told yet; an agent may earn before it is there

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    @property
    def state_space(self) -> Any:
        return space_from_spec(self.env.state_spec)

    def state(self) -> Any:
        return self.env.global_state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _first_step(self, seed: int | None) -> MultiAgentStep:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._earned = {}
        return self.env.begin_episode(int(self._rng.integers(2**31)))

    def _earn(self, outcome: MultiAgentStep) -> None:
        for name, reward in outcome.rewards().items():
            self._earned[name] = self._earned.get(name, 0.0) + reward

    def _told(self, agents: list[str], *, over: bool) -> dict[str, float]:
        """What these agents have earned; at the end of an episode nothing may be left."""
        told = {name: self._earned.pop(name, 0.0) for name in agents}
        if over and (left := {name: reward for name, reward in self._earned.items() if reward}):
            raise EnvError(f"rewards {left} of agents that had ended before, which PettingZoo cannot say")
        return told


class AsParallelEnv(_Spaces, ParallelEnv[str, Any, Any]):
    """An environment in which all agents alive act in every step.

    Args:
        env: such an environment.
    """

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: of this episode and those after it.
        """
        outcome = self._first_step(seed)
        self._earn(outcome)  # of no action: told with the first one's
        self.agents = list(outcome.time_steps)
        return {name: step.observation for name, step in outcome.time_steps.items()}, {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """All agents act.

        Args:
            actions: by agent.

        Raises:
            EnvError: an agent that is alive was not asked.
        """
        outcome = self.env.advance({name: actions[name] for name in self.agents})
        if waiting := sorted(set(self.agents) - set(outcome.time_steps)):
            raise EnvError(f"agents {waiting} wait while others act, which a ParallelEnv cannot say; use aec_env")
        self._earn(outcome)
        self.agents = [name for name, step in outcome.time_steps.items() if not step.last]
        return (
            {name: step.observation for name, step in outcome.time_steps.items()},
            self._told(list(outcome.time_steps), over=outcome.over),
            {name: bool(step.terminated) for name, step in outcome.time_steps.items()},
            {name: bool(step.truncated) for name, step in outcome.time_steps.items()},
            {name: {} for name in outcome.time_steps},
        )


class AsAECEnv(_Spaces, AECEnv[str, Any, Any]):
    """An environment whose agents are asked one after another; it steps when all that act in a step have answered.

    Args:
        env: any.
    """

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode.

        Args:
            seed: of this episode and those after it.
        """
        self.agents, self._seen, self._dead = [], {}, set()
        self.terminations, self.truncations = {}, {}
        self.rewards, self._cumulative_rewards, self.infos = {}, {}, {}
        self._skip_agent_selection = None
        self._take(self._first_step(seed))

    def observe(self, agent: str) -> Any:
        """What an agent saw last.

        Args:
            agent: its name.
        """
        return self._seen[agent]

    def step(self, action: Any) -> None:
        """The selected agent acts.

        Args:
            action: its action; `None` for one whose episode is over.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self._actions[agent] = action
        if self._waiting:
            self.agent_selection = self._waiting.pop(0)
            return
        self._take(self.env.advance(self._actions))

    def _take(self, outcome: MultiAgentStep) -> None:
        self._note(outcome)
        while not self._waiting and not outcome.over:  # no agent acts in this step
            outcome = self.env.advance({})
            self._note(outcome)
        self._actions: dict[str, Any] = {}
        if outcome.over:
            for name in [one for one in self._earned if one not in (*self.agents, *self._dead)]:  # had no turn
                self._enter(name)
                self._seen[name] = neutral(self.env.agents[name].observation)
                self.terminations[name], self.truncations[name] = True, False
        self.rewards = self._told(self.agents, over=outcome.over)
        self._accumulate_rewards()
        if outcome.over:
            following = [name for name in outcome.next_agents or () if name in self.agents]
            self.agent_selection = (following or self.agents)[0]
            return
        self.agent_selection = self._waiting.pop(0)
        self._deads_step_first()

    def _enter(self, name: str) -> None:
        self.agents.append(name)
        self._cumulative_rewards[name], self.infos[name] = 0, {}

    def _note(self, outcome: MultiAgentStep) -> None:
        """Takes what a step tells; adds what was earned."""
        for name, time_step in outcome.time_steps.items():
            if name not in self.agents:
                if name in self._dead:
                    raise EnvError(f"agent {name!r} has come back, which PettingZoo does not allow")
                self._enter(name)
            self._seen[name] = time_step.observation
            self.terminations[name], self.truncations[name] = bool(time_step.terminated), bool(time_step.truncated)
            if time_step.last:
                self._dead.add(name)
        self._earn(outcome)
        self._waiting = [name for name, time_step in outcome.time_steps.items() if not time_step.last]
