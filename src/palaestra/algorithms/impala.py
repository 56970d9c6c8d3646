"""Actor-critic with V-trace: learns from unrolls of a policy that may be older than its own.

Paper: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, equation (1), remarks 1 and 2, section 4.2.
Departures: policy and value have networks of their own, trained together by RMSProp with means, not sums, over rows;
gradients are clipped by norm. Targets are computed with the weights of each gradient step, so an unroll may be learned
from several times. A recurrent network begins each unroll with the memory that the acting policy had there, and the
value looks at the policy's memory. The memory sees the last action and reward only where `env.inputs` shows them.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, ConfigError, DataSource, OnPolicy, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import VTraceClip, approximate_kl, masked_mean, policy_gradient, vtrace
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["IMPALA", "IMPALABatch", "IMPALAConfig"]


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(AlgorithmConfig):
    """Hyperparameters of `IMPALA`."""

    unroll_length: Positive[float] = 20
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 1.0
    """Lambda of remark 2, in [0, 1]: decay of the traces."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network. They share the recurrent cells, if any, and, trained together, the image encoder."""
    learning_rate: NotNegative[Schedule] = 6e-4
    """Step size of RMSProp; a number or a schedule."""
    value_cost: NotNegative[Schedule] = 0.5
    """Weight of the value error."""
    entropy_cost: Finite[Schedule] = 0.01
    """Weight of the entropy."""
    max_grad_norm: Limit[float] = 40.0
    """Gradients are clipped to this Euclidean norm over all parameters."""
    num_epochs: Positive[int] = 1
    """Passes over each unroll."""
    mini_batch_sequences: Positive[int | None] = None
    """Sequences in a minibatch; `None` is one from every environment, that is, the whole unroll."""
    rho_clip: Limit[float] = 1.0
    """Upper bound of the importance weights of errors; it decides which policy's value is learned."""
    trace_clip: Limit[float] = 1.0
    """Upper bound of the importance weights in traces, at most `rho_clip`; it decides how fast values spread."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trace_clip > self.rho_clip:
            raise ConfigError(
                f"algorithm.trace_clip is {self.trace_clip} and algorithm.rho_clip is {self.rho_clip}; trace_clip must "
                "be at most rho_clip"
            )

    plan_class = OnPolicy


class IMPALABatch(Batch):
    """Whole sequences, with the row after them to bootstrap from."""

    observation: Any
    """[T+1, B, ...]."""
    action: Any
    """[T, B, ...]."""
    log_prob: Tensor
    """[T, B] of the policy that acted."""
    reward: Tensor
    """[T+1, B]."""
    discount: Tensor
    """[T+1, B] continuation."""
    step_type: Tensor
    """[T+1, B]."""
    valid: Tensor
    """[T, B]."""


class IMPALA(GradientAlgorithm[StochasticPolicy, IMPALAConfig]):
    """Learns a stochastic policy and a state value from unrolls of that policy or an older one.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = IMPALAConfig
    usual_lanes = 8
    recurrent = True
    stored_fields = ("log_prob",)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: IMPALAConfig) -> None:
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network)
        networks = nn.ModuleDict({"policy": self.policy.network, "value": self.value.network})
        option = OptimizerOption("rmsprop", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        self.model = CoreModel({"impala": networks}, {"impala": option})

    def preprocess(self, batch: Any, source: DataSource) -> IMPALABatch:
        """Keeps what V-trace needs; it is computed in `losses`, with the weights of the gradient step."""
        names = ("observation", "action", "reward", "discount", "step_type", "valid", "state")
        kept = {name: batch[name] for name in names if name in batch}
        return IMPALABatch.of({**kept, "log_prob": batch.policy_info.log_prob})

    def losses(self, batch: IMPALABatch) -> Losses:
        """Section 4.2: policy gradient with V-trace advantages, value error and entropy, means over valid rows."""
        features, _ = self.policy.features(batch.observation, *parts.state_of(batch))
        mask = self.policy.action_mask(batch.observation[:-1])
        policy = self.policy.distribution_of(self.policy.head(features[:-1]), mask)
        log_prob = policy.log_prob(batch.action)
        log_ratio = log_prob.detach() - batch.log_prob
        value = self.value.of(features, batch.observation)  # [T+1, B]
        trace = vtrace(
            value.detach(),
            batch.reward,
            batch.discount,
            batch.step_type,
            log_ratio,
            gamma=self.value_of("gamma"),
            clip=VTraceClip(self.config.rho_clip, self.config.trace_clip, self.value_of("gae_lambda")),
        )
        policy_loss = masked_mean(policy_gradient(log_prob, trace.advantage), batch.valid)
        value_error = masked_mean((value[:-1] - trace.target).square(), batch.valid)
        entropy = masked_mean(policy.entropy(), batch.valid)
        total = policy_loss + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        metrics = {
            "policy_gradient": policy_loss,
            "value_error": value_error,
            "entropy": entropy,
            "kl": approximate_kl(log_ratio, batch.valid),
        }
        return Losses({"impala": total}, metrics)
