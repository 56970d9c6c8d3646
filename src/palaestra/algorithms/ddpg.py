"""Deep deterministic policy gradient.

Paper: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, equations (4) to (6) and algorithm 1. Departures:
independent Gaussian instead of Ornstein-Uhlenbeck noise; one learning rate; neither weight decay nor batch
normalisation; actor and critic are differentiated at the same weights, then stepped together.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, final

from palaestra.algorithms import parts
from palaestra.algorithms.algorithm import AlgorithmConfig, BonusConfig, Fraction, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.core import DataSource, Replay, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, EncoderOption, EnsembleNetwork, Network, NetworkConfig, OptimizerOption
from palaestra.ops import squared_errors
from palaestra.policies import DeterministicPolicy, GaussianNoise

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(AlgorithmConfig):
    """Hyperparameters of `DDPG`."""

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
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Reward for novelty; none by default."""
    tau: Fraction[Schedule] = 0.005
    """Share of the way that target networks go towards the online ones, in [0, 1]."""
    exploration_std: NotNegative[Schedule] = 0.1
    """Standard deviation of the noise on actions while collecting, in raw units."""

    plan_class = Replay


@final
class DDPG(GradientAlgorithm[DeterministicPolicy]):
    """Learns one action for each state by ascending a learned value.

    Raises:
        ConfigError: the action space is something else.
    """

    config_class = DDPGConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: DDPGConfig | None = None,
        seeds: RunSeeds | None = None,
        network: EncoderOption = None,
    ) -> None:
        config, seeds = parts.settings(config or DDPGConfig(), seeds, network)
        actor, critic = config.network.parts("actor", "critic")
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = DeterministicPolicy.build(
                observation_spec, action_spec, actor, normalize=config.normalize_observation
            )
            size = policy.raw_action_spec.size
            self.target_actor = Network(observation_spec, size, actor)
            self.critic = EnsembleNetwork(observation_spec, 1, 1, critic, action_size=size)
        self.target_critic = copy.deepcopy(self.critic)
        networks = {"actor": policy.network, "critic": self.critic}
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        model = CoreModel(networks | targets, dict.fromkeys(networks, adam))
        model.sync("target_actor", source="actor")
        policy.exploration = GaussianNoise(config.exploration_std, minimum=-1.0, maximum=1.0)
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equations (4) and (5) for the critic; (6), the deterministic policy gradient, for the actor."""
        observation = self.policy.normalize(batch.observation)
        q = self.critic(observation, batch.action).squeeze(-1)  # [1, N]
        gain = self.critic(observation, self.policy.action(batch.observation)).mean()
        return Losses(
            {"critic": squared_errors(q, parts.deterministic_target(self, batch)), "actor": -gain}, {"q_mean": q.mean()}
        )
