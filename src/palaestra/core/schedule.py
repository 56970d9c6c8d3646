"""Settings that change over a run: a function of the env steps taken so far."""

import functools
import itertools
import math
import numbers
import re
import typing
from dataclasses import dataclass
from typing import Any, TypeAlias

from palaestra.core.errors import ConfigError

__all__ = ["Linear", "Piecewise", "Schedule", "parse_schedule", "schedule_range", "schedule_value"]

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def _require_finite(kind: str, *values: float) -> None:
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"a {kind} schedule was given the values {list(values)}; they must be finite numbers")


def _exact(value: float) -> str:
    """The shortest text that reads back as the same number, so that a saved configuration means what it meant."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


@dataclass(frozen=True)
class Linear:
    """Goes from `start` to `end` in a straight line over the first part of a run, then stays."""

    start: float
    """Value at env step 0."""
    end: float
    """Value from the end of that part on."""
    fraction: float = 1.0
    """How much of the run it takes, in (0, 1]."""

    def __post_init__(self) -> None:
        _require_finite("linear", self.start, self.end)
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"a linear schedule was given fraction {self.fraction}; it must lie in (0, 1]")

    def __call__(self, progress: float) -> float:
        """Value at a point of the run.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        done = min(1.0, max(0.0, progress) / self.fraction)
        return self.end if done == 1 else self.start + (self.end - self.start) * done

    def __str__(self) -> str:
        last = "" if self.fraction == 1 else f", {_exact(self.fraction)}"
        return f"linear({_exact(self.start)}, {_exact(self.end)}{last})"


