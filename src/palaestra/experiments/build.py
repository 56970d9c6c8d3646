"""A run put together from its configuration: what learns, and the trainer with all that it writes."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palaestra.algorithms import Algorithm
from palaestra.core import POLICY, CheckpointError, ConfigError, require_device
from palaestra.distributed import EvaluationWorker
from palaestra.experiments.config import ExperimentConfig, algorithm_class, flat_settings
from palaestra.experiments.learner import Collecting, Evaluate, Learner
from palaestra.experiments.robot import RobotLearner
from palaestra.experiments.single import SingleLearner
from palaestra.experiments.team import TeamLearner
from palaestra.multiagent import is_multi_agent
from palaestra.policies import Policy, RandomPolicy, save_policy
from palaestra.rollout import Evaluation
from palaestra.training import (
    Callback,
    CheckpointStore,
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

__all__ = ["learner_of", "make_algorithm", "make_learner"]

_SERVICES = {"wandb": WandbLogger, "mlflow": MLflowLogger, "trackio": TrackioLogger}


def learner_of(config: ExperimentConfig) -> Learner:
    """What learns in a run, by the kind that its environment and algorithm make it; nothing is made yet.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: it says who acts by which policy, and there is one agent.
    """
    if is_multi_agent(config.env.name):
        return TeamLearner(config)
    if config.agents.mapping or config.agents.policies:
        raise ConfigError(
            f"agents.mapping and agents.policies are for environments with many agents, and {config.env.name} has one"
        )
    single = issubclass(algorithm_class(config.algorithm_name), Algorithm)
    return SingleLearner(config) if single else RobotLearner(config)


def make_learner(config: ExperimentConfig) -> Learner:
    """What learns in a run, made and checked.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the device is not there, an algorithm does not fit the environment, the agents' mapping does not
            fit the agents, or the policies cannot learn where they are to, or as they are to.
    """
    require_device(config.run.device, "run.device")
    learner = learner_of(config)
    learner.require()
    return learner


def make_algorithm(config: ExperimentConfig) -> Algorithm[Any]:
    """The algorithm of a configuration with one policy, on the specs of its environment.

    Args:
        config: everything the run depends on.

    Raises:
        ConfigError: the algorithm does not fit the environment; the message names those that do.
    """
    return SingleLearner(config).algorithm


def evaluate_training(
    evaluation: Evaluate, config: ExperimentConfig, acting: Policy | torch.nn.ModuleDict
) -> Evaluation:
    """An evaluation as the trainer makes it, in new environments.

    Args:
        evaluation: of the learner.
        config: of the run.
        acting: the policy to evaluate; by name where there are several.
    """
    trainer = config.trainer
    return evaluation(
        named_policies(acting),
        episodes=trainer.eval_episodes,
        seed=config.run.seed,
        time_limit_s=trainer.eval_time_limit_s,
    )


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


def make_trainer(learner: Learner, collecting: Collecting, path: Path, loggers: Sequence[Logger] = ()) -> Trainer:
    """The trainer of a run, with everything that it writes into the run directory.

    Args:
        learner: from `make_learner`.
        collecting: of the learner.
        path: the run directory.
        loggers: besides the run's own.
    """
    config = learner.config
    own: list[Logger] = [FileLogger(path)]
    if config.run.tensorboard:
        own.append(TensorBoardLogger(path / "tensorboard"))
    own += [_SERVICES[name]("palaestra", path, config=flat_settings(config)) for name in config.run.loggers]
    evaluate: Any = functools.partial(evaluate_training, learner.evaluation(), config)
    if collecting.runtime is not None:
        evaluate = EvaluationWorker(collecting.runtime, evaluate)
    return Trainer(
        collecting.collector,
        learner.manager_on(collecting.runtime),
        config.trainer,
        evaluate=evaluate,
        checkpoints=CheckpointStore(path / "checkpoints", keep=config.trainer.keep_checkpoints),
        loggers=[*own, *loggers],
        callbacks=[Health(), KeepEvaluations(path), *collecting.views],
    )
