"""The configuration of a run: frozen dataclasses, read from and written to YAML with every mistake named."""

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from palaestra.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.core import ConfigError, Linear, Piecewise, did_you_mean, import_object
from palaestra.distributed import AsynchronousConfig, DistributedConfig, require_shares
from palaestra.envs import EnvConfig, Wrap
from palaestra.experiments.values import RENAMED, closest, dataclass_of, read_yaml, type_name, value_of
from palaestra.multiagent import AgentsConfig
from palaestra.robots import Robot, RobotConfig
from palaestra.training import TrainerConfig

__all__ = [
    "DataConfig",
    "ExperimentConfig",
    "HindsightConfig",
    "RunConfig",
    "config_from_mapping",
    "config_to_mapping",
    "save_config",
]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What concerns a run as a whole."""

    seed: Annotated[int, tyro.conf.arg(aliases=("--seed",))] = 0
    """The one seed that everything random derives from."""
    directory: str = "runs"
    """Where run directories are made."""
    name: str | None = None
    """Name of the run directory; by default date, algorithm, environment and seed."""
    compile: Annotated[bool, tyro.conf.arg(aliases=("--compile",))] = False
    """Compile gradient steps: seconds of waiting at the start, then faster learning."""
    device: Annotated[str, tyro.conf.arg(aliases=("--device",))] = "cpu"
    """Where policies act and learn: cpu, cuda, or one of several GPUs such as cuda:1."""
    deterministic: Annotated[bool, tyro.conf.arg(aliases=("--deterministic",))] = False
    """Equal results on equal GPUs too, by slower kernels; on a CPU they are equal anyway."""
    num_threads: int | None = None
    """Threads of torch; by default 1 for small networks, else as many as there are cores."""
    tensorboard: bool = True
    """Whether TensorBoard files are written."""
    loggers: Annotated[tuple[Literal["wandb", "mlflow", "trackio"], ...], tyro.conf.arg(aliases=("--loggers",))] = ()
    """Tracking services that get the metrics as well; each needs the extra of its name."""
    eval_num_envs: int = 4
    """Environments that evaluation episodes are shared over."""

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("num_threads", 1), ("eval_num_envs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"run.{name} is {value}; it must be at least {least}")
        if self.name is not None and (self.name in ("", ".", "..", "last") or set("/\\") & set(self.name)):
            raise ConfigError(
                f"run.name is {self.name!r}; give a name that is no path and not 'last', which means the newest run "
                "(run.directory says in which folder)"
            )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data to learn from that was there before the run."""

    data: str | None = None
    """Folder of a saved buffer, or `minari:` and the id of a Minari dataset on this machine."""
    fraction: float | None = None
    """Share of every minibatch that comes from the data where the algorithm collects as well; a half if left out."""

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ConfigError(f"offline.fraction is {self.fraction}; it must be above 0 and below 1")
        if self.fraction is not None and self.data is None:
            raise ConfigError(f"offline.fraction is {self.fraction}, but there is no offline.data to take it from")

    @property
    def share(self) -> float:
        """`fraction`, or its default."""
        return 0.5 if self.fraction is None else self.fraction


@dataclass(frozen=True, kw_only=True)
class HindsightConfig:
    """Goals that episodes reached, in the place of those that they were given (hindsight experience replay)."""

    share: float = 0.0
    """Probability that a replayed row gets a goal which its own episode reached; 0 is none, the paper's k=4 is 0.8."""
    strategy: Literal["future", "final", "episode"] = "future"
    """Which step's place becomes the goal: a later one of the episode, its last one so far, or any of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"hindsight.share is {self.share}; it must be a probability, from 0 to 1")
        if self.strategy not in ("future", "final", "episode"):
            raise ConfigError(f"hindsight.strategy is {self.strategy!r}; it must be 'future', 'final' or 'episode'")
        if self.strategy != "future" and not self.share:
            raise ConfigError(
                f"hindsight.strategy is {self.strategy!r}, but hindsight.share is 0, so that no row gets another goal; "
                "give a share, such as 0.8"
            )


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Everything a run depends on."""

    algorithm_name: tyro.conf.Suppress[str] = "ppo"
    """Name of the algorithm, as `palaestra list` shows it."""
    algorithm: AlgorithmConfig = field(default_factory=lambda: ALGORITHMS["ppo"].config_class())
    """Hyperparameters."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment."""
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    """Who acts by which policy, where the environment has many agents."""
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
    """How a robot's agents are served."""
    run: RunConfig = field(default_factory=RunConfig)
    """Seed, directory, speed."""

    def __post_init__(self) -> None:
        if self.env.num_envs < 1:
            raise ConfigError(f"env.num_envs is {self.env.num_envs}; it must be at least 1")
        if self.distributed.runtime is not None:
            require_shares(self.env, self.distributed.num_workers)
        needed = algorithm_class(self.algorithm_name).config_class
        if type(self.algorithm) is not needed:
            raise ConfigError(
                f"algorithm_name is {self.algorithm_name!r} and algorithm is a {type(self.algorithm).__name__}; "
                f"it must be a {needed.__name__}"
            )
        if self.asynchronous != AsynchronousConfig() and self.distributed.mode != "async":
            raise ConfigError(f"{self.asynchronous} is for distributed.mode=async, which is {self.distributed.mode}")


