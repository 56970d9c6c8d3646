"""Phasic policy gradient: PPO with separate networks, and now and then a phase that teaches the policy values.

Paper: Cobbe et al. 2021, https://arxiv.org/abs/2009.04416, algorithm 1 and equations (1) to (4).
Departures: policy and value are trained equally often in the policy phase; the value error is not clipped; the value
networks see observations normalised as of today; 16 policy phases, not 32, between two auxiliary ones; networks for
vectors have layers of numbers, where the paper has convolutions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palaestra.algorithms import parts
from palaestra.algorithms.algorithm import Algorithm, UpdateInfo
from palaestra.algorithms.config import AlgorithmConfig
from palaestra.core import Batch, CheckpointError, Schedule, SpecTree, minibatches, tree_paths
from palaestra.core.plan import DataSource, OnPolicy
from palaestra.core.settings import Annealed, Finite, Fraction, Limit, NotNegative, Positive
from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.ops import approximate_kl, clipped_surrogate, masked_mean
from palaestra.policies import Phase, StochasticPolicy, stochastic_policy

__all__ = ["PPG", "PPGConfig"]


@dataclass(frozen=True, kw_only=True)
class PPGConfig(AlgorithmConfig):
    """Hyperparameters of `PPG`."""

    unroll_length: Positive[float] = 256
    """Time steps collected from every environment before each update."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    gae_lambda: Fraction[Schedule] = 0.95
    """Trace decay of the advantage estimate, in [0, 1]; 1 is Monte Carlo, 0 is one-step TD."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by their running mean and variance."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of policy and value network; they share no parameters."""
    num_epochs: Positive[int] = 1
    """E_pi: how often each unroll is gone through in the policy phase."""
    mini_batch_size: Positive[int] = 256
    """Rows in a minibatch, in both phases."""
    standardize_advantage: bool = True
    """Whether advantages of an unroll are given mean 0 and standard deviation 1."""
    learning_rate: NotNegative[Schedule] = 5e-4
    """Step size of Adam; a number or a schedule."""
    num_policy_phases: Positive[int] = 16
    """N_pi: unrolls between two auxiliary phases; so many are kept."""
    num_auxiliary_updates: Positive[int] = 6
    """E_aux: how often the kept unrolls are gone through in an auxiliary phase."""
    clip: Annealed[Schedule] = 0.2
    """Epsilon of the clipped surrogate."""
    clone_cost: NotNegative[Schedule] = 1.0
    """beta_clone of equation (3): weight of the divergence from the policy before the auxiliary phase."""
    entropy_cost: Finite[Schedule] = 0.01
    """Weight of the entropy."""
    max_grad_norm: Limit[float] = 0.5
    """Longest gradient of the policy and of the value network, Euclidean norm."""

    mini_batch_length: ClassVar[int] = 1
    plan_class = OnPolicy


