"""Soft actor-critic with twin critics and an automatic temperature.

Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equations (5), (6), (9) and (18), and algorithm 1 with
its minimum of two critics. Departures: critics, actor and temperature are differentiated at the same weights, then
stepped together; the temperature is learned through its logarithm.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive, replay_plan
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Finite, Plan, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, NetworkConfig, OptimizerOption
from palaestra.ops import mean_of, squared_errors
from palaestra.policies import SquashedGaussianPolicy

__all__ = ["SAC", "SACConfig"]


@dataclass(frozen=True, kw_only=True)
class SACConfig(AlgorithmConfig):
    """Hyperparameters of `SAC`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of actor and critics; a number or a schedule."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch; with a memory as many sequences as hold so many: divided by `mini_batch_length`."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction, or the entropy of the steps between."""
    tau: Fraction[Schedule] = 0.005
    """Share of the way that target critics go towards the online ones, in [0, 1]."""
    num_critics: Positive[int] = 2
    """K, critics of the ensemble."""
    initial_temperature: Positive[float] = 1.0
    """Alpha at the start, units of return per nat."""
    temperature_learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of the temperature; 0 leaves it as it is."""
    target_entropy: Finite[float | None] = None
    """Entropy in nats that the temperature aims at; by default minus the number of action dimensions."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters but those of a memory."""
    mini_batch_length: Positive[int] = 16
    """Time steps in a sequence, for a recurrent network; without one, rows are learned from one by one."""
    burn_in: NotNegative[int] = 4
    """Time steps before each sequence that only bring the hidden state up to date, for a recurrent network."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""

    plan_class = Replay

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: rows, or sequences where the network is recurrent."""
        return replay_plan(self)


class SAC(GradientAlgorithm[SquashedGaussianPolicy, SACConfig]):
    """Learns a stochastic policy that maximises return and entropy; the temperature holds its entropy near a target.

    Args:
        action_spec: of the environment: a box with finite bounds.
        network: your own encoder; the parts are "actor" and "critic".

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = SACConfig
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: SACConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = SquashedGaussianPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.remembered = parts.Remembered(self.policy, config)
        actor, critic = (layers.on_features() if self.policy.splits else layers for layers in (actor, critic))
        self.critic = EnsembleNetwork(self.policy.feature_spec, 1, config.num_critics, critic, action_size=size)
        self.temperature = parts.Temperature(config.initial_temperature)
        self.target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        networks = {"actor": self.remembered.head, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        slow = OptimizerOption("adam", {"lr": config.temperature_learning_rate})
        options = {"actor": adam, "critic": adam, "temperature": slow}
        memory = self.remembered.components
        options |= {"memory": adam} if memory else {}
        self.model = CoreModel({**networks, **memory, "temperature": self.temperature}, options)
        self.trains = self.remembered.trains
        self.targets = Targets(self.model, {"target_critic": "critic"} | self.remembered.follows, tau=config.tau)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        return self.remembered.prepared(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> parts.SoftBatch:
        """The random part of the actions at both observations."""
        return parts.action_noise(batch, generator)

    def losses(self, batch: parts.SoftBatch) -> Losses:
        """Equation (5) with the target of (6) for the critics, (9) for the actor, (18) for the temperature."""
        seen, temperature = self.remembered.seen(batch), self.temperature()
        batch = seen.batch
        q = self.critic(seen.now, batch.action).squeeze(-1)  # [K, N]
        action, log_prob = self.policy.distribution_of(self.policy.head(seen.fixed)).at(batch.noise)
        least_q = self.critic(seen.fixed, action).amin(0).squeeze(-1)
        terms = {
            "critic": 0.5 * squared_errors(q, parts.soft_target(self, batch, seen=seen)),
            "actor": mean_of(temperature * log_prob - least_q),
            "temperature": self.temperature.loss(log_prob + self.target_entropy),
        }
        return Losses(terms, {"q_mean": mean_of(q), "entropy": -mean_of(log_prob), "alpha": temperature})
