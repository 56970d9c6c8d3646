"""The configuration of a run: frozen dataclasses, read from and written to YAML with every mistake named."""

import dataclasses
import functools
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from palaestra.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.config.groups import BufferConfig, DataConfig, HindsightConfig, RunConfig, in_todays_words, task_of
from palaestra.config.values import closest, dataclass_of, foreign_names, read_yaml, type_name, value_of
from palaestra.core import CheckpointError, ConfigError, Linear, Offline, Piecewise, did_you_mean, import_object
from palaestra.core.files import replace_text
from palaestra.core.importing import name_to_find
from palaestra.core.reading import read_text
from palaestra.core.settings import members_of
from palaestra.distributed import AsynchronousConfig, DistributedConfig, require_shares
from palaestra.envs import EnvConfig, Wrap
from palaestra.multiagent import AgentsConfig
from palaestra.robots import Robot, RobotConfig
from palaestra.training import TrainerConfig

__all__ = ["ExperimentConfig", "config_from_mapping", "save_config"]

_MOST_ROWS = 1_000_000
"""Of one unroll, in a run that has fewer env steps."""


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Everything a run depends on."""

    algorithm_name: str = "ppo"
    """Name of the algorithm, as `palaestra list` shows it."""
    algorithm: AlgorithmConfig = field(default_factory=lambda: ALGORITHMS["ppo"].config_class())
    """Hyperparameters."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment."""
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    """Policies by agent, where the environment has many agents."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Budget and periods."""
    buffer: BufferConfig = field(default_factory=BufferConfig)
    """How replayed rows are kept."""
    offline: DataConfig = field(default_factory=DataConfig)
    """Data to learn from that was there before."""
    hindsight: HindsightConfig = field(default_factory=HindsightConfig)
    """Replay with goals that were reached."""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    """Workers that collect."""
    asynchronous: AsynchronousConfig = field(default_factory=AsynchronousConfig)
    """What actors send, and how old it may be, with distributed.mode=async."""
    robot: RobotConfig = field(default_factory=RobotConfig)
    """Settings of a robot's agents and its inference."""
    run: RunConfig = field(default_factory=RunConfig)
    """Seed, directory, speed."""

    def __post_init__(self) -> None:
        if problems := list(self._misfits()):
            raise ConfigError("\n".join(problems))
        if self.distributed.runtime is not None and self.algorithm.plan_class is not Offline:  # which is refused later
            require_shares(self.env, self.distributed.num_workers)
        if getattr(self.algorithm, "simulator", None) == "":  # what plans with the task itself plans with this one
            own: Any = {"simulator": self.env.name}
            vars(self)["algorithm"] = dataclasses.replace(self.algorithm, **own)

    @property
    def unit(self) -> str:
        """What the run counts: `updates` where it learns from data alone, else `env steps`."""
        return "updates" if self.algorithm.plan_class is Offline and self.offline.fraction is None else "env steps"

    task = property(task_of)
    """All that says what a return is of."""

    def _misfits(self) -> Iterator[str]:
        needed = algorithm_class(self.algorithm_name).config_class
        if type(self.algorithm) is not needed:
            yield (
                f"algorithm_name is {self.algorithm_name!r} and algorithm is a {type(self.algorithm).__name__}; "
                f"it must be a {needed.__name__}"
            )
        rows = getattr(self.algorithm, "unroll_length", 1) * self.env.num_envs
        if rows > max(_MOST_ROWS, self.trainer.total_env_steps):
            yield (
                f"algorithm.unroll_length makes one unroll {rows:,.0f} env steps, and the run has "
                f"{self.trainer.total_env_steps:,} (trainer.total_env_steps); give a shorter one"
            )
        is_async, number = self.distributed.mode == "async", self.trainer.episodes_per_iteration
        usual = vars(AsynchronousConfig())
        of_async = [name for name, value in vars(self.asynchronous).items() if value != usual[name]]
        if of_async and not is_async:
            yield f"asynchronous.{of_async[0]} is for distributed.mode=async (`--mode async`); give both, or neither"
        own_pace = {"distributed.mode=async": is_async, "env.num_ready": self.env.num_ready}
        own_pace["distributed.min_finished_workers"] = self.distributed.min_finished_workers
        if number is not None and (given := next((name for name, value in own_pace.items() if value), "")):
            yield (
                f"trainer.episodes_per_iteration is {number}, for which all environments wait for each other, so that "
                f"short episodes are not preferred; leave out {given}, or ask for time steps"
            )


