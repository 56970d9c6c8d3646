"""Settings whose types say what they may be: ranges of numbers, choices, and the check of a whole configuration.

It knows nothing of what a setting is for, nor where it was read from.
"""

import functools
import math
import numbers
import operator
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from palaestra.core.errors import ConfigError
from palaestra.core.schedule import Linear, Piecewise, Schedule, schedule_range

__all__ = [
    "AboveOne",
    "Annealed",
    "AtLeastOne",
    "Duration",
    "Finite",
    "Fraction",
    "InsideFraction",
    "Limit",
    "NotNegative",
    "Positive",
    "Range",
    "require_ranges",
]

_T = TypeVar("_T")


class Range(NamedTuple):
    """The numbers that a setting takes, as an annotation of its type: `Annotated[int, Range(ge=2)]`."""

    gt: float | None = None
    """They are greater than this."""
    ge: float | None = None
    """They are at least this."""
    lt: float | None = None
    """They are less than this."""
    le: float | None = None
    """They are at most this."""
    infinite: bool = False
    """Whether infinity is allowed."""
    ends: bool = False
    """Whether a schedule may begin or end at `gt`."""
    note: str = ""
    """What a message says besides, such as the unit."""

    def needed(self, least: float, most: float) -> str:
        """What numbers from `least` to `most` must do; empty where they are in the range."""
        from_ = most if self.ends else least
        bounds = ((operator.gt, from_, self.gt), (operator.ge, least, self.ge), (operator.lt, most, self.lt))
        inside = all(bound is None or compare(end, bound) for compare, end, bound in bounds)
        if not inside or (self.le is not None and not most <= self.le) or (self.ends and least < (self.gt or 0)):
            return str(self)
        return "" if self.infinite or math.isfinite(least + most) else "be finite"

    def __str__(self) -> str:
        """The range in words."""
        low, high = self.ge if self.gt is None else self.gt, self.le if self.lt is None else self.lt
        if low is None or high is None:
            text = "be finite" if low is None else f"be {'at least' if self.gt is None else 'greater than'} {low}"
        elif self.gt is None:
            text = f"lie in [{low}, {high}]"
        else:
            text = f"be above {low} and {'at most' if self.lt is None else 'below'} {high}"
        return text + (f", where a schedule may end at {low}" if self.ends else "") + self.note


Finite: TypeAlias = Annotated[_T, Range()]
"""A number, or a schedule of numbers, that is not infinite. Those of the ranges below are finite, too."""
Limit: TypeAlias = Annotated[_T, Range(gt=0, infinite=True)]
"""A limit greater than 0; infinity is none."""
Duration: TypeAlias = Annotated[_T, Range(ge=0, infinite=True)]
"""A time of at least 0; infinity is for ever."""
Positive: TypeAlias = Annotated[_T, Range(gt=0)]
"""A setting greater than 0: `num_epochs: Positive[int]`; a schedule must stay there."""
AtLeastOne: TypeAlias = Annotated[_T, Range(ge=1)]
"""A number of things of which there must be one."""
NotNegative: TypeAlias = Annotated[_T, Range(ge=0)]
"""A setting of at least 0."""
AboveOne: TypeAlias = Annotated[_T, Range(gt=1)]
"""A setting greater than 1."""
Fraction: TypeAlias = Annotated[_T, Range(ge=0, le=1)]
"""A setting in [0, 1]."""
InsideFraction: TypeAlias = Annotated[_T, Range(gt=0, lt=1)]
"""A setting between 0 and 1, both excluded."""
Annealed: TypeAlias = Annotated[_T, Range(gt=0, ends=True)]
"""A setting greater than 0; a schedule may begin or end at 0."""