@dataclass(frozen=True)
class Piecewise:
    """Straight lines between points: MARO's multi-phase linear schedule."""

    points: tuple[tuple[float, float], ...]
    """(progress, value) pairs with progress rising from 0."""

    def __post_init__(self) -> None:
        steps = [point[0] for point in self.points]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)) or not steps[-1] <= 1:
            raise ConfigError(f"piecewise schedule points lie at {steps}; they must rise from 0 to at most 1")
        _require_finite("piecewise", *(point[1] for point in self.points))

    def __call__(self, progress: float) -> float:
        """Value at a point of the run.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        for (x0, y0), (x1, y1) in itertools.pairwise(self.points):
            if progress < x1:
                return y0 + (y1 - y0) * (max(0.0, progress) - x0) / (x1 - x0)
        return self.points[-1][1]

    def __str__(self) -> str:
        return f"piecewise({', '.join(f'{_exact(x)}: {_exact(y)}' for x, y in self.points)})"


Schedule: TypeAlias = float | Linear | Piecewise
"""A number, or a function of progress in [0, 1]."""


def schedule_value(schedule: Schedule, progress: float) -> float:
    """The value of a schedule.

    Args:
        schedule: a number stays what it is.
        progress: env steps taken divided by the run's total, in [0, 1].

    Examples:
        >>> schedule_value(Linear(1.0, 0.0, fraction=0.5), 0.25), schedule_value(3e-4, 0.9)
        (0.5, 0.0003)
    """
    return schedule(progress) if isinstance(schedule, Linear | Piecewise) else schedule


def schedule_range(schedule: Schedule) -> tuple[float, float]:
    """The least and the greatest value that a schedule takes.

    Args:
        schedule: a number is both.

    Examples:
        >>> schedule_range(Linear(1.0, 0.1)), schedule_range(0.5)
        ((0.1, 1.0), (0.5, 0.5))
    """
    if isinstance(schedule, Piecewise):
        values = [value for _, value in schedule.points]
    else:
        values = [schedule.start, schedule.end] if isinstance(schedule, Linear) else [schedule]
    return min(values), max(values)


def parse_schedule(text: str) -> Schedule:
    """A schedule as typed on a command line or in a configuration file.

    Args:
        text: a number, `linear(start, end)`, `linear(start, end, fraction)` or `piecewise(0: a, 0.5: b)`.

    Raises:
        ConfigError: it is none of these.

    Examples:
        >>> parse_schedule("linear(1e-3, 0)")
        Linear(start=0.001, end=0.0, fraction=1.0)
        >>> parse_schedule("piecewise(0: 1, 0.5: 0.1)")
        Piecewise(points=((0.0, 1.0), (0.5, 0.1)))
    """
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    name, _, rest = text.partition("(")
    arguments = [part.strip() for part in rest.removesuffix(")").split(",")]
    try:
        if name == "linear" and rest.endswith(")") and len(arguments) in (2, 3):
            return Linear(*(float(argument) for argument in arguments))
        if name == "piecewise" and rest.endswith(")"):
            pairs = (argument.split(":") for argument in arguments)
            return Piecewise(tuple((float(x), float(y)) for x, y in pairs))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(
        f"{text!r} is no schedule; give a number, linear(start, end), linear(start, end, fraction) "
        "or piecewise(0: a, 0.5: b)"
    )


# -- ranges of settings

ENDS_AT_ZERO = "be greater than 0, where a schedule may end at 0"
"""What an annotation says of a number that is greater than 0, but for the end of a schedule."""
FINITE = "be finite"
"""What it says of any other number; those in a range are finite, too."""
NO_LIMIT = "may be infinite"
"""What it says of a limit that infinity takes away."""


def range_problems(settings: Any, prefix: str) -> list[str]:
    """Which annotated numbers of a dataclass are of another type than stated there, or out of range.

    Args:
        settings: the dataclass; `None` is in every range.
        prefix: of their names in the messages.
    """
    return [
        f"{prefix}{name} is {value!r}; it must {needed}"
        for name, whole, bounds in _bounds(type(settings))
        if (value := getattr(settings, name)) is not None and (needed := _needed(value, whole, bounds))
    ]


@functools.cache
def _bounds(kind: type[Any]) -> list[tuple[str, bool, tuple[Any, ...]]]:
    """Names of annotated numbers, whether they are whole, and what annotations say of them."""
    hints = typing.get_type_hints(kind, include_extras=True)
    types = {name: _types(hint) for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return [(name, int in of and float not in of, hints[name].__metadata__) for name, of in types.items()]


def _types(hint: Any) -> tuple[Any, ...]:
    """The type that is annotated, or those of a union."""
    inside = typing.get_args(hint)[0]
    return typing.get_args(inside) or (inside,)


def _needed(value: Any, whole: bool, bounds: tuple[Any, ...]) -> str | None:
    """What the values of a setting must be, if they are not."""
    is_number, is_whole = isinstance(value, (numbers.Real, Linear, Piecewise)), isinstance(value, numbers.Integral)
    if not is_number or (whole and not is_whole):
        return "be a whole number" if is_number else "be a number"
    least, most = schedule_range(value)
    if NO_LIMIT not in bounds and (math.isinf(least) or math.isinf(most)):
        return FINITE
    return next(filter(None, (_outside(bound, least, most) for bound in bounds)), None)


def _outside(bound: Any, least: float, most: float) -> str | None:
    """What numbers must be that are out of a range."""
    if bound == FINITE:
        return None if math.isfinite(least + most) else FINITE
    if bound == ENDS_AT_ZERO:
        return None if least >= 0 and most > 0 else ENDS_AT_ZERO
    gt, ge, lt, le = (getattr(bound, name, None) for name in ("gt", "ge", "lt", "le"))
    above = (gt is None or least > gt) and (ge is None or least >= ge)
    if above and (lt is None or most < lt) and (le is None or most <= le):
        return None
    if ge is not None and le is not None:
        return f"lie in [{ge}, {le}]"
    if gt is not None and lt is not None:
        return f"lie between {gt} and {lt}, both excluded"
    if ge is not None:
        return "not be negative" if ge == 0 else f"be at least {ge}"
    return f"be greater than {gt}"
