"""V-MPO: the better half of what was done is imitated, the best of it most, within a bound on how far the policy moves.

Paper: Song et al. 2019, https://arxiv.org/abs/1909.12238, section 3; the bounds of means and deviations apart as in
Abdolmaleki et al. 2018, https://arxiv.org/abs/1812.02256. Departures: the temperature is the one of least loss over a
whole unroll instead of one step of Adam towards it; an unroll is gone through several times, in minibatches, and the
better half is that of the whole unroll; advantages are generalised; values are not divided by running statistics
(PopArt); multipliers are learned through their logarithm, from 5.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import explained_variance, row_weights, weighted_sum
from palaestra.policies import CategoricalPolicy, StochasticPolicy, stochastic_policy
from palaestra.policies.actions import head_of

__all__ = ["VMPO", "VMPOBatch", "VMPOConfig"]

_HALVINGS = 40  # of the interval in which the logarithm of the temperature lies
_WIDTH = 12.0  # of half that interval, around the logarithm of the advantages' range


@dataclass(frozen=True, kw_only=True)
class VMPOConfig(AlgorithmConfig):
    """Hyperparameters of `VMPO`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of policy and value; a number or a schedule."""
    unroll_length: Positive[float] = 128
    """Time steps collected from every environment before each update."""
    num_epochs: Positive[int] = 10
    """Passes over each unroll."""
    mini_batch_size: Positive[int] = 256
    """Rows in a minibatch."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    weight_bound: Positive[Schedule] = 0.1
    """ε_η: how far the weights of the better half are from even ones, in nats."""
    mean_bound: Positive[Schedule] = 0.005
    """ε_α of means, and of the probabilities of choices: how far an update moves them on average, in nats."""
    std_bound: Positive[Schedule] = 1e-3
    """ε_α of standard deviations."""
    initial_multiplier: Positive[float] = 5.0
    """α at the start, of both bounds."""
    multiplier_learning_rate: NotNegative[Schedule] = 1e-2
    """Step size of Adam for the logarithms of both multipliers."""
    value_cost: NotNegative[Schedule] = 0.5
    """Weight of the squared error of values."""
    entropy_cost: Finite[Schedule] = 0.0
    """Weight of the policy's entropy, which the paper leaves out."""
    max_grad_norm: Limit[float] = 0.5
    """Gradients are clipped to this Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network. They share the image encoder, if there is one."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    mini_batch_length: ClassVar[int] = 1
    standardize_advantage: ClassVar[bool] = False  # weights are the same for advantages of any unit
    plan_class = OnPolicy


class VMPOBatch(parts.AdvantageBatch):
    """Rows of an unroll, what they count, and what the policy that acted said of them."""

    emphasis: Tensor
    """[...] ψ times the number of valid rows: 1 on average, 0 in the lesser half."""
    old: Batch
    """`numbers` [..., D] and, where there are boxes, `log_std` [..., S]: the network's outputs before the update."""


