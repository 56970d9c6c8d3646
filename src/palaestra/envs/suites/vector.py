"""Vector environments of tensors by the class or function that makes them: `vector:my_robots:go1`.

They are stepped as one, whatever `vectorization` is (`palaestra.envs.simulators.vector`).
"""

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium

from palaestra.core import ConfigError, import_maker
from palaestra.envs.simulators.vector import TorchVectorEnvironment

PREFIX = "vector:"
"""Names that this suite is for."""


def batch(
    name: str,
    batch_size: int,
    *,
    lane_seeds: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    clip_actions: float | None = None,
    **kwargs: Any,
) -> TorchVectorEnvironment:
    """What `MODULE:CLASS` makes with `num_envs` and the other arguments; `groups` and `clip_actions` are read here."""
    maker = import_maker(name.removeprefix(PREFIX), "a vector environment", lambda kind: hasattr(kind, "step"))
    given = {"num_envs": batch_size, **kwargs}
    try:
        inspect.signature(maker).bind(**given)
    except TypeError as error:
        instead = (
            f"a vector environment takes num_envs, how many it steps as one; write a function: {PREFIX}MODULE:make"
        )
        if isinstance(maker, type) and issubclass(maker, gymnasium.Env):
            plain = name.removeprefix(PREFIX)
            instead = f"it is one environment of Gymnasium's: name it {plain!r}, without {PREFIX}"
        raise ConfigError(f"{name!r} cannot be called with {given} ({error}); {instead}") from None
    except ValueError:  # it does not say what it takes
        pass
    env = maker(**given)
    if not hasattr(env, "num_envs"):
        raise ConfigError(
            f"{name!r} made a {type(env).__name__}, which does not say its num_envs: it is no vector environment; name "
            f"single environments without {PREFIX}"
        )
    return TorchVectorEnvironment(env, lane_seeds=lane_seeds, groups=groups, clip_actions=clip_actions)
