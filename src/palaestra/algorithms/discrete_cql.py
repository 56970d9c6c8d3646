"""Conservative Q-learning for discrete actions and a fixed data set.

Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation (4), CQL(H), on double Q-learning (van Hasselt et
al. 2016, https://arxiv.org/abs/1509.06461, equation (4)). Departures: the sum over actions is exact; the target network
follows slowly; the Huber loss; scalar instead of quantile values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from palaestra.algorithms.algorithm import Positive
from palaestra.algorithms.gradient_algorithm import GradientAlgorithm
from palaestra.algorithms.off_policy import OfflineConfig
from palaestra.algorithms.parts import Transitions, n_step_transitions
from palaestra.algorithms.records import Losses
from palaestra.core import ConfigError, DataSource, RunSeeds, Schedule, SpecTree, seeded_initialisation
from palaestra.nn import CoreModel, OptimizerOption, QNetwork
from palaestra.ops import double_q_target, huber
from palaestra.policies import ValueGreedyPolicy

__all__ = ["DiscreteCQL", "DiscreteCQLConfig"]


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(OfflineConfig):
    """Hyperparameters of `DiscreteCQL`."""

    conservative_cost: Schedule = 1.0
    """Alpha of equation (4): weight of the gap between values in general and values of the data's actions."""
    huber_delta: Positive[float] = 1.0
    """Error above which the loss grows linearly."""


@final
class DiscreteCQL(GradientAlgorithm[ValueGreedyPolicy]):
    """Learns lower bounds of the values of actions that the data seldom takes, and acts greedily on them.

    Args:
        observation_spec: of the environment.
        action_spec: of the environment: discrete.
        config: hyperparameters.
        seeds: of the run.

    Raises:
        ConfigError: the action space is not discrete, or the network is noisy.
    """

    config_class = DiscreteCQLConfig

    def __init__(
        self,
        observation_spec: SpecTree,
        action_spec: SpecTree,
        config: DiscreteCQLConfig | None = None,
        seeds: RunSeeds | None = None,
    ) -> None:
        config, seeds = config or DiscreteCQLConfig(), seeds or RunSeeds(0)
        if config.network.noisy:
            raise ConfigError("discrete CQL collects nothing that noisy layers could explore; leave network.noisy off")
        with seeded_initialisation(seeds.integer("initialisation")):
            policy = ValueGreedyPolicy.build(
                observation_spec, action_spec, config.network, normalize=config.normalize_observation
            )
            self._target_network = QNetwork(observation_spec, policy.raw_action_spec.num, config.network)
        model = CoreModel(
            {"q": policy.network, "target_q": self._target_network},
            {"q": OptimizerOption("adam", {"lr": config.learning_rate})},
        )
        model.sync("target_q", source="q")
        super().__init__(config, policy=policy, model=model, plan=config.plan, seeds=seeds)

    def preprocess(self, batch: Any, source: DataSource) -> Transitions:
        """Reduces n-step windows to transitions."""
        return n_step_transitions(batch, self.value_of("gamma"))

    def losses(self, batch: Transitions) -> Losses:
        """Equation (4): double Q-learning, and the gap between the soft maximum and the data's actions."""
        with torch.no_grad():
            target = double_q_target(
                self.policy.q_values(batch.next_observation),
                self._target_network(self.policy.normalize(batch.next_observation)),
                batch.reward,
                batch.discount,
                self.policy.action_mask(batch.next_observation),
            )
        values, mask = self.policy.q_values(batch.observation), self.policy.action_mask(batch.observation)
        q = values.gather(-1, batch.action.long()[:, None]).squeeze(-1)
        allowed = values if mask is None else torch.where(mask.bool(), values, torch.finfo(values.dtype).min)
        gap = (allowed.logsumexp(-1) - q).mean()
        error = huber(q - target, delta=self.config.huber_delta).mean()
        terms = {"q": error + self.value_of("conservative_cost") * gap}
        return Losses(terms, {"q_mean": q.mean(), "gap": gap, "error": error})

    def after_step(self) -> None:
        """The target network follows the online one."""
        self.model.polyak_update("target_q", source="q", tau=float(self.value_of("tau")))
