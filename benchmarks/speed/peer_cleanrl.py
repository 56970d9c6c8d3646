"""One run of a script of CleanRL: `python -m benchmarks.speed.peer_cleanrl ppo WARMUP_S WINDOW_S`.

The script is run with its own switches; `PEER_REPOSITORY` says where the checkout is. Its wrappers that normalise and
clip observations and rewards, in Python at every env step, are left out, as no other side does that. What it would
write to TensorBoard ticks the window, and nothing is written. Prints one line of JSON.
"""

import contextlib
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import torch

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, PPOSettings, Workload

SCRIPTS = {"CartPole-v1": "ppo.py", "HalfCheetah-v5": "ppo_continuous_action.py"}
SCRIPTS |= {"envpool:Pong-v5": "ppo_atari_envpool.py"}
LEFT_OUT = ("NormalizeObservation", "TransformObservation", "NormalizeReward", "TransformReward")
"""Wrappers of PPO's scripts for continuous actions."""
LAST_OF_ITERATION = "charts/SPS"
ENDLESS = 10**9


class WindowOverError(Exception):
    """Ends the script between two iterations."""


class WindowWriter:
    """In the place of TensorBoard's writer."""

    result: dict[str, float]
    """Of the window."""

    def __init__(self, warmup_s: float, window_s: float) -> None:
        self.window = Window(lambda: self.counters, warmup_s, window_s)
        self.counters = {"env_steps": 0, "updates": 0, "iterations": 0}

    def add_text(self, *arguments: Any) -> None: ...

    def add_scalar(self, name: str, value: float, env_steps: int) -> None:
        if name == LAST_OF_ITERATION:
            self.counters |= {"env_steps": env_steps, "iterations": self.counters["iterations"] + 1}
            if self.window.tick():
                raise WindowOverError

    def counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer's step, which is counted."""

        def counting(*arguments: Any, **named: Any) -> Any:
            self.counters["updates"] += 1
            return step(*arguments, **named)

        return counting


class OldPool:
    """A pool of EnvPool with the signatures of gym before 0.26, for which the script was written."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.observation_space = pool.observation_space
        self.action_space = importlib.import_module("gym").spaces.Discrete(pool.action_space.n)

    def reset(self) -> Any:
        return self._pool.reset()[0]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any]:
        observation, reward, terminated, truncated, info = self._pool.step(action)
        return observation, reward, terminated | truncated, {**info, "terminated": terminated}


class PoolWrapper:
    """In the place of `gym.Wrapper`, which takes no pool."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


def old_pools(stack: contextlib.ExitStack) -> None:
    """Lets scripts make them, until the stack ends."""
    envpool, gym = importlib.import_module("envpool"), importlib.import_module("gym")
    make = envpool.make
    stack.enter_context(mock.patch.object(envpool, "make", lambda *names, **options: OldPool(make(*names, **options))))
    stack.enter_context(mock.patch.object(gym, "Wrapper", PoolWrapper))


def without_normalization(stack: contextlib.ExitStack) -> None:
    """Environments are not wrapped by those of `LEFT_OUT`, until the stack ends."""
    for name in LEFT_OUT:
        stack.enter_context(mock.patch.object(gymnasium.wrappers, name, lambda env, *_, **__: env))


def ppo_switches(workload: Workload, env: str) -> list[str]:
    settings = workload.settings
    assert isinstance(settings, PPOSettings)
    assert settings.hidden_sizes in ((64, 64), ())  # which the scripts have; the last is a network for pictures
    rows = settings.num_envs * settings.unroll_length
    numbers = {
        "env-id": env,
        "total-timesteps": ENDLESS,
        "num-envs": settings.num_envs,
        "num-steps": settings.unroll_length,
        "num-minibatches": rows // settings.minibatch_size,
        "update-epochs": settings.epochs,
        "learning-rate": settings.learning_rate,
        "gamma": settings.gamma,
        "gae-lambda": settings.gae_lambda,
        "clip-coef": settings.clip,
        "ent-coef": settings.entropy_cost,
        "vf-coef": settings.value_cost,
        "max-grad-norm": settings.max_grad_norm,
    }
    given = [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
    return [*given, "--no-clip-vloss", "--no-anneal-lr", "--no-cuda"]


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    workload, writer = WORKLOADS[name], WindowWriter(warmup_s, window_s)
    script = Path(os.environ["PEER_REPOSITORY"]) / "cleanrl" / SCRIPTS[workload.env]
    with contextlib.ExitStack() as stack:
        if workload.is_pool:
            old_pools(stack)
        stack.enter_context(mock.patch("torch.utils.tensorboard.SummaryWriter", return_value=writer))
        without_normalization(stack)
        stack.enter_context(mock.patch.object(torch.optim.Adam, "step", writer.counted(torch.optim.Adam.step)))
        stack.enter_context(
            mock.patch.object(
                sys, "argv", [str(script), *ppo_switches(workload, workload.env.removeprefix("envpool:"))]
            )
        )
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(contextlib.suppress(WindowOverError))
        runpy.run_path(str(script), run_name="__main__")
    return {**writer.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
