"""Actor-critic with V-trace: learns from unrolls of a policy that may be older than its own.

Paper: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, equation (1), remarks 1 and 2, section 4.2.
Departures: policy and value have networks of their own, trained together by RMSProp with means, not sums, over rows;
gradients are clipped by norm. Targets are computed with the weights of each gradient step, so an unroll may be learned
from several times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn

from palaestra.algorithms.algorithm import AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, OnPolicy, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import VTraceClip, approximate_kl, masked_mean, policy_gradient, vtrace
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["IMPALA", "IMPALABatch", "IMPALAConfig"]


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(AlgorithmConfig):
    """Hyperparameters of `IMPALA`."""

    learning_rate: Schedule = 6e-4
    """Step size of RMSProp; a number or a schedule."""
    unroll_length: float = 20
    """Time steps collected from every environment before each update."""
    num_updates: int = 1
    """How often each unroll is gone through."""
    mini_batch_size: int | None = None
    """Sequences in a minibatch; `None` is one from every environment, that is, the whole unroll."""
    gamma: Schedule = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Schedule = 1.0
    """Lambda of remark 2, in [0, 1]: decay of the traces."""
    rho_clip: float = 1.0
    """Upper bound of the importance weights of errors; it decides which policy's value is learned."""
    trace_clip: float = 1.0
    """Upper bound of the importance weights in traces, at most `rho_clip`; it decides how fast values spread."""
    value_cost: Schedule = 0.5
    """Weight of the value error."""
    entropy_cost: Schedule = 0.01
    """Weight of the entropy."""
    max_grad_norm: float = 40.0
    """Longest gradient, Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Policy and value network; they share no parameters."""


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
    """[T+1, B] gamma times continuation."""
    step_type: Tensor
    """[T+1, B]."""
    valid: Tensor
    """[T, B]."""


@final
class IMPALA(GradientAlgorithm[StochasticPolicy]):
    """Learns a stochastic policy and a state value from unrolls of that policy or an older one.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete, a box, or any nest of them.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = IMPALAConfig
    stored_fields = ("log_prob",)

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: IMPALAConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or IMPALAConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = stochastic_policy(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            self._value_network = Network(observation_spec, 1, config.network)
        option = OptimizerOption("rmsprop", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        networks = nn.ModuleDict({"policy": policy.network, "value": self._value_network})
        model = CoreModel({"impala": networks}, {"impala": option})
        plan = OnPolicy(
            unroll_length=config.unroll_length, num_updates=config.num_updates, mini_batch_size=config.mini_batch_size
        )
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds)

    def value(self, observation: Any) -> Tensor:
        """State values.

        Args:
            observation: [..., obs], not yet normalised.

        Returns:
            [...] in units of return.
        """
        return self._value_network(self.policy.normalize(observation)).squeeze(-1)

    def preprocess(self, batch: Any, source: DataSource) -> IMPALABatch:
        """Keeps what V-trace needs; it is computed in `losses`, with the weights of the gradient step."""
        return IMPALABatch.of(
            {
                "observation": batch.observation,
                "action": batch.action,
                "log_prob": batch.policy_info.log_prob,
                "reward": batch.reward,
                "discount": self.value_of("gamma") * batch.discount,
                "step_type": batch.step_type,
                "valid": batch.valid,
            }
        )

    def losses(self, batch: IMPALABatch) -> Losses:
        """Section 4.2: policy gradient with V-trace advantages, value error and entropy, means over valid rows."""
        policy = self.policy.distribution(batch.observation[:-1])
        log_prob = policy.log_prob(batch.action)
        log_ratio = log_prob.detach() - batch.log_prob
        value = self.value(batch.observation)  # [T+1, B]
        trace = vtrace(
            value.detach(),
            batch.reward,
            batch.discount,
            batch.step_type,
            log_ratio,
            clip=VTraceClip(self.config.rho_clip, self.config.trace_clip),
            lambda_=self.value_of("gae_lambda"),
        )
        gain = masked_mean(policy_gradient(log_prob, trace.advantage), batch.valid)
        value_error = masked_mean((value[:-1] - trace.target).square(), batch.valid)
        entropy = masked_mean(policy.entropy(), batch.valid)
        total = gain + self.value_of("value_cost") * value_error - self.value_of("entropy_cost") * entropy
        metrics = {
            "policy_gradient": gain,
            "value_error": value_error,
            "entropy": entropy,
            "kl": approximate_kl(log_ratio, batch.valid),
        }
        return Losses({"impala": total}, metrics)
