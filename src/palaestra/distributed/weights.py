"""What an acting copy of a policy needs to act as the learning one would: weights, normaliser, exploration, version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.policies import Policy

__all__ = ["acting_weights", "load_acting_weights", "versions_of"]


def acting_weights(policies: Mapping[str, Policy]) -> dict[str, dict[str, Any]]:
    """What `load_acting_weights` takes, by policy name; tensors are views of the policies' own.

    Args:
        policies: by name, as they are now.
    """
    return {
        name: {
            "version": policy.version,
            "tensors": policy.state_dict(),
            "exploration": None if policy.exploration is None else policy.exploration.strength,
        }
        for name, policy in policies.items()
    }


def load_acting_weights(policies: Mapping[str, Policy], weights: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes copies act as the learning policies did when `acting_weights` was called.

    Their generators stay their own.

    Args:
        policies: by name.
        weights: from `acting_weights`.
    """
    for name, given in weights.items():
        policy = policies[name]
        policy.load_state_dict(given["tensors"])
        policy.version = given["version"]
        if policy.exploration is not None:
            policy.exploration.strength = given["exploration"]


def versions_of(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The version of each policy.

    Args:
        weights: from `acting_weights`.
    """
    return {name: given["version"] for name, given in weights.items()}