def require_ranges(settings: Any, prefix: str, misfits: Iterable[str] = ()) -> None:
    """Refuses settings that are not what their types say, and those that do not fit together.

    Args:
        settings: a dataclass; `None` is in every range.
        prefix: of their names in the message, such as `"run."`.
        misfits: what does not fit together; looked at where every setting for itself is right.

    Raises:
        ConfigError: has all that are of another type, out of range, no choice; or all misfits.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Walk:
        ...     steps: AtLeastOne[int] = 1
        ...     pace: Literal["slow", "fast"] = "slow"
        ...     def __post_init__(self) -> None:
        ...         require_ranges(self, "walk.")
        >>> Walk(steps=0, pace="fats")
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: walk.steps is 0; it must be at least 1
        walk.pace is 'fats'; it must be slow or fast
    """
    values = [(name, getattr(settings, name), whole, rule) for name, whole, rule in _rules(type(settings))]
    wrong = [
        f"{prefix}{name.replace('_', '-') if prefix == '--' else name} is {value!r}; it must {needed}"
        for name, value, whole, rule in values
        if value is not None and (needed := _needed(value, whole, rule))
    ]
    if problems := wrong or list(misfits):
        raise ConfigError("\n".join(problems))


@functools.cache
def _rules(kind: type[Any]) -> list[tuple[str, bool, Range | tuple[Any, ...] | None]]:
    """Names of fields whose types say what they may be, whether they are whole, and their range or choices.

    A schedule without a range is finite; `None` in the place of a range is for lists.
    """
    found: list[tuple[str, bool, Range | tuple[Any, ...] | None]] = []
    hints = typing.get_type_hints(kind, include_extras=True)
    for name in kind.__dataclass_fields__:
        ranges = [entry for entry in getattr(hints[name], "__metadata__", ()) if isinstance(entry, Range)]
        members = [member for member in members_of(hints[name]) if member is not type(None)]
        if ranges:
            found.append((name, int in members and float not in members, ranges[0]))
        elif {Linear} < {*members} <= {int, float, Linear, Piecewise}:
            found.append((name, False, Range()))
        elif all(typing.get_origin(member) is tuple for member in members):
            found.append((name, False, None))
        elif all(typing.get_origin(member) is Literal for member in members):
            found.append((name, False, tuple(choice for member in members for choice in typing.get_args(member))))
    return found


def overrides(kind: type, names: Sequence[str], others: Sequence[str]) -> list[str]:
    """The methods that a class has from further out than what was said of them.

    Args:
        kind: the class.
        names: of the methods.
        others: names of what goes with them, which the class has; the outermost counts.

    Examples:
        >>> class Inner:
        ...     checked = True
        ...     def act(self): ...
        >>> class Outer(Inner):
        ...     def act(self): ...
        >>> overrides(Inner, ["act"], ["checked"]), overrides(Outer, ["act"], ["checked"])
        ([], ['act'])
    """
    depth = {name: number for number, base in enumerate(reversed(kind.__mro__)) for name in vars(base)}
    return [name for name in names if depth.get(name, -1) > max(depth[other] for other in others)]


@functools.cache
def members_of(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, whatever annotates it.

    Examples:
        >>> members_of(int | None)
        (<class 'int'>, <class 'NoneType'>)
    """
    if typing.get_origin(hint) is Annotated:
        return members_of(typing.get_args(hint)[0])
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _needed(value: Any, whole: bool, rule: Range | tuple[Any, ...] | None) -> str:
    """What a setting must do, if it does not."""
    if rule is None:
        return "" if isinstance(value, list | tuple) else f"be a list, such as {[value]}"
    if not isinstance(rule, Range):
        *others, last = map(str, rule)
        return "" if value in rule else f"be {', '.join(others)} or {last}"
    needed = "be a number" + (", or an object such as Linear(1e-3, 0)" if "(" in f"{value}" else "")
    is_number = isinstance(value, numbers.Real | Linear | Piecewise) and not isinstance(value, bool)
    if whole and not (is_number and isinstance(value, numbers.Integral)):
        return "be a whole number" + (f" of {str(rule).removeprefix('be ')}" if rule.ge is not None else "")
    return rule.needed(*schedule_range(typing.cast("Schedule", value))) if is_number else needed
