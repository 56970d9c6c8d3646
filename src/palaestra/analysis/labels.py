"""What runs are called in legends, tables and reports: the settings that tell them apart, or names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palaestra.config.config import ExperimentConfig, flat_settings
from palaestra.runs import RunDirectory

_OF_LEARNING = ("algorithm.", "agents.", "asynchronous.", "hindsight.", "offline.fraction", "offline.updates")
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
    """`labels_of` their configurations, with what learning had before other settings took its place.

    Args:
        runs: in any order.
    """
    labels = labels_of([run.config for run in runs])
    before = [[f"{path}={value} until {step:,}" for (path, step), value in had_before(run).items()] for run in runs]
    return [" ".join([label, *had]) for label, had in zip(labels, before, strict=True)]


def how_learned(run: RunDirectory) -> str:
    """The settings of a run's learning, those that it had before included, as text; the task is not among them.

    Args:
        run: of a training.
    """
    settings = {path: value for path, value in flat_settings(run.config).items() if path.startswith(_OF_LEARNING)}
    return repr((run.config.algorithm_name, settings, had_before(run)))


def had_before(run: RunDirectory) -> dict[tuple[str, int], Any]:
    """Settings of learning that a run went on without, by path and the env steps at which they were changed."""
    entries = [(entry["env_steps"], entry["changes"]) for entry in run.info.get("overrides", [])]
    changes = [(path, step, pair[0]) for step, changed in entries if step for path, pair in changed.items()]
    return {(path, step): value for path, step, value in changes if path.startswith(_OF_LEARNING)}


def labels_of(configs: Sequence[ExperimentConfig]) -> list[str]:
    """The settings that tell each configuration from the others; seeds, directories and speed do not count.

    Args:
        configs: of runs.

    Examples:
        >>> from palaestra import preset
        >>> labels_of([preset("ppo", "CartPole-v1"), preset("dqn", "CartPole-v1")])
        ['ppo CartPole-v1', 'dqn CartPole-v1']
    """
    flat = [flat_settings(config) for config in configs]
    names = [f"{config.algorithm_name} {config.env.name}" for config in configs]
    firsts: dict[str, dict[str, Any]] = {}
    differ: dict[str, set[str]] = {}
    for name, settings in zip(names, flat, strict=True):
        first = firsts.setdefault(name, settings)
        paths = {path for path in first.keys() | settings.keys() if first.get(path) != settings.get(path)}
        differ.setdefault(name, set()).update(path for path in paths if not path.startswith("run."))
    return [
        " ".join([name, *(f"{path}={value}" for path, value in settings.items() if path in differ[name])])
        for name, settings in zip(names, flat, strict=True)
    ]
