"""A script whose own classes and functions workers need: run with `process` or `ray`."""

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import palaestra
from palaestra.runtime import Parcel, ProcessRuntime, RayRuntime


class Mine(gymnasium.Env[np.ndarray, np.int64]):
    """Five steps."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}


class Echo:
    """Says it again."""

    def say(self, word: str) -> str:
        return word

    def later(self, word: str, change: Callable[[str], str]) -> list[Any]:
        return [lambda: change(word), Parcel((np.zeros(10_000), lambda: change(change(word))))]

    def now(self, parcel: Parcel) -> str:
        return parcel.open()[1]()


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "process"
    with {"process": ProcessRuntime, "ray": RayRuntime}[name]() as runtime:
        (said,) = runtime.wait([runtime.call(runtime.start(Echo, name="echo"), "say", "heard")], timeout_s=60)
        print(said.unwrap())
        ending = "!"
        giver, taker = (runtime.start(lambda: Echo(), name=ending, parcels=1) for _ in range(2))
        (said,) = runtime.wait([runtime.call(giver, "later", "closure", lambda w: w + ending)], timeout_s=60)
        closure, parcel = said.unwrap()
        (said,) = runtime.wait([runtime.call(taker, "now", parcel)], timeout_s=60)
        print(closure(), said.unwrap())
    few = {"trainer__total_env_steps": 16, "trainer__eval_episodes": 1, "run__tensorboard": False}
    workers = {"distributed__runtime": name, "distributed__num_workers": 1, "algorithm__unroll_length": 8}
    print(palaestra.train("ppo", Mine, **few, **workers).result.status)
