"""Deep deterministic policy gradient.

Paper: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, equations (4) to (6) and algorithm 1. Departures:
independent Gaussian instead of Ornstein-Uhlenbeck noise; one learning rate; neither weight decay nor batch
normalisation; two layers of 256 units instead of 400 and 300; actor and critic are differentiated at the same weights,
then stepped together.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive, replay_plan
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import Batch, DataSource, Plan, Replay, Schedule, SpecTree
from palaestra.nn import CoreModel, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import mean_of, squared_errors
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(AlgorithmConfig):
    """Hyperparameters of `DDPG`."""

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

    plan_class = Replay

    @property
    def plan(self) -> Plan:
        """The data these settings ask for: rows, or sequences where the network is recurrent."""
        return replay_plan(self)


class DDPG(GradientAlgorithm[DeterministicPolicy, DDPGConfig]):
    """Learns one action for each state by ascending a learned value.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = DDPGConfig
    recurrent = True

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DDPGConfig) -> None:
        actor, critic = config.network.parts("actor", "critic")
        self.policy = DeterministicPolicy.build(
            observation_spec, action_spec, actor, normalize=config.normalize_observation
        )
        size = self.policy.raw_action_spec.size
        self.remembered = parts.Remembered(self.policy, config)
        actor, critic = (layers.on_features() if self.policy.splits else layers for layers in (actor, critic))
        self.target_actor = Network(self.policy.feature_spec, size, copy.deepcopy(actor))
        self.critic = EnsembleNetwork(self.policy.feature_spec, 1, 1, critic, action_size=size)
        networks = {"actor": self.remembered.head, "critic": self.critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        memory = self.remembered.components
        trained = [*networks, *(["memory"] if memory else [])]
        self.model = CoreModel(networks | {"target_actor": self.target_actor} | memory, dict.fromkeys(trained, adam))
        self.policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        self.trains = self.remembered.trains
        self.targets = Targets(
            self.model, {"target_actor": "actor", "target_critic": "critic"} | self.remembered.follows, tau=config.tau
        )
        self.target_critic: Any = self.model.component["target_critic"]

    def preprocess(self, batch: Any, source: DataSource) -> Batch:
        return self.remembered.prepared(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equations (4) and (5) for the critic; (6), the deterministic policy gradient, for the actor."""
        seen = self.remembered.seen(batch)
        q = self.critic(seen.now, seen.batch.action).squeeze(-1)  # [1, N]
        gain = mean_of(self.critic(seen.fixed, self.policy.head(seen.fixed).tanh()))
        error = squared_errors(q, parts.deterministic_target(self, seen.batch, seen))
        return Losses({"critic": error, "actor": -gain}, {"q_mean": mean_of(q)})
