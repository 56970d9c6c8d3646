"""Going on from a run: with other settings, or in a copy of it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from typing import Any

from palaestra.core import ConfigError
from palaestra.experiments.build import nested
from palaestra.experiments.config import ExperimentConfig, config_from_mapping, flat_settings
from palaestra.experiments.run_directory import RunDirectory
from palaestra.training import CheckpointStore

__all__ = ["changed_config", "changes_between", "fork"]

_FIXED = (
    *("algorithm_name", "env", "algorithm.network", "distributed.num_workers"),
    *("run.seed", "run.directory", "run.name"),
)
"""What a checkpoint holds the results of, and no setting can change afterwards."""


def changed_config(run: RunDirectory, settings: Mapping[str, Any]) -> ExperimentConfig:
    """A run's configuration with other settings, as far as it can go on with them.

    Args:
        run: that goes on.
        settings: values by path, with dots or `__`.

    Raises:
        ConfigError: a setting is unknown or wrong, the checkpoint would not fit any more, or it is beyond the budget.
    """
    config = run.config
    changed = config_from_mapping(ExperimentConfig, nested(settings), base=config)
    changes = changes_between(config, changed)
    refused = [
        f"{path} cannot change in a run that goes on (it is {old!r}, {new!r} was given); train a new run instead"
        for path, (old, new) in changes.items()
        if any(path == fixed or path.startswith(f"{fixed}.") for fixed in _FIXED)
    ]
    reached, budget = run.env_steps, changed.trainer.total_env_steps
    if "trainer.total_env_steps" in changes and budget <= reached:
        refused.append(f"the run has {reached:,} env steps already; --until must be above, {budget:,} was given")
    elif changes and not refused and budget <= reached:
        refused.append(
            f"the run has used its budget of {budget:,} env steps, so nothing would be done with {', '.join(changes)}; "
            "give --until as well, to go on"
        )
    if refused:
        raise ConfigError("\n".join(refused))
    return changed


def changes_between(old: ExperimentConfig, new: ExperimentConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by path: (old value, new value), as in a configuration file.

    Args:
        old: one configuration.
        new: another.

    Examples:
        >>> from palaestra import preset
        >>> changes_between(preset("ppo", "CartPole-v1"), preset("ppo", "Acrobot-v1"))["env.name"]
        ('CartPole-v1', 'Acrobot-v1')
    """
    before, after = flat_settings(old), flat_settings(new)
    paths = [*before, *(path for path in after if path not in before)]
    return {path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)}


def fork(parent: RunDirectory, config: ExperimentConfig, name: str | None = None) -> RunDirectory:
    """A new run that goes on from the newest valid checkpoint of another; that one stays as it is.

    Args:
        parent: the other run.
        config: of the new run.
        name: of the new run directory; by default the parent's with `_fork`.

    Raises:
        CheckpointError: the parent has no valid checkpoint.
        ConfigError: the name is taken.
    """
    step, _ = CheckpointStore(parent.path / "checkpoints").load_newest()
    run = dataclasses.replace(config.run, name=name or _free_name(parent), directory=str(parent.path.parent))
    changes = changes_between(parent.config, config)
    lineage = {"forked_from": str(parent.path.resolve()), "env_steps": step, "changes": changes}
    child = RunDirectory.create(dataclasses.replace(config, run=run), lineage=lineage)
    ignore = shutil.ignore_patterns(".tmp-*", "*.corrupt")
    shutil.copytree(parent.path / "checkpoints", child.path / "checkpoints", ignore=ignore, dirs_exist_ok=True)
    for file in ("metrics.jsonl", "episodes.csv"):
        if (parent.path / file).exists():
            shutil.copy2(parent.path / file, child.path / file)
    shutil.copytree(parent.path / "policy", child.path / "policy", dirs_exist_ok=True)
    for evaluation in (parent.path / "evals").glob("*.json"):
        if evaluation.stem.isdigit() and int(evaluation.stem) <= step:
            shutil.copy2(evaluation, child.path / "evals")
    return child


def _free_name(parent: RunDirectory) -> str:
    number, name = 1, f"{parent.path.name}_fork"
    while (parent.path.parent / name).exists():
        number += 1
        name = f"{parent.path.name}_fork{number}"
    return name
