"""From a configuration to a finished run, and on from where one stopped."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palaestra.algorithms import Algorithm, GradientAlgorithm
from palaestra.core import ConfigError, RunSeeds
from palaestra.envs import EnvConfig, Environment, create_environment, probe_specs
from palaestra.experiments.config import ExperimentConfig, algorithm_class, config_from_mapping
from palaestra.experiments.presets import preset
from palaestra.experiments.run_directory import RunDirectory, find_run
from palaestra.nn import NetworkConfig
from palaestra.policies import Policy, load_policy, save_policy
from palaestra.rollout import Collector, Evaluation, evaluate
from palaestra.training import (
    Callback,
    CheckpointStore,
    ConsoleLogger,
    Evaluated,
    FileLogger,
    Health,
    Logger,
    TensorBoardLogger,
    Trainer,
    TrainResult,
)

__all__ = ["RunResult", "evaluate_run", "evaluation_environment", "make_algorithm", "resume", "run", "train"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """A run that has come to its end, or was interrupted."""

    directory: Path
    """Everything it left."""
    result: TrainResult
    """How it ended."""
    policy: Policy = field(repr=False)
    """As it is after the last update; the directory's `policy/` has the one of the best evaluation."""


def train(
    algorithm: str, env: str | type, /, *, progress: bool = False, loggers: Sequence[Logger] = (), **settings: Any
) -> RunResult:
    """Trains an agent: the command `palaestra train` as a function.

    Args:
        algorithm: its name, for example `"ppo"`.
        env: as `EnvConfig.name`, or an environment's class.
        progress: whether to show how it goes, as the command does.
        loggers: further loggers.
        settings: `config=` an `ExperimentConfig`, or single settings by their path with `__` for dots:
            `trainer__total_env_steps=20_000, run__seed=3`.

    Raises:
        ConfigError: a setting is unknown or wrong; nothing has been started then.

    Examples:
        >>> import palaestra, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> done = palaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=512, run__directory=folder)
        >>> done.result.status
        'done'
    """
    name = f"{env.__module__}:{env.__qualname__}" if isinstance(env, type) else env
    base = settings.pop("config", None) or preset(algorithm, name)
    require_same_task(base, algorithm, name)
    nested: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.split("__")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    config = config_from_mapping(ExperimentConfig, nested, base=base)
    if progress:
        title = f"{config.algorithm_name} on {config.env.name}"
        loggers = [*loggers, ConsoleLogger(title, config.trainer.total_env_steps)]
    return run(config, loggers=loggers)


def require_same_task(config: ExperimentConfig, algorithm: str, env: str) -> None:
    """Refuses a configuration that is for something else than what was asked for.

    Args:
        config: from a file, say.
        algorithm: as it was named beside it.
        env: as it was named beside it.

    Raises:
        ConfigError: they differ.
    """
    if (config.algorithm_name, config.env.name) != (algorithm, env):
        raise ConfigError(
            f"the configuration is for {config.algorithm_name} on {config.env.name}, "
            f"but {algorithm} on {env} was named; leave one of them out, or make them agree"
        )


def run(
    config: ExperimentConfig, *, loggers: Sequence[Logger] = (), on_start: Callable[[Path], None] | None = None
) -> RunResult:
    """Trains by a configuration, in a new run directory.

    Args:
        config: everything the run depends on.
        loggers: besides the run's own files and TensorBoard.
        on_start: called with the run directory once it exists.

    Raises:
        ConfigError: the settings do not fit together; no environment has been stepped then.
    """
    algorithm = make_algorithm(config)
    directory = RunDirectory.create(config)
    if on_start is not None:
        on_start(directory.path)
    return _run(directory, config, algorithm, loggers, resumed=False)


def resume(name: str, *, root: str | Path = "runs", loggers: Sequence[Logger] = ()) -> RunResult:
    """Goes on with a run from its newest valid checkpoint.

    Args:
        name: path or name of the run, or `last`.
        root: where runs are.
        loggers: besides the run's own files and TensorBoard.

    Raises:
        CheckpointError: there is no such run, or no valid checkpoint in it.
        ConfigError: another process has the run.
    """
    directory = find_run(name, root)
    config = directory.config
    return _run(directory, config, make_algorithm(config), loggers, resumed=True)


def make_algorithm(config: ExperimentConfig) -> Algorithm[Any]:
    """The algorithm of a configuration, on the specs of its environment.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the algorithm does not fit the environment.
    """
    _set_threads(config)
    observation_spec, action_spec, _ = probe_specs(config.env)
    kind: Any = algorithm_class(config.algorithm_name)
    try:
        algorithm: Algorithm[Any] = kind(observation_spec, action_spec, config.algorithm, RunSeeds(config.run.seed))
    except ConfigError as error:
        raise ConfigError(f"{config.algorithm_name} does not fit {config.env.name}: {error}") from error
    if config.run.compile and isinstance(algorithm, GradientAlgorithm):
        if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            algorithm.compile()
        else:
            _log.warning("--compile needs a C++ compiler and none was found; training runs without")
    return algorithm


