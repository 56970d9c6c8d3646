"""Behaviour cloning: the most likely policy behind the actions of a data set.

Paper: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88; the loss is the negative log-likelihood of maximum
likelihood estimation.
"""

from dataclasses import dataclass, field
from typing import Any

from palaestra.algorithms.config import AlgorithmConfig, Finite, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import Batch, DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.policies import StochasticPolicy, stochastic_policy

__all__ = ["BehaviourCloning", "BehaviourCloningBatch", "BehaviourCloningConfig"]


@dataclass(frozen=True, kw_only=True)
class BehaviourCloningConfig(AlgorithmConfig):
    """Hyperparameters of `BehaviourCloning`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters."""
    entropy_cost: Finite[Schedule] = 0.0
    """Weight of the policy's entropy, which keeps it from being surer than the data."""

    plan_class = Offline


class BehaviourCloningBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Any


class BehaviourCloning(GradientAlgorithm[StochasticPolicy, BehaviourCloningConfig]):
    """Learns to act as the data does; rewards are not looked at.

    Raises:
        ConfigError: a leaf of the action space is neither discrete nor a tensor of floats, or the network has a memory.
    """

    config_class = BehaviourCloningConfig
    imitates = ignores_rewards = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: BehaviourCloningConfig) -> None:
        (layers,) = config.network.parts("policy")
        self.policy = stochastic_policy(observation_spec, action_spec, layers, normalize=config.normalize_observation)
        self.model = CoreModel(
            {"policy": self.policy.network}, {"policy": OptimizerOption("adam", {"lr": config.learning_rate})}
        )

    def preprocess(self, batch: Any, source: DataSource) -> BehaviourCloningBatch:
        """Observations and actions; what followed does not matter."""
        return BehaviourCloningBatch.of({"observation": batch.observation, "action": batch.action})

    def losses(self, batch: BehaviourCloningBatch) -> Losses:
        """The negative log-likelihood of the actions, nats."""
        policy = self.policy.distribution(batch.observation)
        log_prob, entropy = policy.log_prob(batch.action).mean(), policy.entropy().mean()
        return Losses({"policy": -log_prob - self.value_of("entropy_cost") * entropy}, {"entropy": entropy})
