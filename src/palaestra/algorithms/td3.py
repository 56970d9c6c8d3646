"""Twin delayed deep deterministic policy gradient.

Paper: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, algorithm 1, equations (10) and (14). Departures: an
actor that is due is differentiated at the same weights as the critics, then stepped together with them; noise is in
units of raw actions, which lie in [-1, 1]; networks and minibatches of the size of the authors' later code.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive, replay_plan
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Plan, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import mean_of, squared_errors
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["TD3", "TD3Batch", "TD3Config"]


@dataclass(frozen=True, kw_only=True)
class TD3Config(AlgorithmConfig):
    """Hyperparameters of `TD3`."""

    learning_rate: NotNegative[Schedule] = 3e-4
    """Step size of Adam, of all components; a number or a schedule."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one update."""
    num_epochs: Positive[int | None] = None
    """Passes over the whole buffer in one update, instead of `gradient_steps` minibatches drawn from it."""
    mini_batch_size: Positive[int] = 256
    """Transitions in a minibatch; with a memory as many sequences as hold so many: divided by `mini_batch_length`."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Layers of every network; they share no parameters but those of a memory."""
    gamma: Fraction[Schedule] = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping, without off-policy correction."""
    unroll_length: Positive[float] = 1
    """Time steps collected from every environment before each update."""
    capacity: Positive[int] = 1_000_000
    """Rows the replay buffer keeps."""
    learning_starts: NotNegative[int] = 1_000
    """Env steps before the first gradient step."""
    mini_batch_length: Positive[int] = 16
    """Time steps in a sequence, for a recurrent network; without one, rows are learned from one by one."""
    burn_in: NotNegative[int] = 4
    """Time steps before each sequence that only bring the hidden state up to date, for a recurrent network."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""
    target_noise_std: NotNegative[float] = 0.2
    """Standard deviation of the noise on target actions, in raw units."""
    target_noise_clip: NotNegative[float] = 0.5
    """Largest noise on target actions, in raw units."""
    policy_period: Positive[int] = 2
    """Gradient steps of the critics for each one of the actor and of the target networks."""

    plan_class = Replay

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: rows, or sequences where the network is recurrent."""
        return replay_plan(self)


class TD3Batch(parts.TransitionBatch):
    """Transitions, and the noise on their target actions."""

    noise: Tensor
    """[N, A] clipped, raw units."""


class TD3(GradientAlgorithm[DeterministicPolicy, TD3Config]):
    """Learns one action for each state by ascending a learned value, with targets from the lesser of two.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = TD3Config
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: TD3Config) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = DeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.remembered = parts.Remembered(self.policy, config)
        actor, critic = (layers.on_features() if self.policy.splits else layers for layers in (actor, critic))
        self.target_actor = Network(self.policy.feature_spec, size, copy.deepcopy(actor))
        self.critic = EnsembleNetwork(self.policy.feature_spec, 1, 2, critic, action_size=size)
        networks = {"actor": self.remembered.head, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        memory = self.remembered.components
        trained = [*networks, *(["memory"] if memory else [])]
        self.model = CoreModel(networks | {"target_actor": self.target_actor} | memory, dict.fromkeys(trained, adam))
        self.policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        self.term_periods = {"actor": config.policy_period}
        self.trains = self.remembered.trains
        follows = {"target_actor": "actor", "target_critic": "critic"} | self.remembered.follows
        self.targets = Targets(self.model, follows, tau=config.tau, period=config.policy_period)
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        return self.remembered.prepared(batch, self.value_of("gamma"))

    def noise(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Equation (14): the smoothing noise of target actions."""
        return parts.smoothing_noise(batch, self.config, generator, TD3Batch)

    def losses(self, batch: TD3Batch) -> Losses:
        """Equation (10) for the critics; the deterministic policy gradient for the actor, where it is due."""
        seen = self.remembered.seen(batch)
        q = self.critic(seen.now, seen.batch.action).squeeze(-1)  # [2, N]
        terms = {"critic": squared_errors(q, parts.deterministic_target(self, seen.batch, seen))}
        if self.is_due("actor"):
            action = self.policy.head(seen.fixed).tanh()
            terms["actor"] = -mean_of(self.critic(seen.fixed, action, members=slice(1)))
        return Losses(terms, {"q_mean": mean_of(q)})
