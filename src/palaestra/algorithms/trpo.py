"""Trust region policy optimization: a natural gradient step as long as a bound on the divergence allows.

Paper: Schulman et al. 2015, https://arxiv.org/abs/1502.05477, equation (14), section 6 and appendix C.
Departures: advantages are generalised and standardised; the Fisher matrix is that of the whole unroll; the value is a
network trained by Adam on each unroll; the line search starts at the longest step the quadratic model of the divergence
allows, as in the paper, and keeps the old policy where no shorter one improves the surrogate.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from palaestra.algorithms import parts
from palaestra.algorithms.algorithm import Algorithm, UpdateInfo
from palaestra.algorithms.config import AlgorithmConfig, Fraction, NotNegative, Positive
from palaestra.core import ConfigError, DataSource, OnPolicy, Schedule, SpecTree, minibatches
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import conjugate_gradient, explained_variance, importance_ratio, masked_mean
from palaestra.policies import Phase, StochasticPolicy, stochastic_policy

__all__ = ["TRPO", "TRPOConfig"]


@dataclass(frozen=True, kw_only=True)
class TRPOConfig(AlgorithmConfig):
    """Hyperparameters of `TRPO`."""

    unroll_length: Positive[float] = 1024
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of policy and value network; they share no parameters."""
    num_epochs: Positive[int] = 10
    """How often the value network goes through each unroll."""
    mini_batch_size: Positive[int] = 128
    """Rows in a minibatch of the value network."""
    standardize_advantage: bool = True
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    target_kl: Positive[Schedule] = 0.01
    """Delta of equation (14): mean divergence of the new policy from the old one, nats."""
    damping: NotNegative[float] = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    num_conjugate_steps: Positive[int] = 10
    """Iterations of the conjugate gradient method."""
    num_line_steps: Positive[int] = 10
    """Step lengths tried, each 0.8 times the one before."""
    value_learning_rate: NotNegative[Schedule] = 1e-3
    """Step size of Adam for the value network; a number or a schedule."""

    mini_batch_length: ClassVar[int] = 1
    plan_class = OnPolicy


class TRPO(Algorithm[StochasticPolicy, TRPOConfig]):
    """Learns a stochastic policy by natural gradient steps of bounded divergence, and a state value beside it.

    Raises:
        ConfigError: the action space holds something else, or the policy is given another optimizer.
    """

    config_class = TRPOConfig
    usual_lanes = 8
    stored_fields = ("log_prob",)

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: TRPOConfig) -> None:
        if others := sorted(set(config.optimizers) - {"value"}):
            raise ConfigError(
                f"TRPO takes the natural step of its policy as it is; leave out algorithm.optimizers.{others[0]}, or "
                "give algorithm.optimizers.value, of the value network"
            )
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network, shares=False)
        options = {
            "policy": OptimizerOption("sgd", {"lr": 1.0}),  # the natural step is taken as it is
            "value": OptimizerOption("adam", {"lr": config.value_learning_rate}),
        }
        self.model = CoreModel({"policy": self.policy.network, "value": self.value.network}, options)

    def update(self, source: DataSource) -> UpdateInfo:
        """One natural gradient step of the policy on the whole unroll, then many steps of the value network.

        Raises:
            NonFiniteError: a gradient is NaN or infinite.
        """
        with self.policy.in_phase(Phase.UPDATE):
            drawn: Any = self.draw(source)
            batch = parts.advantages(self, drawn)
            info = UpdateInfo(self.policy_version + 1, 0, int(batch.valid.sum()))
            if info.rows:
                with self.partly_updated(info):
                    info.records.append(self._improve(batch))
                    info.gradient_steps += 1
                    self.num_gradient_steps += 1
                    for minibatch in minibatches(batch, self.plan, generator=self.minibatch_generator):
                        info.records.append(self._fit_value(minibatch))
                        info.gradient_steps += 1
                        info.rows += int(minibatch["valid"].sum())
        self.finish_update(drawn, info)
        return info

    def _improve(self, batch: Any) -> dict[str, Tensor]:
        """Appendix C: the direction by conjugate gradients, the length by the trust region, then a line search."""
        parameters: list[Any] = self.model.optimizers["policy"].parameters
        old = parts.FixedPolicy(self.policy).distribution(batch.observation)

        def measured() -> tuple[Tensor, Tensor]:
            new = self.policy.distribution(batch.observation)
            ratio = importance_ratio(new.log_prob(batch.action) - batch.log_prob)
            return masked_mean(ratio * batch.advantage, batch.valid), masked_mean(old.kl(new), batch.valid)

        gain, kl = measured()
        gradient = _flat(torch.autograd.grad(gain, parameters, retain_graph=True, allow_unused=True), parameters)
        slope = _flat(torch.autograd.grad(kl, parameters, create_graph=True, allow_unused=True), parameters)

        @torch.enable_grad()
        def fisher(vector: Tensor) -> Tensor:
            product = torch.autograd.grad(slope @ vector, parameters, retain_graph=True, allow_unused=True)
            return _flat(product, parameters) + self.config.damping * vector

        direction = conjugate_gradient(fisher, gradient, num_steps=self.config.num_conjugate_steps)
        curvature = direction @ fisher(direction)
        longest = (2 * self.value_of("target_kl") / curvature.clamp(min=1e-12)).sqrt() * direction
        self.require_finite_gradients({"gradient_norm/policy": longest.norm()}, batch=batch)
        share, gain_after, kl_after = self._line_search(measured, parameters, longest, float(gain.detach()))
        if share:
            self.model.apply_vector("policy", -share * longest)
        return {
            "surrogate": gain_after,
            "surrogate_gain": gain_after - gain.detach(),
            "kl": kl_after,
            "step_share": gain.new_tensor(share),
            "entropy": masked_mean(old.entropy(), batch.valid),
            "gradient_norm/policy": gradient.norm(),
            "explained_variance": explained_variance(batch.value, batch.value_target, batch.valid),
        }

    @torch.no_grad()
    def _line_search(
        self, measured: Any, parameters: list[Any], longest: Tensor, before: float
    ) -> tuple[float, Tensor, Tensor]:
        """The longest share of a step that improves the surrogate within the bound; parameters are left as they were.

        Returns:
            The share, 0 where there is none, and what was measured there.
        """
        start = parameters_to_vector(parameters)
        limit = float(self.value_of("target_kl"))
        share, found = 1.0, (0.0, longest.new_tensor(before), longest.new_tensor(0.0))
        for _ in range(self.config.num_line_steps):
            vector_to_parameters(start + share * longest, parameters)
            self.model.optimizers["policy"].keep_lengths()
            gain, kl = measured()
            if float(gain) > before and float(kl) <= limit:
                found = (share, gain, kl)
                break
            share *= 0.8
        vector_to_parameters(start, parameters)
        return found

    def _fit_value(self, batch: Any) -> dict[str, Tensor]:
        error = masked_mean((self.value(batch.observation) - batch.value_target).square(), batch.valid)
        norm = self.model.apply_gradients([self.model.get_gradients(error, ["value"])])["value"]
        metrics = {"value_error": error.detach(), "gradient_norm/value": norm}
        self.require_finite_gradients(metrics, batch=batch)
        self.num_gradient_steps += 1
        return metrics


def _flat(gradients: Any, parameters: list[Any]) -> Tensor:
    """One vector; a parameter that plays no part has a gradient of 0."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])
