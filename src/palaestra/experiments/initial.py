"""What a new run begins with: the policies of another run, or of a shared folder."""

import dataclasses
from pathlib import Path
from typing import Any

from palaestra.core import POLICY, CheckpointError, ConfigError
from palaestra.distributed import DistributedConfig
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.learner import Learner
from palaestra.experiments.run_directory import find_run
from palaestra.policies import RandomPolicy, load_weights

__all__ = []


def for_new_run(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration with the path of the run that it begins with, found by what the user typed.

    Args:
        config: of a new run.

    Raises:
        CheckpointError: there is no such run.
        ConfigError: it is a group of several; or a setting of workers would do nothing.
    """
    defaults, settings = vars(DistributedConfig()), vars(config.distributed)
    given = [name for name, value in settings.items() if value != defaults[name]]
    if config.distributed.runtime is None and given:
        raise ConfigError(
            f"distributed.{given[0]} is {settings[given[0]]}, but this run has no workers; give distributed.runtime as "
            "local, process or ray, or leave it out"
        )
    source = config.run.initial_policy
    if source is None:
        return config
    path = str(find_run(source, config.run.directory).path.resolve())
    return dataclasses.replace(config, run=dataclasses.replace(config.run, initial_policy=path))


def begin_from(learner: Learner) -> dict[str, Any] | None:
    """Puts the policies that `run.initial_policy` names into a learner that has not learned yet.

    Every policy that learns is looked for under its own name, with weights and observation statistics. Target networks
    become copies again; critics, optimizers, schedules and data begin anew.

    Args:
        learner: of the new run; its configuration has the path from `for_new_run`.

    Returns:
        For the run's records: the path, and the hash of each policy's weights. `None` where the run begins anew.

    Raises:
        CheckpointError: there is no such policy, or its files are damaged.
        ConfigError: a policy does not fit; the message says in what.
    """
    if learner.config.run.initial_policy is None:
        return None
    path, hashes = Path(learner.config.run.initial_policy), dict[str, str]()
    for name, algorithm in learner.algorithms.items():
        if isinstance(algorithm.policy, RandomPolicy):  # a robot's task that only watches
            continue
        folder = path / "policy" / ("" if name == POLICY else name)
        if not (folder / "policy.json").is_file():
            raise CheckpointError(_missing(path, name))
        try:
            hashes[name] = load_weights(algorithm.policy, folder)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (there: {path}; here: {learner.config.algorithm_name} on {learner.config.env.name}). Give "
                "this run the same environment, algorithm and network"
            ) from error
        component = algorithm.model.component
        for target in [target for target in component if target.startswith("target_")]:
            algorithm.model.sync(target, source=target.removeprefix("target_"))
    return {"path": str(path), "weights_sha256": hashes}


def _missing(path: Path, name: str) -> str:
    kept = sorted(
        "" if file.parent.name == "policy" else file.parent.name for file in path.glob("policy/**/policy.json")
    )
    if not kept:
        return f"{path} has kept no policy yet: a run keeps the one of its best evaluation"
    if kept == [""]:
        return f"{path} has one policy, of a single agent; this run needs one for {name!r}"
    others = ", ".join(filter(None, kept))
    return f"{path} has the policies {others}, and this run learns {name!r}; each begins with the one of its own name"
