"""How fast an environment is by itself, and a whole configuration with it."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from palaestra.core import ConfigError, StepType
from palaestra.envs import EnvConfig, create_environment
from palaestra.experiments.provenance import num_cores
from palaestra.policies import Phase, RandomPolicy

__all__ = ["EnvironmentSpeed", "bench_environment"]


@dataclass(frozen=True)
class EnvironmentSpeed:
    """Speed of environments under random actions."""

    name: str
    """The environment."""
    num_envs: int
    """How many were stepped together."""
    vectorization: str
    """How."""
    env_steps_per_s: float
    """Median over repetitions; resets are in the time, but are no env steps."""
    slowest: float
    """Of the repetitions."""
    fastest: float
    """Of the repetitions."""
    repetitions: int
    """How often it was measured."""
    cores: int
    """Cores this process may use."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        spread = f"{self.slowest:,.0f} to {self.fastest:,.0f} in {self.repetitions} repetitions"
        how = f"{self.num_envs} x {self.vectorization}, {self.cores} cores"
        return f"{self.name}  {self.env_steps_per_s:,.0f} env steps/s ({spread}; {how})"


def bench_environment(config: EnvConfig, *, duration_s: float = 1.0, repetitions: int = 3) -> EnvironmentSpeed:
    """Steps environments with random actions, which are drawn before the clock starts.

    Args:
        config: which environment, how many and how.
        duration_s: of one repetition.
        repetitions: how many.

    Raises:
        ConfigError: the duration or the number of repetitions is not positive.
    """
    if not duration_s > 0 or repetitions < 1:
        raise ConfigError(f"a bench of {repetitions} repetitions of {duration_s} s measures nothing; give at least 1")
    with create_environment(config) as env, torch.inference_mode():
        policy = RandomPolicy(env.observation_spec, env.action_spec)
        time_step = env.reset()
        actions = [policy.env_action(policy.act(time_step, (), phase=Phase.EVAL).action) for _ in range(64)]
        speeds = []
        for repetition in range(repetitions + 1):  # the first warms up
            length_s = duration_s if repetition else min(0.2, duration_s)
            steps, rounds, begin_s = 0, 0, time.perf_counter()
            while (elapsed_s := time.perf_counter() - begin_s) < length_s:
                time_step = env.step(actions[rounds % len(actions)])
                steps += int((time_step.step_type != StepType.FIRST).sum())
                rounds += 1
            speeds.append(steps / elapsed_s)
    measured = speeds[1:]
    return EnvironmentSpeed(
        name=config.name,
        num_envs=config.num_envs,
        vectorization="serial" if config.vectorization == "auto" else config.vectorization,
        env_steps_per_s=statistics.median(measured),
        slowest=min(measured),
        fastest=max(measured),
        repetitions=repetitions,
        cores=num_cores(),
    )
