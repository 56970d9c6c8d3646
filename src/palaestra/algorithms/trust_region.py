"""What algorithms need that hold a new policy close to an old one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from palaestra.policies import Policy

__all__ = ["fixed_distribution"]


class _Distribution(nn.Module):
    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        return self.policy.distribution(observation)


@torch.no_grad()
def fixed_distribution(policy: Policy, observation: Any) -> Any:
    """A policy's distribution as it is now; it has no gradient, and does not change with the policy.

    (Some distributions hold parameters themselves, such as the logarithm of a standard deviation, so detaching what
    `distribution` computes would not be enough.)

    Args:
        policy: a stochastic one.
        observation: raw, leaves [..., *observation].
    """
    parameters = {f"policy.{name}": value.detach().clone() for name, value in policy.named_parameters()}
    return functional_call(_Distribution(policy), parameters, (observation,))
