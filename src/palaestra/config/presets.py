"""Tuned settings for pairs of algorithm and environment: the files of `tuned/`, one for each family of environments.

A file has, for each algorithm, environments and the settings that differ from the defaults. Environments with the same
settings share an entry, and a name may be a pattern for a whole family, such as `ALE/*`.
"""

import difflib
import functools
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from palaestra.algorithms import ALGORITHMS, Algorithm
from palaestra.config.config import ExperimentConfig, algorithm_class, config_from_mapping, read_config, renewed
from palaestra.core import ConfigError
from palaestra.core.importing import name_to_find
from palaestra.envs.env_config import env_name
from palaestra.robots import Robot

__all__ = ["PRESETS", "AlgorithmOrName", "load_config", "preset"]

AlgorithmOrName: TypeAlias = str | type[Algorithm[Any, Any]] | type[Robot]
"""An algorithm or a robot: its name, for example `"ppo"`, or its class."""

_FOLDER = Path(__file__).parent / "tuned"
_PARTS = {"algorithm_name", "algorithm", "env", "agents", "trainer", "distributed", "run"}
"""What a file of all settings has, whichever version wrote it."""


def algorithm_name(kind: AlgorithmOrName) -> str:
    """The name of an algorithm or a robot.

    Raises:
        ConfigError: it is neither a name nor a class, or a class that has none.
    """
    if isinstance(kind, str):
        return kind
    if not isinstance(kind, type):
        raise ConfigError(f"the algorithm is {kind!r}; give its name or its class, such as 'ppo' or palaestra.PPO")
    name = next((name for name, known in ALGORITHMS.items() if known is kind), None) or name_to_find(kind)
    if name is None:
        raise ConfigError(f"{kind!r} has no name by which a run would find it again; define it at the top of a module")
    return name


@functools.cache
def tuned() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Settings of all files by (algorithm, environment or pattern); they are checked when one is asked for."""
    return {
        (algorithm, env): settings
        for path in sorted(_FOLDER.glob("*.yaml"))
        for algorithm, entries in read_config(path).items()
        for envs, settings in entries.items()
        for env in envs.split(", ")
    }


class _Presets(Mapping[tuple[str, str], ExperimentConfig]):
    """Makes a configuration when it is asked for."""

    def __getitem__(self, key: tuple[str, str]) -> ExperimentConfig:
        if "*" in key[1]:
            raise KeyError(key)
        return _config(*key, tuned()[key])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (key for key in tuned() if "*" not in key[1])

    def __len__(self) -> int:
        return sum(1 for _ in self)


PRESETS: Mapping[tuple[str, str], ExperimentConfig] = _Presets()
"""Settings by (algorithm, environment), of the environments that have their own; read when first asked for."""


def _config(algorithm: str, name: str, settings: Mapping[str, Any]) -> ExperimentConfig:
    env = {**settings.get("env", {}), "name": name}
    return config_from_mapping(ExperimentConfig, {**settings, "algorithm_name": algorithm, "env": env})


OTHER_NAMES = {"tqc": "quantile_sac"}


def preset(algorithm: AlgorithmOrName, env: Any) -> ExperimentConfig:
    """Settings for an algorithm in an environment: its own, else its family's, else the algorithm's defaults.

    Args:
        algorithm: its name, for example `"ppo"`, or its class; of quantile SAC the name in its paper, `"tqc"`, too.
        env: as of `train`.

    Raises:
        ConfigError: there is no such algorithm or environment, or the two are exchanged.

    Examples:
        >>> preset("ppo", "CartPole-v1").algorithm.gamma
        0.98
    """
    algorithm, name = algorithm_name(algorithm), env_name(env)
    if name in ALGORITHMS and algorithm not in ALGORITHMS:
        raise ConfigError(f"the algorithm comes first: {name}, then the environment {algorithm}")
    algorithm = OTHER_NAMES.get(algorithm, algorithm)
    lanes = getattr(algorithm_class(algorithm), "usual_lanes", 1)  # a robot has none
    known = _known(algorithm, name)
    defaults = {"env": {"num_envs": lanes}}
    return _config(algorithm, name, defaults if known is None else tuned()[algorithm, known])


def _known(algorithm: str, env: str) -> str | None:
    """The environment, or the pattern of a family, that there are settings for."""
    names = [known for name, known in tuned() if name == algorithm]
    return env if env in names else next((known for known in names if fnmatchcase(env, known)), None)


def preset_line(config: ExperimentConfig) -> str:
    """Says what the settings of a run began with.

    Examples:
        >>> preset_line(preset("ppo", "CartPole-v1")), preset_line(preset("ppo", "CartPole-v0"))
        ('settings    preset of ppo for CartPole-v1', 'settings    defaults of ppo; it has a preset for CartPole-v1')
    """
    algorithm, env = config.algorithm_name, config.env.name
    if known := _known(algorithm, env):
        kept, own = (
            (*of.gym_wrappers, *of.wrappers, *of.train_wrappers) for of in (config.env, preset(algorithm, env).env)
        )
        lost = ", ".join(one.text for one in own if one.name not in {other.name for other in kept})
        return f"settings    preset of {algorithm} for {known}{lost and f', but without {lost}'}"
    close = difflib.get_close_matches(env, [env for name, env in tuned() if name == algorithm], n=1, cutoff=0.8)
    return f"settings    defaults of {algorithm}" + (f"; it has a preset for {close[0]}" if close else "")


def load_config(path: str | Path, *, base: ExperimentConfig | None = None) -> ExperimentConfig:
    """Reads a configuration file.

    One with all parts, as runs and `--print-config` write it, has all arguments of the environment's constructor, and
    may be of an older version; those of any other come on top of the base's.

    Args:
        base: where settings that it leaves out come from; by default the preset of the algorithm and the environment
            that it names.

    Raises:
        ConfigError: it cannot be read, holds mistakes, or does not name both.
    """
    data = read_config(path)
    if base is None:
        env = data.get("env")
        algorithm, name = data.get("algorithm_name"), env.get("name") if isinstance(env, Mapping) else None
        if algorithm:
            algorithm_class(str(algorithm))  # whatever else is missing, this says what was misspelt
        missing = [path for path, value in (("algorithm_name", algorithm), ("env.name", name)) if not value]
        if missing:
            raise ConfigError(
                f"the configuration {path} does not say {' and '.join(missing)}; write it there, or name the algorithm "
                f"and the environment beside it: palaestra train ppo CartPole-v1 --config {path}"
            )
        base = preset(str(algorithm), str(name))
    if data.keys() >= _PARTS:
        data = renewed(data)
        base = config_from_mapping(ExperimentConfig, {"env.kwargs": {}, "env.train_kwargs": {}}, base=base)
    return config_from_mapping(ExperimentConfig, data, base=base)
