"""The records that lanes, workers and batched environments hand to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from palaestra.core import SpecError, SpecTree, TensorSpec
from palaestra.envs.environment import SingleEnvironment
from palaestra.envs.nest import flatten, leaf_dtypes, neutral

__all__ = ["Infos", "Rows", "Specs", "common_specs", "neutral_rows", "numeric_infos"]

Infos = dict[int, dict[str, float]]
"""Numeric info entries by lane; lanes without any are left out."""


class Specs(NamedTuple):
    """The specs that all environments of a batch share."""

    observation: SpecTree
    """Of an observation."""
    action: SpecTree
    """Of an action."""
    reward: TensorSpec
    """Of a reward."""
    env_info: SpecTree
    """Of declared info entries."""


class Rows(NamedTuple):
    """What one step of several lanes gave; every array is new."""

    step_type: np.ndarray
    """int32 [B]."""
    reward: np.ndarray
    """float32 [B] or [B, k]."""
    discount: np.ndarray
    """float32 [B]."""
    observation: list[np.ndarray]
    """One array [B, ...] for every leaf of the observation spec."""


def neutral_rows(specs: Specs, size: int) -> Rows:
    """FIRST rows that show nothing, for a step of which nobody knows what came.

    Args:
        specs: of one bare environment.
        size: how many lanes.
    """
    leaves = zip(flatten(neutral(specs.observation), specs.observation), leaf_dtypes(specs.observation), strict=True)
    observation = [np.stack([np.asarray(leaf, dtype)] * size) for leaf, dtype in leaves]
    reward = np.zeros((size, *specs.reward.shape), np.float32)
    return Rows(np.zeros(size, np.int32), reward, np.ones(size, np.float32), observation)


def common_specs(envs: Sequence[SingleEnvironment]) -> Specs:
    """The specs that all environments of a batch share.

    Args:
        envs: their outermost layers.

    Raises:
        SpecError: none were given, or they differ.
    """
    if not envs:
        raise SpecError("no environments were given; at least one is needed")
    for lane, env in enumerate(envs):
        if not isinstance(env, SingleEnvironment):
            kind = type(env).__name__
            raise SpecError(f"environment {lane} is a {kind}, not a SingleEnvironment; use GymEnvironment({kind}())")
    specs = [Specs(env.observation_spec, env.action_spec, env.reward_spec, env.env_info_spec) for env in envs]
    for lane, other in enumerate(specs):
        if other[:3] != specs[0][:3]:
            raise SpecError(
                f"environment {lane} has the specs {other[:3]} and environment 0 {specs[0][:3]}; "
                "environments of one batch need equal ones"
            )
    return specs[0]


def numeric_infos(infos: Iterable[Any]) -> Infos | None:
    """The numeric entries of every lane's info, nested keys joined by a slash; `None` where nobody has any.

    Args:
        infos: one for every lane.
    """
    found: Infos = {}
    for lane, info in enumerate(infos):
        if info:
            numbers: dict[str, float] = {}
            _numbers(info, "", numbers)
            if numbers:
                found[lane] = numbers
    return found or None


def _numbers(info: Any, prefix: str, out: dict[str, float]) -> None:
    for key, value in info.items():
        kind = type(value)
        if kind is float or kind is int or kind is bool or isinstance(value, np.number | np.bool_):
            out[f"{prefix}{key}"] = float(value)
        elif isinstance(value, dict):
            _numbers(value, f"{prefix}{key}/", out)
        elif isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub":
            out[f"{prefix}{key}"] = float(value)
