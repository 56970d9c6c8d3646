"""Reading options: the same paths, types and checks as in files; tyro writes the help."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from palaestra.config.config import Setting, algorithms_with, meant, settings_of
from palaestra.config.values import members_of, value_from_words
from palaestra.core import ConfigError, Schedule
from palaestra.core.errors import printable
from palaestra.envs import Wrap
from palaestra.experiments import config_from_mapping
from palaestra.nn import EncoderOption

__all__ = ["JsonOptions", "RunOptions", "command", "parse", "positional", "print_table", "typed_options"]

T = TypeVar("T")

_NO_LIMIT = 10_000  # in a pipe, a row is a line, however long


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Options of verbs that print."""

    json: bool = False
    """Print JSON."""

    def show(self, record: Any, text: str) -> None:
        """Prints one of them.

        Args:
            record: JSON values, for `--json`.
            text: for people.
        """
        print(json.dumps(record) if self.json else printable(text))


@dataclass(frozen=True, kw_only=True)
class RunOptions(JsonOptions):
    """Options of verbs that look at runs."""

    root: str = "runs"
    """Where runs are."""


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table without lines; what is too long for the first column continues below.

    Args:
        head: names of the columns.
        rows: what stands in them.
    """
    table = Table(Column(head[0], overflow="fold"), *head[1:], box=None)
    for row in rows:
        table.add_row(*(escape(printable(str(cell))) for cell in row))
    Console(width=None if sys.stdout.isatty() else _NO_LIMIT, emoji=False).print(table)


def positional(arguments: list[str], usage: str, *names: str) -> tuple[list[str], list[str]]:
    """Takes the leading positional arguments.

    Args:
        arguments: what was typed after the verb.
        usage: shown where one is missing.
        names: what the positional arguments are called; a last one that ends with "..." stands for one or more.

    Returns:
        As many values as names, or more, and the rest. With `--help` in the rest, missing values are "".

    Raises:
        ConfigError: one is missing, or empty.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    if not names[-1].endswith("..."):
        count = min(count, len(names))
    taken, rest = arguments[:count], arguments[count:]
    if count < len(names) and not {"-h", "--help"} & set(rest):
        where = "; it comes before the options" if rest else ""
        raise ConfigError(f"{names[count].removesuffix('...')} is missing{where}: {usage}")
    if "" in taken:
        name = names[min(taken.index(""), len(names) - 1)].removesuffix("...")
        raise ConfigError(f"{name} is an empty text, as a shell makes of an unset variable: {usage}")
    return taken + [""] * (len(names) - count), rest


def command(kind: type[T], arguments: list[str], usage: str, *names: str) -> tuple[list[str], T]:
    """Reads what was typed after a verb: what it is about, then options.

    Args:
        kind: the dataclass of options.
        arguments: what was typed after the verb.
        usage: the command, for messages and the help text.
        names: as in `positional`.

    Returns:
        The positional arguments, and the options.

    Raises:
        ConfigError: an argument is missing, or an option is unknown or wrong.
        SystemExit: after `--help`.
    """
    taken, rest = positional(arguments, usage, *names)
    return taken, parse(kind, rest, usage)


def parse(kind: type[T], arguments: Sequence[str], prog: str, *, default: Any = None, description: str = "") -> T:
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
        tyro.cli(kind, args=["--help"], prog=prog, description=description, default=base, registry=REGISTRY)
    problems: list[str] = []
    settings = _settings(base, arguments, problems)
    try:
        config = config_from_mapping(kind, settings, base=base)
        if not problems:
            return config
    except ConfigError as error:
        problems.append(str(error))
    raise ConfigError("\n".join(problems))


def _settings(base: Any, arguments: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """Settings by path, as the options say; what cannot be read is added to the problems.

    Of an option that is given again the last counts; lists and mappings add up.
    """
    known, values = _known(base), dict[str, Any]()
    for option, words in typed_options(arguments, problems):
        name = option.replace("_", "-")
        setting, switch = known.get(name), known.get(re.sub(r"(^|\.)no-(?=[^.]*$)", r"\1", name))
        if setting is None and switch is not None and bool in members_of(switch.hint):
            setting, words = switch, [*words, "false"]
        if setting is None:
            group, _, last = name.rpartition(".")
            others = algorithms_with(last) if group == "algorithm" else []
            other = f"; it is a setting of {', '.join(others)}" if others else meant(name, known, "--{}")
            problems.append(f"unknown option --{option}{other or '; --help says which there are'}")
            continue
        try:
            value, before = value_from_words(setting.hint, words), values.get(setting.path)
        except ConfigError as error:
            problems.append(f"--{option}: {error}")
            continue
        if isinstance(value, list) and isinstance(before, list):
            value = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            value = before | value
        values[setting.path] = value
    return values


def typed_options(arguments: Sequence[str], problems: list[str]) -> list[tuple[str, list[str]]]:
    """Each option with the words after it.

    Args:
        arguments: what was typed.
        problems: what stands before the first option is added to them.
    """
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


def _known(base: Any) -> dict[str, Setting]:
    """Every setting by its option and by the short forms that its field declares for tyro.

    The name of a group can stand for one of its settings, as `--algorithm.network` does.
    """
    settings = {setting.path: setting for setting in settings_of(type(base), vars(base))}
    known = {path.replace("_", "-"): setting for path, setting in settings.items() if not setting.is_group}
    for path, (_, hint, value) in settings.items():
        if shorthand := getattr(value, "shorthand", None):
            known[path.replace("_", "-")] = settings[f"{path}.{shorthand}"]
        for entry in getattr(hint, "__metadata__", ()):
            known |= {alias.removeprefix("--"): settings[path] for alias in getattr(entry, "aliases", None) or ()}
    return known


_FORMS = {
    Schedule: (1, "NUMBER|SCHEDULE"),
    EncoderOption: ("*", "MODULE:NAME|[PART MODULE:NAME ...]"),
    dict[str, Any]: ("*", "[NAME VALUE ...]"),
    Wrap: (1, "WRAPPER"),
}
"""Types that tyro does not know: number of words, and what the help shows."""


REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _form(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type not in _FORMS:
        return None
    nargs, metavar = _FORMS[info.type]
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=list,  # never called: the help is all that tyro is asked for
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            [str(part) for item in value.items() for part in item] if isinstance(value, dict) else [str(value)]
        ),
    )
