"""An action with several parts, some of them masked: PPO learns where to go, how fast, and which lamps to light."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from palaestra import PPO, Collector, EnvConfig, PPOConfig, RunSeeds, create_environment


class Crossing(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """One decision: an open way pays 1, the closer the speed to the limit the more, and so do two lamps at night."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "scene": spaces.Box(0, 1, (2,), np.float32),  # speed limit, and whether it is night
                "action_mask": spaces.Dict({"way": spaces.MultiBinary(3)}),  # which ways are open
            }
        )
        self.action_space = spaces.Dict(
            {"way": spaces.Discrete(3), "speed": spaces.Box(0, 1, (1,), np.float32), "lamps": spaces.MultiBinary(2)}
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.scene = np.array([self.np_random.random(), self.np_random.integers(2)], np.float32)
        ways = np.ones(3, np.int8)
        ways[self.np_random.integers(3)] = 0
        return {"scene": self.scene, "action_mask": {"way": ways}}, {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        speed = 1 - abs(float(action["speed"][0] - self.scene[0]))
        lamps = float((action["lamps"] == self.scene[1]).mean())
        return self.reset()[0], speed + lamps, True, False, {}


def main() -> None:
    torch.set_num_threads(1)
    env = create_environment(EnvConfig(name="__main__:Crossing", num_envs=8), seed=0)
    config = PPOConfig(learning_rate=3e-3, unroll_length=32, mini_batch_size=64, gamma=0.9)
    algorithm = PPO(env.observation_spec, env.action_spec, config, RunSeeds(0))
    collector = Collector.of(env, algorithm)
    for _ in range(60):
        collector.unroll(32)
        algorithm.update(collector.buffer)
    for scene in ([0.2, 0.0], [0.8, 1.0]):
        observation = {"scene": scene, "action_mask": {"way": [0, 1, 0]}}
        print(scene, algorithm.policy(observation))  # 2 at most is paid; the way is the only one open


if __name__ == "__main__":
    main()