class PPG(Algorithm[StochasticPolicy, PPGConfig]):
    """Learns a stochastic policy and a state value; the policy's own layers learn the value in a phase apart.

    Rows for the auxiliary phase are kept here, with their value targets, and are part of a checkpoint.

    Raises:
        ConfigError: the action space holds something else.
    """

    config_class = PPGConfig
    usual_lanes = 8
    stored_fields = ("log_prob",)

    _kept: Any = None

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: PPGConfig) -> None:
        layers, _ = config.network.parts("policy", "value")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.value = parts.StateValue(self.policy, observation_spec, config.network, shares=False)
        self._torso = next(part for part in self.policy.network.modules() if isinstance(part, Network))
        self._auxiliary = nn.Linear(self._torso.hidden_size, 1)
        option = OptimizerOption("adam", {"lr": config.learning_rate, "eps": 1e-5}, config.max_grad_norm)
        components = {"policy": self.policy.network, "value": self.value.network, "auxiliary": self._auxiliary}
        self.model = CoreModel(components, dict.fromkeys(components, option))

    def auxiliary_value(self, observation: Any) -> Tensor:
        """State values by the policy's own layers.

        Args:
            observation: [..., obs], not yet normalised.

        Returns:
            [...] in units of return.
        """
        return self._auxiliary(self._torso.hidden(self.policy.features(observation)[0])).squeeze(-1)

    def update(self, source: DataSource) -> UpdateInfo:
        """A policy phase on the unroll; after every `num_policy_phases` of them, an auxiliary phase.

        Raises:
            NonFiniteError: a gradient is NaN or infinite.
        """
        with self.policy.in_phase(Phase.UPDATE):
            drawn: Any = self.draw(source)
            batch = parts.advantages(self, drawn)
            info = UpdateInfo(self.policy_version + 1, 0, 0)
            with self.partly_updated(info):
                if batch.valid.any():
                    for minibatch in minibatches(batch, self.plan, generator=self.minibatch_generator):
                        self._step(minibatch, self._policy_phase(minibatch), info)
                    self._keep(batch)
                if (self.policy_version + 1) % self.config.num_policy_phases == 0 and self._kept is not None:
                    old = parts.FixedPolicy(self.policy)
                    for minibatch in self._kept_minibatches():
                        self._step(minibatch, self._auxiliary_phase(minibatch, old), info)
                    self._kept = None
        self.finish_update(drawn, info)
        return info

    def _policy_phase(self, batch: Any) -> tuple[list[tuple[Tensor, list[str]]], dict[str, Tensor]]:
        """Losses with the components they train, and metrics: equation (1) and the entropy; equation (4)."""
        policy = self.policy.distribution(batch.observation)
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        surrogate = masked_mean(
            clipped_surrogate(log_ratio, batch.advantage, epsilon=self.value_of("clip")), batch.valid
        )
        entropy = masked_mean(policy.entropy(), batch.valid)
        error = masked_mean((self.value(batch.observation) - batch.value_target).square(), batch.valid)
        metrics = {
            "surrogate": surrogate,
            "entropy": entropy,
            "value_error": error,
            "kl": approximate_kl(log_ratio, batch.valid),
        }
        return [(surrogate - self.value_of("entropy_cost") * entropy, ["policy"]), (0.5 * error, ["value"])], metrics

    def _auxiliary_phase(
        self, batch: Any, old: parts.FixedPolicy
    ) -> tuple[list[tuple[Tensor, list[str]]], dict[str, Tensor]]:
        """Equations (2) and (3) for the policy's layers, equation (4) for the value network."""
        clone = old.distribution(batch.observation).kl(self.policy.distribution(batch.observation)).mean()
        auxiliary = (self.auxiliary_value(batch.observation) - batch.value_target).square().mean()
        error = (self.value(batch.observation) - batch.value_target).square().mean()
        joint = 0.5 * auxiliary + self.value_of("clone_cost") * clone
        metrics = {"auxiliary_error": auxiliary, "clone_kl": clone, "value_error": error}
        return [(joint, ["policy", "auxiliary"]), (0.5 * error, ["value"])], metrics

    def _step(
        self, batch: Any, found: tuple[list[tuple[Tensor, list[str]]], dict[str, Tensor]], info: UpdateInfo
    ) -> None:
        losses, metrics = found
        gradients: dict[str, Tensor] = {}
        for loss, components in losses:
            gradients |= self.model.get_gradients(loss, components)
        norms = self.model.apply_gradients([gradients])
        record = {name: value.detach() for name, value in metrics.items()}
        record |= {f"gradient_norm/{name}": norm for name, norm in norms.items()}
        self.require_finite_gradients(record, batch=batch)
        self.num_gradient_steps += 1
        info.add(record, int(batch.valid.sum()) if "valid" in batch else len(batch.value_target))

    # -- what is kept for the auxiliary phase

    def _keep(self, batch: Any) -> None:
        chosen = batch.valid.bool()
        rows = Batch.of({name: batch[name][chosen] for name in ("observation", "value_target")})
        self._kept = rows if self._kept is None else Batch.cat([self._kept, rows])

    def _kept_minibatches(self) -> Iterator[Batch]:
        generator = self.minibatch_generator
        for _ in range(self.config.num_auxiliary_updates):
            order = torch.randperm(len(self._kept.value_target), generator=generator)
            for rows in order.tensor_split(max(1, round(len(order) / self.config.mini_batch_size))):
                yield self._kept[rows.to(self._kept.value_target.device)]

    def state_tensors(self) -> dict[str, Any]:
        """See `Algorithm.state_tensors`; the kept rows are part of it."""
        kept = {} if self._kept is None else {f"kept.{path}": leaf for path, leaf in tree_paths(self._kept).items()}
        return {**super().state_tensors(), **kept}

    def load_state_tensors(self, state: Mapping[str, Any]) -> None:
        """See `Algorithm.load_state_tensors`."""
        super().load_state_tensors(state)
        self._kept = None
        for name, leaf in state.items():
            if name.startswith("kept."):
                self._kept = self._kept or Batch.of({})
                _put(self._kept, name.removeprefix("kept.").split("."), self.on_device(leaf))
        if self._kept is not None and "value_target" not in self._kept:
            raise CheckpointError("the saved rows for the auxiliary phase have no value targets")


def _put(batch: Batch, path: list[str], leaf: Tensor) -> None:
    for name in path[:-1]:
        if name not in batch:
            batch[name] = Batch.of({})
        batch = batch[name]
    batch[path[-1]] = leaf.clone()
