"""Proximal policy optimization with a clipped surrogate objective.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equations (7), (9) and (11).
Departures: advantages are standardised over the whole unroll; gradients are clipped by norm; the value loss is not
clipped by default. With a recurrent network, the value looks at the policy's hidden state, and gradients go back
through time as far as the beginning of a minibatch's sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import (
    AboveOne,
    AlgorithmConfig,
    Annealed,
    BonusConfig,
    Finite,
    Fraction,
    Limit,
    NotNegative,
    Positive,
)
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import ConfigError, DataSource, OnPolicy, Plan, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import clipped_surrogate, clipped_value_error, explained_variance, row_weights, weighted_sum
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["PPO", "PPOBatch", "PPOConfig"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Hyperparameters of `PPO`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam; a number or a schedule such as linear(3e-4, 0)."""
    unroll_length: Positive[float] = 128
    """Time steps collected from every environment before each update."""
    num_epochs: Positive[int] = 4
    """Passes over each unroll."""
    mini_batch_size: Positive[int] = 256
    """Rows in a minibatch; with a memory as many sequences as hold so many: divided by `mini_batch_length`."""
    mini_batch_length: Positive[int] = 16
    """Time steps in a sequence, for a recurrent network, at most those of an unroll; without one, rows are learned from
    one by one."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    standardize_advantage: bool = True
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    clip: Annealed[Schedule] = 0.2
    """Epsilon of equation (7): the probability ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    value_cost: NotNegative[Schedule] = 0.5
    """c1 of equation (9)."""
    entropy_cost: Finite[Schedule] = 0.0
    """c2 of equation (9)."""
    max_grad_norm: Limit[float] = 0.5
    """Gradients are clipped to this Euclidean norm over all parameters."""
    value_clip: Positive[float | None] = None
    """How far the value may move in an update, in its own units: Engstrom et al. 2020, section 3; none by default. With
    `recompute_advantage` it is in a pass."""
    dual_clip: AboveOne[float | None] = None
    """c of Ye et al. 2020: the largest ratio that counts where the advantage is negative; off by default, 3 there."""
    normalize_return: bool = False
    """Whether the value learns returns divided by their running standard deviation; its unit is then that."""
    recompute_advantage: bool = False
    """Whether advantages and value targets are computed anew for each pass: Andrychowicz et al. 2020, section 3.5."""
    target_kl: Positive[float | None] = None
    """An update ends at the first minibatch on which the policy has moved further from the one that acted, in nats."""
    symmetry: str | None = None
    """What the mirror image of a row is, as my_package:mirror or palaestra.envs:Go1Joystick.mirror: a function from
    observations and actions, [N, ...], to theirs."""
    symmetric_rows: bool = True
    """Whether the mirror image of each row is learned from, too, where there is a `symmetry`."""
    symmetry_cost: NotNegative[Schedule] = 0.0
    """Weight of the squared difference between the mean action at the image of a row and the image of that at the row:
    Mittal et al. 2024."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network. They share the recurrent cells, if any, and the image encoder."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = OnPolicy

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: rows, or sequences where the network is recurrent."""
        length = min(self.mini_batch_length, int(self.unroll_length)) if self.network.recurrent else 1
        if self.network.recurrent and length < 2:
            raise ConfigError(
                f"network.recurrent is {self.network.recurrent!r}, unroll_length {self.unroll_length} and "
                f"mini_batch_length {self.mini_batch_length}; a memory learns from sequences of at least 2 time steps"
            )
        size = max(1, self.mini_batch_size // length)
        return self.plan_with(mini_batch_size=size, mini_batch_length=length)


class PPOBatch(parts.AdvantageBatch):
    """One minibatch; every field is [N, ...], or [T, N, ...] for a recurrent network."""

    log_prob: Tensor


class PPO(GradientAlgorithm[StochasticPolicy, PPOConfig]):
    """Learns a stochastic policy and a state value from unrolls of that same policy.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.
        network: your own encoder; the parts are "policy" and "value", which share one unless a mapping names two.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = PPOConfig
    usual_lanes = 8
    recurrent = True
    compiles_preprocess = True
    stored_fields = ("log_prob",)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: PPOConfig) -> None:
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network)
        networks = nn.ModuleDict({"policy": self.policy.network, "value": self.value.network})
        adam = OptimizerOption("adam", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        self.return_scale = parts.ReturnScale() if config.normalize_return else None
        scale = {} if self.return_scale is None else {"return_scale": self.return_scale}
        self.model = CoreModel({"ppo": networks, **scale}, {"ppo": adam})
        self.symmetry = parts.symmetry_of(config, self.policy)
        self.preprocesses_each_epoch = config.recompute_advantage
        if config.target_kl is not None and self.stop_early is None:
            self.stop_early = self._moved_too_far
        if config.normalize_return and self.after_update is None:
            self.after_update = self._take_returns

    def preprocess(self, batch: Any, source: DataSource) -> PPOBatch:
        """Adds advantages and value targets to an unroll."""
        unit = None if self.return_scale is None else self.return_scale()
        return parts.advantages(self, batch, PPOBatch, unit, source)

    def losses(self, batch: PPOBatch) -> Losses:
        """Equation (9): clipped surrogate, value error and entropy, each a mean over valid rows."""
        count, batch = len(batch.valid), batch if self.symmetry is None else self.symmetry.doubled(batch)
        weight = row_weights(batch.valid)
        state = parts.state_of(batch) if "state" in vars(batch) else ()
        features, _ = self.policy.features(batch.observation, *state)
        mask = self.policy.action_mask(batch.observation) if self.policy.is_masked else None
        policy = self.policy.distribution_of(self.policy.head(features), mask)
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        epsilon, dual = self.value_of("clip"), self.config.dual_clip
        surrogate = weighted_sum(clipped_surrogate(log_ratio, batch.advantage, epsilon=epsilon, dual=dual), weight)
        value = self.value.of(features, batch.observation)
        if self.config.value_clip is None:
            error = (value - batch.value_target).square()
        else:
            error = clipped_value_error(value, batch.value, batch.value_target, epsilon=self.config.value_clip)
        value_error = weighted_sum(error, weight)
        total = surrogate + self.value_of("value_cost") * value_error
        if self.config.entropy_cost:
            total = total - self.value_of("entropy_cost") * weighted_sum(policy.entropy(), weight)
        metrics: dict[str, Tensor] = {}
        if self.symmetry is not None and self.config.symmetry_cost:
            error = self.symmetry.error(batch.observation, policy.mode())
            metrics["symmetry_error"] = weighted_sum(error, row_weights(batch.valid[:count]))
            total = total + self.value_of("symmetry_cost") * metrics["symmetry_error"]
        with torch.no_grad():
            if self.symmetry is not None:  # images were not acted on: what a policy moves by is seen at rows
                log_ratio, weight = log_ratio[:count], row_weights(batch.valid[:count])
            metrics |= {
                "surrogate": surrogate,
                "value_error": value_error,
                "entropy": weighted_sum(policy.entropy()[:count], weight),
                "kl": weighted_sum(torch.where(weight > 0, log_ratio.expm1() - log_ratio, 0), weight),
            }
        return Losses({"ppo": total}, metrics)

    def _moved_too_far(self, metrics: Mapping[str, Tensor]) -> bool:
        most = self.config.target_kl
        return most is not None and float(metrics["kl"]) > most

    def diagnostics(self, batch: PPOBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}

    def _take_returns(self, batch: PPOBatch) -> None:
        """Takes the update's returns into the unit of later values."""
        assert self.return_scale is not None
        self.return_scale.merge(batch.value_target[batch.valid > 0] * self.return_scale())
