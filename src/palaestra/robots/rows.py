"""Between one agent's bare time steps and batches of one row, as buffers and policies want them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.core import Batch, SpecTree, TimeStep
from palaestra.envs.nest import flatten, leaf_dtypes, to_batched, unflatten

__all__ = ["bare_action", "info_row", "observation_row", "time_step_row"]


def observation_row(observation: Any, spec: SpecTree) -> Any:
    """An observation with a leading dimension of 1, in memory of its own.

    Args:
        observation: bare: arrays, tensors or numbers in dicts and tuples.
        spec: of it.

    Raises:
        SpecError: an entry is missing.
    """
    leaves = zip(flatten(observation, spec), leaf_dtypes(spec), strict=True)
    return to_batched([_row(_detached(leaf), dtype) for leaf, dtype in leaves], spec)


def _row(leaf: Any, dtype: Any) -> np.ndarray:
    array = np.array(leaf, dtype)
    return array.reshape(1, *array.shape)


def _detached(leaf: Any) -> Any:
    """Tensors as arrays, without a gradient: nothing differentiable passes from one task to another."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


def time_step_row(time_step: TimeStep, spec: SpecTree) -> TimeStep:
    """A bare time step with a leading dimension of 1.

    Args:
        time_step: bare.
        spec: of its observation.
    """
    return TimeStep(
        step_type=torch.tensor([int(time_step.step_type)], dtype=torch.int32),
        reward=torch.from_numpy(_row(time_step.reward, np.float32)),
        discount=torch.tensor([float(time_step.discount)]),
        observation=observation_row(time_step.observation, spec),
    )


def info_row(info: Any) -> Batch | tuple[()]:
    """The numbers of a bare environment's info, float64 [1].

    Args:
        info: what an environment reported; what is no number is left out.
    """
    if not info:
        return ()
    numbers = {k: v for k, v in info.items() if np.ndim(v) == 0 and np.asarray(v).dtype.kind in "biuf"}
    return Batch.of({key: torch.tensor([float(value)], dtype=torch.float64) for key, value in numbers.items()})


def bare_action(action: Any, spec: SpecTree) -> Any:
    """The one action of a batch, as a bare environment takes it.

    Args:
        action: tensors [1, ...].
        spec: of the bare action.
    """
    leaves = zip(flatten(action, spec), leaf_dtypes(spec), strict=True)
    return unflatten((np.asarray(leaf[0], dtype)[()] for leaf, dtype in leaves), spec)
