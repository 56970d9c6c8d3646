"""Tuned settings for pairs of algorithm and environment, one file for each family of environments.

A family's file has one dict `PRESETS` of `Preset`s, and is named in `_FAMILIES`. A new algorithm adds its entry there.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from palaestra.core import ConfigError
from palaestra.envs import EnvConfig
from palaestra.experiments.config import ExperimentConfig, algorithm_class, config_from_mapping, read_config
from palaestra.experiments.presets import (
    atari,
    classic_control,
    classic_control_on_policy,
    classic_control_value_based,
    continuous_off_policy,
    mountain_car_continuous,
    mujoco,
    offline,
)
from palaestra.experiments.presets.entry import Preset, Presets

__all__ = ["PRESETS", "Preset", "load_config", "preset"]

_FAMILIES = (
    *(classic_control, classic_control_on_policy, classic_control_value_based),
    *(continuous_off_policy, mountain_car_continuous, mujoco, atari, offline),
)
_ENTRIES: Presets = {key: entry for family in _FAMILIES for key, entry in family.PRESETS.items()}

PRESETS: dict[tuple[str, str], ExperimentConfig] = {
    key: entry.config(*key) for key, entry in _ENTRIES.items() if "*" not in key[1]
}
"""Settings by (algorithm, environment), of the environments that have their own."""

_NUM_ENVS = {
    **dict.fromkeys(("a2c", "impala", "ppg", "ppo", "reinforce", "sarsa", "trpo"), 8),
    "evolution_strategies": 32,
}


def preset(algorithm: str, env_name: str) -> ExperimentConfig:
    """Settings for an algorithm in an environment: its own, else its family's, else the algorithm's defaults.

    Args:
        algorithm: its name, for example `"ppo"`.
        env_name: as `EnvConfig.name`.

    Raises:
        ConfigError: there is no such algorithm.

    Examples:
        >>> preset("ppo", "CartPole-v1").algorithm.gamma
        0.98
    """
    kind = algorithm_class(algorithm)
    if (algorithm, env_name) in PRESETS:
        return PRESETS[algorithm, env_name]
    for (name, pattern), entry in _ENTRIES.items():
        if name == algorithm and fnmatchcase(env_name, pattern):
            return entry.config(algorithm, env_name)
    return ExperimentConfig(
        algorithm_name=algorithm,
        algorithm=kind.config_class(),
        env=EnvConfig(name=env_name, num_envs=_NUM_ENVS.get(algorithm, 1)),
    )


def load_config(path: str | Path, *, base: ExperimentConfig | None = None) -> ExperimentConfig:
    """Reads a configuration file.

    Args:
        path: a YAML file.
        base: where settings that it leaves out come from; by default the preset of the algorithm and the environment
            that it names.

    Raises:
        ConfigError: it cannot be read, holds mistakes, or does not name both.
    """
    data = read_config(path)
    if base is None:
        env = data.get("env")
        names = {
            "algorithm_name": data.get("algorithm_name"),
            "env.name": env.get("name") if isinstance(env, Mapping) else None,
        }
        if names["algorithm_name"]:
            algorithm_class(str(names["algorithm_name"]))  # whatever else is missing, this says what was misspelt
        missing = [name for name, value in names.items() if not value]
        if missing:
            raise ConfigError(
                f"the configuration {path} does not say {' and '.join(missing)}; write it there, or name the algorithm "
                f"and the environment beside it: palaestra train ppo CartPole-v1 --config {path}"
            )
        base = preset(*map(str, names.values()))
    return config_from_mapping(ExperimentConfig, data, base=base)
