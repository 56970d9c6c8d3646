"""`Wrap`: a wrapper and its arguments as one value."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self, final

import gymnasium

from palaestra.core import ConfigError, PalaestraError, did_you_mean, import_maker, importable_name
from palaestra.core.importing import parse_call
from palaestra.envs.contract.environment import EnvironmentWrapper
from palaestra.envs.supervision.faults import describe
from palaestra.envs.wrappers.base import RewardMap, StatefulWrapper
from palaestra.envs.wrappers.episode_ends import EpisodeStatistics

__all__ = ["Wrap"]

STEP_WRAPPERS = "palaestra.envs.wrappers"
"""Where the names of time step wrappers are looked up that come without a module."""
_UNSEEN = (
    "HumanRendering", "NormalizeReward", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "RecordVideo", "RenderCollection", "TimeLimit",
)  # fmt: skip
"""Wrappers of Gymnasium that policies do not notice, besides those of rewards."""
_OF_INPUTS: dict[str, tuple[type, ...]] = {
    "reward": (RewardMap, gymnasium.RewardWrapper, gymnasium.wrappers.NormalizeReward),
    "env_info": (EpisodeStatistics, gymnasium.wrappers.RecordEpisodeStatistics),
}
"""Those that only a policy notices which reads this field of a time step, by its name in `EnvConfig.inputs`."""
GYM_WRAPPERS = "gymnasium.wrappers"
"""The same for Gymnasium wrappers."""


@final
class Wrap:
    """A wrapper and its arguments, to be put around an environment later, in whatever process.

    Two with the same name and arguments are equal. The text form, on the command line and in files, is a call:
    `FrameStack(num_frames=4)`, or `my_package:MyWrapper(gain=2.0)` for a wrapper of your own.

    Args:
        wrapper: a class or function that takes the inner layer first, or its name; a name without a module is one of
            the library's own.
        kwargs: its other arguments.

    Raises:
        ConfigError: the library has no such wrapper, or it does not take these arguments.

    Examples:
        >>> from palaestra.envs.wrappers import FrameStack
        >>> Wrap(FrameStack, num_frames=2) == Wrap.parse("FrameStack(num_frames=2)")
        True
    """

    def __init__(self, wrapper: str | Callable[..., Any], /, **kwargs: Any) -> None:
        name = wrapper if isinstance(wrapper, str) else importable_name(wrapper)
        if name is None:
            raise ConfigError(
                f"{wrapper!r} has no importable name, which a worker process or a configuration file needs; "
                "define it at the top of a module"
            )
        self.name = _with_module(name, STEP_WRAPPERS)
        """`module:attribute`."""
        self.kwargs = kwargs
        """Arguments after the inner layer."""
        if self.name.partition(":")[0] in (STEP_WRAPPERS, GYM_WRAPPERS):
            self._resolve()

    @classmethod
    def parse(cls, text: str, stock: str = STEP_WRAPPERS) -> Self:
        """The value of a text.

        Args:
            text: a name, or a call with named arguments that are literals.
            stock: module of names that come without one.

        Raises:
            ConfigError: the text is neither, or as for `Wrap`.
        """
        name, kwargs = parse_call(text, "the wrapper", "FrameStack(num_frames=4)")
        return cls(_with_module(name, stock), **kwargs)

    @property
    def carries_over(self) -> bool:
        """Whether it carries something from one episode into the next; a function may."""
        wrapper = self._resolve()
        return not isinstance(wrapper, type) or issubclass(wrapper, StatefulWrapper)

    def concerns_policies(self, reads: Collection[str] = ()) -> bool:
        """Whether it may change what a policy observes or reads, what its actions mean, or how often it is asked.

        Of those with names of their own, which are not imported for it, nobody knows.

        Args:
            reads: fields of a time step that the policy reads besides its observation, as `EnvConfig.inputs` has them.
        """
        if self.name.partition(":")[0] not in (STEP_WRAPPERS, GYM_WRAPPERS):
            return True
        wrapper: Any = self._resolve()
        if any(issubclass(wrapper, _OF_INPUTS.get(field, ())) for field in reads):
            return True
        if not issubclass(wrapper, EnvironmentWrapper):
            return not issubclass(wrapper, gymnasium.RewardWrapper) and wrapper.__name__ not in _UNSEEN
        return not wrapper.keeps_frames or wrapper.action_rows is not None

    def __call__(self, env: Any) -> Any:
        """Puts the wrapper around an environment.

        Args:
            env: the inner layer.

        Raises:
            ConfigError: it refuses the environment or an argument.
        """
        wrapper = self._resolve()
        if isinstance(wrapper, type):
            is_gym, inside_is_gym = issubclass(wrapper, gymnasium.Wrapper), isinstance(env, gymnasium.Env)
            if is_gym and not inside_is_gym:
                raise ConfigError(f"{self} is a wrapper of Gymnasium; put it into env.gym_wrappers")
            if inside_is_gym and issubclass(wrapper, EnvironmentWrapper):
                raise ConfigError(f"{self} is no wrapper of Gymnasium; put it into env.wrappers")
        try:
            return wrapper(env, **self.kwargs)
        except PalaestraError:
            raise
        except (TypeError, ValueError, AssertionError, gymnasium.error.Error) as error:
            kind, detail = describe(error)
            if self.name.partition(":")[0] in (STEP_WRAPPERS, GYM_WRAPPERS):
                detail = str(error)
            raise ConfigError(
                f"the wrapper {self} cannot be put around the environment: {kind}: {detail}; look at its arguments, "
                "and at what it needs of the layer inside"
            ) from error

    def __str__(self) -> str:
        name = self.name.removeprefix(f"{STEP_WRAPPERS}:")
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{name}({arguments})" if arguments else name

    def __repr__(self) -> str:
        return f"Wrap({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrap) and (self.name, self.kwargs) == (other.name, other.kwargs)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def text(self) -> str:
        """The text form.

        Raises:
            ConfigError: an argument is no literal.
        """
        with contextlib.suppress(ConfigError):
            if Wrap.parse(str(self)) == self:
                return str(self)
        raise ConfigError(
            f"the wrapper {self} cannot be written to a file: its arguments are not all numbers, texts, booleans, "
            "None, or tuples, lists and dicts of these"
        )

    def _resolve(self) -> Callable[..., Any]:
        wrapper = import_maker(self.name, "a wrapper", lambda kind: hasattr(kind, "step"))
        try:
            signature = inspect.signature(wrapper)
        except ValueError:  # built in: it says so itself when called
            return wrapper
        try:
            signature.bind(None, **self.kwargs)
        except TypeError as error:
            odd = next((key for key in self.kwargs if key not in signature.parameters), "")
            takes = ", ".join(list(signature.parameters)[1:]) or "none"
            hint = did_you_mean(odd, list(signature.parameters)[1:], "") if odd else ""
            raise ConfigError(f"the wrapper {self} does not fit: {error}; its arguments are: {takes}{hint}") from None
        return wrapper


def as_values(wrappers: Sequence[Any], stock: str) -> tuple[Any, ...]:
    """Wrappers as `Wrap` values where they have an importable name; others stay callables of this process.

    Args:
        wrappers: values, texts or callables.
        stock: module of names that come without one.

    Raises:
        ConfigError: one is neither, or as for `Wrap`.
    """
    if isinstance(wrappers, str) or not isinstance(wrappers, Iterable):
        raise ConfigError(f"wrappers are {wrappers!r}, and a list is needed, such as {[wrappers]}")
    found: list[Any] = []
    for wrapper in wrappers:
        if isinstance(wrapper, str):
            wrapper = Wrap.parse(wrapper, stock)
        elif not callable(wrapper):
            raise ConfigError(
                f"the wrapper {wrapper!r} cannot be called with an environment; give a class, a function, a Wrap, "
                "or a text such as 'ClipReward' or 'FrameStack(num_frames=4)'"
            )
        elif not isinstance(wrapper, Wrap) and importable_name(wrapper):
            wrapper = Wrap(wrapper)
        found.append(wrapper)
    return tuple(found)


def _with_module(name: str, stock: str) -> str:
    """The full name of a wrapper; one that the stock module exports is named by that module."""
    module, colon, attribute = name.partition(":")
    if not colon:
        exported = importlib.import_module(stock)
        if not hasattr(exported, name) or not name.isidentifier():
            known = [key for key in getattr(exported, "__all__", dir(exported)) if key[:1].isupper()]
            other = hasattr(importlib.import_module(GYM_WRAPPERS), name) and stock != GYM_WRAPPERS
            hint = "; Gymnasium has one: put it into gym_wrappers" if other else did_you_mean(name, known)
            raise ConfigError(
                f"unknown wrapper {name!r} of {stock}{hint}; one of your own is named my_package.module:attribute"
            )
        return f"{stock}:{name}"
    for known in (STEP_WRAPPERS, GYM_WRAPPERS):
        if module.startswith(f"{known}.") and hasattr(importlib.import_module(known), attribute):
            return f"{known}:{attribute}"
    return name
