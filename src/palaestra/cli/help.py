"""The help of a command: its options with type, docstring and default, as text for a terminal."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import shlex
import shutil
import textwrap
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.cli.commands import Command
from palaestra.config.config import Setting, algorithm_class, settings_of
from palaestra.config.values import dataclass_of, members_of
from palaestra.core import Linear, Offline

_NOT_TYPED = ("algorithm_name", "env.name")  # they come before the options
_WORDS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false"}


class Option(NamedTuple):
    """An option as people read it."""

    setting: Setting
    """What it sets."""
    names: list[str]
    """What is typed, the long name first."""
    metavar: str
    """What comes after it; nothing after a switch."""
    text: str
    """The docstring of its field."""
    is_own: bool
    """Whether the class of its group declares it, and not a base class."""

    @property
    def default(self) -> str:
        """What it is if nothing is typed, as it would be typed."""
        return shlex.join(_typed(self.setting.value))


def options_of(base: Any) -> list[Option]:
    """The options of a command, without the groups that they are in.

    Args:
        base: a configuration with the defaults.
    """
    settings = list(settings_of(type(base), vars(base)))
    found, owners, short = list[Option](), {"": type(base)}, short_names(settings)
    for setting in settings:
        group, _, name = setting.path.rpartition(".")
        if (inside := dataclass_of(setting.hint)) is not None:
            owners[setting.path] = type(setting.value) if dataclasses.is_dataclass(setting.value) else inside
        elif setting.path not in _NOT_TYPED:
            text, is_own = _field_texts(owners[group]).get(name, ""), name in owners[group].__annotations__
            names = _names(setting) + [name for name, one in short.items() if one is setting]
            found.append(Option(setting, names, _metavar(setting), text, is_own))
    return found


def grouped(base: Any) -> dict[str, list[Option]]:
    """The options of a command by the group they are in; those of the command itself come first, its own before others.

    Args:
        base: a configuration with the defaults.
    """
    groups: dict[str, list[Option]] = {"": []}
    for option in options_of(base):
        groups.setdefault(option.setting.path.rpartition(".")[0], []).append(option)
    return groups | {"": sorted(groups[""], key=lambda option: not option.is_own)}


def long_help(command: Command, base: Any, typed: str) -> str:
    """All options, group by group.

    Args:
        command: the command.
        base: its options as they are if nothing is typed.
        typed: the command with its arguments, for the first line.
    """
    width = min(120, shutil.get_terminal_size((120, 24)).columns)
    lines = [f"usage: {typed}", "", inspect.cleandoc(command.load().__doc__ or "").split("\n\n")[0]]
    for group, options in grouped(base).items():
        lines += ["", f"{group or 'options'}:"]
        for option in options:
            lines.append(f"  {', '.join(option.names)} {option.metavar}".rstrip())
            text = f"{option.text} (default: {option.default})" if option.default else option.text
            lines += textwrap.wrap(text, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join([*lines, "", "  -h, --help  this text", ""])


def short_help(base: Any, typed: str) -> str:
    """The options that people set most, each in a line, with what they are for this command.

    Args:
        base: all options, as they are if nothing is typed; its class says in `MOST_SET` which.
        typed: the command with its arguments, for the first line.
    """
    options = {option.setting.path: option for option in options_of(base)}
    lines = [f"usage: {typed}"]
    needed = _needed(base)
    for group, paths in {**({"what it learns from": needed} if needed else {}), **base.MOST_SET}.items():
        lines += ["", group]
        for path in paths:
            inside = _numbers(path, options) if path.endswith(".") else [path]
            lines += [_line(options.pop(one)) for one in inside if one in options]
    groups = dict.fromkeys(path.partition(".")[0] for path in options if "." in path)
    return "\n".join([*lines, "", f"--help-all has all settings: {', '.join(groups)}", ""])


def _needed(base: Any) -> list[str]:
    """What the algorithm of a command cannot learn without: data, or a teacher, say."""
    needed = [f"algorithm.{name}" for name in getattr(algorithm_class(base.algorithm_name), "needs", {})]
    offline = getattr(base.algorithm, "plan_class", None) is Offline
    return [*needed, "offline.data", "offline.fraction"] if offline else needed


def _numbers(group: str, options: Mapping[str, Option]) -> list[str]:
    """The eight first settings of a group itself that have a value; those of its own class come first."""
    paths = [path for path, option in options.items() if path.startswith(group) and option.default]
    paths = [path for path in paths if path.count(".") == group.count(".") and options[path].metavar]
    return sorted(paths, key=lambda path: not options[path].is_own)[:8]


def _line(option: Option) -> str:
    value = option.setting.value
    default = f"{value:,}" if type(value) is int else " ".join(_typed(value))
    name, shown = f"  {option.names[-1]:<33}", f"  [{default}]" if default else ""
    text = re.split(r"[.;] |\.$", option.text)[0]
    return f"{name} {textwrap.shorten(text, 118 - len(name) - len(shown), placeholder=' ...')}{shown}"


def choices(hint: Any) -> list[str]:
    """The values that a type has by name.

    Args:
        hint: a field's type.

    Examples:
        >>> choices(tuple[typing.Literal["a", "b"], ...]), choices(int)
        (['a', 'b'], [])
    """
    if typing.get_origin(hint) is typing.Literal:
        return [str(value) for value in typing.get_args(hint)]
    inner = [arg for arg in typing.get_args(hint) if arg is not Ellipsis and not isinstance(arg, str)]
    return list(itertools.chain.from_iterable(map(choices, inner)))


def short_names(settings: Sequence[Setting]) -> dict[str, Setting]:
    """The short options that fields declare, `Annotated[int, "--seed"]`, with what they set.

    Those of a command itself come before those of its groups: `tune --time-limit` is of the search, not of its runs.

    Args:
        settings: of a command.
    """
    found = dict[str, Setting]()
    for setting in sorted(settings, key=lambda one: one.path.count(".")):
        for word in getattr(setting.hint, "__metadata__", ()):
            if isinstance(word, str) and word.startswith("--"):
                found.setdefault(word, setting)
    return found


def _names(setting: Setting) -> list[str]:
    name = "--" + setting.path.replace("_", "-")
    group, dot, last = name.removeprefix("--").rpartition(".")
    is_on = setting.value is True and _metavar(setting) == ""
    return [name, *([f"--{group}{dot}no-{last}"] if is_on else ())]


def _metavar(setting: Setting) -> str:
    return "" if {*members_of(setting.hint)} <= {bool, type(None)} else _form(setting.hint)


def _form(hint: Any) -> str:
    """What is typed for a value of a type."""
    members = [member for member in members_of(hint) if member is not type(None)]
    if Linear in members:
        return "NUMBER|SCHEDULE"
    if members != [hint]:
        return "|".join(dict.fromkeys(map(_form, members)))
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if origin in (tuple, list):
        return f"{_form(typing.get_args(hint)[0])} ..."
    return "NAME VALUE ..." if origin is dict else _WORDS.get(origin, getattr(origin, "__name__", "VALUE").upper())


def _typed(value: Any) -> list[str]:
    """A value in the words that are typed for it."""
    if value is None or value is False or value in ({}, ()):
        return []
    if isinstance(value, dict):
        return [str(word) for item in value.items() for word in item]
    if isinstance(value, tuple | list):
        return ["none" if item is None else str(item) for item in value]
    return ["yes" if value is True else str(value).removesuffix(".0")]


@functools.cache
def _field_texts(kind: type[Any]) -> dict[str, str]:
    """The docstring under each field of a dataclass, in one line."""
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):  # made without a file, as in a notebook
            continue
        for line, below in itertools.pairwise(typing.cast("ast.ClassDef", tree).body):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                found[line.target.id] = " ".join(str(below.value.value).split()) if is_text else ""  # type: ignore
    return found
