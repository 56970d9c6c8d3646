"""The short help of `palaestra train`: what people set most, with its value for this algorithm and environment."""

from collections.abc import Mapping
from typing import Any

from palaestra.config.config import settings_of

__all__ = ["COMMON", "short_help"]

COMMON: Mapping[str, Mapping[str, str]] = {
    "how long": {
        "trainer.total_env_steps": "env steps of the run",
        "time_limit": "longest training time, such as 30m or 2h",
        "trainer.eval_every_steps": "env steps between two evaluations",
        "seeds": "train so many seeds side by side",
    },
    "how it learns": {
        "algorithm.learning_rate": "a number, or a schedule such as 'linear(3e-4, 0)'",
        "algorithm.gamma": "discount per env step",
        "algorithm.network.hidden_sizes": "units of each hidden layer",
        "algorithm.network.cnn": "network for pictures: nature, impala or small",
        "env.num_envs": "environments stepped together",
        "env.vectorization": "how: serial, process, native, ...",
        "env.kwargs": "what the environment is made with: NAME VALUE ...",
    },
    "where": {
        "run.seed": "the one seed that everything random derives from",
        "run.name": "name of the run directory below runs/",
        "run.device": "cpu, cuda or cuda:1",
        "config": "a YAML file with settings; options are put on top",
        "print_config": "print all settings as YAML and start nothing",
        "dry_run": "learn for a second; say how long it will take",
    },
}
"""Settings by group, with what the help says of them."""

_SHORT = {"run.seed": "seed", "run.device": "device"}


def short_help(base: Any, command: str) -> str:
    """The text.

    Args:
        base: all settings, as they are if nothing is typed.
        command: what was typed, for the first line.
    """
    settings = {setting.path: setting for setting in settings_of(type(base), vars(base))}
    lines = [f"usage: {command} [options]"]
    for group, options in COMMON.items():
        lines += ["", group]
        for path, what in options.items():
            if path in settings:
                option = "--" + _SHORT.get(path, path).replace("_", "-")
                lines.append(f"  {option:<34}{what}{_default(settings[path].value)}")
    number = sum(not setting.is_group for setting in settings.values())
    groups = ", ".join(path for path, setting in settings.items() if setting.is_group and "." not in path)
    return "\n".join([*lines, "", f"--help-all has all {number} settings, in the groups {groups}"])


def _default(value: Any) -> str:
    """What it is if nothing is typed; nothing where that says nothing."""
    if value is None or isinstance(value, bool) or value in ({}, ()):
        return ""
    shown = (
        " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}" if type(value) is int else str(value)
    )
    return f"  [{shown}]"
