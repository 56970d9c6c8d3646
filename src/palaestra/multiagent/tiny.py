"""Small environments of several agents whose best returns are known in closed form."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from palaestra.core import BoundedSpec, DiscreteSpec, MultiBinarySpec, restart, termination, transition, truncation
from palaestra.multiagent.env import AgentSpec, MultiAgentEnv, MultiAgentStep

__all__ = ["Meeting"]


@final
class Meeting(MultiAgentEnv):
    """Agents on a line of cells earn 1 each when all stand in one cell, and every move before costs 0.1.

    All agents move at the same time: left, right or not at all; `action_mask` forbids to leave the line. The gap
    between the outermost agents shrinks by at most 2 cells in a move, so the best return of each agent is

        1 - 0.1 ceil((max - min) / 2)

    with the cells in which the episode begins, not all the same. An agent sees its own cell and how many agents are in
    each cell; the global state is every agent's cell. Episodes are cut off after `max_moves`.

    Args:
        num_agents: G, at least 2.
        num_cells: at least 2.
        max_moves: until the episode is cut off.

    Examples:
        >>> env = Meeting(num_agents=2, num_cells=3)
        >>> _ = env.begin_episode(seed=1)
        >>> env.cells.tolist(), env.best_return
        ([2, 1], 0.9)
        >>> env.advance({"agent_0": 0, "agent_1": 1}).time_steps["agent_0"].reward
        0.9
    """

    def __init__(self, num_agents: int = 3, num_cells: int = 5, max_moves: int = 20) -> None:
        self._names = [f"agent_{index}" for index in range(num_agents)]
        self._num_cells, self._max_moves = num_cells, max_moves
        observation = {
            "own": BoundedSpec((num_cells,), minimum=np.array(0), maximum=np.array(1)),
            "all": BoundedSpec((num_cells,), minimum=np.array(0), maximum=np.array(1)),
            "action_mask": MultiBinarySpec((3,)),
        }
        self._agents = {name: AgentSpec(observation, DiscreteSpec(num=3)) for name in self._names}
        self.cells = np.zeros(num_agents, np.int64)
        """[G] where every agent stands."""
        self._moves = 0

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """See `MultiAgentEnv.agents`; action 0 goes left, 1 stays, 2 goes right."""
        return self._agents

    @property
    def state_spec(self) -> BoundedSpec:
        """Of `global_state`."""
        return BoundedSpec((len(self._names) * self._num_cells,), minimum=np.array(0), maximum=np.array(1))

    @property
    def best_return(self) -> float:
        """What each agent earns from here on at best."""
        return 1.0 - 0.1 * float(-(-(self.cells.max() - self.cells.min()) // 2))

    def begin_episode(self, seed: int) -> MultiAgentStep:
        """Puts every agent into a random cell, not all into the same."""
        rng = np.random.default_rng(seed)
        self._moves = 0
        self.cells = rng.integers(0, self._num_cells, len(self._names))
        while self.cells.min() == self.cells.max():
            self.cells = rng.integers(0, self._num_cells, len(self._names))
        return MultiAgentStep({name: restart(self._seen(index)) for index, name in enumerate(self._names)})

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        """Moves every agent."""
        moves = np.array([int(actions[name]) - 1 for name in self._names])
        self.cells = np.clip(self.cells + moves, 0, self._num_cells - 1)
        self._moves += 1
        met = bool(self.cells.min() == self.cells.max())
        over = met or self._moves == self._max_moves
        arrive = termination if met else truncation if over else transition
        reward = 0.9 if met else -0.1
        return MultiAgentStep({n: arrive(self._seen(index), reward) for index, n in enumerate(self._names)}, over)

    def global_state(self) -> np.ndarray:
        """[G x cells] one code for each agent, with a 1 where it stands."""
        return np.eye(self._num_cells, dtype=np.float32)[self.cells].reshape(-1)

    def render(self) -> np.ndarray:
        """A row of cells for each agent, which is the bright one."""
        picture = np.full((len(self._names), self._num_cells, 3), 40, np.uint8)
        picture[np.arange(len(self._names)), self.cells] = (240, 180, 60)
        return picture.repeat(32, 0).repeat(32, 1)

    def _seen(self, index: int) -> dict[str, np.ndarray]:
        cell, codes = self.cells[index], np.eye(self._num_cells, dtype=np.float32)
        mask = np.array([cell > 0, True, cell < self._num_cells - 1], np.int8)
        return {"own": codes[cell], "all": codes[self.cells].mean(0), "action_mask": mask}
