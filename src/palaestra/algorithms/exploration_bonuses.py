"""The exploration bonuses: random network distillation, and the intrinsic curiosity module.

Papers: Burda et al. 2019, https://arxiv.org/abs/1810.12894, section 2.2; Pathak et al. 2017,
https://arxiv.org/abs/1705.05363, equations (2) to (7).
Departures: one value function sees the sum of both rewards, and bonuses end with the episode; novelty is divided by its
own running standard deviation, not that of its returns; the curiosity module's features are trained by the inverse
model alone.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from palaestra.algorithms.exploration_bonus import BonusConfig, ExplorationBonus
from palaestra.core import Batch, Plan, RunSeeds, SpecTree, TensorSpec, seeded_initialisation
from palaestra.nn import CompositeNetwork, CoreModel, Network, NetworkConfig, OptimizerOption
from palaestra.policies import Policy
from palaestra.policies.heads import head_of

__all__ = ["CuriosityModule", "RandomNetworkDistillation", "exploration_bonus"]

_FORWARD_SHARE = 0.2  # β of equation (7)


@final
class RandomNetworkDistillation(ExplorationBonus):
    """Novel is what a trained network cannot yet say about an observation that a random network says.

        novelty = mean (f̂(x') − f(x'))²

    Args:
        config: see `BonusConfig`.
        observation_spec: of the environment.
    """

    def __init__(self, config: BonusConfig, observation_spec: SpecTree) -> None:
        super().__init__(config, observation_spec)
        self.fixed["target"] = self.network(observation_spec)
        self.trained["predictor"] = self.network(observation_spec, num_hidden=2)

    def novelty(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        return self.errors(observation, action, next_observation)

    def errors(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        with torch.no_grad():
            target = self.fixed["target"](next_observation)
        return (self.trained["predictor"](next_observation) - target).square().mean(-1)


@final
class CuriosityModule(ExplorationBonus):
    """Novel is a change that could not be foreseen from observation and action, in features that an action can change.

        novelty = ½ mean (φ̂(φ(x), a) − φ(x'))²,   loss = (1 − β) (−log p(a | φ(x), φ(x'))) + β novelty

    Args:
        config: see `BonusConfig`.
        observation_spec: of the environment.
        action_spec: of actions as they are sampled, of any kind that `CompositePolicy` knows.
    """

    def __init__(self, config: BonusConfig, observation_spec: SpecTree, action_spec: SpecTree) -> None:
        super().__init__(config, observation_spec)
        size, layers = config.feature_size, NetworkConfig(hidden_sizes=config.hidden_sizes, activation="relu")
        self._action = head_of(action_spec)
        self.trained["features"] = self.network(observation_spec)
        pair = TensorSpec((2 * size,))
        self.trained["inverse"] = CompositeNetwork(pair, self._action.size, self._action.num_std, layers)
        known = {"features": TensorSpec((size,)), "action": action_spec}
        self.trained["dynamics"] = Network(known, size, layers)

    def novelty(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        features = self.trained["features"]
        return self._surprise(features(observation), action, features(next_observation))

    def errors(self, observation: Any, action: Any, next_observation: Any) -> Tensor:
        features = self.trained["features"]
        before, after = features(observation), features(next_observation)
        numbers, log_std = self.trained["inverse"](torch.cat((before, after), -1))
        inverse = -self._action.distribution(numbers, log_std, None).log_prob(action)
        surprise = self._surprise(before.detach(), action, after.detach())
        return (1 - _FORWARD_SHARE) * inverse + _FORWARD_SHARE * surprise

    def _surprise(self, before: Tensor, action: Any, after: Tensor) -> Tensor:
        foreseen = self.trained["dynamics"](Batch.of({"features": before, "action": action}))
        return 0.5 * (foreseen - after).square().mean(-1)


def exploration_bonus(
    config: Any, policy: Policy, model: CoreModel, plan: Plan, seeds: RunSeeds
) -> ExplorationBonus | None:
    """The bonus that an algorithm's configuration asks for in its field `bonus`, if it has one.

    Args:
        config: of an algorithm.
        policy: which acts.
        model: is given the bonus's components and their optimizer.
        plan: the data that the algorithm wants.
        seeds: of the run.

    Raises:
        ConfigError: the plan's data do not suit a bonus.
    """
    settings: BonusConfig | None = getattr(config, "bonus", None)
    if settings is None or settings.kind is None:
        return None
    with seeded_initialisation(seeds.integer("initialisation", 1)):
        if settings.kind == "rnd":
            bonus: ExplorationBonus = RandomNetworkDistillation(settings, policy.observation_spec)
        else:
            bonus = CuriosityModule(settings, policy.observation_spec, policy.raw_action_spec)
    bonus.require_plan(plan)
    option = OptimizerOption("adam", {"lr": settings.learning_rate})
    model.extend({"bonus": bonus.trained, "bonus_fixed": bonus.fixed}, {"bonus": option})
    return bonus
