"""Vectors of rewards, as a part that any algorithm takes: `RewardConfig`, fixed weights and Lagrange multipliers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError, Plan, Positive, TensorSpec, refuses, require_ranges, schedule_value
from palaestra.ops import remembered_starts, valid_starts

__all__ = ["RewardConfig", "RewardWeights", "objective_of"]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The weights, some of them learned, that make one number of a vector of rewards."""

    weights: tuple[float, ...] = ()
    """Weight of each reward of the vector, whose weighted sum is maximised. Empty where a reward is one number."""
    thresholds: tuple[float | None, ...] = ()
    """Constraints: the mean per time step that each reward shall reach; its weight is then a Lagrange multiplier, which
    rises from `weights` while the mean is below and falls, to 0 at least, while it is above. `None` for a reward
    without one."""
    multiplier_learning_rate: Positive[float] = 0.01
    """Change of a multiplier in one update, for each unit of reward by which the mean misses its threshold."""

    def __post_init__(self) -> None:
        require_ranges(self, "rewards.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        if self.thresholds and len(self.thresholds) != len(self.weights):
            yield (
                f"rewards.thresholds has {len(self.thresholds)} entries and rewards.weights {len(self.weights)}; give "
                "one of each for every reward of the vector, and None as the threshold of a reward without a constraint"
            )
        for value in (*self.weights, *self.thresholds):
            if value is not None and not math.isfinite(value):
                yield f"rewards.weights and rewards.thresholds must be finite numbers; given was {value}"
        for weight, threshold in zip(self.weights, self.thresholds, strict=False):
            if threshold is not None and weight < 0:
                yield (
                    f"rewards.weights has {weight} for a reward with a threshold; a multiplier begins at 0 or above. "
                    "Give a cost as a negative reward"
                )


@final
class RewardWeights(nn.Module):
    """The weights of a vector of rewards, and how those with a threshold are learned.

        r = Σ wᵢ rᵢ,   wᵢ ← max(0, wᵢ + η (θᵢ − mean rᵢ))   for each reward with a threshold θᵢ

    Tessler et al. 2019, https://arxiv.org/abs/1805.11074, equations (8) and (9), with constraints on means over time
    steps. The means are those of the data learned from: of replay, they are behind the policy by its age.

    Args:
        config: see `RewardConfig`.

    Examples:
        >>> weights = RewardWeights(RewardConfig(weights=(1.0, 0.0), thresholds=(None, -0.1)))
        >>> weights(torch.tensor([[2.0, -5.0]]))
        tensor([2.])
        >>> weights.learn(torch.tensor([-1.1]).expand(2))
        >>> weights.metrics()
        {'reward_weight/0': tensor(1.), 'reward_weight/1': tensor(0.0100)}
    """

    value: Tensor
    """[K] the weights now."""
    threshold: Tensor
    """[K]; NaN where there is none."""

    def __init__(self, config: RewardConfig) -> None:
        super().__init__()
        thresholds = config.thresholds or (None,) * len(config.weights)
        self._rate, self.learns = config.multiplier_learning_rate, any(limit is not None for limit in thresholds)
        self.register_buffer("value", torch.tensor(config.weights, dtype=torch.float32))
        limits = [math.nan if limit is None else limit for limit in thresholds]
        self.register_buffer("threshold", torch.tensor(limits, dtype=torch.float32), persistent=False)

    @refuses(ConfigError)
    def require(self, reward_spec: TensorSpec, plan: Plan) -> Iterator[str]:
        """Refuses rewards that the weights do not fit, and priorities that hide the mean of rewards.

        Args:
            plan: of the algorithm.

        Raises:
            ConfigError: these are not vectors of as many rewards, or constraints are to be kept on rows that are drawn
                by priority, without weights that tell how often.
        """
        priorities = getattr(plan, "prioritized", None)
        if self.learns and priorities and min(schedule_value(priorities.beta, at / 100) for at in range(101)) == 0:
            yield (
                "rewards.thresholds need the mean of rewards, which importance weights tell where rows are drawn by "
                "priority; let algorithm.priority_beta stay above 0, or give --algorithm.no-prioritized"
            )
        if reward_spec.shape != self.value.shape:
            yield (
                f"algorithm.rewards.weights has {len(self.value)} entries, but the environment's rewards have the "
                f"shape {list(reward_spec.shape)}; give one weight for each reward of a vector, and none for a number"
            )

    def forward(self, reward: Tensor) -> Tensor:
        """The weighted sum.

        Args:
            reward: [..., K].

        Returns:
            [...] what is maximised.
        """
        return reward @ self.value

    def learned_from(self, drawn: Any, plan: Any, progress: float) -> Any:
        """The batch with weighted sums as its rewards; the multipliers then move.

        Args:
            drawn: an unroll, sequences or windows with `reward` [T+1, ..., K].
            plan: by which it was drawn.
            progress: of the run, in [0, 1].
        """
        weighted = drawn.replace(reward=self(drawn["reward"]))
        if self.learns:
            self.learn(_mean(drawn, plan, progress))
        return weighted

    @torch.no_grad()
    def learn(self, mean: Tensor) -> None:
        """Moves the multipliers.

        Args:
            mean: [K] rewards per time step; NaN where nothing is known, which moves nothing.
        """
        moved = (self.value + self._rate * (self.threshold - mean)).clamp(min=0)
        self.value.copy_(torch.where(moved.isnan(), self.value, moved))

    def metrics(self) -> dict[str, Tensor]:
        """Every weight as it is now."""
        return {f"reward_weight/{number}": value.clone() for number, value in enumerate(self.value)}


def learned_rows(drawn: Any, plan: Any) -> Tensor:
    """Which transitions of an unroll, or of sequences, are learned from.

    Args:
        drawn: with `step_type` [T+1, B] and `valid` [T, B]. Sequences with the `state` of a memory, which goes on into
            later episodes, are learned from as a whole after the burn-in; others within their first episode alone.
        plan: by which it was drawn.

    Returns:
        [T, B] booleans.
    """
    if "index" in drawn and "state" in drawn:
        return remembered_starts(drawn["step_type"], plan.burn_in)
    return valid_starts(drawn["step_type"]) & (drawn["valid"] > 0)


def _mean(drawn: Any, plan: Any, progress: float) -> Tensor:
    """[K] the mean rewards of the transitions that are learned from; of windows, their first. NaN where there is none.

    Rows that are drawn by priority count with 1/P: their weight is (N P)^-β, over its maximum.
    """
    reward = drawn["reward"][1:]
    if "next_observation" in drawn:
        reward = reward[:1]
        count = torch.ones_like(reward[..., 0])
    else:
        count = learned_rows(drawn, plan).to(reward.dtype)
    if "weight" in drawn and plan.prioritized:  # a sampler of the user's own may draw otherwise than the plan
        count = count * drawn["weight"] ** (1 / schedule_value(plan.prioritized.beta, progress))
    return (reward * count.unsqueeze(-1)).sum((0, 1)) / count.sum()


def objective_of(algorithm_config: Any) -> tuple[float, ...]:
    """The weights of rewards without a threshold, and 0 for the others: how evaluations add up a vector of rewards.

    Args:
        algorithm_config: of any algorithm.

    Returns:
        [K]; nothing where a reward is a number.
    """
    rewards: RewardConfig = algorithm_config.rewards
    thresholds = rewards.thresholds or (None,) * len(rewards.weights)
    return tuple(w if limit is None else 0.0 for w, limit in zip(rewards.weights, thresholds, strict=True))
