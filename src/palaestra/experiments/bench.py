"""How fast an environment is by itself, and a whole configuration with it."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from palaestra.core import ConfigError, StepType
from palaestra.envs import EnvConfig, create_environment
from palaestra.experiments.provenance import num_cores
from palaestra.multiagent import Actor, AgentsConfig, create_worlds, is_world
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
    """Median over repetitions; resets are in the time, but are no env steps. Of worlds, moments per second."""
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
    """Steps environments with random actions; drawing them is not in the time.

    Args:
        config: which environment, how many and how.
        duration_s: of one repetition.
        repetitions: how many.

    Raises:
        ConfigError: the duration or the number of repetitions is not positive.
    """
    if not duration_s > 0 or repetitions < 1:
        raise ConfigError(
            f"a bench of {repetitions} repetitions of {duration_s} s measures nothing; give at least 1, and a time "
            "above 0"
        )
    play = _play_worlds if is_world(config.name) else _play
    with torch.inference_mode(), contextlib.closing(play(config)) as stepped:
        next(stepped)  # everything is made
        speeds = []
        for repetition in range(repetitions + 1):  # the first warms up
            length_s = duration_s if repetition else min(0.2, duration_s)
            steps, stepping_s, begin_s = 0, 0.0, time.perf_counter()
            while time.perf_counter() - begin_s < length_s:
                more, took_s = next(stepped)
                steps, stepping_s = steps + more, stepping_s + took_s
            speeds.append(steps / stepping_s)
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


def _play(config: EnvConfig) -> Generator[tuple[int, float]]:
    """Env steps and seconds of each step of environments, with actions that are drawn before."""
    with create_environment(config) as env:
        policy = RandomPolicy(env.observation_spec, env.action_spec)
        time_step = env.reset()
        actions = [policy.env_action(policy.act(time_step, (), phase=Phase.EVAL).action) for _ in range(64)]
        yield 0, 0.0
        for action in itertools.cycle(actions):
            begin_s = time.perf_counter()
            time_step = env.step(action)
            took_s = time.perf_counter() - begin_s
            yield int((time_step.step_type != StepType.FIRST).sum()), took_s


def _play_worlds(config: EnvConfig) -> Generator[tuple[int, float]]:
    """The same of worlds, whose agents choose among what masks allow in between, when the clock stands still."""
    with create_worlds(config) as worlds:
        roles = AgentsConfig().roles(worlds.agents, joint=(), state_spec=None)
        actors = [
            Actor(RandomPolicy(role.observation_spec, role.action_spec), role, worlds.batch_size, delayed=False)
            for role in roles.values()
        ]
        moments = worlds.reset()
        yield 0, 0.0
        while True:
            actions: list[dict[str, Any]] = [{} for _ in moments]
            for actor in actors:
                for world, moment in enumerate(moments):
                    actor.take(world, moment)
                actor.act(Phase.EVAL, actions=actions)
            over = sum(moment.over for moment in moments)
            begin_s = time.perf_counter()
            moments = worlds.step(actions)
            yield len(moments) - over, time.perf_counter() - begin_s
