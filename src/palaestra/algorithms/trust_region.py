"""What algorithms need that hold a new policy close to an old one."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.func import functional_call

from palaestra.policies import Policy

__all__ = ["FixedPolicy"]


class _Distribution(nn.Module):
    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Any) -> Any:
        return self.policy.distribution(observation)


@final
class FixedPolicy:
    """A stochastic policy as it is now: its distributions have no gradient, and do not change with the policy.

    (Some distributions hold parameters themselves, such as the logarithm of a standard deviation, so detaching what
    `distribution` computes would not be enough.)

    Args:
        policy: a stochastic one.
    """

    def __init__(self, policy: Policy) -> None:
        self._module = _Distribution(policy)
        self._parameters = {name: value.detach().clone() for name, value in self._module.named_parameters()}

    @torch.no_grad()
    def distribution(self, observation: Any) -> Any:
        """What the policy would have said when this object was made.

        Args:
            observation: raw, leaves [..., *observation].
        """
        return functional_call(self._module, self._parameters, (observation,))
