"""Reading options: the same paths, types and checks as in files; tyro writes the help."""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from palaestra.core import ConfigError, Schedule, parse_schedule
from palaestra.envs import Wrap
from palaestra.experiments import config_from_mapping
from palaestra.experiments.config import algorithms_with
from palaestra.experiments.values import closest, dataclass_of, type_name, value_from_words
from palaestra.nn import EncoderOption

__all__ = ["JsonOptions", "RunOptions", "parse", "positional", "several"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Options of verbs that print."""

    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(JsonOptions):
    """Options of verbs that look at runs."""

    root: str = "runs"
    """Where runs are."""


def positional(arguments: list[str], names: Sequence[str], usage: str) -> tuple[list[str], list[str]]:
    """Takes the leading positional arguments.

    Args:
        arguments: what was typed after the verb.
        names: what the positional arguments are called.
        usage: shown where one is missing.

    Returns:
        As many values as names, and the rest. With `--help` in the rest, missing values are "".

    Raises:
        ConfigError: one is missing, or empty.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    taken, rest = arguments[: min(count, len(names))], arguments[min(count, len(names)) :]
    if len(taken) < len(names) and not {"-h", "--help"} & set(rest):
        where = "; it comes before the options" if rest else ""
        raise ConfigError(f"{names[len(taken)]} is missing{where}: {usage}")
    if "" in taken:
        raise ConfigError(f"{names[taken.index('')]} is an empty text, as a shell makes of an unset variable: {usage}")
    return taken + [""] * (len(names) - len(taken)), rest


def several(arguments: list[str], name: str, usage: str) -> tuple[list[str], list[str]]:
    """Takes all leading positional arguments, at least one.

    Args:
        arguments: what was typed after the verb.
        name: what one of them is called.
        usage: shown where there is none.

    Returns:
        The values, and the rest.

    Raises:
        ConfigError: there is none.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    positional(arguments, (name,), usage)
    return arguments[:count], arguments[count:]


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, default: Any = None, description: str = "") -> T:
    """Options as a dataclass. tyro writes the help; values are checked as those of files and of Python are.

    Args:
        kind: the dataclass.
        arguments: the options typed.
        prog: the command, for the help text.
        default: an instance with the defaults.
        description: for the help text.

    Raises:
        ConfigError: options are unknown or their values wrong; the message has all of them.
        SystemExit: after `--help`.
    """
    base = kind() if default is None else default
    if {"-h", "--help"} & set(arguments):
        with _registry():
            tyro.cli(kind, args=["--help"], prog=prog, description=description, default=base)
    problems: list[str] = []
    settings = _settings(base, arguments, problems)
    try:
        config = config_from_mapping(kind, settings, base=base)
    except ConfigError as error:
        raise ConfigError("\n".join([*problems, str(error)])) from None
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _settings(base: Any, arguments: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """Options as nested mappings, as a configuration file has them; what cannot be read is added to the problems."""
    hints = dict(_hints(base))
    names = {path.replace("_", "-"): path for path in hints}
    short = {alias: path for path, hint in hints.items() for alias in _aliases(hint)} | _shorthands(base)
    settings: dict[str, Any] = {}
    for option, words in _groups(arguments, problems):
        name = option.replace("_", "-")
        *parents, last = name.split(".")
        opposite = ".".join([*parents, last.removeprefix("no-")]) if last.startswith("no-") else ""
        path = short.get(name) or names.get(name)
        if path is None and (off := short.get(opposite) or names.get(opposite)) and _is_switch(hints[off]):
            path, words = off, [*words, "false"]
        if path is None:
            problems.append(f"unknown option --{option}{_meant(base, name, {**names, **short})}")
            continue
        try:
            _put(settings, path, value_from_words(hints[path], words))
        except ConfigError as error:
            problems.append(f"--{option}: {error}")
    return settings


def _groups(arguments: Sequence[str], problems: list[str]) -> list[tuple[str, list[str]]]:
    """Each option with the words after it."""
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        match = re.match(r"--([A-Za-z][\w.-]*)(?:=(.*))?$", argument, re.DOTALL)
        if match:
            groups.append((match.group(1), [] if match.group(2) is None else [match.group(2)]))
        elif groups:
            groups[-1][1].append(argument)
        else:
            problems.append(f"unexpected {argument!r}; options begin with --")
    return groups


def _put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Writes a value to its place. Of an option that is given again the last counts; lists and mappings add up."""
    *parents, last = path.split(".")
    for parent in parents:
        settings = settings.setdefault(parent, {})
    before = settings.get(last)
    if isinstance(value, list) and isinstance(before, list):
        value = before + value
    elif isinstance(value, dict) and isinstance(before, dict):
        value = before | value
    settings[last] = value


def _hints(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The path and the type of every setting."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for f in dataclasses.fields(config):
        child, nested = getattr(config, f.name), dataclass_of(hints[f.name])
        if dataclasses.is_dataclass(child) and nested is not None:
            yield from _hints(child, f"{prefix}{f.name}.")
        elif nested is not None:
            yield from _hints(nested(), f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", hints[f.name]


def _aliases(hint: Any) -> list[str]:
    """The short forms that a field declares for tyro."""
    found = [getattr(entry, "aliases", None) or () for entry in getattr(hint, "__metadata__", ())]
    return [alias.removeprefix("--") for aliases in found for alias in aliases]


def _shorthands(config: Any, prefix: str = "") -> dict[str, str]:
    """Groups whose own name sets one of their settings, such as --algorithm.network."""
    found: dict[str, str] = {}
    for f in dataclasses.fields(config):
        child, name = getattr(config, f.name), f"{prefix}{f.name}"
        if dataclasses.is_dataclass(child) and not isinstance(child, type):
            found |= _shorthands(child, f"{name}.")
            if shorthand := getattr(child, "shorthand", None):
                found[name.replace("_", "-")] = f"{name}.{shorthand}"
    return found


def _is_switch(hint: Any) -> bool:
    return bool in (typing.get_args(hint) or ()) or hint is bool


def _meant(base: Any, name: str, known: Mapping[str, str]) -> str:
    """What was probably meant by an option that does not exist, with its type and its value."""
    *parents, last = name.split(".")
    beside = [option for option in known if option.split(".")[:-1] == parents]
    ends = {option.split(".")[-1]: option for option in reversed(beside or [*known])}
    close = closest(last, ends) or [n for n in ends if not parents and n == last]
    if not close and not parents:
        ends = {option.split(".")[-1]: option for option in reversed([*known])}
        close = closest(last, ends)
    if close:
        hint, value = dict(_hints(base))[known[ends[close[0]]]], base
        for part in known[ends[close[0]]].split("."):
            value = getattr(value, part, None)
        return f" — did you mean --{ends[close[0]]}? ({type_name(hint)}, {value})"
    others = algorithms_with(last) if parents == ["algorithm"] else []
    return f"; it is a setting of {', '.join(others)}" if others else "; --help lists all"


def _parts(value: Any) -> list[str]:
    """What would be typed for a value."""
    return [str(part) for item in value.items() for part in item] if isinstance(value, dict) else [str(value)]


_FORMS: tuple[tuple[Any, type, Any, str, Callable[[list[str]], Any]], ...] = (
    (Schedule, object, 1, "NUMBER|SCHEDULE", lambda words: parse_schedule(words[0])),
    (EncoderOption, object, "*", "MODULE:NAME|[PART MODULE:NAME ...]", partial(value_from_words, EncoderOption)),
    (dict[str, Any], dict, "*", "[NAME VALUE ...]", partial(value_from_words, dict[str, Any])),
    (Wrap, Wrap, 1, "WRAPPER", lambda words: Wrap.parse(words[0])),
)
"""Types that tyro does not know: class of a value, number of words, what the help shows, and what reads the words."""


@contextmanager
def _registry() -> Iterator[None]:
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def form(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        found = next((entry for entry in _FORMS if entry[0] == info.type), None)
        if found is None:
            return None
        _, kind, nargs, metavar, read = found
        return PrimitiveConstructorSpec(
            nargs=nargs,
            metavar=metavar,
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, kind),
            str_from_instance=_parts,
        )

    with registry:
        yield
