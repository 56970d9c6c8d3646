"""Runs: typed configuration, tuned presets, run directories, and one function that trains."""

from palaestra.experiments.config import (
    ExperimentConfig,
    RunConfig,
    config_from_mapping,
    config_to_mapping,
    load_config,
    save_config,
)
from palaestra.experiments.presets import PRESETS, preset
from palaestra.experiments.run import (
    RunResult,
    evaluate_run,
    evaluation_environment,
    make_algorithm,
    require_same_task,
    resume,
    run,
    train,
)
from palaestra.experiments.run_directory import RunDirectory, find_run, list_runs

__all__ = [
    "PRESETS",
    "ExperimentConfig",
    "RunConfig",
    "RunDirectory",
    "RunResult",
    "config_from_mapping",
    "config_to_mapping",
    "evaluate_run",
    "evaluation_environment",
    "find_run",
    "list_runs",
    "load_config",
    "make_algorithm",
    "preset",
    "require_same_task",
    "resume",
    "run",
    "save_config",
    "train",
]