def evaluation_environment(config: ExperimentConfig, seed: int, num_envs: int) -> tuple[Environment, list[int]]:
    """Environments for evaluation; their seeds are never those of training.

    Args:
        config: of the run.
        seed: of the evaluation.
        num_envs: how many.

    Returns:
        The environments and their lane seeds.
    """
    lanes = [RunSeeds(seed).integer("evaluation", lane) for lane in range(num_envs)]
    env: EnvConfig = dataclasses.replace(config.env, num_envs=num_envs, vectorization="serial", num_workers=None)
    return create_environment(env, lane_seeds=lanes), lanes


def evaluate_run(
    name: str, *, root: str | Path = "runs", episodes: int = 20, seed: int | None = None, deterministic: bool = True
) -> Evaluation:
    """Evaluates the policy artefact of a run: the best it had.

    Args:
        name: path or name of the run, or `last`.
        root: where runs are.
        episodes: how many.
        seed: of the environments; by default the run's own evaluation seeds.
        deterministic: whether to take the most probable or most valuable action.

    Raises:
        CheckpointError: there is no such run, or it has no policy yet.
    """
    directory = find_run(name, root)
    config = directory.config
    policy = load_policy(directory.path / "policy")
    num_envs = min(config.run.eval_num_envs, episodes)
    env, lanes = evaluation_environment(config, config.run.seed if seed is None else seed, num_envs)
    with env:
        return evaluate(policy, env, episodes=episodes, deterministic=deterministic, seeds=lanes)


def evaluate_training(config: ExperimentConfig, policy: Policy) -> Evaluation:
    """An evaluation as the trainer makes it, in new environments.

    Args:
        config: of the run.
        policy: to evaluate.
    """
    num_envs = min(config.run.eval_num_envs, config.trainer.eval_episodes)
    env, lanes = evaluation_environment(config, config.run.seed, num_envs)
    with env:
        return evaluate(policy, env, episodes=config.trainer.eval_episodes, seeds=lanes)


class KeepEvaluations(Callback):
    """Writes every evaluation, and the policy of the best one, into a run directory.

    Args:
        path: of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        """See `Callback.evaluated`."""
        text = json.dumps(result.evaluation.to_json(), indent=2) + "\n"
        (self._path / "evals" / f"{result.env_steps}.json").write_text(text)
        if result.best:
            save_policy(result.policy, self._path / "policy")


def _run(
    directory: RunDirectory,
    config: ExperimentConfig,
    algorithm: Algorithm[Any],
    loggers: Sequence[Logger],
    *,
    resumed: bool,
) -> RunResult:
    path = directory.path
    with ExitStack() as stack:
        directory.lock()
        stack.callback(directory.unlock)
        env = stack.enter_context(create_environment(config.env, seed=config.run.seed))

        own: list[Logger] = [FileLogger(path)]
        if config.run.tensorboard:
            own.append(TensorBoardLogger(path / "tensorboard"))
        trainer = Trainer(
            Collector.of(env, algorithm),
            algorithm,
            config.trainer,
            evaluate=functools.partial(evaluate_training, config),
            checkpoints=CheckpointStore(path / "checkpoints", keep=config.trainer.keep_checkpoints),
            loggers=[*own, *loggers],
            callbacks=[Health(), KeepEvaluations(path)],
        )
        if resumed:
            _, state = CheckpointStore(path / "checkpoints").load_newest()
            trainer.load_state(state)
            directory.write_info({"resumed_at": trainer.collect.env_steps, "resume": env.resume})
        directory.write_info({"status": "running", "threads": torch.get_num_threads()})
        try:
            result = trainer.run()
        except BaseException as error:
            status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            directory.write_info({"status": status, "error": f"{type(error).__name__}: {error}"})
            raise
        directory.write_info({"status": result.status, "env_steps": result.env_steps, "train_s": result.train_s})
    return RunResult(path, result, algorithm.policy)


def _set_threads(config: ExperimentConfig) -> None:
    """One thread for small networks, where more only wait for each other."""
    network = getattr(config.algorithm, "network", None)
    rows = getattr(config.algorithm, "mini_batch_size", 0)
    small = isinstance(network, NetworkConfig) and max(network.hidden_sizes, default=0) * rows <= 256 * 256
    threads = config.run.num_threads or (1 if small else os.cpu_count() or 1)
    torch.set_num_threads(threads)
    _log.info("torch uses %d thread(s)", threads)
