"""What a search tries: ranges of settings, found from the bounds and the values of the algorithm's fields."""

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from palaestra.config.config import ExperimentConfig, Setting, config_from_mapping, meant, settings_of
from palaestra.core import ConfigError, Linear, Range, refuses, schedule_range
from palaestra.core.settings import members_of

__all__ = ["Dimension", "search_space"]

_NOT_SEARCHED = {
    *("capacity", "mini_batch_length", "burn_in", "num_critics", "rho_clip", "trace_clip", "action_chunk"),
    *("num_dropped", "target_std"),
}
"""Sizes that decide about memory, or that are for networks with memory alone, and those that bound others or cannot be
had beside them; a path in `space` searches them."""


@dataclass(frozen=True)
class Dimension:
    """One number that is searched."""

    path: str
    """The setting; `.start`, `.end` or `.fraction` after it is that number of a linear schedule."""
    scale: Literal["linear", "log", "log_below_one", "power_of_two"]
    """Scale on which it is drawn; `log_below_one` draws 1 - x on a log scale, as discounts need it."""
    low: float
    """Lowest value."""
    high: float
    """Highest value."""

    def __str__(self) -> str:
        return f"{self.path:<34} {self.low:<10.6g} to {self.high:<10.6g} {self.scale.replace('_', ' ')}"

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value that can be drawn."""
        low, high = self._exponents
        return (2**low, 2**high) if self.scale == "power_of_two" else (self.low, self.high)

    @property
    def _exponents(self) -> tuple[int, int]:
        """Of the lowest and the highest power of two; 0 on other scales."""
        if self.scale != "power_of_two":
            return 0, 0
        return math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))

    def suggest(self, trial: Any) -> float:
        """The trial's value."""
        if self.scale == "power_of_two":
            return 2 ** int(trial.suggest_int(self.path, *self._exponents))
        if self.scale == "log_below_one":
            return 1 - float(trial.suggest_float(self.path, 1 - self.high, 1 - self.low, log=True))
        return float(trial.suggest_float(self.path, self.low, self.high, log=self.scale == "log"))

    def stored(self, value: float) -> float:
        """What Optuna keeps for a value, or for the nearest that can be drawn.

        Args:
            value: of the setting.
        """
        value = min(max(value, self.low), self.high)
        if self.scale == "power_of_two":
            low, high = self._exponents
            return min(max(round(math.log2(value)), low), high)
        return 1 - value if self.scale == "log_below_one" else value

    def at(self, share: float) -> float:
        """The value at a share of the range, on its scale.

        Args:
            share: in [0, 1].
        """
        if self.scale == "linear":
            return self.low + share * (self.high - self.low)
        if self.scale == "log_below_one":
            return 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** share
        value = self.low * (self.high / self.low) ** share
        return 2.0 ** round(math.log2(value)) if self.scale == "power_of_two" else value

    def times(self, value: float, factor: float) -> float:
        """A value multiplied, or 1 - x of a discount, within the range.

        Args:
            value: of the setting.
            factor: what it is multiplied by.
        """
        value = 1 - (1 - value) * factor if self.scale == "log_below_one" else value * factor
        return min(max(value, self.low), self.high)

    def between(self, low: float, high: float) -> Self:
        """The same setting in another range.

        Raises:
            ConfigError: there is no range, or the scale cannot have it.
        """
        least = {"linear": -math.inf, "log_below_one": 0, "log": math.ulp(0), "power_of_two": 1}[self.scale]
        most = 1 - 1e-9 if self.scale == "log_below_one" else math.inf
        if not (least <= low < high <= most and high < math.inf and low > -math.inf):
            raise ConfigError(
                f"the space of {self.path} is {low} to {high}; give a lower and a higher number that fit its scale, "
                f"{self.scale.replace('_', ' ')}, such as {self.low:g} {self.high:g}"
            )
        changed = dataclasses.replace(self, low=low, high=high)
        if changed.ends[0] > changed.ends[1]:
            raise ConfigError(f"the space of {self.path} is {low} to {high}, which holds no power of two")
        return changed


