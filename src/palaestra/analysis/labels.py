"""Which runs are a sample of one thing, and what these are called: the settings that tell them apart, or names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palaestra.config.config import ExperimentConfig, flat_settings
from palaestra.runs import RunDirectory
from palaestra.runs.records import say_once

_GROUPS = {
    "buffer": "compression",
    "distributed": "runtime num_workers num_learners gradient_shards allocation num_policy_hosts replay_shards "
    "replay_copies address timeout_s min_workers recover_timeout_s max_restarts backoff_s num_cpus num_gpus "
    "num_gpus_per_learner",
    "env": "kwargs.render_mode vectorization num_workers num_threads on_fault max_restarts timeout_s reset_timeout_s "
    "strict auto_reset",
    "robot": "max_batch_size max_wait_s timeout_s steps_per_iteration",
    "run": "seed directory name compile together device deterministic num_threads tensorboard loggers project "
    "eval_num_envs eval_vectorization",
    "trainer": "time_limit_s eval_every_steps eval_every_s eval_at_steps eval_episodes eval_time_limit_s eval_async "
    "checkpoint_every_steps keep_checkpoints copied_segments log_every_steps max_skipped_updates max_failed_saves "
    "grace_s",
}
OF_EXECUTION = frozenset(f"{group}.{name}" for group, names in _GROUPS.items() for name in names.split())
"""Seeds, and settings that only say where and how a run is executed and logged. All others make another sample."""
_GOING_ON = ("trainer.total_env_steps", "trainer.stop_at_return", "offline.data")
"""Not told of a run that went on with others: it is longer then, or its data, which is the same, lies elsewhere."""
_LONGEST, _CELL = 95, 64  # characters of a legend's line, with longer ones of which little is left of a picture
_LONG_NUMBER = re.compile(r"(?<![\w.])\d*\.\d{3,}(?:e[+-]?\d+)?(?![\w.])")


def shown_labels(runs: Sequence[RunDirectory]) -> list[str]:
    """`labels_of_runs` for a legend: with numbers of four digits; where one is too long, names of groups or runs.

    Args:
        runs: in any order.
    """
    exact = labels_of_runs(runs)
    labels = shortened(exact)
    if all(len(label) <= _LONGEST for label in labels):
        return labels
    homes = [_home(run.path) for run in runs]
    if len({*zip(homes, exact, strict=True)}) > len({*homes}):  # groups of several configurations
        homes = [run.path for run in runs]
    members = {label: dict[str, None]() for label in exact}
    for label, name in zip(exact, names_of(homes), strict=True):
        members[label][name] = None
    called = {label: ", ".join([*names][:2]) + ", …" * (len(names) > 2) for label, names in members.items()}
    return [called[label] for label in exact]


def _home(run: Path) -> Path:
    """The group that a run is of, or the run."""
    return run.parent if (run.parent / "group.json").is_file() else run


def names_of(paths: Sequence[Path]) -> list[str]:
    """Paths by their last parts, as many as tell them apart.

    Args:
        paths: in any order.

    Examples:
        >>> names_of([Path("runs/one/seed_0"), Path("runs/two/seed_0")])
        ['one/seed_0', 'two/seed_0']
    """
    whole = [path.absolute().parts for path in paths]
    count = 1
    while len({parts[-count:] for parts in whole}) < len({*whole}):
        count += 1
    return [str(Path(*parts[-count:])) for parts in whole]


def shortened(texts: Sequence[str]) -> list[str]:
    """Texts with numbers of four digits, unless some that differ would be alike.

    Args:
        texts: such as settings.

    Examples:
        >>> shortened(["gamma=0.9952842538547065"]), shortened(["0.99521", "0.99522"])
        (['gamma=0.9953'], ['0.99521', '0.99522'])
    """
    short = [_LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4g}", text) for text in texts]
    return short if len({*short}) == len({*texts}) else [*texts]


def table_cells(values: Sequence[Any]) -> list[str]:
    """Values of a setting as text that fits into a table.

    Args:
        values: that differ.
    """
    texts = shortened([str(value) for value in values])
    cells = [text if len(text) <= _CELL else f"{text[: _CELL - 1]}…" for text in texts]
    return cells if len({*cells}) == len({*texts}) else texts


def labels_of_runs(runs: Sequence[RunDirectory]) -> list[str]:
    """`labels_of` their configurations, with the settings that a run had before others took their place.

    Runs whose labels are the same are a sample of one thing.

    Args:
        runs: in any order.
    """
    labels = labels_of([run.config for run in runs])
    before = [[f"{path}={value} until {step:,}" for (path, step), value in had_before(run).items()] for run in runs]
    return [" ".join([label, *had]) for label, had in zip(labels, before, strict=True)]


def say_same_seeds(sample: Sequence[RunDirectory]) -> None:
    """Warns of runs of one algorithm that have one seed, as a run and its fork: an interval takes them for two.

    They are not refused, for on GPUs or with workers such runs do differ.

    Args:
        sample: runs that are averaged.
    """
    found: dict[tuple[str, str, int], list[str]] = {}
    for run in sample:
        config = run.config
        found.setdefault((config.algorithm_name, config.env.name, config.run.seed), []).append(str(run.path))
    for (*_, seed), paths in found.items():
        if len(paths) > 1:
            say_once(
                f"{', '.join(paths)} have the same seed ({seed}): they are no independent runs, so an interval over "
                "them is too narrow; train each with a seed of its own (--seed)"
            )


def sets_apart(path: str) -> bool:
    """Whether runs that differ in a setting are no sample of one thing.

    Args:
        path: of the setting.

    Examples:
        >>> sets_apart("run.initial_policy"), sets_apart("run.device")
        (True, False)
    """
    return path not in OF_EXECUTION


def had_before(run: RunDirectory) -> dict[tuple[str, int], Any]:
    """Settings that set a run apart and that it went on without, by path and the env steps at which they changed."""
    entries = [(entry["env_steps"], entry["changes"]) for entry in run.info.get("overrides", [])]
    changes = [(path, step, pair[0]) for step, changed in entries if step for path, pair in changed.items()]
    return {(path, step): value for path, step, value in changes if sets_apart(path) and path not in _GOING_ON}


def labels_of(configs: Sequence[ExperimentConfig]) -> list[str]:
    """The settings that tell each configuration from the others, of those that set runs apart (`sets_apart`).

    Args:
        configs: of runs.

    Examples:
        >>> from palaestra import preset
        >>> labels_of([preset("ppo", "CartPole-v1"), preset("dqn", "CartPole-v1")])
        ['ppo CartPole-v1', 'dqn CartPole-v1']
    """
    flat = [
        {path: value for path, value in flat_settings(config).items() if sets_apart(path) and value != {}}
        for config in configs
    ]
    names = [f"{config.algorithm_name} {config.env.name}" for config in configs]
    firsts: dict[str, dict[str, Any]] = {}
    differ: dict[str, set[str]] = {}
    for name, settings in zip(names, flat, strict=True):
        first = firsts.setdefault(name, settings)
        paths = {path for path in first.keys() | settings.keys() if first.get(path, ...) != settings.get(path, ...)}
        differ.setdefault(name, set()).update(paths)
    return [
        " ".join([name, *(f"{path}={value}" for path, value in settings.items() if path in differ[name])])
        for name, settings in zip(names, flat, strict=True)
    ]
