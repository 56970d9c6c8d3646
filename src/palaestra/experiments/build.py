"""The parts of a run, made from its configuration."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palaestra.algorithms import ALGORITHMS, Algorithm, GradientAlgorithm
from palaestra.core import (
    POLICY,
    CheckpointError,
    ConfigError,
    MissingExtraError,
    PalaestraError,
    RunSeeds,
    SpecTree,
    require_device,
)
from palaestra.distributed import EvaluationWorker, PolicyServer, RolloutManager, WorkersView
from palaestra.envs import Environment, create_environment, probe_specs
from palaestra.experiments.agents import Agents, Learner, evaluate_team, make_agents, many_agents
from palaestra.experiments.config import ExperimentConfig, algorithm_class, flat_settings, on_cpu
from palaestra.experiments.hindsight import hindsight_sampler
from palaestra.experiments.provenance import num_cores
from palaestra.experiments.robots import TasksView, robot_evaluation
from palaestra.experiments.updating import make_update, require_update
from palaestra.multiagent import Role
from palaestra.nn import NetworkConfig, has_pictures
from palaestra.policies import Policy, RandomPolicy, save_policy
from palaestra.robots import Robot, RobotCollector
from palaestra.rollout import Evaluation, evaluate
from palaestra.training import (
    Callback,
    CheckpointStore,
    DataCollector,
    Evaluated,
    FileLogger,
    Health,
    Logger,
    MLflowLogger,
    TensorBoardLogger,
    TrackioLogger,
    Trainer,
    WandbLogger,
    named_policies,
)

__all__ = [
    "choose_threads",
    "evaluation_environment",
    "make_algorithm",
    "make_learner",
    "make_trainer",
    "suitable_algorithms",
]

_log = logging.getLogger(__name__)
_SERVICES = {"wandb": WandbLogger, "mlflow": MLflowLogger, "trackio": TrackioLogger}


def make_learner(config: ExperimentConfig) -> Learner:
    """What learns in a run: an algorithm or a robot, or everybody who acts where there are many agents.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the device is not there, an algorithm does not fit the environment, the agents' mapping does not
            fit the agents, or the policies cannot learn where they are to, or as they are to.
    """
    require_device(config.run.device, "run.device")
    learner = _make_agents(config) if many_agents(config) else make_algorithm(config)
    require_update(config, learner)
    hindsight_sampler(config, learner)  # what does not fit is said here
    return learner


def _make_agents(config: ExperimentConfig) -> Agents:
    _require_loggers(config)

    def make(name: str, settings: Any, role: Role, seeds: RunSeeds) -> Algorithm[Any]:
        _set_up_torch(config, role.observation_spec)
        algorithm: Algorithm[Any] = algorithm_class(name)(role.observation_spec, role.action_spec, settings, seeds)
        algorithm.to(config.run.device)
        _compile(config, algorithm)
        return algorithm

    return make_agents(config, make)


def acting_parts(
    config: ExperimentConfig, num_threads: int
) -> tuple[Mapping[str, Role], Mapping[str, Algorithm[Any] | Policy]]:
    """What a roll-out worker of a run with many agents acts with: roles, algorithms and rules.

    Args:
        config: of the run.
        num_threads: of torch, as the run has chosen.
    """
    acting = on_cpu(config)
    run = dataclasses.replace(acting.run, loggers=(), num_threads=num_threads)
    agents = make_learner(dataclasses.replace(acting, run=run))
    assert isinstance(agents, Agents)
    return agents.roles, agents.actors


def make_algorithm(config: ExperimentConfig) -> Any:
    """The algorithm of a configuration, or its robot, on the specs of its environment.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the algorithm does not fit the environment; the message names those that do.
    """
    _require_loggers(config)
    observation_spec, action_spec, _ = probe_specs(config.env)
    _require_same_specs(config, observation_spec, action_spec)
    _set_up_torch(config, observation_spec)
    kind: Any = algorithm_class(config.algorithm_name)
    try:
        made = kind(observation_spec, action_spec, config.algorithm, RunSeeds(config.run.seed))
    except ConfigError as error:
        others = suitable_algorithms(observation_spec, action_spec)
        hint = "" if config.algorithm_name in others else f". Algorithms that fit: {', '.join(others) or 'none'}"
        raise ConfigError(f"{config.algorithm_name} does not fit {config.env.name}: {error}{hint}") from error
    made.to(config.run.device)
    for algorithm in made.algorithms.values() if isinstance(made, Robot) else [made]:
        _compile(config, algorithm)
    return made


def _require_loggers(config: ExperimentConfig) -> None:
    for name in config.run.loggers:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"run.loggers={name}")


def _require_same_specs(config: ExperimentConfig, observation_spec: SpecTree, action_spec: SpecTree) -> None:
    """Refuses what is for training alone where a policy could not be evaluated without it."""
    if not (config.env.train_wrappers or config.env.train_kwargs):
        return
    observed, acted, _ = probe_specs(config.env.for_evaluation(1))
    for what, training, evaluation in (("observations", observation_spec, observed), ("actions", action_spec, acted)):
        if training != evaluation:
            raise ConfigError(
                f"env.train_wrappers or env.train_kwargs change the {what} from {evaluation} to {training}, and the "
                "policy is evaluated without them; put what does that into env.wrappers or env.kwargs"
            )


def _set_up_torch(config: ExperimentConfig, observation_spec: SpecTree) -> None:
    torch.set_num_threads(choose_threads(config, observation_spec))
    _log.info("torch uses %d thread(s)", torch.get_num_threads())
    _set_determinism(config.run.deterministic)


def _compile(config: ExperimentConfig, algorithm: Algorithm[Any]) -> None:
    if config.run.compile and isinstance(algorithm, GradientAlgorithm):
        if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            algorithm.compile()
        else:
            _log.warning("--compile needs a C++ compiler and none was found; training runs without")


def suitable_algorithms(observation_spec: SpecTree, action_spec: SpecTree) -> list[str]:
    """The algorithms that can be made for these spaces: each is asked with its default settings.

    Args:
        observation_spec: of an environment.
        action_spec: of an environment.
    """
    with torch.device("meta"):  # nobody uses the weights, and those for large pictures take seconds to initialise
        return [name for name in sorted(ALGORITHMS) if attempt(ALGORITHMS[name], observation_spec, action_spec)]


def attempt(kind: Any, observation_spec: SpecTree, action_spec: SpecTree, config: Any = None) -> Algorithm[Any] | None:
    """An algorithm for these spaces; `None` if it refuses them.

    Args:
        kind: the algorithm's class.
        observation_spec: of an environment.
        action_spec: of an environment.
        config: its settings; the defaults if left out.
    """
    try:
        return kind(observation_spec, action_spec, config or kind.config_class(), RunSeeds(0))
    except PalaestraError:
        return None


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
    return create_environment(config.env.for_evaluation(num_envs), lane_seeds=lanes), lanes


def evaluate_training(
    config: ExperimentConfig, policy: Policy | torch.nn.ModuleDict, agents: Agents | None = None
) -> Evaluation:
    """An evaluation as the trainer makes it, in new environments.

    Args:
        config: of the run.
        policy: to evaluate; by name where there are several.
        agents: everybody, in a run with many agents.
    """
    episodes, seed, limit_s = config.trainer.eval_episodes, config.run.seed, config.trainer.eval_time_limit_s
    if agents is not None:
        acting = named_policies(policy)
        return evaluate_team(config, acting, agents, episodes=episodes, seed=seed, time_limit_s=limit_s)
    assert isinstance(policy, Policy)
    env, lanes = evaluation_environment(config, seed, min(config.run.eval_num_envs, episodes))
    with env:
        return evaluate(policy, env, episodes=episodes, seeds=lanes, time_limit_s=limit_s)


class KeepEvaluations(Callback):
    """Writes every evaluation, and the policy of the best one, into a run directory.

    Args:
        path: of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        """See `Callback.evaluated`.

        Raises:
            CheckpointError: the disk is full, say; the trainer counts it as a failed save.
        """
        try:
            self._write(result)
        except (OSError, SafetensorError) as error:  # a full disk is the second where tensors are written
            raise CheckpointError(f"the evaluation in {self._path} cannot be written: {error}") from error

    def _write(self, result: Evaluated) -> None:
        text = json.dumps(result.evaluation.to_json(), indent=2) + "\n"
        (self._path / "evals" / f"{result.env_steps}.json").write_text(text)
        if result.best:
            for name, policy in named_policies(result.policy).items():
                if not isinstance(policy, RandomPolicy):  # that of a task which only watches
                    save_policy(policy, self._path / "policy" / ("" if name == POLICY else name))