def setting_path(text: str) -> str:
    """The path that is meant, with `-` of the command line or `__` of Python in it.

    Args:
        text: as a user wrote it.
    """
    return text.replace("__", ".").replace("-", "_")


def search_space(
    config: ExperimentConfig, changes: Mapping[str, Sequence[float] | None] | None = None
) -> tuple[Dimension, ...]:
    """The numbers of the algorithm that a search tries, around the values they have.

    Rates and coefficients are searched from a tenth to ten times their value, and sizes from a quarter to four times
    theirs by powers of two. Shares and discounts of at least 0.5 are searched by 1 - x, from a tenth to ten times it;
    of linear schedules, the ends and the fraction. Switches, networks, `capacity`, `num_critics`, lengths of sequences,
    V-trace's bounds and what is 0 or left out are not searched.

    Args:
        changes: by path, with `__` or dots: (lowest, highest) instead of a range or of a setting that is not searched
            by default; `None` does not search it.

    Raises:
        ConfigError: a path is no number of the configuration, or a range is none.

    Examples:
        >>> [str(one).split()[0] for one in search_space(ExperimentConfig())][:2]
        ['algorithm.learning_rate', 'algorithm.unroll_length']
    """
    settings = {one.path: one for one in settings_of(ExperimentConfig, vars(config))}
    possible = {one.path: one for setting in settings.values() for one in _dimensions(setting, config)}
    own: Any = config.algorithm
    unused = [*own.idle]
    remembers = getattr(getattr(own, "network", None), "recurrent", None) is not None
    if (remembers or getattr(getattr(own, "bonus", None), "kind", None)) and getattr(own, "n_step", None) == 1:
        unused.append("n_step")  # more would be refused
    if getattr(own, "num_epochs", None) is not None:
        unused.append("gradient_steps")
    chosen = {
        path: one
        for path, one in possible.items()
        if path.startswith("algorithm.") and _is_default(path.removeprefix("algorithm."), unused)
    }
    for path, ends in (changes or {}).items():
        path = setting_path(path)
        if path not in possible:
            inside = [one for one in possible if one.startswith(f"{path}.")]
            near = "" if path in settings else meant(path, settings, "space.{}")
            there = near or f"; there are: {', '.join(f'space.{one}' for one in inside or possible)}"
            raise ConfigError(f"space.{path} is no number that can be searched{there}")
        if ends is None:
            chosen.pop(path, None)
        elif len(ends) != 2:
            raise ConfigError(f"space.{path} is {list(ends)}; give the lowest and the highest value, or none")
        else:
            chosen[path] = possible[path].between(*ends)
    if not chosen:
        raise ConfigError("nothing is searched; give a path with its lowest and highest value")
    return tuple(chosen.values())


@refuses(ConfigError)
def require_comparable(config: ExperimentConfig, space: Sequence[Dimension]) -> Iterator[str]:
    """Refuses ranges in which trials would fail, or that make them trials of other tasks.

    Both ends of each are tried, with the rest as it is. What only does not fit the rest may fit other draws.

    Args:
        config: that the search begins from.
        space: what it tries.

    Raises:
        ConfigError: an end is beyond the bounds of its setting, or changes what a return is of.
    """
    hints = {one.path: one.hint for one in settings_of(ExperimentConfig, vars(config))}
    for one in space:
        given = f"space.{one.path} is {one.low:g} to {one.high:g}"
        for end in one.ends:
            try:
                tried = with_values(config, {one.path: end})
            except ConfigError as error:
                if _is_out_of_bounds(config, one.path, end, hints):
                    yield f"{given}, but {error}; give a range whose ends the setting can have"
                continue
            if tried.env.task != config.env.task:
                yield (
                    f"{given}, but returns of {tried.env.task} and of {config.env.task} cannot be compared; give "
                    f"{one.path} one value for all trials, and leave it out of the space"
                )


def _is_out_of_bounds(config: ExperimentConfig, path: str, value: float, hints: Mapping[str, Any]) -> bool:
    """Whether a setting cannot have a value, whatever the others are."""
    try:
        ((setting, made),) = settings_with(config, {path: value}).items()
    except ConfigError:  # the fraction of a schedule
        return True
    bounds = [entry for entry in _metadata(hints[setting]) if isinstance(entry, Range)]
    return any(one.needed(*schedule_range(made)) for one in bounds)


