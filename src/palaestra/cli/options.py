"""Reading what was typed after a verb: arguments, and options with the paths, types and checks of files."""

import contextlib
import functools
import json
import re
import sys
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from palaestra.cli.commands import Command
from palaestra.cli.help import long_help, short_help, short_names
from palaestra.config.config import Setting, meant, require_workers, settings_of
from palaestra.config.values import says_none, value_from_words
from palaestra.core import ConfigError, did_you_mean
from palaestra.core.errors import printable
from palaestra.core.settings import members_of, require_ranges
from palaestra.envs import EnvConfig
from palaestra.experiments import ExperimentConfig, config_from_mapping, preset

T = TypeVar("T")

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TELL_S = 5.0  # between two lines of progress
_HELP = {"-h", "--help", "--help-all"}
_NO_LIMIT = 10_000  # in a pipe, a row is a line, however long


@dataclass(frozen=True)
class NoOptions:
    """Options of a verb that has none."""


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Options of verbs that print."""

    json: bool = False
    """Print JSON."""

    def chosen(self) -> dict[str, Any]:
        """All but this, for a function whose arguments have the same names."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "json"}

    def show(self, record: Any, text: str) -> None:
        """Prints one of them.

        Args:
            record: JSON values, for `--json`.
            text: for people.
        """
        print(json.dumps(record) if self.json else printable(text))

    def told(self) -> contextlib.AbstractContextManager[Any]:
        """What is printed within is for people: with `--json` it goes to stderr, and stdout is for the record alone."""
        return contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class RunOptions(JsonOptions):
    """Options of verbs that look at runs."""

    root: str = "runs"
    """Folder of runs."""


@dataclass(frozen=True, kw_only=True)
class EnvOptions(JsonOptions):
    """Options of verbs about an environment."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """Environment."""

    @classmethod
    def defaults(cls, arguments: Sequence[str], options: Mapping[str, list[str]]) -> Any:
        """With the environment that is named first."""
        return cls(env=EnvConfig(name=next(filter(None, arguments), EnvConfig.name)))


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(ExperimentConfig, JsonOptions):
    """Options of verbs about an algorithm in an environment: all settings of a run."""

    @classmethod
    def defaults(cls, arguments: Sequence[str], options: Mapping[str, list[str]]) -> Self:
        """The preset of the pair; of PPO on CartPole where a help text asks for neither."""
        algorithm, env = arguments
        return cls(**vars(preset(algorithm or "ppo", env or EnvConfig.name)))

    def experiment(self) -> ExperimentConfig:
        """The settings of the run alone."""
        return ExperimentConfig(**{entry.name: getattr(self, entry.name) for entry in fields(ExperimentConfig)})


def counter(total: int, what: str) -> Callable[[], None]:
    """What is called for each of many things, and says every five seconds on stderr how many were done.

    Args:
        total: of them.
        what: they are.
    """
    done, told_s = 0, time.monotonic()

    def count() -> None:
        nonlocal done, told_s
        done += 1
        if time.monotonic() - told_s >= _TELL_S:
            told_s = time.monotonic()
            print(f"{done:,} of {total:,} {what}", file=sys.stderr, flush=True)

    return count


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


def read(command: Command, typed: list[str]) -> Callable[[], int]:
    """Reads what was typed after a verb: arguments, then options; or `--help` among them.

    Args:
        command: the verb's entry.
        typed: what came after it.

    Returns:
        Does what was asked for, and gives the exit code.

    Raises:
        ConfigError: an argument is missing or wrong, or an option is unknown or wrong.
    """
    given, rest = _positional(command, typed)
    if asked := _HELP & set(rest):
        base = defaults_of(command, given, [word for word in rest if word not in asked])
        words = [word or argument.form for word, argument in zip(given, command.arguments, strict=False)]
        title = " ".join(["palaestra", command.name, *words, "[options]"]) if any(given) else command.usage
        is_short = hasattr(base, "MOST_SET") and "--help-all" not in asked
        text = short_help(base, title) if is_short else long_help(command, base, title)
        return lambda: print(text, end="") or 0
    options = parse(defaults_of(command, given, rest), rest)
    require_ranges(options, "--")
    if command.takes_many:
        before_last = len(command.arguments) - 1
        given = [*given[:before_last], given[before_last:]]
    return functools.partial(command.load(), *given, options)


def defaults_of(command: Command, given: Sequence[str] = (), typed: Sequence[str] = ()) -> Any:
    """The options of a command as they are if none is typed.

    A class of options whose defaults depend on the arguments has a class method `defaults(arguments, options)`. It
    gets what was typed: an empty text where an argument was not, and the words after each option.

    Args:
        command: the verb's entry.
        given: its arguments.
        typed: its options.
    """
    kind = command.option_class()
    if not hasattr(kind, "defaults"):
        return kind()
    return kind.defaults([*given, *[""] * (len(command.arguments) - len(given))], dict(typed_options(typed, [])))


def _positional(command: Command, typed: list[str]) -> tuple[list[str], list[str]]:
    """The arguments, with an empty text for each that was left out, and the words from the first option on."""
    arguments, usage = command.arguments, command.usage
    count = next((i for i, word in enumerate(typed) if word.startswith("-")), len(typed))
    if not command.takes_many:
        count = min(count, len(arguments))
    given, rest = typed[:count], typed[count:]
    if "" in given:
        name = arguments[min(given.index(""), len(arguments) - 1)].called
        raise ConfigError(f"{name} is an empty text, as a shell makes of an unset variable: {usage}")
    needed = [argument for argument in arguments if not argument.is_optional]
    instead = {one.split(" ")[0] for one in command.instead.split("|")}
    replaced = not given and not instead.isdisjoint(f"--{name}" for name, _ in typed_options(rest, []))
    if len(given) < len(needed) and not replaced and not _HELP & set(rest):
        where = "; it comes before the options" if rest else ""
        raise ConfigError(f"{needed[len(given)].called} is missing{where}: {usage}")
    if len(given) <= len(needed):
        words = iter(given)
        given = ["" if argument.is_optional else next(words, "") for argument in arguments]
    _require_known(command, given)
    return given, rest


def _require_known(command: Command, given: list[str]) -> None:
    """Refuses a word that is none of an argument's choices."""
    for word, argument in zip(given, command.arguments, strict=False):
        if word and argument.choices and word not in argument.choices:
            raise ConfigError(f"`palaestra {command.name}` has no {word!r}{did_you_mean(word, argument.choices)}")


