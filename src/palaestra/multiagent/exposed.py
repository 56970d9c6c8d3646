"""Worlds as PettingZoo environments; imported only where PettingZoo is installed, by `parallel_env` and `aec_env`."""

from typing import Any

import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from palaestra.core import EnvError
from palaestra.envs import space_from_spec
from palaestra.multiagent.env import Moment, World

__all__ = ["WorldAECEnv", "WorldParallelEnv"]


class _Spaces:
    """Spaces of a world's agents, always the same objects, and seeds for its episodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.possible_agents = list(world.agents)
        self.agents: list[str] = []
        self.metadata = {"name": type(world).__name__, "render_modes": ["rgb_array"]}
        self.render_mode = "rgb_array"
        self.observation_spaces = {name: space_from_spec(spec.observation) for name, spec in world.agents.items()}
        self.action_spaces = {name: space_from_spec(spec.action) for name, spec in world.agents.items()}
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    @property
    def state_space(self) -> Any:
        return space_from_spec(self.world.state_spec)

    def state(self) -> Any:
        return self.world.global_state()

    def render(self) -> Any:
        return self.world.render()

    def close(self) -> None:
        self.world.close()

    def _first_moment(self, seed: int | None) -> Moment:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return self.world.begin_episode(int(self._rng.integers(2**31)))


def _rewards(moment: Moment) -> dict[str, float]:
    """What every agent got in a moment, late rewards included."""
    rewards = {name: float(time_step.reward) for name, time_step in moment.time_steps.items()}
    for name, late in moment.late_rewards.items():
        rewards[name] = rewards.get(name, 0.0) + float(sum(late))
    return rewards


class WorldParallelEnv(_Spaces, ParallelEnv[str, Any, Any]):
    """A world in which everybody alive acts in every moment.

    Args:
        world: such a world.
    """

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: of this episode and those after it.
            options: none exist.
        """
        moment = self._first_moment(seed)
        self.agents = list(moment.time_steps)
        return {name: step.observation for name, step in moment.time_steps.items()}, {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Everybody acts.

        Args:
            actions: by agent.

        Raises:
            EnvError: somebody alive was not asked.
        """
        moment = self.world.advance({name: actions[name] for name in self.agents})
        if waiting := sorted(set(self.agents) - set(moment.time_steps)):
            raise EnvError(f"agents {waiting} wait while others act, which a ParallelEnv cannot say; use aec_env")
        earned = _rewards(moment)
        self.agents = [name for name, step in moment.time_steps.items() if not step.last]
        return (
            {name: step.observation for name, step in moment.time_steps.items()},
            {name: earned[name] for name in moment.time_steps},
            {name: bool(step.terminated) for name, step in moment.time_steps.items()},
            {name: bool(step.truncated) for name, step in moment.time_steps.items()},
            {name: {} for name in moment.time_steps},
        )


class WorldAECEnv(_Spaces, AECEnv[str, Any, Any]):
    """A world whose agents are asked one after another; it goes on when all that act in a moment have answered.

    Args:
        world: any.
    """

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode.

        Args:
            seed: of this episode and those after it.
            options: none exist.
        """
        self.agents, self._seen, self._dead = [], {}, set()
        self.terminations, self.truncations = {}, {}
        self.rewards, self._cumulative_rewards, self.infos = {}, {}, {}
        self._skip_agent_selection = None
        self._take(self._first_moment(seed))

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
        self._take(self.world.advance(self._actions))

    def _take(self, moment: Moment) -> None:
        earned: dict[str, float] = {}
        self._note(moment, earned)
        while not self._waiting and not moment.over:  # nobody acts in this moment
            moment = self.world.advance({})
            self._note(moment, earned)
        self._actions: dict[str, Any] = {}
        self.rewards = {name: earned.get(name, 0.0) for name in self.agents}
        self._accumulate_rewards()
        self.agent_selection = self._waiting.pop(0) if self._waiting else self.agents[0]
        self._deads_step_first()

    def _note(self, moment: Moment, earned: dict[str, float]) -> None:
        """Takes what a moment tells; adds what was earned."""
        for name, time_step in moment.time_steps.items():
            if name not in self.agents:
                if name in self._dead:
                    raise EnvError(f"agent {name!r} has come back, which PettingZoo does not allow")
                self.agents.append(name)
                self._cumulative_rewards[name], self.infos[name] = 0, {}
            self._seen[name] = time_step.observation
            self.terminations[name], self.truncations[name] = bool(time_step.terminated), bool(time_step.truncated)
            if time_step.last:
                self._dead.add(name)
        for name, reward in _rewards(moment).items():
            earned[name] = earned.get(name, 0.0) + reward
        self._waiting = [name for name, time_step in moment.time_steps.items() if not time_step.last]