class VMPO(GradientAlgorithm[StochasticPolicy, VMPOConfig]):
    """Learns a stochastic policy by weighted imitation of itself, and a state value, from unrolls of that same policy.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = VMPOConfig
    usual_lanes = 8

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: VMPOConfig) -> None:
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network)
        networks = nn.ModuleDict({"policy": self.policy.network, "value": self.value.network})
        bounds = ("mean", "std") if head_of(self.policy.raw_action_spec).num_std else ("mean",)
        self.multipliers = nn.ModuleDict({name: parts.Temperature(config.initial_multiplier) for name in bounds})
        adam = OptimizerOption("adam", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        slow = OptimizerOption("adam", {"lr": config.multiplier_learning_rate})
        self.model = CoreModel({"vmpo": networks, "multipliers": self.multipliers}, {"vmpo": adam, "multipliers": slow})

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> VMPOBatch:
        """Adds advantages, what each row counts, and the distributions of the policy that acted."""
        found: Any = parts.advantages(self, batch, source=source)
        features, _ = self.policy.features(found.observation)
        numbers, log_std = self._told(self.policy.head(features))
        old = {"numbers": numbers}
        if log_std is not None:
            old["log_std"] = log_std.expand(*numbers.shape[:-1], log_std.shape[-1]).clone()
        emphasis = _emphasis(found.advantage, found.valid, self.value_of("weight_bound"))
        return VMPOBatch.of({**dict(found.items()), "emphasis": emphasis, "old": Batch.of(old)})

    def losses(self, batch: VMPOBatch) -> Losses:
        """The weighted likelihood, both bounds and the value error of section 3, each a mean over valid rows."""
        weight = row_weights(batch.valid)
        features, _ = self.policy.features(batch.observation)
        outputs = self.policy.head(features)
        mask = self.policy.action_mask(batch.observation) if self.policy.is_masked else None
        policy = self.policy.distribution_of(outputs, mask)
        log_likelihood = weighted_sum(batch.emphasis * policy.log_prob(batch.action), weight)
        value_error = weighted_sum((self.value.of(features, batch.observation) - batch.value_target).square(), weight)
        entropy = weighted_sum(policy.entropy(), weight)
        total = self.value_of("value_cost") * value_error - log_likelihood
        if self.config.entropy_cost:
            total = total - self.value_of("entropy_cost") * entropy
        metrics = {"log_likelihood": log_likelihood, "value_error": value_error, "entropy": entropy}
        bounds: list[Tensor] = []
        for name, moved in self._divergences(outputs, batch.old, mask).items():
            multiplier: Any = self.multipliers[name]
            kl = weighted_sum(moved, weight)
            total = total + multiplier() * kl
            bounds.append(multiplier.loss(kl - self.value_of(f"{name}_bound")))
            metrics |= {f"kl_{name}": kl, f"multiplier_{name}": multiplier()}
        return Losses({"vmpo": total, "multipliers": torch.stack(bounds).sum()}, metrics)

    def diagnostics(self, batch: VMPOBatch) -> dict[str, Tensor]:
        """How well the values before the update explained their targets: 1 is perfectly, 0 not at all."""
        return {"explained_variance": explained_variance(batch.value, batch.value_target, batch.valid)}

    def _divergences(self, outputs: Any, old: Any, mask: Any) -> dict[str, Tensor]:
        """[...] KL of the policy that acted from one with new means alone, and from one with new deviations alone."""
        numbers, log_std = self._told(outputs)
        if log_std is None:
            return {"mean": self._policy(old.numbers, None, mask).kl(self._policy(numbers, None, mask))}
        acted = self._policy(old.numbers, old.log_std, mask)
        return {
            "mean": acted.kl(self._policy(numbers, old.log_std, mask)),
            "std": acted.kl(self._policy(old.numbers, log_std.expand_as(old.log_std), mask)),
        }

    def _told(self, outputs: Any) -> tuple[Tensor, Tensor | None]:
        return (outputs, None) if isinstance(outputs, Tensor) else outputs

    def _policy(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Any:
        outputs: Any = numbers if isinstance(self.policy, CategoricalPolicy) else (numbers, log_std)
        return self.policy.distribution_of(outputs, mask)


def _emphasis(advantage: Tensor, valid: Tensor, bound: float) -> Tensor:
    """[...] ψ ∝ exp(A / η) in the better half of the valid rows, times their number; else 0.

    η is the minimum of η ε + η log mean exp(A / η), where the weights are ε nats from even ones: it is halved out.
    """
    emphasis, rows = torch.zeros_like(advantage), valid.bool()
    if not rows.any():
        return emphasis
    better = rows & (advantage >= advantage[rows].median())
    best = advantage[better].double()
    middle = (best.max() - best.min()).clamp(min=1e-12).log()
    low, high = middle - _WIDTH, middle + _WIDTH
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        log_weights = (best / middle.exp()).log_softmax(0)
        uneven = (log_weights.exp() * (log_weights + math.log(len(best)))).sum() > bound
        low, high = torch.where(uneven, middle, low), torch.where(uneven, high, middle)
    emphasis[better] = ((best / high.exp()).softmax(0) * rows.sum()).to(advantage.dtype)
    return emphasis