def make_trainer(
    config: ExperimentConfig,
    learner: Learner,
    collect: DataCollector,
    path: Path,
    loggers: Sequence[Logger] = (),
) -> Trainer:
    """The trainer of a run, with everything that it writes into the run directory.

    Args:
        config: everything the run depends on.
        learner: from `make_learner`.
        collect: from `make_collect`.
        path: the run directory.
        loggers: besides the run's own.
    """
    own: list[Logger] = [FileLogger(path)]
    if config.run.tensorboard:
        own.append(TensorBoardLogger(path / "tensorboard"))
    own += [_SERVICES[name]("palaestra", path, config=flat_settings(config)) for name in config.run.loggers]
    agents = learner if isinstance(learner, Agents) else None
    evaluate: Any = functools.partial(evaluate_training, config, agents=agents)
    callbacks: list[Callback] = [Health(), KeepEvaluations(path)]
    if isinstance(collect, RobotCollector):
        evaluate = functools.partial(robot_evaluation, config, collect.evaluated_by)
        callbacks.append(TasksView(collect))
    if isinstance(collect, RolloutManager | PolicyServer):
        evaluate = EvaluationWorker(collect.runtime, evaluate)
        callbacks.append(WorkersView(collect))
    return Trainer(
        collect,
        make_update(config, learner, collect),
        config.trainer,
        evaluate=evaluate,
        checkpoints=CheckpointStore(path / "checkpoints", keep=config.trainer.keep_checkpoints),
        loggers=[*own, *loggers],
        callbacks=callbacks,
    )


def choose_threads(config: ExperimentConfig, observation_spec: SpecTree, *, side_by_side: int = 1) -> int:
    """Threads of torch: as asked for; else one for small networks, where more only wait for each other.

    Args:
        config: of the run.
        observation_spec: of its environment; pictures need large networks.
        side_by_side: runs that share the machine.
    """
    network = getattr(config.algorithm, "network", None)
    rows = getattr(config.algorithm, "mini_batch_size", 0) or 0
    small = isinstance(network, NetworkConfig) and max(network.hidden_sizes, default=0) * rows <= 256 * 256
    small |= issubclass(algorithm_class(config.algorithm_name), Robot)  # whose threads would wait for torch's
    small = small and not has_pictures(observation_spec)
    return config.run.num_threads or (1 if small else max(1, num_cores() // side_by_side))


def _set_determinism(deterministic: bool) -> None:
    """Slower kernels that give equal results on equal GPUs; on a CPU results are equal anyway."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = False


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by path, with `__` or dots, as nested mappings.

    Args:
        settings: values by path.

    Examples:
        >>> nested({"run__seed": 3, "trainer.total_env_steps": 5})
        {'run': {'seed': 3}, 'trainer': {'total_env_steps': 5}}
    """
    root: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.replace("__", ".").split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return root
