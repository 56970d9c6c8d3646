"""Settings that change over a run: a function of the env steps taken so far."""

import itertools
import math
import re
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from palaestra.core.errors import ConfigError

__all__ = ["Linear", "Piecewise", "Schedule", "parse_schedule", "schedule_range", "schedule_value", "scheduled_values"]

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
        """Value at a point of the run, in [0, 1]."""
        for (x0, y0), (x1, y1) in itertools.pairwise(self.points):
            if progress < x1:
                return y0 + (y1 - y0) * (max(0.0, progress) - x0) / (x1 - x0)
        return self.points[-1][1]

    def turned(self, progress: float, value: float) -> "Piecewise":
        """The same before a point of the run, and a value from there on.

        Args:
            progress: of that point, in [0, 1].
            value: of the schedule from there on.

        Examples:
            >>> halved = Piecewise(((0.0, 1.0),)).turned(0.5, 0.5)
            >>> halved(0.4999), halved(0.5), halved(1.0)
            (1.0, 0.5, 0.5)
        """
        if progress <= 0:
            return Piecewise(((0.0, value),))
        before = math.nextafter(progress, 0.0)
        kept = tuple(point for point in self.points if point[0] < before)
        return Piecewise((*kept, (before, self(before)), (progress, value)))

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


def schedules_of(config: Any) -> dict[str, Linear | Piecewise]:
    """The fields of a configuration that follow a schedule, by name."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in values.items() if isinstance(value, Linear | Piecewise)}


def scheduled_values(config: Any, progress: float) -> dict[str, float]:
    """What the fields of a configuration that follow a schedule have come to, by name."""
    return {name: schedule(progress) for name, schedule in schedules_of(config).items()}


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
