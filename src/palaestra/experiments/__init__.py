"""Runs: typed configuration, tuned presets, run directories, and functions that train, compare and report."""

from palaestra.experiments.agents import Agents, many_agents
from palaestra.experiments.bench import EnvironmentSpeed, bench_environment
from palaestra.experiments.build import evaluation_environment, make_algorithm, suitable_algorithms
from palaestra.experiments.catalogue import AlgorithmEntry, algorithm_catalogue, algorithm_source
from palaestra.experiments.compare import Comparison, compare_runs
from palaestra.experiments.config import (
    DataConfig,
    ExperimentConfig,
    HindsightConfig,
    RunConfig,
    config_from_mapping,
    config_to_mapping,
    save_config,
)
from palaestra.experiments.curves import Curve, curves_of, read_metrics
from palaestra.experiments.datasets import (
    DataSummary,
    collect_agents,
    collect_data,
    export_data,
    export_minari,
    summary_of,
)
from palaestra.experiments.estimate import Estimate, dry_run
from palaestra.experiments.evaluation import (
    RunsEvaluation,
    evaluate_run,
    evaluate_runs,
    policies_of_run,
    policy_of_run,
    random_baseline,
)
from palaestra.experiments.faults import FaultRecord, read_faults
from palaestra.experiments.lineage import changes_between
from palaestra.experiments.plots import save_plot, terminal_plot
from palaestra.experiments.presets import PRESETS, load_config, preset
from palaestra.experiments.report import write_report
from palaestra.experiments.run import RunResult, require_same_task, resume, run, train
from palaestra.experiments.run_directory import RunDirectory, find_run, find_runs, list_groups, list_runs
from palaestra.experiments.seeds import GroupResult, SeedResult, group_summary, resume_seeds, train_seeds

__all__ = [
    "PRESETS",
    "Agents",
    "AlgorithmEntry",
    "Comparison",
    "Curve",
    "DataConfig",
    "DataSummary",
    "EnvironmentSpeed",
    "Estimate",
    "ExperimentConfig",
    "FaultRecord",
    "GroupResult",
    "HindsightConfig",
    "RunConfig",
    "RunDirectory",
    "RunResult",
    "RunsEvaluation",
    "SeedResult",
    "algorithm_catalogue",
    "algorithm_source",
    "bench_environment",
    "changes_between",
    "collect_agents",
    "collect_data",
    "compare_runs",
    "config_from_mapping",
    "config_to_mapping",
    "curves_of",
    "dry_run",
    "evaluate_run",
    "evaluate_runs",
    "evaluation_environment",
    "export_data",
    "export_minari",
    "find_run",
    "find_runs",
    "group_summary",
    "list_groups",
    "list_runs",
    "load_config",
    "make_algorithm",
    "many_agents",
    "policies_of_run",
    "policy_of_run",
    "preset",
    "random_baseline",
    "read_faults",
    "read_metrics",
    "require_same_task",
    "resume",
    "resume_seeds",
    "run",
    "save_config",
    "save_plot",
    "suitable_algorithms",
    "summary_of",
    "terminal_plot",
    "train",
    "train_seeds",
    "write_report",
]