def on_cpu(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of a run for looking at what it left, on a machine that may have no GPU."""
    run = dataclasses.replace(config.run, device="cpu", compile=False, precision="float32")
    return dataclasses.replace(config, run=run)


def config_to_mapping(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts of YAML values; `config_from_mapping` is the inverse.

    Raises:
        ConfigError: it holds code that has no name (a lambda among the wrappers, say).
    """
    return {name: _to_yaml(value, name) for name, value in field_values(config).items()}


def flat_settings(config: ExperimentConfig) -> dict[str, Any]:
    """Every setting by its path.

    Examples:
        >>> flat_settings(ExperimentConfig())["trainer.total_env_steps"]
        100000
    """
    flat: dict[str, Any] = {}

    def visit(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                visit(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value

    visit(config_to_mapping(config), "")
    return flat


def _to_yaml(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Linear | Piecewise):
        return str(value)
    if isinstance(value, Wrap):
        return value.text
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return config_to_mapping(value)
    if isinstance(value, tuple | list):
        return [_to_yaml(item, path) for item in value]
    if isinstance(value, dict):
        return {key: _to_yaml(item, f"{path}.{key}") for key, item in value.items()}
    if callable(value):
        if (name := name_to_find(value, quiet=True)) is None:
            what = getattr(value, "__qualname__", f"a {type(value).__name__}")
            way = "name it as 'my_package:MyName'"
            if hasattr(value, "state_dict"):
                way = "name a function that makes it and loads its weights, 'my_module:body', and says what it makes: "
                way += "def body(observation_spec) -> nn.Module"
            raise ConfigError(f"{path} holds {what}, which has no importable name; {way}")
        return name
    return value


def config_from_mapping(kind: type[Any], data: Mapping[str, Any], *, base: Any = None) -> Any:
    """A configuration dataclass from nested dicts, or from settings by their path.

    Args:
        data: what is given; every key is a field, or the path of one below, with `__` or dots. Arguments of the
            environment's constructor come on top of those of the base; none at all (`{}`) takes these away.
        base: where fields that are not given come from; by default the fields' own defaults.

    Raises:
        ConfigError: unknown keys and wrong values, all of them in one message.

    Examples:
        >>> config_from_mapping(ExperimentConfig, {"run__seed": 3, "trainer.total_env_steps": 5}).run.seed
        3
        >>> config_from_mapping(RunConfig, {"seeed": 1})
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: unknown key seeed — did you mean 'seed'? (int, 0)
    """
    problems: list[str] = []
    config = _build(kind, _nested(data), base, "", problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def require_workers(config: ExperimentConfig, given: Mapping[str, Any]) -> None:
    """Refuses a number of workers that is asked for where there are none; every file of settings has one.

    Args:
        given: what is asked for, as `config_from_mapping` takes it.

    Raises:
        ConfigError: says what gives a run workers.
    """
    asked = _nested(given).get("distributed")
    if config.distributed.runtime is None and isinstance(asked, Mapping) and "num_workers" in asked:
        raise ConfigError(
            f"distributed.num_workers is {config.distributed.num_workers}, but this run has no workers; give "
            "distributed.runtime as local, process or ray, or leave it out"
        )


_type_hints = functools.cache(typing.get_type_hints)
_ARGUMENTS = ("env.kwargs", "env.train_kwargs")
"""Mappings of a constructor's arguments. Each of these is a setting of its own."""


def _build(kind: type[Any], data: Mapping[str, Any], base: Any, path: str, problems: list[str]) -> Any:
    """The configuration as far as it can be made; what is wrong is added to the problems."""
    values = field_values(kind() if base is None else base)
    hints = _type_hints(kind)
    if issubclass(kind, ExperimentConfig):
        try:
            hints = hints | {"algorithm": _choose_algorithm(data, values)}
        except ConfigError as error:  # its settings cannot be checked then, but all others can
            problems.append(str(error))
            data = {key: value for key, value in data.items() if key not in ("algorithm_name", "algorithm")}
    if data.get("num_epochs") is not None and "gradient_steps" in values:
        values["gradient_steps"] = 1  # passes over the whole buffer take the place of a preset's steps
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in values:
            problems.append(f"unknown key {where}{_instead(str(key), kind, values, path)}")
            continue
        try:
            values[key] = _field(hints[key], value, values[key], where, problems)
        except ConfigError as error:
            problems.append(f"{where} is {value!r}: {error}")
    try:
        return kind(**values)
    except ConfigError as error:
        problems.append(str(error))
        return base


def _choose_algorithm(data: Mapping[str, Any], values: dict[str, Any]) -> type[Any]:
    """The class of an algorithm's settings; `values` has its defaults where another algorithm was there."""
    kind = algorithm_class(str(data.get("algorithm_name", values["algorithm_name"]))).config_class
    if type(values["algorithm"]) is not kind:
        values["algorithm"] = kind()
    return kind


def _field(hint: Any, value: Any, base: Any, where: str, problems: list[str]) -> Any:
    """The value that a field becomes."""
    kind = dataclass_of(hint)
    if kind is None:
        adds_up = where in _ARGUMENTS and isinstance(value, Mapping) and value
        return value_of(hint, {**base, **value} if adds_up else value)
    shorthand = getattr(kind, "shorthand", None)
    if shorthand and (isinstance(value, str) or callable(value)):
        value = {shorthand: value}
    if isinstance(value, Mapping):
        return _build(kind, value, base, where, problems) or kind()
    if isinstance(value, kind) or (value is None and type(None) in members_of(hint)):
        return value
    raise ConfigError("a mapping of settings is needed")


def _instead(name: str, kind: type[Any], values: Mapping[str, Any], path: str) -> str:
    """Advice for an unknown key."""
    group = f"{path}." if path else ""
    known = {setting.path: setting for setting in settings_of(kind, values)}
    return meant(name, known, f"'{group}{{}}'") or f"; known{path and f' in {path}'}: {', '.join(values)}"


class Setting(NamedTuple):
    """A setting of a configuration, or a group of them."""

    path: str
    """Names of the groups it is in, and its own, with dots between."""
    hint: Any
    """Type of its field."""
    value: Any
    """What it is."""

    @property
    def is_group(self) -> bool:
        """Whether it holds settings."""
        return dataclass_of(self.hint) is not None


def field_values(config: Any) -> dict[str, Any]:
    """The values of a configuration's fields, by name."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}


def settings_of(kind: type[Any], values: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """Every setting and every group.

    Args:
        values: of its fields.
        prefix: before the paths.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        path, value, group = f"{prefix}{f.name}", values[f.name], dataclass_of(hints[f.name])
        yield Setting(path, hints[f.name], value)
        if group is not None:
            inside = value if dataclasses.is_dataclass(value) else group()
            yield from settings_of(type(inside), field_values(inside), f"{path}.")


def meant(name: str, known: Mapping[str, Setting], form: str) -> str:
    """What an unknown name probably means; empty where nothing is close.

    It is a setting with its type and value, one of other algorithms, or what other libraries mean by the name.

    Args:
        name: what was given, with the groups it is said to be in.
        known: settings by the names that exist.
        form: how a name is written.
    """
    group, _, last = name.rpartition(".")
    beside = [path for path in known if path.rpartition(".")[0] == group]
    inside = [path for path in known if path.startswith(f"{group}.")] if group and beside else [*known]
    last = last.replace("-", "_")
    is_part = group in known and not known[group].is_group
    row = None if is_part else foreign_names().get(last)
    path, note = group if is_part else None, ""
    if is_part and last in Linear.__dataclass_fields__:
        note = "; give 'linear(start, end, fraction)'"
    if row is not None:
        path, note = _ours(row.ours, inside), f"; {row.note}" if row.note and last not in row.ours else ""
    if path is None and (row is None or len(inside) < len(known)):  # another word's meaning, or a word of this group
        alike = _same_or_alike(last, inside, beside)
        path, note = (alike, "") if alike or row is None else (_ours(row.ours, [*known]), note)
    if path is not None:
        setting = known[path]
        detail = "" if setting.is_group else f" ({type_name(setting.hint)}, {setting.value})"
        return f" — did you mean {form.format(path)}?{detail}{note}"
    ours = row.ours[0] if row is not None and row.ours else last
    if others := algorithms_with(ours):
        return f"; it is {'' if ours == last else f'{ours} here, '}a setting of {', '.join(others)}{note}"
    return "" if row is not None and row.ours else note  # that of a setting which this command lacks would mislead


def _ours(names: Sequence[str], paths: list[str]) -> str | None:
    """The path of one of our names; the first name counts most."""
    plain = {path.replace("-", "_"): path for path in paths}
    return next((path for our in names for one, path in plain.items() if f".{one}".endswith(f".{our}")), None)


def _same_or_alike(name: str, inside: list[str], beside: list[str]) -> str | None:
    """The path that ends in a name, or in one like it: in the same group, or in groups inside it."""
    for paths in (beside, inside):
        ends = {path.rpartition(".")[2].replace("-", "_"): path for path in reversed(paths)}
        if (last := name if name in ends else closest(name, ends)) is not None:
            return ends[last]
    return None


def algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting of this name.

    Args:
        name: of a field.
    """
    fields = {algorithm: kind.config_class.__dataclass_fields__ for algorithm, kind in ALGORITHMS.items()}
    return sorted(algorithm for algorithm, known in fields.items() if name.replace("-", "_") in known)


_ELSEWHERE = {
    "a3c": "a2c", "appo": "impala", "bc": "behaviour_cloning", "dt": "decision_transformer",
    "es": "evolution_strategies", "pg": "reinforce", "tqc": "quantile_sac", "vpg": "reinforce",
}  # fmt: skip
"""What other libraries call our algorithms."""
_PARTS = {
    "airl": "ppo ENV --algorithm.bonus.kind airl --offline.data FOLDER",
    "gail": "ppo ENV --algorithm.bonus.kind gail --offline.data FOLDER",
    "her": "sac ENV --hindsight.share 0.8",
    "icm": "ppo ENV --algorithm.bonus.kind icm",
    "rnd": "ppo ENV --algorithm.bonus.kind rnd",
}
"""What others have as algorithms, and is a part of ours: how one has it."""


def algorithm_class(name: str) -> Any:
    """The algorithm of a name.

    Args:
        name: as on the command line: of the library, or `my_package:MyAlgorithm`, or `my_package:MyRobot`.

    Raises:
        ConfigError: there is none; the message has the closest.
    """
    if ":" in name:
        kind = import_object(name)
        if not (isinstance(kind, type) and issubclass(kind, Algorithm | Robot)):
            raise ConfigError(f"{name!r} is {kind!r}; an algorithm of your own is a subclass of Algorithm or of Robot")
        if lacks := [*kind.__abstractmethods__, *(() if hasattr(kind, "config_class") else ("config_class",))]:
            raise ConfigError(f"{name} does not define {', '.join(sorted(lacks))}, as its base class asks for")
        return kind
    if name not in ALGORITHMS:
        plain = re.sub(r"[\W_]|v3$", "", name.lower())
        meant = _ELSEWHERE.get(plain) or next((one for one in ALGORITHMS if one.replace("_", "") == plain), None)
        known = f" — did you mean {meant!r}?" if meant else did_you_mean(name, ALGORITHMS)
        if plain in _PARTS:
            known = f"; {plain.upper()} is a part that other algorithms take: palaestra train {_PARTS[plain]}"
        own = "" if known.endswith("?") or plain in _PARTS else "; one of your own is named my_module:MyAlgorithm"
        raise ConfigError(f"unknown algorithm {name!r}{known}{own}")
    return ALGORITHMS[name]


def read_config(path: str | Path) -> Mapping[str, Any]:
    """The settings that a configuration file holds, not checked yet.

    Raises:
        ConfigError: it cannot be read, or holds no mapping.
    """
    try:
        data = _parsed(read_text(path))
    except CheckpointError as error:
        raise ConfigError(f"the configuration {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from error
    if not isinstance(data, Mapping):
        what = "is empty" if data is None else f"holds {type(data).__name__}"
        raise ConfigError(f"the configuration {path} {what}; a mapping of settings is needed")
    return data


def renewed(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a run or a study saved, as this version calls it, whichever version wrote it.

    Args:
        data: from `config_to_mapping`.

    Raises:
        ConfigError: a setting that did something is gone.
    """
    return in_todays_words(data, _fields_of)


def _fields_of(algorithm: str) -> Collection[str]:
    """The settings of an algorithm; none where the name is that of something else, or its code cannot be imported."""
    try:
        return algorithm_class(algorithm).config_class.__dataclass_fields__
    except ConfigError:
        return ()


def saved_config(data: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration that a run or a study saved, whichever version wrote it.

    Args:
        data: from `config_to_mapping`.

    Raises:
        ConfigError: it holds mistakes.
    """
    return config_from_mapping(ExperimentConfig, renewed(data))


_parsed = functools.lru_cache(maxsize=32)(read_yaml)
"""A run reads its own configuration five times."""
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_yaml(config: ExperimentConfig) -> str:
    """A configuration as text that `load_config` reads back to an equal one."""
    return yaml.dump(config_to_mapping(config), Dumper=_Dumper, sort_keys=False)


def save_config(config: ExperimentConfig, path: str | Path) -> None:
    """Writes a configuration file that `load_config` reads back to an equal configuration."""
    replace_text(Path(path), as_yaml(config))


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by path, with `__` or dots, as nested mappings."""
    root: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = str(path).replace("__", ".").split(".")
        nested: dict[str, Any] = {name: value}
        for parent in reversed(parents):
            nested = {parent: nested}
        _merge(root, nested, "")
    return root


def _merge(into: dict[str, Any], given: Mapping[str, Any], path: str) -> None:
    """Adds settings to others.

    Raises:
        ConfigError: something is set twice.
    """
    for key, value in given.items():
        where, known = f"{path}.{key}" if path else str(key), into.get(key)
        if isinstance(value, Mapping) and (key not in into or isinstance(known, dict)):
            _merge(into.setdefault(key, {}), value, where)
        elif key in into:
            raise ConfigError(f"{where} is given twice, {known!r} and {value!r}; leave one of them out")
        else:
            into[key] = value
