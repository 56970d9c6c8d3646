"""Vector environments of tensors by the class or function that makes them: `vector:my_robots:go1`.

They are stepped as one, whatever `vectorization` is (`palaestra.envs.simulators.vector`).
"""

from collections.abc import Sequence
from typing import Any

from palaestra.core.importing import import_maker
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
    env = maker(num_envs=batch_size, **kwargs)
    return TorchVectorEnvironment(env, lane_seeds=lane_seeds, groups=groups, clip_actions=clip_actions)
