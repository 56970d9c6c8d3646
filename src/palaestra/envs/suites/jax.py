"""Environments written in JAX: names such as `jax:gymnax:CartPole-v1`, `jax:pgx:connect_four`, `jax:brax:ant`.

They are stepped as one, whatever `vectorization` is (`palaestra.envs.simulators.jax`).
"""

from typing import Any

from palaestra.envs.simulators.jax import JaxBatch

PREFIX = "jax:"
"""Names that this suite is for."""


def batch(name: str, batch_size: int, **settings: Any) -> JaxBatch:
    """As many lanes as are asked for, as one."""
    return JaxBatch(name.removeprefix(PREFIX), batch_size, **settings)
