"""MultiAgentEnvs for tests: agents that wait, die, come and differ."""

import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core import BoundedSpec, DiscreteSpec, MultiBinarySpec, TensorSpec, restart, termination, transition
from palaestra.core import truncation as truncated
from palaestra.multiagent import AgentSpec, EnvWrapper, Meeting, MultiAgentEnv, MultiAgentStep


class Shop(EnvWrapper):
    """A buyer that is asked in every tick, and a painter in every third; a reward names the action that earned it.

    The reward of the action taken at tick t is 1000 t + 10 times the action, told `delay` ticks later.
    """

    def __init__(self, delay: int = 2, length: int = 11) -> None:
        super().__init__(reward_eval_delay=delay)
        self.length = length

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        spec = BoundedSpec((2,), minimum=np.array(-1), maximum=np.array(1000))
        return {"buyer": AgentSpec(spec, DiscreteSpec(num=3)), "painter": AgentSpec(spec, DiscreteSpec(num=3))}

    def start(self, seed: int) -> Sequence[str]:
        self.tick, self.seed = 0, seed % 100
        return ["buyer", "painter"]

    def run(self, env_action: Any) -> Sequence[str]:
        self.tick += 1
        if self.tick == self.length:
            return []
        return ["buyer", "painter"] if self.tick % 3 == 0 else ["buyer"]

    def get_state(self, agent: str) -> np.ndarray:
        return np.array([self.tick, self.seed], np.float32)

    def to_env_action(self, actions: Mapping[str, Any]) -> Any:
        return list(actions.values())

    def get_reward(self, actions: Mapping[str, Any], tick: int, info: Any) -> Mapping[str, float]:
        return {agent: 1000.0 * tick + 10 * int(action) for agent, action in actions.items()}

    def post_step(self) -> None:
        self.tracker["ticks"] = self.tick


class Overtaken(Meeting):
    """Notes its moves in a file; where `behind` is given, each waits for so many moves of the others."""

    def __init__(self, file: str, behind: int = 0) -> None:
        super().__init__(num_agents=2)
        self._file, self._behind, self._last = Path(file), behind, 0

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        if not self._behind:
            with self._file.open("ab") as file:
                file.write(b".")
        deadline_s = time.monotonic() + 20.0
        while self._behind and self._moved() < self._last + self._behind and time.monotonic() < deadline_s:
            select.select([], [], [], 0.002)
        self._last = self._moved()
        return super().advance(actions)

    def _moved(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0


class RandomWorld(MultiAgentEnv):
    """Agents of two kinds that appear, wait, act and die at random; what they see says who, when and how often.

    An observation is (agent, its time steps in this life, the environment's step, a part of the seed); the reward is
    1 for action 1, 0.5 for the others, and an agent dies with probability 0.1 a step.
    """

    def __init__(self, num_agents: int = 4, length: int = 25, revive: bool = False) -> None:
        self._revive, self._length = revive, length
        wide = BoundedSpec((4,), minimum=np.array(0), maximum=np.array(1e6))
        masked = {"seen": wide, "action_mask": MultiBinarySpec((3,))}
        self._agents = {
            f"{'odd' if index % 2 else 'even'}_{index // 2}": AgentSpec(
                masked if index % 2 else wide, DiscreteSpec(num=3 if index % 2 else 2)
            )
            for index in range(num_agents)
        }

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        return self._agents

    @property
    def state_spec(self) -> TensorSpec:
        return TensorSpec((2,))

    def global_state(self) -> np.ndarray:
        return np.array([self._step, self._seed], np.float32)

    def begin_episode(self, seed: int) -> MultiAgentStep:
        self._rng, self._seed, self._step = np.random.default_rng(seed), seed % 997, 0
        self._lives: dict[str, int] = {}
        self._gone: set[str] = set()
        first = next(iter(self._agents))
        return MultiAgentStep({first: self._begun(first), **self._arrivals()})

    def advance(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        self._step += 1
        over = self._step == self._length
        time_steps: dict[str, Any] = {}
        self._waiting_actions = (
            {**getattr(self, "_waiting_actions", {}), **actions} if self._step > 1 else dict(actions)
        )
        for name in list(self._lives):
            answers = over or self._rng.random() < 0.6
            if not answers:
                continue
            self._lives[name] += 1
            earned = 1.0 if int(self._waiting_actions[name]) == 1 else 0.5
            dies = self._rng.random() < 0.1
            end = termination if dies else truncated if over else transition
            time_steps[name] = end(self._seen(name), earned)
            if dies or over:
                del self._lives[name]
                self._gone.add(name)
        if not over:
            time_steps |= self._arrivals(busy=set(time_steps))
            if not self._lives and len(self._gone) == len(self._agents) and not self._revive:
                over = True
        return MultiAgentStep(time_steps, over)

    def _arrivals(self, busy: set[str] = frozenset()) -> dict[str, Any]:
        return {
            name: self._begun(name)
            for name in self._agents
            if name not in self._lives
            and name not in busy
            and (self._revive or name not in self._gone)
            and self._rng.random() < 0.3
        }

    def _begun(self, name: str) -> Any:
        self._lives[name] = 0
        return restart(self._seen(name))

    def _seen(self, name: str) -> Any:
        number = list(self._agents).index(name)
        seen = np.array([number, self._lives[name], self._step, self._seed], np.float32)
        if not name.startswith("odd"):
            return seen
        mask = np.array([1, 1, (self._step + number) % 2], np.int8)
        return {"seen": seen, "action_mask": mask}