def on_cpu(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of a run for looking at what it left, on a machine that may have no GPU.

    Args:
        config: of the run.
    """
    return dataclasses.replace(config, run=dataclasses.replace(config.run, device="cpu", compile=False))


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
    """A configuration dataclass from nested dicts.

    Args:
        kind: the dataclass.
        data: what is given; every key has to be a field.
        base: where fields that are not given come from; by default the fields' own defaults.

    Raises:
        ConfigError: unknown keys and wrong values, all of them in one message.

    Examples:
        >>> config_from_mapping(RunConfig, {"seeed": 1})
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: unknown key seeed — did you mean 'seed'? (int, 0)
    """
    problems: list[str] = []
    config = _build(kind, data, base, "", problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _build(kind: type[Any], data: Mapping[str, Any], base: Any, path: str, problems: list[str]) -> Any:
    """The configuration as far as it can be made; what is wrong is added to the problems."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    values: dict[str, Any] = {} if base is None else {name: getattr(base, name) for name in names}
    if issubclass(kind, ExperimentConfig):
        try:
            hints["algorithm"] = _config_class_of(data, base)
        except ConfigError as error:  # its settings cannot be checked then, but all others can
            problems.append(str(error))
            data = {key: value for key, value in data.items() if key not in ("algorithm_name", "algorithm")}
            hints["algorithm"] = type((base or ExperimentConfig()).algorithm)
        if type(values.get("algorithm")) is not hints["algorithm"]:
            values["algorithm"] = hints["algorithm"]()
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in names:
            problems.append(f"unknown key {where}{_suggestion(kind, values, str(key), path)}")
            continue
        nested = dataclass_of(hints[key])
        if isinstance(value, str) and (shorthand := getattr(nested, "shorthand", None)):
            value = {shorthand: value}
        if nested is None or isinstance(value, nested):
            try:
                values[key] = value if nested else value_of(hints[key], value)
            except ConfigError as error:
                problems.append(f"{where} is {value!r}: {error}")
        elif isinstance(value, Mapping):
            values[key] = _build(nested, value, values.get(key), where, problems) or nested()
        elif value is not None or type(None) not in typing.get_args(hints[key]):
            problems.append(f"{where} is {value!r}: a mapping of settings is needed")
        else:
            values[key] = None
    try:
        return kind(**values)
    except ConfigError as error:
        problems.append(str(error))
        return base


def _config_class_of(data: Mapping[str, Any], base: Any) -> type[Any]:
    """The class of the algorithm's settings, by the algorithm that the data or the base names."""
    name = data.get("algorithm_name", (base or ExperimentConfig()).algorithm_name)
    return algorithm_class(str(name)).config_class


def _suggestion(kind: type[Any], values: Mapping[str, Any], name: str, path: str) -> str:
    """What was probably meant, with its type and default; settings one level below count, for a forgotten group."""
    hints = typing.get_type_hints(kind)
    defaults = {f.name: f.default_factory() for f in dataclasses.fields(kind) if callable(f.default_factory)}
    groups = {key: value for key, value in {**defaults, **values}.items() if dataclasses.is_dataclass(value)}
    known = [f.name for f in dataclasses.fields(kind)]
    if renamed := [new for new in RENAMED.get(name.replace("-", "_"), ()) if new in known]:
        return f"; it is called {path + '.' if path else ''}{renamed[0]} now"
    close = closest(name, known)
    if not close:
        if issubclass(kind, AlgorithmConfig) and (others := algorithms_with(name)):
            return f"; it is a setting of {', '.join(others)}"
        for group, value in groups.items():
            below = closest(name, [f.name for f in dataclasses.fields(value)])
            if below:
                return f" — did you mean '{path + '.' if path else ''}{group}.{below[0]}'?"
        return f"; known{' in ' + path if path else ''}: {', '.join(known)}"
    default = values.get(close[0], getattr(kind, close[0], defaults.get(close[0])))
    detail = "" if dataclass_of(hints[close[0]]) else f" ({type_name(hints[close[0]])}, {default})"
    return f" — did you mean {(path + '.' if path else '') + close[0]!r}?{detail}"


def algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting of this name.

    Args:
        name: of a field.
    """
    fields = {algorithm: kind.config_class.__dataclass_fields__ for algorithm, kind in ALGORITHMS.items()}
    return sorted(algorithm for algorithm, known in fields.items() if name.replace("-", "_") in known)


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
        return kind
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}{did_you_mean(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def read_config(path: str | Path) -> Mapping[str, Any]:
    """The settings that a configuration file holds; nobody has looked at them yet.

    Args:
        path: a YAML file.

    Raises:
        ConfigError: it cannot be read, or holds no mapping.
    """
    try:
        data = read_yaml(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from error
    if data is None:
        raise ConfigError(f"the configuration {path} is empty; a mapping of settings is needed")
    if not isinstance(data, Mapping):
        raise ConfigError(f"the configuration {path} holds {type(data).__name__}; a mapping of settings is needed")
    return data


def with_new_names(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an older version's file under their names of today.

    Args:
        kind: the dataclass that they are for.
        data: nested settings; unknown ones stay as they are.

    Examples:
        >>> with_new_names(TrainerConfig, {"eval_beside": True})
        {'eval_async': True}
    """
    hints, renamed = typing.get_type_hints(kind), {}
    if issubclass(kind, ExperimentConfig):
        hints["algorithm"] = algorithm_class(str(data.get("algorithm_name", "ppo"))).config_class
    for key, value in data.items():
        name = key if key in hints else next((new for new in RENAMED.get(key, ()) if new in hints), key)
        nested = dataclass_of(hints[name]) if name in hints else None
        renamed[name] = with_new_names(nested, value) if nested is not None and isinstance(value, Mapping) else value
    return renamed


def save_config(config: ExperimentConfig, path: str | Path) -> None:
    """Writes a configuration file that `load_config` reads back to an equal configuration.

    Args:
        config: all settings.
        path: of the YAML file.
    """
    Path(path).write_text(yaml.safe_dump(config_to_mapping(config), sort_keys=False))


def file_name(text: str) -> str:
    """A text as a part of a file name.

    Args:
        text: anything.
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-")


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
