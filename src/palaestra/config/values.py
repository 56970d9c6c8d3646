"""Single settings: from YAML, Python or the command line to the type that a field asks for."""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import yaml

from palaestra.core import ConfigError, Linear, parse_schedule
from palaestra.core.errors import printable
from palaestra.core.reading import MOST_DIGITS, read_text
from palaestra.core.settings import members_of

__all__ = [
    "closest", "dataclass_of", "foreign_names", "read_yaml", "says_none", "type_name", "value_from_words", "value_of",
]  # fmt: skip

_NEEDED = {
    "int": "a whole number is needed", "float": "a number is needed", "bool": "true or false is needed",
    "string": "a text is needed", "list": "a list is needed", "tuple": "a list is needed",
    "dict": "a mapping of names to values is needed", "none": "null",
}  # fmt: skip
# How alike a misspelt name is; others, such as framework and network, are up to 0.75.
_SIMILAR, _SIMILAR_SHORT = 0.8, 0.7


class Foreign(NamedTuple):
    """What other libraries call a setting."""

    libraries: str
    ours: tuple[str, ...]
    """Our settings, the first that an algorithm has; empty where there is none."""
    note: str
    """What differs, or what to do instead."""


@functools.cache
def foreign_names() -> dict[str, Foreign]:
    """Names of other libraries for our settings: `elsewhere.yaml`."""
    rows = read_yaml(read_text(Path(__file__).with_name("elsewhere.yaml")))
    return {name: Foreign(libraries, tuple(ours.split()), note) for name, (libraries, ours, note) in rows.items()}


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name that an unknown one is probably a misspelling of; `None` where none is close.

    Args:
        name: what was given, with `-` or `_`.
        known: those that there are.

    Examples:
        >>> closest("lerning-rate", ["learning_rate"]), closest("rew_norm", ["layer_norm"])
        ('learning_rate', None)
    """
    names = {option.replace("-", "_"): option for option in known}
    cutoff = _SIMILAR if len(name) > 6 else _SIMILAR_SHORT
    alike = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=cutoff)
    return names[alike[0]] if alike else None


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast


class _Loader(_SafeLoader):
    """YAML in which `1e5` and `3e-4` are numbers, as everywhere else, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base class does, which would take the last of several equal keys."""
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(f"the key {key.value!r} stands twice, in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z"), list("-+.0123456789")
)


def read_yaml(text: str) -> Any:
    """A YAML document.

    Raises:
        yaml.YAMLError: it is none, a key stands twice, a number has more than 40 digits, or aliases make far more of
            it than it is.

    Examples:
        >>> read_yaml("{steps: 1e5, rate: 3e-4}")
        {'steps': 100000.0, 'rate': 0.0003}
    """
    _require_bounded(text)
    return yaml.load(text, Loader=_Loader)


def _require_bounded(text: str) -> None:
    """Refuses a document that is deeper than any of ours, or whose aliases stand for more than 100,000 values."""
    sizes: dict[str, int] = {}
    anchors: list[str | None] = []
    counts = [0]
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            counts.append(0)
        elif isinstance(event, yaml.CollectionEndEvent):
            count = counts.pop()
            sizes[anchors.pop() or ""] = count
            counts[-1] += count
        elif isinstance(event, yaml.AliasEvent):
            counts[-1] += sizes.get(event.anchor, 100_000 if event.anchor in anchors else 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
            if (digits := event.value.lstrip("+-")).isdecimal() and len(digits) > MOST_DIGITS:
                raise yaml.YAMLError(f"it has a number of {len(digits):,} digits; at most {MOST_DIGITS} are read")
            if printable(event.value) != event.value:
                raise yaml.YAMLError(f"{printable(event.value)!r} holds control characters, which no setting has")
        if len(counts) > 50 or counts[-1] >= 100_000:
            raise yaml.YAMLError("it is deeper than 50 levels, holds more than 100,000 values, or contains itself")


def _is_schedule(hint: Any) -> bool:
    return Linear in members_of(hint)


def dataclass_of(hint: Any) -> type[Any] | None:
    """The dataclass of settings that a field holds; `None` where it holds a value, schedules included.

    Args:
        hint: the field's type; `None` may be allowed beside the dataclass.
    """
    found = [member for member in members_of(hint) if dataclasses.is_dataclass(member)]
    return typing.cast("type[Any]", found[0]) if len(found) == 1 else None


def type_name(hint: Any) -> str:
    """A type in the words of a user.

    Examples:
        >>> type_name(int | None), type_name(tuple[int, ...])
        ('int', 'list')
    """
    if _is_schedule(hint):
        return "number or schedule"
    names = []
    for member in members_of(hint):
        origin = typing.get_origin(member)
        if origin is typing.Literal:
            names.append(" or ".join(map(str, typing.get_args(member))))
        elif origin in (tuple, list):
            names.append("list")
        elif member is not type(None):
            names.append(getattr(origin or member, "__name__", str(member)))
    return " or ".join(names)


def value_of(hint: Any, value: Any) -> Any:
    """A value as the type of its field.

    Args:
        value: from YAML or Python; schedules may be text, and a text a path.

    Raises:
        ConfigError: it does not fit; the message says what is needed.

    Examples:
        >>> value_of(int, 1e5), value_of(float, 3), value_of(str, Path("runs/first"))
        (100000, 3.0, 'runs/first')
    """
    value = str(value) if isinstance(value, Path) else value  # of the directory of a run
    if _is_schedule(hint) and isinstance(value, str):
        try:
            return parse_schedule(value)
        except ConfigError as error:  # what was given is said by the caller
            raise ConfigError(str(error).removeprefix(f"{value!r} is no schedule; ")) from None
    if _is_schedule(hint) and isinstance(value, types.FunctionType):
        raise ConfigError("a number is needed, or a schedule as text, such as 'linear(1e-3, 0)'")
    if int in members_of(hint) and isinstance(value, str):
        value = _read(value)
    if isinstance(value, bool) and not {bool, str, Any} & set(members_of(hint)):
        value = "yes" if value else "no"  # YAML reads these as truth values; a number they are not
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError("a number is needed")
    try:
        return _adapter(hint).validate_python(value)
    except pydantic.ValidationError as error:
        reasons = dict.fromkeys(_reason(one) for one in error.errors() if _counts(one))
        raise ConfigError(" or ".join(reasons).replace(" is needed or ", " or ")) from None


@functools.cache
def _adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(hint, config={"arbitrary_types_allowed": True})


def _counts(error: Any) -> bool:
    """Whether a reason says what to do: that `None` would be allowed as well does not."""
    return not error["type"].startswith(("none", "is_instance_of", "dataclass"))


def _reason(error: Any) -> str:
    if error["type"] == "literal_error":
        return f"{error['ctx']['expected']} is needed"
    where = [str(part) for part in error["loc"] if isinstance(part, int)]
    needed = _NEEDED.get(error["type"].split("_")[0])
    if needed is None:
        return f"{error['msg'][0].lower()}{error['msg'][1:]}"
    return needed if not where else f"{needed} at place {int(where[0]) + 1}"


_NONE = ("none", "null")  # as words for no value
_OLD_NUMBER = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


def says_none(words: Sequence[str]) -> bool:
    """Whether words for a value say that there is none.

    Args:
        words: as typed.

    Examples:
        >>> says_none(["None"]), says_none(["null"]), says_none([""])
        (True, True, False)
    """
    return len(words) == 1 and words[0].lower() in _NONE


def value_from_words(hint: Any, words: Sequence[str]) -> Any:
    """A value from what was typed after its option.

    Args:
        words: none for a switch, one for a value, any number for lists (or one with commas); names and values in turn
            for mappings, or one in braces.

    Raises:
        ConfigError: too few or too many words.

    Examples:
        >>> value_from_words(tuple[int, ...], ["64,32"]), value_from_words(dict[str, float], ["g", "9.8"])
        ([64, 32], {'g': 9.8})
        >>> value_from_words(tuple[float | None, ...], ["none", "1"])
        [None, 1]
        >>> value_from_words(dict[str, int | None], ["first", "none"]), value_from_words(dict[str, Any], ['{"a": [1]}'])
        ({'first': None}, {'a': [1]})
        >>> value_from_words(tuple[int, ...], ["[64, 32]"]), value_from_words(tuple[int, ...], ["[]"])
        ([64, 32], [])
        >>> value_from_words(tuple[str, ...], ["ClipReward(minimum=0, maximum=1),FrameStack"])
        ['ClipReward(minimum=0, maximum=1)', 'FrameStack']
    """
    kinds = {typing.get_origin(member) or member: typing.get_args(member) for member in members_of(hint)}
    if str in kinds and len(words) == 1:
        kinds.pop(dict, None)  # a name that stands for a mapping
    for kind, several in _SEVERAL.items():
        if kind in kinds and not words:
            raise ConfigError("a value is needed; an empty text ('') stands for none at all")
        if kind in kinds:
            return several(words, *kinds[kind])
    if bool in kinds and not words:
        return True
    if len(words) != 1:
        given = "none was given" if not words else f"{len(words)} were given: {' '.join(words)}"
        raise ConfigError(f"one value is needed, and {given}")
    return _single(words[0], hint)


def _single(word: str, hint: Any) -> Any:
    kinds = {typing.get_origin(member) or member for member in members_of(hint)}
    if type(None) in kinds and says_none([word]):
        return None
    if {str, typing.Literal, Linear} & kinds or (typing.Any in kinds and not word):
        return word
    if not word:  # which YAML takes for null
        may = ", or none" if type(None) in kinds else ""
        raise ConfigError(f"an empty text was given, as a shell makes of an unset variable; give a value{may}")
    return _read(word)


def _mapping(words: Sequence[str], _: Any, hint: Any) -> dict[str, Any]:
    words = [] if list(words) == [""] else words
    if len(words) == 1 and isinstance(found := _read(words[0]), dict):
        return found
    if len(words) % 2:
        raise ConfigError(f"{words[-1]!r} has no value; give names and values in turn, or one {{name: value}}")
    return {name: _single(value, hint) for name, value in zip(words[::2], words[1::2], strict=True)}


def _list(words: Sequence[str], hint: Any, *_: Any) -> list[Any]:
    items = _items(words[0]) if len(words) == 1 else words
    nested = {list, tuple} & {typing.get_origin(one) for one in members_of(hint)}
    if len(items) == 1 and items[0][:1] == "[" and not nested:
        items = _items(items[0][1:].removesuffix("]"))  # as YAML writes it
    return [_single(item.strip(), hint) for item in items if item.strip()]


_SEVERAL: dict[Any, Callable[..., Any]] = {dict: _mapping, list: _list, tuple: _list}
"""Readers of several words, by the type that they become."""


def _items(word: str) -> list[str]:
    """What commas separate, but for those inside brackets."""
    items, depth = [""], 0
    for letter in word:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return items


def _read(word: str) -> Any:
    if _OLD_NUMBER.fullmatch(word):  # in YAML 1.1 010 is 8, and 1:30 is 90
        return word
    try:
        return read_yaml(word)
    except yaml.YAMLError:
        return word
