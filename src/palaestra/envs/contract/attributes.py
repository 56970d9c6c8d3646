"""Attributes of environments that are set while they are stepped: difficulties, goals, what a curriculum changes."""

import contextlib
import inspect
import json
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from palaestra.core import ConfigError, EnvError, did_you_mean
from palaestra.envs.contract.environment import EnvironmentWrapper, SingleEnvironment
from palaestra.envs.supervision.faults import FaultPolicy, Incident
from palaestra.envs.supervision.watchdog import Watched

_log = logging.getLogger(__name__)
_stepped: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}  # by the id of an environment: itself, and by whom


class Found(NamedTuple):
    """An attribute of one environment."""

    there: bool
    """Whether a layer has it."""
    value: Any
    """What it is; the names that there are, if there is none."""


class Attributed(Watched):
    """A driver's calls of its environments, and what was set in each: environments made again have it, too.

    Args:
        faults: has the timeouts.
        first_id: number in messages of the environment in lane 0.
        cursor: element 0 is set to the lane of a call.
        watched: whether hangs are looked for here.
    """

    envs: list[Any]

    def __init__(self, faults: FaultPolicy, first_id: int, cursor: np.ndarray | None, *, watched: bool) -> None:
        super().__init__(faults, first_id, cursor, watched=watched)
        self._attributes: dict[int, dict[str, Any]] = {}

    def attributes(self, name: str, lanes: Sequence[int]) -> list[Found] | Incident:
        """See `Driver.attributes`.

        Args:
            lanes: whose.
        """
        found: list[Found] = []
        for lane in lanes:
            try:
                found.append(self.call(lane, find_attribute, layers_of(self.envs[lane]), name))
            except BaseException as error:
                return Incident(self.failure(lane, error))
        return found

    def set_attributes(self, given: Mapping[int, Mapping[str, Any]]) -> Incident | None:
        """See `Driver.set_attributes`.

        Args:
            given: by lane and name.
        """
        for lane, attributes in given.items():
            self._attributes[lane] = {**self._attributes.get(lane, {}), **attributes}
            try:
                self.call(lane, write_attributes, layers_of(self.envs[lane]), attributes)
            except BaseException as error:
                return Incident(self.failure(lane, error))
        return None

    def _claim(self) -> None:
        for lane, env in enumerate(self.envs):
            claim(self, layers_of(env), self.first_id + lane)

    def _remade(self, lane: int, make: Callable[[], SingleEnvironment]) -> SingleEnvironment:
        again = remake(self.envs[lane], make)
        write_attributes(layers_of(again), self._attributes.get(lane, {}))
        return again


