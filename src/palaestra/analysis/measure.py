"""What a run will take, and how fast an environment is by itself, found out by trying for a second."""

import contextlib
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from rich.filesize import decimal

from palaestra.config.config import ExperimentConfig
from palaestra.core import ConfigError, StepType, left_as_found, tree_leaves
from palaestra.core.computing import memory_bytes, num_cores
from palaestra.core.files import told_once
from palaestra.envs import EnvConfig, create_environment, decided
from palaestra.envs.create import is_pool
from palaestra.multiagent import AgentsConfig, MappedPolicy, create_multi_agent_envs, is_multi_agent
from palaestra.policies import Phase, RandomPolicy
from palaestra.runs.build import make_learner
from palaestra.runs.lineage import begin_from, for_new_run
from palaestra.runs.making import require_memory
from palaestra.runs.records import network_lines, networks_of
from palaestra.training import Trainer
from palaestra.training.console import duration

__all__ = ["EnvironmentSpeed", "Estimate", "bench_environment", "dry_run"]

MEASURED_S = 1.0
"""How long a dry run makes updates."""
_MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    env_steps_per_s: float
    """Env steps per second of collecting and learning; of an offline run, updates. Of a run that goes from updates on
    data to env steps, the mean over its budget."""
    unit: str
    """Which of them: `env steps` or `updates`."""
    train_s: float
    """Seconds for the whole budget, without evaluations and checkpoints."""
    updates: int
    """Updates made to find out, of all policies."""
    networks: dict[str, str]
    """Layers and parameters of every network that learns, by its name."""
    num_parameters: int
    """Numbers that are learned, by all policies."""
    model_bytes: int
    """Parameters and optimizer state."""
    environment_bytes: int
    """Environments that are stepped as one, about; 0 of others."""
    buffer_bytes: int
    """The buffer when it is full, without what is compressed in it."""
    compressed: bool
    """Whether pictures in it are compressed, so that how much they will take is not known."""
    memory_bytes: int
    """Process, model and full buffer together."""
    available_bytes: int | None
    """Memory of this machine."""
    checkpoint_bytes: int
    """Size of the checkpoints that are kept, at most."""

    def __str__(self) -> str:
        lines = [
            f"speed       {self.env_steps_per_s:,.0f} {self.unit} per second, after {self.updates} updates",
            f"time        {duration(self.train_s)}, without evaluations and checkpoints",
            *network_lines(self.networks),
            f"parameters  {self.num_parameters:,} ({decimal(self.model_bytes)} with optimizer state)",
            *(
                [f"environments {decimal(self.environment_bytes)}, as measured with a few"]
                if self.environment_bytes
                else []
            ),
            f"buffer      {decimal(self.buffer_bytes)} when full{', and its pictures, compressed' * self.compressed}",
            f"memory      {decimal(self.memory_bytes)} in all"
            + (f" of {decimal(self.available_bytes)}" if self.available_bytes else ""),
            f"checkpoints up to {decimal(self.checkpoint_bytes)} on the disk",
        ]
        if self.available_bytes and self.memory_bytes > self.available_bytes:
            lines.append("warning     this is more memory than there is; make algorithm.capacity smaller")
        return "\n".join([*lines, "dry run     everything was built; nothing is left behind"])


