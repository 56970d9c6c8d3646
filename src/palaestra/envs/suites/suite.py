"""`suite_of`: which module of this folder knows an environment's name."""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import VectorEnv

from palaestra.core import ConfigError
from palaestra.envs.contract.environment import SingleEnvironment

__all__ = ["Native", "Single", "batch", "native", "pools_only", "single", "suite_of", "unheeded"]


class Single(NamedTuple):
    """One environment of a suite."""

    env: gymnasium.Env[Any, Any]
    """Bare."""
    duration: int
    """The time limit to put around it, in its own steps; 0 for none."""
    layers: tuple[Callable[[SingleEnvironment], SingleEnvironment], ...] = ()
    """Wrappers that belong around it, the innermost first."""


class Native(NamedTuple):
    """All lanes of a suite's environment as one."""

    env: VectorEnv[Any, Any, Any]
    """With as many lanes as were asked for."""
    stacked: int = 1
    """Frames along the first axis of an observation."""


def suite_of(name: str) -> ModuleType:
    """The suite whose prefix is the longest that a name begins with; that of Gymnasium's registry has none.

    Args:
        name: of an environment, such as `"ALE/Pong-v5"`.
    """
    return max((suite for suite in _suites() if name.startswith(suite.PREFIX)), key=lambda suite: len(suite.PREFIX))


def pools_only(name: str) -> bool:
    """Whether an environment exists as a pool only."""
    return not hasattr(suite_of(name), "single")


def single(name: str, kwargs: dict[str, Any], limit: int | None) -> Single:
    """One environment by the name that its suite knows.

    Raises:
        ConfigError: no such environment, the arguments do not fit, or it exists as a pool only.
        MissingExtraError: it needs an optional package.
    """
    if pools_only(name):
        raise ConfigError(f"{name!r} exists as a pool only; use create_environment, which makes many as one")
    return suite_of(name).single(name, kwargs, limit)


def native(name: str, num_envs: int, kwargs: dict[str, Any], limit: int | None) -> Native:
    """A pool by the name that its suite knows.

    Raises:
        ConfigError: no such environment, or it has no vectorised version.
        MissingExtraError: it needs an optional package.
    """
    return suite_of(name).native(name, num_envs, kwargs, limit)


def batch(name: str) -> Callable[..., Any] | None:
    """What makes a `BatchEnvironment` of as many lanes as `batch_size` says; `None` where a suite has no such."""
    suite = suite_of(name)
    return functools.partial(suite.batch, name) if hasattr(suite, "batch") else None


def unheeded(name: str, kwargs: dict[str, Any]) -> str:
    """What of these arguments the single environments of a suite do not heed, in a sentence; empty for nothing."""
    suite = suite_of(name)
    return suite.unheeded(name, kwargs) if hasattr(suite, "unheeded") else ""


@functools.cache
def _suites() -> list[ModuleType]:
    package = __name__.rpartition(".")[0]
    found = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    modules = [importlib.import_module(item.name) for item in found]
    return [module for module in modules if hasattr(module, "PREFIX")]