def first_values(config: ExperimentConfig, space: Sequence[Dimension]) -> dict[str, float]:
    """The values of a configuration.

    Args:
        config: that the search begins from.
        space: what it tries.
    """
    known = {one.path: one.value for one in settings_of(ExperimentConfig, vars(config))}
    found: dict[str, float] = {}
    for one in space:
        group, _, part = one.path.rpartition(".")
        schedule = known.get(group)
        found[one.path] = getattr(schedule, part) if isinstance(schedule, Linear) else known[one.path]
    return found


def settings_with(config: ExperimentConfig, values: Mapping[str, float]) -> dict[str, Any]:
    """The settings, by path, that a trial's numbers make: those of a schedule are one.

    Args:
        config: that the search begins from.
        values: by path, as in `Dimension`.
    """
    settings: dict[str, Any] = {}
    known = {one.path: one for one in settings_of(ExperimentConfig, vars(config))}
    for path, value in values.items():
        group, _, part = path.rpartition(".")
        schedule = settings.get(group, known[group].value if group in known else None)
        if isinstance(schedule, Linear):
            settings[group] = dataclasses.replace(schedule, **{part: value})
        else:
            settings[path] = value
    return settings


def with_values(config: ExperimentConfig, values: Mapping[str, float]) -> ExperimentConfig:
    """The configuration with what a trial has drawn.

    Args:
        values: see `settings_with`.
    """
    return config_from_mapping(ExperimentConfig, settings_with(config, values), base=config)


def _is_default(name: str, unused: Sequence[str]) -> bool:
    """Whether a setting of the algorithm is searched unasked: its own, no group's, and used."""
    field, _, part = name.partition(".")
    return field not in _NOT_SEARCHED and field not in unused and part in ("", "end", "fraction", "start")


def _dimensions(setting: Setting, config: ExperimentConfig) -> list[Dimension]:
    """What of a setting can be searched, around its value."""
    value, path = setting.value, setting.path
    if setting.is_group or path.startswith(("run.", "trainer.", "distributed.")):
        return []
    bounds = [entry for entry in _metadata(setting.hint) if isinstance(entry, Range)]
    ends = [entry.le if entry.lt is None else entry.lt for entry in bounds]
    top = min([end for end in ends if end is not None], default=math.inf)
    bottom = max([max(entry.ge or 0.0, 1.01 * (entry.gt or 0.0)) for entry in bounds], default=0.0)
    if isinstance(value, Linear):
        parts = [_around(f"{path}.{part}", getattr(value, part), bottom, top) for part in ("start", "end")]
        moving = [one for one in parts if one is not None and value.start != value.end]
        return [one for one in moving if one.high > one.low] + [Dimension(f"{path}.fraction", "linear", 0.05, 1.0)]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return []
    whole = int in members_of(setting.hint) or (isinstance(value, int) and float not in members_of(setting.hint))
    if whole or path.endswith("unroll_length"):
        most = max(2, config.trainer.total_env_steps // 4)
        exponent = round(math.log2(value))
        low, high = max(0, exponent - 2), min(exponent + 2, int(math.log2(min(most, top))))
        return [Dimension(path, "power_of_two", 2**low, 2**high)] if low < high else []
    found = _around(path, float(value), bottom, top) if bounds or path.startswith("algorithm.") else None
    return [] if found is None else [found]


def _around(path: str, value: float, bottom: float, top: float) -> Dimension | None:
    """A range around a value that is above 0, at least `bottom` and at most `top`; `None` where it has none."""
    if not 0 < value <= top or value in (bottom, top):
        return None
    if top == 1 and value >= 0.5:
        return Dimension(path, "log_below_one", 1 - min(0.5, 10 * (1 - value)), 1 - (1 - value) / 10)
    return Dimension(path, "log", max(bottom, value / 10), min(top, value * 10))


def _metadata(hint: Any) -> list[Any]:
    """Annotations of a type, or of a member of a union."""
    own = list(getattr(hint, "__metadata__", ()))
    return own + [entry for member in typing.get_args(hint) if member is not hint for entry in _metadata(member)]
