"""An environment of your own: written, checked, trained on, and compared with a rule and with chance.

A room leaks heat to the outside; keep it at 20 degrees by switching a heater. The task has no end, so it never
terminates: the time limit is given from outside, and learning knows that it is not an end.
"""

from typing import Any

import gymnasium
import numpy as np
import torch

import palaestra
from palaestra.policies import RandomPolicy, RulePolicy

STEPS = 200


class Thermostat(gymnasium.Env[np.ndarray, np.int64]):
    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (2,), np.float32)  # inside, outside; (degrees - 20) / 10
    action_space = gymnasium.spaces.Discrete(2)  # heater off, on

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)  # all the randomness of an episode comes from this generator
        self.inside, self.outside = self.np_random.uniform(5, 30), self.np_random.uniform(-10, 15)
        return self.observe(), {}

    def step(self, action: np.int64):
        self.inside += 0.05 * (self.outside - self.inside) + 2.0 * int(action)
        error = abs(self.inside - 20)
        return self.observe(), -error, False, False, {"heater": float(action)}

    def observe(self) -> np.ndarray:
        return np.array([self.inside - 20, self.outside - 20], np.float32) / 10


def main() -> None:
    name = "own_environment:Thermostat"  # module:class, on the Python path
    settings = {"env__max_episode_steps": STEPS, "algorithm__gamma": 0.95, "algorithm__learning_rate": 1e-3}
    done = palaestra.train("ppo", name, trainer__total_env_steps=40_000, **settings)
    print("ppo    ", done.result.evaluation)

    config = palaestra.EnvConfig(name=name, num_envs=4, max_episode_steps=STEPS)
    with palaestra.create_environment(config, lane_seeds=range(4)) as env:
        specs = env.observation_spec, env.action_spec
        bang_bang = RulePolicy(lambda observation: (observation[:, 0] < 0).to(torch.int64), *specs)
        for title, policy in {"rule   ": bang_bang, "chance ": RandomPolicy(*specs)}.items():
            print(title, palaestra.evaluate(policy, env, episodes=20))


if __name__ == "__main__":
    main()
