"""Reading options with tyro."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from palaestra.core import ConfigError, Schedule, did_you_mean, parse_schedule

__all__ = ["parse", "positional"]

T = TypeVar("T")


def positional(arguments: list[str], names: Sequence[str], usage: str) -> tuple[list[str], list[str]]:
    """Takes the leading positional arguments.

    Args:
        arguments: what was typed after the verb.
        names: what the positional arguments are called.
        usage: shown where one is missing.

    Returns:
        As many values as names, and the rest. With `--help` in the rest, missing values are "".

    Raises:
        ConfigError: one is missing.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    taken, rest = arguments[: min(count, len(names))], arguments[min(count, len(names)) :]
    if len(taken) < len(names) and not {"-h", "--help"} & set(rest):
        raise ConfigError(f"{names[len(taken)]} is missing: {usage}")
    return taken + [""] * (len(names) - len(taken)), rest


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, default: Any = None, description: str = "") -> T:
    """Options as a dataclass.

    Args:
        kind: the dataclass.
        arguments: the options typed.
        prog: the command, for the help text.
        default: an instance with the defaults.
        description: for the help text.

    Raises:
        ConfigError: an option is unknown or its value wrong.
        SystemExit: after `--help`.
    """
    _refuse_unknown(kind, default, arguments)
    extra = {} if default is None else {"default": default}
    with _registry():
        return tyro.cli(kind, args=list(arguments), prog=prog, description=description, **extra)


@contextmanager
def _registry() -> Iterator[None]:
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def schedule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type != Schedule:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="NUMBER|SCHEDULE",
            instance_from_str=lambda args: parse_schedule(args[0]),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(value)],
        )

    @registry.primitive_rule
    def settings(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type != dict[str, Any]:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME VALUE ...]",
            instance_from_str=_named_values,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [str(part) for item in value.items() for part in item],
        )

    with registry:
        yield


def _named_values(words: list[str]) -> dict[str, Any]:
    """`size 3 label x` as {"size": 3, "label": "x"}: values are read as YAML."""
    if len(words) % 2:
        raise ValueError(f"{words[-1]!r} has no value; give names and values in turn")
    return {name: yaml.safe_load(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def _refuse_unknown(kind: Any, default: Any, arguments: Sequence[str]) -> None:
    """One line for a mistyped option, in the words of the configuration."""
    known = {"help", "seed", "compile", "no-compile", *_paths(default if default is not None else kind)}
    problems = []
    for argument in arguments:
        match = re.match(r"--([A-Za-z][\w.-]*)", argument)
        name = match.group(1).replace("_", "-") if match else None
        if name and name not in known and name.replace("no-", "", 1) not in known:
            problems.append(f"unknown option --{name}{did_you_mean(name, known)}")
    if problems:
        raise ConfigError("\n".join(problems))


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    for f in dataclasses.fields(value):
        child = f.default if isinstance(value, type) else getattr(value, f.name)
        path = f"{prefix}{f.name.replace('_', '-')}"
        if dataclasses.is_dataclass(child) and not isinstance(child, type) and not callable(child):
            yield from _paths(child, f"{path}.")
        else:
            yield path
            *parents, last = path.split(".")
            yield ".".join([*parents, f"no-{last}"])
