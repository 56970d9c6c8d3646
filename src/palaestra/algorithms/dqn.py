"""Deep Q-learning from replayed transitions.

Papers: Mnih et al. 2015, https://doi.org/10.1038/nature14236, equation (2); double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461, equation (4); dueling networks: Wang et al. 2016, https://arxiv.org/abs/1511.06581,
equation (9); n-step targets: Sutton and Barto 2018, equation (7.1), without off-policy correction.
Departures: Adam instead of RMSProp; the Huber loss stands for the clipped error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.algorithm import AlgorithmConfig, GradientAlgorithm
from palaestra.algorithms.records import Losses
from palaestra.core import Batch, DataSource, Linear, Replay, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption, QNetwork
from palaestra.ops import double_q_target, huber, n_step_targets, q_target
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["DQN", "DQNBatch", "DQNConfig"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(AlgorithmConfig):
    """Hyperparameters of `DQN`."""

    learning_rate: Schedule = 1e-3
    """Step size of Adam; a number or a schedule."""
    unroll_length: float = 1
    """Time steps collected from every environment before each update."""
    num_updates: int = 1
    """Gradient steps in one update."""
    mini_batch_size: int = 128
    """Transitions in a minibatch."""
    capacity: int = 100_000
    """Rows the replay buffer keeps."""
    initial_collect_steps: int = 1_000
    """Env steps before the first gradient step."""
    gamma: Schedule = 0.99
    """Discount per env step, in [0, 1]."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    double: bool = True
    """Whether the online network chooses the action whose target value is used."""
    target_period: int = 250
    """Gradient steps between two copies of the online to the target network."""
    epsilon: Schedule = field(default_factory=lambda: Linear(1.0, 0.05, 0.2))
    """Probability of a random action while collecting."""
    huber_delta: float = 1.0
    """Error above which the loss grows linearly."""
    max_grad_norm: float = 10.0
    """Longest gradient, Euclidean norm over all parameters."""
    normalize_observation: bool = False
    """Whether the policy normalises observations by the running mean and variance of the rows learned from."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    """Q-network; `dueling` is an option of it."""


class DQNBatch(Batch):
    """One minibatch; every field is [N, ...]."""

    observation: Any
    action: Tensor
    next_observation: Any
    reward: Tensor
    discount: Tensor
    index: Tensor


@final
class DQN(GradientAlgorithm[ValueGreedyPolicy]):
    """Learns action values from replayed transitions; acts greedily with probability 1 - epsilon.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete.
    """

    config_class = DQNConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: DQNConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or DQNConfig(), seeds or RunSeeds(0)
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = ValueGreedyPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            policy.exploration = EpsilonGreedy(action_spec.num, config.epsilon)
            self._target_network = QNetwork(observation_spec, action_spec.num, config.network)
        model = CoreModel(
            {"q": policy.network, "target_q": self._target_network},
            {"q": OptimizerOption("adam", {"lr": config.learning_rate}, config.max_grad_norm)},
        )
        model.sync("target_q", source="q")
        plan = Replay(
            unroll_length=config.unroll_length,
            capacity=config.capacity,
            num_updates=config.num_updates,
            mini_batch_size=config.mini_batch_size,
            initial_collect_steps=config.initial_collect_steps,
            n_step=config.n_step,
        )
        super().__init__(config, policy=policy, model=model, plan=plan, seeds=seeds)

    @torch.no_grad()
    def preprocess(self, batch: Any, source: DataSource) -> DQNBatch:
        """Reduces n-step windows to transitions: `discount` becomes gamma to the n, or 0 after a termination."""
        steps = n_step_targets(batch.reward, self.value_of("gamma") * batch.discount, batch.step_type)
        return DQNBatch.of(
            {
                "observation": batch.observation,
                "action": batch.action,
                "next_observation": batch.next_observation,
                "reward": steps.reward,
                "discount": steps.discount,
                "index": batch.index,
            }
        )

    def losses(self, batch: DQNBatch) -> Losses:
        """Equation (2) of Mnih et al., with the target of van Hasselt et al. where `double` is set."""
        with torch.no_grad():
            mask = self.policy.action_mask(batch.next_observation)
            next_target = self._target_network(self.policy.normalize(batch.next_observation))
            if self.config.double:
                next_online = self.policy.q_values(batch.next_observation)
                target = double_q_target(next_online, next_target, batch.reward, batch.discount, mask)
            else:
                target = q_target(next_target, batch.reward, batch.discount, mask)
        q = self.policy.q_values(batch.observation).gather(-1, batch.action[:, None]).squeeze(-1)
        error = q - target
        return Losses({"q": huber(error, delta=self.config.huber_delta).mean()}, {"q_mean": q.mean()})

    def after_step(self) -> None:
        """Copies the online to the target network every `target_period` gradient steps."""
        if self.num_gradient_steps % self.config.target_period == 0:
            self.model.sync("target_q", source="q")
