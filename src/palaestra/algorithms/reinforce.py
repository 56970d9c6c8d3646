"""Monte Carlo policy gradient.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696, section 4; Sutton and Barto 2018, section 13.3.
Departures: only steps whose episode ended inside the unroll are learned from, since there is no value to bootstrap
from; for the same reason a time limit counts as an end; the baseline is the mean return of the unroll; all steps weigh
the same, where the book weighs step t by γᵗ.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra import ops
from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, OnPolicy, Schedule, SpecTree, StepType
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["Reinforce", "ReinforceBatch", "ReinforceConfig"]


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(AlgorithmConfig):
    """Hyperparameters of `Reinforce`."""

    learning_rate: NotNegative[Schedule] = 3e-3
    """Step size of Adam; a number or a schedule."""
    unroll_length: Positive[float] = 256
    """Time steps collected from every environment before each update; several episodes should fit."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy network."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = OnPolicy


class ReinforceBatch(Batch):
    """The whole unroll; every field is [T, B, ...]."""

    observation: Any
    action: Any
    advantage: Tensor
    valid: Tensor


class Reinforce(GradientAlgorithm[StochasticPolicy, ReinforceConfig]):
    """Raises the probability of actions by the return that followed them; the smallest algorithm of the library."""

    config_class = ReinforceConfig
    usual_lanes = 8
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: ReinforceConfig) -> None:
        (layers,) = config.network.parts("policy")
        self.policy = stochastic_policy(observation_spec, action_spec, layers)
        self.model = CoreModel(
            {"policy": self.policy.network}, {"policy": OptimizerOption("adam", {"lr": config.learning_rate})}
        )

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> ReinforceBatch:
        """Adds standardised returns, and masks the steps whose episode continues after the unroll."""
        gamma = self.value_of("gamma")
        returns = ops.discounted_returns(batch.reward, batch.discount, batch.step_type, gamma=gamma)  # [T, B]
        valid = batch.valid * _reaches_end(batch.step_type)
        return ReinforceBatch.of(
            {
                "observation": batch.observation[:-1],
                "action": batch.action,
                "advantage": ops.standardize(returns, valid),
                "valid": valid,
                **parts.state_fields(batch),
            }
        )

    def losses(self, batch: ReinforceBatch) -> Losses:
        """Sutton and Barto's equation (13.8), averaged over steps."""
        policy = self.policy.distribution(batch.observation, *parts.state_of(batch))
        loss = ops.masked_mean(ops.policy_gradient(policy.log_prob(batch.action), batch.advantage), batch.valid)
        return Losses({"policy": loss}, {"entropy": ops.masked_mean(policy.entropy(), batch.valid)})


def _reaches_end(step_type: Tensor) -> Tensor:
    """[T, B] 1 where the row's own episode ends inside the unroll, and not after it or by breaking off; else 0."""
    ends = (step_type == StepType.LAST).float()  # [T+1, B]
    goes_on = ops.valid_starts(step_type)
    return ops.reverse_linear_recurrence(ends[:-1] * ~goes_on, goes_on.float(), ends[-1])
