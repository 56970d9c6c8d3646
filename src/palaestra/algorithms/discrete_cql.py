"""Conservative Q-learning for discrete actions and a fixed data set.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation (4), CQL(H), on double Q-learning (van Hasselt et
al. 2016, https://arxiv.org/abs/1509.06461, equation (4)). Departures: the sum over actions is exact; the target network
follows slowly; the Huber loss; scalar instead of quantile values.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from palaestra.algorithms import parts
from palaestra.algorithms.config import AlgorithmConfig, Fraction, Limit, NotNegative, Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm, Losses
from palaestra.algorithms.targets import Targets
from palaestra.core import ConfigError, DataSource, Offline, Schedule, SpecTree
from palaestra.nn import CoreModel, NetworkConfig, OptimizerOption
from palaestra.ops import double_q_target, huber
from palaestra.policies import EpsilonGreedy, ValueGreedyPolicy

__all__ = ["DiscreteCQL", "DiscreteCQLConfig"]


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(AlgorithmConfig):
    """Hyperparameters of `DiscreteCQL`."""

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
    tau: Fraction[Schedule] = 0.005
    """Polyak coefficient: how far target networks move towards the online ones in a gradient step, in [0, 1]."""
    conservative_cost: NotNegative[Schedule] = 1.0
    """Alpha of equation (4): weight of the gap between values in general and values of the data's actions."""
    huber_delta: Limit[float] = 1.0
    """Error above which the loss grows linearly."""
    epsilon: Fraction[Schedule] = 0.05
    """Probability of a random action while collecting."""

    plan_class = Offline


class DiscreteCQL(GradientAlgorithm[ValueGreedyPolicy, DiscreteCQLConfig]):
    """Learns lower bounds of the values of actions that the data seldom takes, and acts greedily on them.

    Raises:
        ConfigError: the action space is not discrete, or the network is noisy.
    """

    config_class = DiscreteCQLConfig

    def build(self, observation_spec: SpecTree, action_spec: SpecTree, config: DiscreteCQLConfig) -> None:
        (q,) = config.network.parts("q")
        if config.network.noisy:
            raise ConfigError("discrete CQL does not explore with noisy layers; leave network.noisy off")
        self.policy = ValueGreedyPolicy.build(observation_spec, action_spec, q, normalize=config.normalize_observation)
        self.policy.exploration = EpsilonGreedy(self.policy.raw_action_spec.num, config.epsilon)
        adam = OptimizerOption("adam", {"lr": config.learning_rate})
        self.model = CoreModel({"q": self.policy.network}, {"q": adam})
        self.targets = Targets(self.model, {"target_q": "q"}, tau=config.tau)
        self._target_network: Any = self.model.component["target_q"]

    def preprocess(self, batch: Any, source: DataSource) -> parts.TransitionBatch:
        return parts.n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: parts.TransitionBatch) -> Losses:
        """Equation (4): double Q-learning, and the gap between the soft maximum and the data's actions."""
        with torch.no_grad():
            target = double_q_target(
                self.policy.q_values(batch.next_observation),
                self._target_network(self.policy.normalize(batch.next_observation)),
                batch.reward,
                batch.bootstrap,
                self.policy.action_mask(batch.next_observation),
            )
        values, mask = self.policy.q_values(batch.observation), self.policy.action_mask(batch.observation)
        q = values.gather(-1, batch.action.long()[:, None]).squeeze(-1)
        if mask is not None:  # where no action is allowed all are, as in every maximum
            mask = mask.bool() | ~mask.bool().any(-1, keepdim=True)
        allowed = values if mask is None else torch.where(mask, values, torch.finfo(values.dtype).min)
        gap = (allowed.logsumexp(-1) - q).mean()
        error = huber(q - target, delta=self.config.huber_delta).mean()
        terms = {"q": error + self.value_of("conservative_cost") * gap}
        return Losses(terms, {"q_mean": q.mean(), "gap": gap, "error": error})
