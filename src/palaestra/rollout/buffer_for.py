"""What an algorithm asks of the collector that serves it."""

from typing import Any

import torch

from palaestra.algorithms import Algorithm
from palaestra.buffers import DeviceMemory, ReplayBuffer, sampler_of
from palaestra.core import OnPolicy, Replay, SpecTree, TensorSpec, schedule_value

__all__ = ["buffer_for", "episode_discount"]


def buffer_for(
    algorithm: Algorithm[Any],
    num_lanes: int,
    *,
    observation_spec: SpecTree,
    reward_spec: TensorSpec,
    complete_episodes_only: bool = False,
    fragments: bool = False,
    device: torch.device | None = None,
) -> ReplayBuffer:
    """An empty buffer with the size, fields and sampler that an algorithm's plan and policy ask for.

    Args:
        algorithm: that will learn from it.
        num_lanes: streams that are written side by side.
        observation_spec: of the environment.
        reward_spec: of the environment.
        complete_episodes_only: whether only episodes that have ended are learned from.
        fragments: whether the buffer only holds what is on its way to the one that is learned from: it grows, keeps a
            policy's memory with every row, and nothing is sampled from it.
        device: where rows come from; those of a GPU stay there.

    Raises:
        ConfigError: the plan collects nothing.
    """
    plan, policy = algorithm.plan, algorithm.policy
    capacity = plan.capacity_for(num_lanes)
    return ReplayBuffer(
        None if fragments else capacity,
        num_lanes,
        sampler=sampler_of(plan) if isinstance(plan, Replay) and not fragments else None,
        observation_spec=observation_spec,
        action_spec=policy.raw_action_spec,
        info_spec={name: spec for name, spec in policy.behaviour_spec.items() if name in algorithm.stored_fields},
        reward_spec=reward_spec,
        state_spec=policy.state_spec or None,
        state_period=1 if isinstance(plan, OnPolicy) or fragments else plan.mini_batch_length,
        complete_episodes_only=complete_episodes_only,
        storage=None if device is None or device.type == "cpu" else DeviceMemory(device),
    )


def episode_discount(algorithm: Algorithm[Any]) -> float | None:
    """The discount that episodes are reported with: the algorithm's at the end of its schedule, if it has one.

    Args:
        algorithm: that learns.
    """
    gamma = getattr(algorithm.config, "gamma", None)
    return None if gamma is None else schedule_value(gamma, 1.0)