def parse(base: T, typed: Sequence[str]) -> T:
    """Options as a dataclass; values are checked as those of files and of Python are.

    Args:
        base: an instance with the defaults.
        typed: the options.

    Raises:
        ConfigError: options are unknown or their values wrong; the message has all of them.
    """
    problems: list[str] = []
    settings = _settings(base, typed, problems)
    try:
        config = config_from_mapping(type(base), settings, base=base)
        if isinstance(base, ExperimentConfig) and type(base) is not ExperimentConfig:  # that of a run which is resumed
            require_workers(config, settings)
        if not problems:
            return config
    except ConfigError as error:
        problems.append(str(error))
    raise ConfigError("\n".join(problems))


def typed_settings(base: Any, typed: Sequence[str]) -> dict[str, Any]:
    """Settings by path, as the options say.

    Args:
        base: an instance with the defaults.
        typed: the options.

    Raises:
        ConfigError: options are unknown or cannot be read; the message has all of them.
    """
    problems: list[str] = []
    settings = _settings(base, typed, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


def _settings(base: Any, arguments: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """Settings by path, as the options say; what cannot be read is added to the problems.

    Of an option that is given again the last counts; lists and mappings add up.
    """
    known, values = _known(base), dict[str, Any]()
    for option, words in typed_options(arguments, problems):
        try:
            path, value = _value(option, words, known)
        except ConfigError as error:
            problems.append(str(error))
            continue
        before = values.get(path)
        if isinstance(value, list) and isinstance(before, list):
            value = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            value = before | value
        values[path] = value
    return values


def _value(option: str, words: list[str], known: Mapping[str, Setting]) -> tuple[str, Any]:
    """The path of the setting that an option means, and its value."""
    name = option.replace("_", "-")
    setting, switch = known.get(name), known.get(re.sub(r"(^|\.)no-(?=[^.]*$)", r"\1", name))
    if setting is None and switch is not None and bool in members_of(switch.hint):
        setting, words = switch, [*words, "false"]
    group, _, entry = name.partition(".")
    try:
        if setting is not None:
            lists = {tuple, list, dict} & {typing.get_origin(one) for one in members_of(setting.hint)}
            if lists and "." not in setting.path and not any(word.strip(", ") for word in words):
                # of a command: it begins empty, so that nobody means to empty it, as one of a preset's
                raise ConfigError("an empty text was given, as a shell makes of an unset variable; give a value")
            is_duration = "duration" in getattr(setting.hint, "__metadata__", ()) and not says_none(words)
            return setting.path, _seconds(words) if is_duration else value_from_words(setting.hint, words)
        mapping = known.get(group)
        if mapping is not None and typing.get_origin(mapping.hint) is dict:  # as of `--space.algorithm.gamma 0.9 1`
            of = typing.get_args(mapping.hint)[1]
            return mapping.path, {entry.replace("-", "_"): None if says_none(words) else value_from_words(of, words)}
    except ConfigError as error:
        raise ConfigError(f"--{option}: {error}") from None
    short = _known(ExperimentConfig()).get(name) if "override" in known else None
    if short is not None or ("." in name and "override" in known):
        typed = f"{short.path if short else name.replace('-', '_')}={','.join(words) or 'VALUE'}"
        raise ConfigError(f"unknown option --{option}; a run that continues takes settings by --override {typed}")
    raise ConfigError(f"unknown option --{option}{meant(name, known, '--{}') or '; --help says which there are'}")


def _seconds(words: list[str]) -> float:
    """A duration, such as 90, 90s, 30m, 2h or 1d, in seconds."""
    match = re.fullmatch(r"(\d+\.?\d*)\s*([a-z]*)", " ".join(words).strip())
    if match is None or match.group(2) not in _UNITS_S or not float(match.group(1)):
        raise ConfigError(f"{' '.join(words)!r} is no duration; give a duration such as 90s, 30m or 2h")
    return float(match.group(1)) * _UNITS_S[match.group(2)]


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
    """Every setting by its option and by the short forms that its field declares.

    The name of a group can stand for one of its settings, as `--algorithm.network` does.
    """
    settings = {setting.path: setting for setting in settings_of(type(base), vars(base))}
    known = {path.replace("_", "-"): setting for path, setting in settings.items() if not setting.is_group}
    for path, (_, _, value) in settings.items():
        if shorthand := getattr(value, "shorthand", None):
            known[path.replace("_", "-")] = settings[f"{path}.{shorthand}"]
    return known | {name.removeprefix("--"): one for name, one in short_names([*settings.values()]).items()}
