"""`TrainerAllocator`: which gradient workers learn beside which policy."""

from collections.abc import Mapping, Sequence
from typing import get_args

from palaestra.core import ConfigError, did_you_mean
from palaestra.distributed.config import AllocationMode

__all__ = ["TrainerAllocator"]


class TrainerAllocator:
    """Shares gradient workers (MARO's trainers) out among policies.

    A policy's quota is its share of the workers, rounded, and at least 1. Where quotas leave workers over, those go to
    the policies that were rounded down most; where there are more quotas than workers, policies share workers. So
    every policy has a worker, and every worker a policy.

    Args:
        mode: what shares are proportional to.
        num_trainers: gradient workers, at least 1.
        agents: number of agents by policy; needed by `by-agent`.
        period: updates of any policy after which workers are shared out anew; rounded up to a whole round of all
            policies, so that those that learn alike have learned from as much.

    Raises:
        ConfigError: the mode is unknown, there is no worker or no policy, or a policy's agents are missing.

    Examples:
        >>> allocator = TrainerAllocator("by-experience", 4, ["buyer", "seller"])
        >>> allocator.allocate({"buyer": 100, "seller": 300})
        {'buyer': [0], 'seller': [1, 2, 3]}
    """

    def __init__(
        self,
        mode: AllocationMode,
        num_trainers: int,
        policies: Sequence[str],
        *,
        agents: Mapping[str, int] | None = None,
        period: int = 10,
    ) -> None:
        if mode not in get_args(AllocationMode):
            raise ConfigError(f"unknown allocation mode {mode!r}{did_you_mean(mode, get_args(AllocationMode))}")
        if period < 1:
            raise ConfigError(f"period is {period}; give at least 1 update")
        if num_trainers < 1 or not policies:
            raise ConfigError(
                f"{num_trainers} gradient workers cannot be shared among {len(policies)} policies; both need at least 1"
            )
        if mode == "by-agent" and (missing := [name for name in policies if (agents or {}).get(name, 0) < 1]):
            raise ConfigError(f"by-agent needs the number of agents of every policy, at least 1; missing for {missing}")
        self.mode: AllocationMode = mode
        """What shares are proportional to."""
        self.num_trainers, self.period = num_trainers, -(-period // len(policies)) * len(policies)
        """Gradient workers; updates after which they are shared out anew."""
        self._policies, self._agents = list(policies), dict(agents or {})

    def allocate(self, experience: Mapping[str, float] | None = None) -> dict[str, list[int]]:
        """Which workers each policy has.

        Args:
            experience: rows learned from lately, by policy; only `by-experience` looks at it. Without any, all policies
                are alike.

        Returns:
            Numbers of workers, by policy.
        """
        names, workers = self._policies, self.num_trainers
        weights = self._weights(experience or {})
        shares = {name: workers * weights[name] / sum(weights.values()) for name in names}
        quota = {name: max(1, round(shares[name])) for name in names}
        while sum(quota.values()) < workers:
            most = max(names, key=lambda name: shares[name] - quota[name])
            quota[most] += 1
        while sum(quota.values()) > workers and (larger := [name for name in names if quota[name] > 1]):
            least = min(larger, key=lambda name: shares[name] - quota[name])
            quota[least] -= 1
        allocation: dict[str, list[int]] = {}
        following = 0
        for name in names:
            allocation[name] = [(following + i) % workers for i in range(quota[name])]
            following += quota[name]
        return allocation

    def _weights(self, experience: Mapping[str, float]) -> dict[str, float]:
        if self.mode == "by-agent":
            return {name: float(self._agents[name]) for name in self._policies}
        if self.mode == "by-experience" and any(experience.get(name, 0) > 0 for name in self._policies):
            return {name: float(experience.get(name, 0)) for name in self._policies}
        return dict.fromkeys(self._policies, 1.0)
