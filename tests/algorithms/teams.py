"""Teams as ordinary environments: what `multiagent` makes of a group of agents, for tests of what learns from it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

G, A = 3, 4


class Team(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Three members, of whom some act; each has a reward of its own. Episodes end by chance, or by a time limit.

    Args:
        discrete: whether they choose among four actions, one of them forbidden, or take two numbers.
        dtype: of discrete actions.
    """

    def __init__(self, discrete: bool = True, dtype: str = "int64") -> None:
        members = spaces.Dict(
            {"place": spaces.Box(-1, 1, (G, 2), np.float32), "kind": spaces.MultiDiscrete(np.full(G, 3))}
        )
        parts: dict[str, Any] = {"observation": members, "alive": spaces.MultiBinary(G)}
        if discrete:
            parts["action_mask"] = spaces.MultiBinary(G * A)
        parts["global_state"] = spaces.Box(-1, 1, (5,), np.float32)
        self.observation_space = spaces.Dict(parts)
        choices = spaces.MultiDiscrete(np.full(G, A), dtype=np.dtype(dtype).type)
        self.action_space = choices if discrete else spaces.Box(-2, 2, (G, 2), np.float32)
        self.reward_space = spaces.Box(-10, 10, (G,), np.float32)
        self._discrete = discrete

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        acts = self._seen["alive"] > 0
        if self._discrete and (action[acts] == self._forbidden[acts]).any():
            raise ValueError(f"{action} has forbidden actions")
        earned = np.where(action == 1, 1.0, 0.2) if self._discrete else -np.square(action - 0.5).sum(-1)
        return self._observation(), (earned * acts).astype(np.float32), bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> dict[str, Any]:
        draw = self.np_random
        self._forbidden = draw.integers(A, size=G)
        alive = (draw.random(G) < 0.7).astype(np.int8)
        seen: dict[str, Any] = {
            "observation": {"place": draw.uniform(-1, 1, (G, 2)).astype(np.float32), "kind": draw.integers(3, size=G)},
            "alive": alive,
        }
        if self._discrete:
            mask = np.ones((G, A), np.int8)
            mask[np.arange(G), self._forbidden] = alive == 0
            seen["action_mask"] = mask.reshape(-1)
        seen["global_state"] = draw.uniform(-1, 1, 5).astype(np.float32)
        self._seen = seen
        return seen
