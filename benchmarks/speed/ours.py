"""One run of ours in a fresh process: `python -m benchmarks.speed.ours ppo eager WARMUP_S WINDOW_S`.

The real `Trainer` runs and writes `metrics.jsonl` and `episodes.csv`, a row of metrics as often as the preset of
CartPole-v1 does. Evaluation, checkpoints and TensorBoard are off, as they are on the peer's side. Prints one line of
JSON.
"""

import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import (
    WORKLOADS,
    CheetahPPOSettings,
    CQLSettings,
    CrossQSettings,
    DQNSettings,
    IQLSettings,
    OfflineSettings,
    OffPolicySettings,
    PongPPOSettings,
    PPOSettings,
    QRDQNSettings,
    SACSettings,
    TD3Settings,
    offline_rows,
)
from palaestra import Collector, EnvConfig, ExperimentConfig, NetworkConfig, RunConfig, RunSeeds, Trainer, TrainerConfig
from palaestra.algorithms import (
    Algorithm,
    AlgorithmConfig,
    CQLConfig,
    CrossQConfig,
    DQNConfig,
    IQLConfig,
    PPOConfig,
    QRDQNConfig,
    SACConfig,
    TD3Config,
)
from palaestra.buffers import ReplayBuffer
from palaestra.core import StepType, TensorSpec, TimeStep
from palaestra.envs import create_environment
from palaestra.experiments import make_algorithm
from palaestra.nn import Precision
from palaestra.rollout import OfflineData
from palaestra.runs.making import choose_threads
from palaestra.training import FileLogger

LOG_EVERY_STEPS = dict.fromkeys((PPOSettings, CheetahPPOSettings, PongPPOSettings), 1000)
LOG_EVERY_STEPS |= {DQNSettings: 500, QRDQNSettings: 500}
LOG_EVERY_STEPS |= dict.fromkeys((SACSettings, TD3Settings, CrossQSettings, IQLSettings), 100) | {CQLSettings: 20}
ENDLESS = 10**9
Settings = PPOSettings | DQNSettings | OffPolicySettings | OfflineSettings


class WindowLogger:
    """Ticks a window at every row of metrics, which the trainer writes between two iterations; then stops the run."""

    def __init__(self, algorithm: Algorithm, warmup_s: float, window_s: float) -> None:
        self.window = Window(self._counters, warmup_s, window_s)
        self._algorithm = algorithm
        self._row: Mapping[str, float] = {}
        self._first: tuple[float, int] | None = None
        self._open: tuple[float, int] | None = None

    def start(self, position: Mapping[str, int]) -> None: ...

    def episodes(self, env_steps: int, episodes: Any) -> None: ...

    def close(self) -> None: ...

    def metrics(self, row: Mapping[str, float]) -> None:
        self._row = row
        done = self.window.tick()
        update_s = row["time/train_s"] / (1 - row["time/waiting"]) * row["time/learning"]
        if self._first is None and row["gradient_steps"]:
            self._first = update_s, int(row["gradient_steps"])
        if self._open is None and self.window.is_open:
            self._open = update_s, int(row["gradient_steps"])
        if done:
            self.window.result["first_update_extra_s"] = self._extra_s(update_s, int(row["gradient_steps"]))
            signal.raise_signal(signal.SIGTERM)  # the trainer finishes as it does for any signal

    def _extra_s(self, update_s: float, updates: int) -> float:
        """Seconds that the first updates took beyond the usual ones: compilation."""
        assert self._first is not None and self._open is not None
        usual_s = (update_s - self._open[0]) / (updates - self._open[1])
        return self._first[0] - self._first[1] * usual_s

    def _counters(self) -> dict[str, int]:
        """Gradient steps are read from an optimizer's own state, not from the algorithm's counter."""
        optimizers = self._algorithm.model.optimizers
        optimizer = optimizers["critic"] if "critic" in optimizers else next(iter(optimizers.values()))
        return {
            "env_steps": int(self._row["env_steps"]),
            "updates": int(optimizer.steps),
            "iterations": int(self._row["iterations"]),
        }


def configuration(name: str, *, compiled: bool, precision: Precision = "float32") -> ExperimentConfig:
    workload = WORKLOADS[name]
    settings = workload.settings
    return ExperimentConfig(
        algorithm_name=workload.algorithm or name,
        algorithm=algorithm_config(settings),
        env=EnvConfig(name=workload.env, num_envs=settings.num_envs, vectorization=workload.vectorization),
        trainer=TrainerConfig(total_env_steps=ENDLESS, log_every_steps=LOG_EVERY_STEPS[type(settings)]),
        run=RunConfig(num_threads=workload.threads, compile=compiled, precision=precision),
    )


