"""One run of a script of LeanRL, compiled: `python -m benchmarks.speed.peer_leanrl sac WARMUP_S WINDOW_S`.

The script is run with its own switches; `PEER_REPOSITORY` says where the checkout is. PPO's does not normalise, as in
`peer_cleanrl`. Its progress bar ticks the window, and what it would send to Weights & Biases goes nowhere. It reads
the ends of episodes as Gymnasium before 1.0 gave them, where HalfCheetah was version 4, of the same size. Prints one
line of JSON.
"""

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import tqdm

from benchmarks.speed.peer_cleanrl import ENDLESS, ppo_switches, without_normalization
from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, DQNSettings, PPOSettings, SACSettings, TD3Settings, Workload

SCRIPTS = {"ppo_cheetah": "ppo_continuous_action", "dqn": "dqn", "sac": "sac_continuous_action"}
SCRIPTS |= {"td3": "td3_continuous_action"}


class WindowBar:
    """In the place of tqdm's progress bar: every round of it is an iteration; the loop ends with the window."""

    def __init__(self, workload: Workload, warmup_s: float, window_s: float) -> None:
        self.window = Window(self._counters, warmup_s, window_s)
        self.optimizers: list[torch.optim.Optimizer] = []
        self._rows, self._iterations = workload.rows_per_iteration, 0

    def __call__(self, rounds: Iterable[int]) -> "WindowBar":
        self._rounds = rounds
        return self

    def __iter__(self) -> Iterator[int]:
        for number in self._rounds:
            if self.window.tick():
                return
            yield number
            self._iterations += 1

    def set_description(self, text: str) -> None: ...

    def _counters(self) -> dict[str, int]:
        """Optimizer steps are those that Adam itself has counted for the network it steps most often."""
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        updates = max((int(state["step"]) for state in states), default=0)
        return {"env_steps": self._rows * self._iterations, "updates": updates, "iterations": self._iterations}


def silent_wandb() -> ModuleType:
    module: Any = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.init = module.log = mock.MagicMock()
    return module


def switches(workload: Workload) -> list[str]:
    settings, env = workload.settings, workload.env.replace("-v5", "-v4")
    if isinstance(settings, PPOSettings):
        return [*ppo_switches(workload, env), "--compile"]
    numbers: dict[str, Any] = {
        "env-id": env,
        "total-timesteps": ENDLESS,
        "learning-rate": settings.learning_rate,
        "buffer-size": settings.capacity,
        "gamma": settings.gamma,
        "batch-size": settings.minibatch_size,
        "learning-starts": settings.initial_steps,
    }
    if isinstance(settings, DQNSettings):
        numbers |= {"train-frequency": settings.unroll_length, "target-network-frequency": settings.target_period}
        numbers |= {"start-e": settings.epsilon, "end-e": settings.epsilon}
    elif isinstance(settings, TD3Settings):
        numbers |= {"tau": settings.tau, "policy-frequency": settings.policy_period}
        numbers |= {"policy-noise": settings.target_noise_std, "noise-clip": settings.target_noise_clip}
        numbers |= {"exploration-noise": settings.exploration_std}
    else:
        assert isinstance(settings, SACSettings)
        numbers |= {"tau": settings.tau, "policy-frequency": 1, "q-lr": settings.learning_rate}
        numbers["policy-lr"] = numbers.pop("learning-rate")
    return [*(part for name, value in numbers.items() for part in (f"--{name}", str(value))), "--no-cuda", "--compile"]


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    workload = WORKLOADS[name]
    bar = WindowBar(workload, warmup_s, window_s)
    repository = Path(os.environ["PEER_REPOSITORY"])
    script = repository / "leanrl" / f"{SCRIPTS[name]}_torchcompile.py"
    make = torch.optim.Adam.__init__

    def recorded(optimizer: Any, *arguments: Any, **named: Any) -> None:
        bar.optimizers.append(optimizer)
        make(optimizer, *arguments, **named)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, {"wandb": silent_wandb()}))
        stack.enter_context(mock.patch.object(tqdm, "tqdm", bar))
        without_normalization(stack)
        stack.enter_context(mock.patch.object(torch.optim.Adam, "__init__", recorded))
        stack.enter_context(mock.patch.object(sys, "argv", [str(script), *switches(workload)]))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        runpy.run_path(str(script), run_name="__main__")
    return {**bar.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
