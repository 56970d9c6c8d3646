"""One run of Sample Factory's PPO: `python -m benchmarks.speed.peer_sample_factory ppo WARMUP_S WINDOW_S`.

Its synchronous algorithm in one process, as its `serial_mode` has it. Runs in an environment of its own. Prints one
line of JSON.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import gymnasium
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, PPOSettings, Workload

ENDLESS = 10**9


class WindowObserver(AlgoObserver):
    """Ticks a window after every iteration; the run ends with it."""

    def __init__(self, workload: Workload, warmup_s: float, window_s: float) -> None:
        self.window = Window(lambda: self.counters, warmup_s, window_s)
        self.counters = {"env_steps": 0, "updates": 0, "iterations": 0}
        self._rows = workload.rows_per_iteration

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self.counters["iterations"] += 1
        self.counters["env_steps"] += self._rows
        if self.window.tick():
            runner.cfg.train_for_env_steps = 0

    def counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer's step, which is counted."""

        def counting(*arguments: Any, **named: Any) -> Any:
            self.counters["updates"] += 1
            return step(*arguments, **named)

        return counting


def make_environment(name: str, *_: Any, **__: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name)


def switches(workload: Workload, directory: str) -> list[str]:
    settings = workload.settings
    assert isinstance(settings, PPOSettings)
    given = {
        "algo": "APPO",
        "env": workload.env,
        "train_dir": directory,
        "serial_mode": True,
        "async_rl": False,
        "device": "cpu",
        "train_for_env_steps": ENDLESS,
        "num_workers": 1,
        "num_envs_per_worker": settings.num_envs,
        "worker_num_splits": 1,
        "rollout": settings.unroll_length,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": settings.minibatch_size,
        "num_batches_per_epoch": workload.rows_per_iteration // settings.minibatch_size,
        "num_epochs": settings.epochs,
        "shuffle_minibatches": True,
        "learning_rate": settings.learning_rate,
        "adam_eps": 1e-5,
        "ppo_clip_ratio": settings.clip,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "value_loss_coeff": settings.value_cost,
        "exploration_loss_coeff": settings.entropy_cost,
        "max_grad_norm": settings.max_grad_norm,
        "nonlinearity": settings.activation,
        "actor_critic_share_weights": False,
        "normalize_input": False,
        "normalize_returns": False,
        "with_vtrace": False,
    }
    layers = ["--encoder_mlp_layers", *map(str, settings.hidden_sizes)]
    return [*(f"--{name}={value}" for name, value in given.items()), *layers]


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    workload = WORKLOADS[name]
    observer = WindowObserver(workload, warmup_s, window_s)
    register_env(workload.env, make_environment)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(mock.patch.object(torch.optim.Adam, "step", observer.counted(torch.optim.Adam.step)))
        given = switches(workload, stack.enter_context(tempfile.TemporaryDirectory()))
        parser, _ = parse_sf_args(given)
        _, runner = make_runner(parse_full_cfg(parser, given))
        runner.register_observer(observer)
        runner.init()
        runner.run()
    return {**observer.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
