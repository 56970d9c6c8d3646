"""The configuration of a run: frozen dataclasses, read from and written to YAML with every mistake named."""

import dataclasses
import functools
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml

from palaestra.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.config.values import closest, dataclass_of, read_yaml, type_name, value_of
from palaestra.core import (
    AtLeastOne,
    Fraction,
    InsideFraction,
    Linear,
    NotNegative,
    Offline,
    Piecewise,
    Range,
    import_object,
    require_ranges,
)
from palaestra.core.errors import CheckpointError, ConfigError, did_you_mean
from palaestra.core.files import replace_text
from palaestra.core.reading import read_text
from palaestra.core.settings import members_of
from palaestra.distributed import AsynchronousConfig, DistributedConfig, require_shares
from palaestra.envs import EnvConfig, Wrap
from palaestra.multiagent import AgentsConfig
from palaestra.nn import Precision
from palaestra.robots import Robot, RobotConfig
from palaestra.training import TrainerConfig

__all__ = ["DataConfig", "ExperimentConfig", "HindsightConfig", "RunConfig", "config_from_mapping", "save_config"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What concerns a run as a whole."""

    seed: Annotated[NotNegative[int], "--seed"] = 0
    """The one seed that everything random derives from."""
    directory: str = "runs"
    """Folder of run directories."""
    name: str | None = None
    """Name of the run directory; by default date, algorithm, environment and seed."""
    initial_policy: Annotated[str | None, "--from"] = None
    """Run or shared folder whose best policy this run begins with; critics, optimizers and data begin anew."""
    compile: Annotated[bool | Literal["auto"], "--compile"] = "auto"
    """Compile gradient steps, and steps of tensor environments. True does so from the start, after seconds of waiting;
    auto after the first 10,000 gradient steps of a run of 50,000 or more, in which another process compiles."""
    precision: Precision = "float32"
    """Of matrix products in gradient steps: bf16 is 1.4 to 2 times as fast for wide layers where a processor has
    instructions for it, and rounds to 3 digits. Weights, sums and outputs stay in float32, as does acting. tf32, on a
    GPU, rounds what is multiplied to 11 bits, when it acts as well."""
    device: Annotated[str, "--device"] = "cpu"
    """Device on which policies act and learn: cpu, cuda, or one of several GPUs such as cuda:1."""
    deterministic: Annotated[bool, "--deterministic"] = False
    """Equal results on equal GPUs too, by slower kernels; on a CPU they are equal anyway."""
    num_threads: Annotated[int | None, Range(ge=1, le=4096)] = None
    """Threads of torch; by default 1 or as many as there are cores, whichever is measured to be faster at the start of
    the run, which keeps that number when it is resumed."""
    tensorboard: bool | None = None
    """Whether TensorBoard files are written; by default where TensorBoard, an extra, is installed."""
    loggers: Annotated[tuple[Literal["wandb", "mlflow", "trackio"], ...], "--loggers"] = ()
    """Tracking services that get the metrics as well; each needs the extra of its name."""
    callbacks: Annotated[tuple[str, ...], "--callbacks"] = ()
    """Callbacks of your own by name, such as my_package:MyCallback or 'my_package:MyCallback(goal=475)'."""
    eval_num_envs: AtLeastOne[int] = 4
    """Environments that evaluation episodes are shared over."""
    eval_vectorization: Literal["auto", "serial", "thread", "process"] = "auto"
    """Where these are stepped: in this process (or natively, where training does so), one in a thread, or in worker
    processes. A run without evaluations makes none; but with `thread` one, that nothing steps, where environments of
    training are in other processes alone, so that what they configure can be seen in this one."""

    def __post_init__(self) -> None:
        require_ranges(self, "run.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        name = "auto" if self.name is None else self.name
        if not name.isprintable():
            yield f"run.name is {name!r}, which has control characters; leave them out"
        if name in ("", ".", "..", "last") or name.startswith("-") or set("/\\") & set(name):
            yield (
                f"run.name is {name!r}; give a name that is no path, no option and not 'last', which means the newest "
                "run (run.directory says in which folder)"
            )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data to learn from that was there before the run."""

    data: str | None = None
    """Folder of a saved buffer, or `minari:` and the id of a Minari dataset on this machine."""
    fraction: InsideFraction[float | None] = None
    """Share of every minibatch that comes from the data where the algorithm collects as well; a half if left out. With
    it, algorithms that learn from data alone go on with steps of their own."""
    updates: NotNegative[int] = 0
    """Updates on the data alone before the first env step; each counts as an env step of the budget."""

    def __post_init__(self) -> None:
        require_ranges(self, "offline.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        if self.updates and self.data is None:
            yield f"offline.updates is {self.updates}, but there is no offline.data to learn from"
        if self.fraction is not None and self.data is None:
            yield f"offline.fraction is {self.fraction}, but there is no offline.data to take it from"

    @property
    def share(self) -> float:
        """`fraction`, or its default."""
        return 0.5 if self.fraction is None else self.fraction


@dataclass(frozen=True, kw_only=True)
class HindsightConfig:
    """Goals that episodes reached, instead of those that they were given (hindsight experience replay)."""

    share: Fraction[float] = 0.0
    """Probability that a replayed row gets a goal which its own episode reached; 0 is none, the paper's k=4 is 0.8."""
    strategy: Literal["future", "final", "episode"] = "future"
    """Which step's place becomes the goal: a later one of the episode, its last one so far, or any of them."""

    def __post_init__(self) -> None:
        require_ranges(self, "hindsight.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        if self.strategy != "future" and not self.share:
            yield (
                f"hindsight.strategy is {self.strategy!r}, but hindsight.share is 0, so that no row gets another goal; "
                "give a share, such as 0.8"
            )


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

    def _misfits(self) -> Iterator[str]:
        needed = algorithm_class(self.algorithm_name).config_class
        if type(self.algorithm) is not needed:
            yield (
                f"algorithm_name is {self.algorithm_name!r} and algorithm is a {type(self.algorithm).__name__}; "
                f"it must be a {needed.__name__}"
            )
        is_async, number = self.distributed.mode == "async", self.trainer.episodes_per_iteration
        if self.asynchronous != AsynchronousConfig() and not is_async:
            yield f"{self.asynchronous} is for distributed.mode=async, which is {self.distributed.mode}"
        own_pace = {"distributed.mode=async": is_async, "env.num_ready": self.env.num_ready}
        own_pace["distributed.min_finished_workers"] = self.distributed.min_finished_workers
        if number is not None and (given := next((name for name, value in own_pace.items() if value), "")):
            yield (
                f"trainer.episodes_per_iteration is {number}, for which all environments wait for each other, so that "
                f"short episodes are not preferred; leave out {given}, or ask for time steps"
            )


def on_cpu(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of a run for looking at what it left, on a machine that may have no GPU.

    Args:
        config: of the run.
    """
    return dataclasses.replace(
        config, run=dataclasses.replace(config.run, device="cpu", compile=False, precision="float32")
    )


def config_to_mapping(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts of YAML values; `config_from_mapping` is the inverse.

    Args:
        config: a configuration dataclass.

    Raises:
        ConfigError: it holds code that has no name (a lambda among the wrappers, say).
    """
    return {f.name: _to_yaml(getattr(config, f.name), f.name) for f in dataclasses.fields(config)}


def flat_settings(config: ExperimentConfig) -> dict[str, Any]:
    """Every setting by its path.

    Args:
        config: a configuration.

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
        name = getattr(value, "__qualname__", "")
        if not name or "<" in name:
            raise ConfigError(f"{path} holds {value!r}, which has no importable name; name it as 'my_package:MyName'")
        return f"{value.__module__}:{name}"
    return value


def config_from_mapping(kind: type[Any], data: Mapping[str, Any], *, base: Any = None) -> Any:
    """A configuration dataclass from nested dicts, or from settings by their path.

    Args:
        kind: the dataclass.
        data: what is given; every key is a field, or the path of one below, with `__` or dots.
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


_type_hints = functools.cache(typing.get_type_hints)


def _build(kind: type[Any], data: Mapping[str, Any], base: Any, path: str, problems: list[str]) -> Any:
    """The configuration as far as it can be made; what is wrong is added to the problems."""
    values: dict[str, Any] = dict(vars(kind() if base is None else base))
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
    """What a field becomes."""
    kind = dataclass_of(hint)
    if kind is None:
        return value_of(hint, value)
    shorthand = getattr(kind, "shorthand", None)
    if shorthand and (isinstance(value, str) or callable(value)):
        value = {shorthand: value}
    if isinstance(value, Mapping):
        return _build(kind, value, base, where, problems) or kind()
    if isinstance(value, kind) or (value is None and type(None) in members_of(hint)):
        return value
    raise ConfigError("a mapping of settings is needed")


def _instead(name: str, kind: type[Any], values: Mapping[str, Any], path: str) -> str:
    """What to write for an unknown key."""
    group = f"{path}." if path else ""
    if issubclass(kind, AlgorithmConfig) and (others := algorithms_with(name)):
        return f"; it is a setting of {', '.join(others)}"
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


def settings_of(kind: type[Any], values: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """Every setting and every group.

    Args:
        kind: a configuration dataclass.
        values: of its fields.
        prefix: before the paths.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        path, value, group = f"{prefix}{f.name}", values[f.name], dataclass_of(hints[f.name])
        yield Setting(path, hints[f.name], value)
        if group is not None:
            inside = value if dataclasses.is_dataclass(value) else group()
            yield from settings_of(type(inside), vars(inside), f"{path}.")


def meant(name: str, known: Mapping[str, Setting], form: str) -> str:
    """The setting that an unknown name probably means, with its type and value; empty where none is close.

    Args:
        name: what was given, with the groups it is said to be in.
        known: settings by the names that exist.
        form: how a name is written.
    """
    group, _, last = name.rpartition(".")
    beside = [path for path in known if path.rpartition(".")[0] == group]
    inside = [path for path in known if path.startswith(f"{group}.")] if group and beside else [*known]
    for paths, similar in [(inside, False), (beside, True), (inside, True)]:
        ends = {path.rpartition(".")[2]: path for path in reversed(paths)}
        if close := [last] if last in ends else closest(last, ends, similar=similar):
            path = ends[close[0]]
            setting = known[path]
            detail = "" if setting.is_group else f" ({type_name(setting.hint)}, {setting.value})"
            return f" — did you mean {form.format(path)}?{detail}"
    return ""


def algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting of this name.

    Args:
        name: of a field.
    """
    fields = {algorithm: kind.config_class.__dataclass_fields__ for algorithm, kind in ALGORITHMS.items()}
    return sorted(algorithm for algorithm, known in fields.items() if name.replace("-", "_") in known)


_ELSEWHERE = {
    "a3c": "a2c",
    "appo": "impala",
    "bc": "behaviour_cloning",
    "dt": "decision_transformer",
    "es": "evolution_strategies",
    "pg": "reinforce",
    "tqc": "quantile_sac",
    "vpg": "reinforce",
}
"""What other libraries call our algorithms."""


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
        own = "" if known.endswith("?") else "; one of your own is named my_module:MyAlgorithm"
        raise ConfigError(f"unknown algorithm {name!r}{known}{own}")
    return ALGORITHMS[name]


def read_config(path: str | Path) -> Mapping[str, Any]:
    """The settings that a configuration file holds, not checked yet.

    Args:
        path: a YAML file.

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


_parsed = functools.lru_cache(maxsize=32)(read_yaml)
"""A run reads its own configuration five times."""
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_yaml(config: ExperimentConfig) -> str:
    """A configuration as text that `load_config` reads back to an equal one.

    Args:
        config: all settings.
    """
    return yaml.dump(config_to_mapping(config), Dumper=_Dumper, sort_keys=False)


def save_config(config: ExperimentConfig, path: str | Path) -> None:
    """Writes a configuration file that `load_config` reads back to an equal configuration.

    Args:
        config: all settings.
        path: of the YAML file.
    """
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