class SharedAttributes:
    """Attributes of environments that are stepped as one: set at once, in all of them, and saved with them."""

    batch_size: int
    _given: dict[str, Any] | None = None
    _before: dict[str, Any] | None = None

    @property
    def given_attributes(self) -> dict[str, Any] | None:
        """What was set; another object after each change."""
        return self._given

    def set_attr(self, name: str, value: Any, lanes: Sequence[int] | None = None) -> None:
        """Changes an attribute of all environments, at once; saved, and set again when they are restored.

        Args:
            value: a JSON value.
            lanes: `None`: these environments are one.

        Raises:
            ConfigError: there is no such attribute, single lanes are meant, or the value cannot be saved.
        """
        value = as_json(name, value)
        if lanes is not None:
            raise ConfigError(
                f"{type(self).__name__} steps all lanes as one, and they share their attributes; leave lanes out"
            )
        before = self.get_attr(name)[0]
        self._before = {name: before, **(self._before or {})}
        self._given = {**(self._given or {}), name: value}
        self._write(name, value)

    def get_attr(self, name: str, lanes: Sequence[int] | None = None) -> list[Any]:
        """What an attribute is, once for each environment.

        Args:
            lanes: of which environments; all by default.

        Raises:
            ConfigError: there is no such attribute or lane.
        """
        chosen = require_lanes(lanes, self.batch_size)
        return require_found(name, chosen, [self._read(name)] * len(chosen))

    def _read(self, name: str) -> Found:
        return find_attribute(layers_of(self), name)

    def _write(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def _attributes_text(self) -> dict[str, str]:
        """What was set, as an entry of a state; none if nothing was."""
        return {"attributes": json.dumps(self._given)} if self._given else {}

    def _load_attributes(self, state: Mapping[str, Any]) -> None:
        """Sets what a state has of `_attributes_text`, and puts what it has not back to what it was."""
        given: dict[str, Any] = json.loads(state.get("attributes", "{}"))
        self._given = given
        for name, value in {**(self._before or {}), **given}.items():
            self._before = {name: self.get_attr(name)[0], **(self._before or {})}
            self._write(name, value)


def remake(env: SingleEnvironment, make: Callable[[], SingleEnvironment]) -> SingleEnvironment:
    """The same environment made again, with what its layers carried into the episode in which it failed.

    Args:
        env: the outermost layer; it is closed.
        make: makes the same layers.
    """
    with contextlib.suppress(Exception):
        env.close()
    return with_carried(make(), env.carried, make)


def with_carried(
    env: SingleEnvironment, carried: Mapping[str, Any] | None, make: Callable[[], SingleEnvironment]
) -> SingleEnvironment:
    """An environment with what its layers carried into an episode, or another one, with a warning, if that fails.

    Args:
        env: that was just made.
        carried: by layer; nothing if they carried nothing.
        make: makes the same layers.
    """
    if carried:
        try:
            env.load_carried_state(dict(carried))
        except Exception as error:
            _log.warning(
                "what the wrappers of environment %d carried from earlier episodes (%s) is lost: %s: %s",
                env.env_id, ", ".join(carried), type(error).__name__, error,
            )  # fmt: skip
            with contextlib.suppress(Exception):
                env.close()
            return make()
    return env


def claim(stepper: object, layers: Sequence[Any], number: int) -> None:
    """Notes who steps an environment, until `release`.

    Args:
        stepper: steps it.
        layers: of the environment, the outermost first.
        number: of the environment, in messages.

    Raises:
        ConfigError: the same object is stepped already, and each stepper would be in the episodes of the other.
    """
    inner = layers[-1]
    if (there := _stepped.get(id(inner))) and there[0]() is inner and there[1]() is not None:
        raise ConfigError(
            f"environment {number} is the same {type(inner).__name__} as one that is stepped already and was not "
            "closed; make a new one in each call, or give the object itself, of which each steps a copy"
        )
    with contextlib.suppress(TypeError):  # it cannot be referred to weakly
        _stepped[id(inner)] = weakref.ref(inner), weakref.ref(stepper)


def release(stepper: object) -> None:
    """Forgets what somebody steps.

    Args:
        stepper: see `claim`.
    """
    for key in [key for key, (_, by) in [*_stepped.items()] if by() in (stepper, None)]:
        _stepped.pop(key, None)


def as_json(name: str, value: Any) -> Any:
    """A value as a checkpoint gives it back: tuples are lists, keys are text.

    Args:
        value: that is to be set.

    Raises:
        ConfigError: it cannot be saved.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the attribute {name!r} is to be {value!r}, which a checkpoint cannot hold ({error}); give numbers, "
            "texts, booleans, None, or lists and dicts of these"
        ) from None


def require_lanes(lanes: Sequence[int] | None, count: int) -> list[int]:
    """The lanes that are meant.

    Args:
        lanes: their numbers; `None` for all.
        count: how many there are.

    Raises:
        ConfigError: there is no such lane.
    """
    chosen = list(range(count)) if lanes is None else [int(lane) for lane in lanes]
    if odd := [lane for lane in chosen if not 0 <= lane < count]:
        raise ConfigError(
            f"lanes is {list(lanes or ())} and there is no environment {odd[0]}: there are {count}, from 0"
        )
    return chosen


def require_found(name: str, lanes: Sequence[int], found: Sequence[Found]) -> list[Any]:
    """The values of an attribute.

    Args:
        name: of it.
        lanes: whose.
        found: one for each.

    Raises:
        ConfigError: one has no such attribute.
    """
    for lane, one in zip(lanes, found, strict=True):
        if not one.there:
            hint = did_you_mean(name, one.value) if one.value else ""
            raise ConfigError(
                f"environment {lane} has no attribute {name!r}{hint}; give the environment, or a wrapper around it, "
                "one of that name when it is made"
            )
    return [one.value for one in found]


def find_attribute(layers: Sequence[Any], name: str) -> Found:
    """An attribute of the outermost layer that has it; what a layer only passes on from further in is not its own.

    Args:
        layers: of one environment, the outermost first.
    """
    layer = _owner(layers, name)
    if layer is None:
        return Found(False, [key for layer in layers for key in vars(layer) if not key.startswith("_")])
    return Found(True, getattr(layer, name))


def write_attributes(layers: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Sets attributes, each of the outermost layer that has it.

    Args:
        layers: of one environment, the outermost first.
        attributes: by name.

    Raises:
        EnvError: no layer has one of them.
    """
    for name, value in attributes.items():
        layer = _owner(layers, name)
        if layer is None:
            raise EnvError(f"the environment has no attribute {name!r} any more, which was to become {value!r}")
        setattr(layer, name, value)


def _owner(layers: Sequence[Any], name: str) -> Any:
    none = object()
    return next((layer for layer in layers if inspect.getattr_static(layer, name, none) is not none), None)


def layers_of(env: Any) -> list[Any]:
    """All layers of an environment, the outermost first."""
    layers: list[Any] = []
    while env is not None:
        layers.append(env)
        inner = "env" if isinstance(env, EnvironmentWrapper | gymnasium.Wrapper) else "gym_env"
        env = getattr(env, inner, None) if isinstance(env, SingleEnvironment | gymnasium.Wrapper) else None
    return layers


def limit_of_layers(env: Any) -> int:
    """Most steps of an episode by the layers of a batch's environments; 0 where one has no limit, or none is here.

    Args:
        env: a batch.
    """
    limits: list[int] = []
    for lane in getattr(getattr(env, "driver", None), "envs", ()):
        layers = [vars(layer) for layer in layers_of(lane) if type(layer).__name__ == "TimeLimit"]
        found = [layer.get("duration") or layer.get("_max_episode_steps") or 0 for layer in layers]
        limits.append(min(filter(None, found), default=0))
    return max(limits, default=0) if all(limits) else 0


INSTEAD = {
    "NormalizeObservation": "--algorithm.normalize-observation true, which is part of the policy",
    "NormalizeReward": "--env.train-wrappers NormalizeReward",
}
"""Gymnasium's wrappers whose statistics no checkpoint has, and what takes their place."""


def require_known_layers(name: str, env: Any, limit: int | None) -> None:
    """Refuses layers of Gymnasium's inside an environment that was given, which the settings are not told of.

    Args:
        name: of the environment.
        env: it.
        limit: the time limit that is asked for.

    Raises:
        ConfigError: one keeps statistics, or ends episodes before the limit.
    """
    for layer in layers_of(env):
        kind = type(layer).__name__ if type(layer).__module__.startswith("gymnasium.wrappers.") else ""
        if kind in INSTEAD and getattr(layer, "update_running_mean", True):
            raise ConfigError(
                f"{name!r} has Gymnasium's {kind} inside, whose statistics no checkpoint has and evaluations would "
                f"begin without; take it off, and give {INSTEAD[kind]}"
            )
        inner = getattr(layer, "_max_episode_steps", None) if kind == "TimeLimit" else None
        if limit is not None and inner is not None and (limit == 0 or inner < limit):
            raise ConfigError(
                f"env.max_episode_steps is {limit}, but {name!r} has a time limit of {inner} inside, which would end "
                "episodes before; make it without (gymnasium.make(ID, max_episode_steps=-1)), or give its id"
            )