@told_once()
@left_as_found()
def dry_run(config: ExperimentConfig) -> Estimate:
    """Builds everything that a run needs, makes updates for about a second, and leaves nothing behind.

    Raises:
        ConfigError: the settings do not fit together.
        PalaestraError: whatever the run itself would fail with in its first second.
    """
    learner = make_learner(for_new_run(config))
    begin_from(learner)
    config, algorithms, data = learner.config, learner.algorithms, learner.load_data(new=True)
    learner.learn_at_once()
    environments = 0 if is_multi_agent(config.env.name) else require_memory(config.env)
    with learner.collecting(data) as made:
        trainer = Trainer(made.collector, learner.manager_on(made.runtime), config.trainer)
        budget, on_data = config.trainer.total_env_steps, config.offline.updates
        with contextlib.closing(trainer.learner):
            speed, updates = _measure(trainer)
            if on_data:  # after which come env steps
                collector: Any = made.collector
                collector.take_over()
                online, updates = _measure(trainer)
                speed = budget / (on_data / speed + (budget - on_data) / online)
        model = sum(_bytes_of(one.state_tensors()) for one in algorithms.values())
        size = sum(
            getattr(buffer, "size_bytes", 0) or _bytes_of(buffer.state_tensors())
            for buffer in [*made.collector.buffers.values(), *data.values()]
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    parameters = {id(p): p.numel() for one in algorithms.values() for p in one.model.parameters()}
    return Estimate(
        env_steps_per_s=speed,
        unit=config.unit,
        train_s=budget / speed,
        updates=updates,
        networks=networks_of(algorithms),
        num_parameters=sum(parameters.values()),
        model_bytes=model,
        environment_bytes=environments,
        buffer_bytes=size,
        compressed=config.buffer.compression != "none",
        memory_bytes=peak + size,
        available_bytes=memory_bytes(),
        checkpoint_bytes=config.trainer.keep_checkpoints * (model + (0 if learner.offline else size)),
    )


def _measure(trainer: Trainer) -> tuple[float, int]:
    """Env steps per second and updates: the first update of everybody warms up, those after it are timed.

    A policy that has not learned after a second for which others have is not waited for: it may never be asked to.
    """
    began_s = time.perf_counter()
    for _ in range(_MOST_ITERATIONS):
        trainer.train_iter()
        learned = [algorithm.policy_version > 0 for algorithm in trainer.algorithms.values()]
        if all(learned) or (any(learned) and time.perf_counter() - began_s > MEASURED_S):
            break
    else:
        raise ConfigError(f"nothing was learned in {_MOST_ITERATIONS:,} iterations; look at the algorithm's plan")
    begin_s, begin = time.perf_counter(), trainer.collector.env_steps
    while (elapsed_s := time.perf_counter() - begin_s) < MEASURED_S or trainer.collector.env_steps == begin:
        trainer.train_iter()
    updates = sum(algorithm.policy_version for algorithm in trainer.algorithms.values())
    return (trainer.collector.env_steps - begin) / elapsed_s, updates


def _bytes_of(tensors: Any) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in tree_leaves(tensors))


@dataclass(frozen=True)
class EnvironmentSpeed:
    """Speed of environments under random actions."""

    name: str
    """The environment."""
    num_envs: int
    """Number of environments stepped together."""
    vectorization: str
    """How."""
    env_steps_per_s: float
    """Median over repetitions; resets are in the time, but are no env steps. Of environments, steps per second."""
    slowest: float
    """Of the repetitions."""
    fastest: float
    """Of the repetitions."""
    repetitions: int
    """Number of repetitions."""
    cores: int
    """Cores this process may use."""

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
    play, config = (_play_envs, config) if is_multi_agent(config.name) else (_play, decided(config))
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
    measured, how = speeds[1:], config.vectorization
    if how == "auto":
        how = "native" if play is _play and is_pool(config) else "serial"
    slowest, middle, fastest = min(measured), statistics.median(measured), max(measured)
    return EnvironmentSpeed(config.name, config.num_envs, how, middle, slowest, fastest, repetitions, num_cores())


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
            begun_again = 0 if env.ended is None else len(env.ended.env_id)
            yield int((time_step.step_type != StepType.FIRST).sum()) + begun_again, took_s


def _play_envs(config: EnvConfig) -> Generator[tuple[int, float]]:
    """The same of environments, whose agents choose among what masks allow in between, when the clock stands still."""
    with create_multi_agent_envs(config) as envs:
        policy_specs = AgentsConfig().policy_specs(envs.agents, teams=(), state_spec=None)
        actors = [
            MappedPolicy(spec.random_policy(), spec, envs.batch_size, delayed=False) for spec in policy_specs.values()
        ]
        outcomes = envs.reset()
        yield 0, 0.0
        while True:
            actions: list[dict[str, Any]] = [{} for _ in outcomes]
            for actor in actors:
                for env, outcome in enumerate(outcomes):
                    actor.take(env, outcome)
                actor.act(Phase.EVAL, actions=actions)
            over = sum(outcome.over for outcome in outcomes)
            begin_s = time.perf_counter()
            outcomes = envs.step(actions)
            yield len(outcomes) - over, time.perf_counter() - begin_s