def algorithm_config(settings: Settings) -> AlgorithmConfig:
    if isinstance(settings, PPOSettings):
        return ppo(settings)
    if isinstance(settings, OfflineSettings):
        return offline(settings)
    return off_policy(settings) if isinstance(settings, OffPolicySettings) else dqn(settings)


def shared(settings: Settings) -> dict[str, Any]:
    """What every algorithm has."""
    network = NetworkConfig(hidden_sizes=settings.hidden_sizes, activation=settings.activation)
    rest = {"mini_batch_size": settings.minibatch_size, "gamma": settings.gamma, "network": network}
    return {"learning_rate": settings.learning_rate, **rest}


def replayed(settings: DQNSettings | OffPolicySettings) -> dict[str, Any]:
    """What algorithms have that learn from a replay buffer."""
    names = ("unroll_length", "gradient_steps", "capacity")
    own = {name: getattr(settings, name) for name in names}
    return {**shared(settings), **own, "learning_starts": settings.initial_steps}


def ppo(settings: PPOSettings) -> PPOConfig:
    names = ("unroll_length", "gae_lambda", "clip", "value_cost", "entropy_cost", "max_grad_norm")
    own = {name: getattr(settings, name) for name in names}
    return PPOConfig(**shared(settings), **own, num_epochs=settings.epochs)


def dqn(settings: DQNSettings) -> DQNConfig | QRDQNConfig:
    names = ("target_period", "epsilon", "max_grad_norm")
    given = {**replayed(settings), **{name: getattr(settings, name) for name in names}, "n_step": 1, "double": False}
    if isinstance(settings, QRDQNSettings):
        return QRDQNConfig(**given, num_quantiles=settings.num_quantiles)
    return DQNConfig(**given)


def off_policy(settings: OffPolicySettings) -> SACConfig | TD3Config | CrossQConfig:
    given = replayed(settings)
    if isinstance(settings, CrossQSettings):
        given["network"] = replace(given["network"], batch_norm=True)
        return CrossQConfig(**given, policy_period=settings.policy_period)
    assert isinstance(settings, SACSettings)
    if not isinstance(settings, TD3Settings):
        return SACConfig(**given, tau=settings.tau)
    names = ("tau", "policy_period", "exploration_std", "target_noise_std", "target_noise_clip")
    return TD3Config(**given, **{name: getattr(settings, name) for name in names})


def offline(settings: OfflineSettings) -> CQLConfig | IQLConfig:
    kind: Any = CQLConfig if isinstance(settings, CQLSettings) else IQLConfig
    own = ("num_actions", "conservative_cost") if kind is CQLConfig else ("expectile", "inverse_temperature")
    return kind(**shared(settings), **{name: getattr(settings, name) for name in ("tau", *own)})


def data(algorithm: Algorithm) -> OfflineData:
    """The rows of `offline_rows`, an episode in each lane."""
    observation, action, reward = offline_rows()
    length, episodes = reward.shape
    ones, policy = np.ones(episodes, np.float32), algorithm.policy
    buffer = ReplayBuffer(
        reward.size + episodes,
        episodes,
        observation_spec=TensorSpec(observation.shape[2:]),
        action_spec=policy.raw_action_spec,
    )

    def step(kind: StepType, number: int) -> TimeStep:
        return TimeStep(np.full(episodes, kind, np.int32), reward[number], ones, observation[number])

    buffer.open(step(StepType.FIRST, 0))
    for number in range(length):  # an observation more than there are, at the end, is the last one again
        kind = StepType.LAST if number == length - 1 else StepType.MID
        buffer.append(action[number], step(kind, min(number + 1, length - 1)))
    return OfflineData(buffer)


def measure(name: str, variant: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    compiled = variant != "eager"
    if compiled and not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        raise SystemExit("the compiled variant needs a C++ compiler")
    config = configuration(name, compiled=compiled, precision="bf16" if variant == "bf16" else "float32")
    algorithm = make_algorithm(config)
    torch.set_num_threads(choose_threads(config, algorithm.policy.observation_spec))
    timer = WindowLogger(algorithm, warmup_s, window_s)
    with contextlib.ExitStack() as stack:
        loggers = [FileLogger(stack.enter_context(tempfile.TemporaryDirectory())), timer]
        if WORKLOADS[name].is_offline:
            collector = data(algorithm)
        else:
            lanes = [RunSeeds(0).integer("environments", lane) for lane in range(config.env.num_envs)]
            env = stack.enter_context(create_environment(config.env, lane_seeds=lanes))
            collector = Collector.of(env, algorithm)
        Trainer(collector, algorithm, config.trainer, loggers=loggers).run()
    return {**timer.window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, variant, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, variant, warmup_s=float(warmup_s), window_s=float(window_s))))
