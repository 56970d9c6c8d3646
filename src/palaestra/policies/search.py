"""`SearchPolicy`: thinks ahead with a model before it acts."""

import contextlib
from typing import Any, final

import torch
from torch import Tensor, nn

from palaestra.core import Batch, DiscreteSpec, SpecTree, TensorSpec
from palaestra.nn import LearnedModel, NetworkConfig, PlanningNetwork, PlanningOptions, SimulatorModel, gumbel_search
from palaestra.nn.precision import bfloat16_products
from palaestra.policies.actions import ChoiceHead, Head, require_discrete
from palaestra.policies.policy import NetworkPolicy, PolicyStep

__all__ = ["SearchPolicy"]


@final
class _SearchHead(Head):
    """A choice, and with it what the search found, which buffers keep so that it can be learned."""

    def __init__(self, spec: DiscreteSpec) -> None:
        self._choice, self.size = ChoiceHead(spec), spec.num
        policy, value = TensorSpec((spec.num,)), TensorSpec(())
        self.raw_spec: SpecTree = {"choice": self._choice.raw_spec, "policy": policy, "value": value}

    def distribution(self, numbers: Tensor, log_std: Tensor | None, mask: Any) -> Any:
        return self._choice.distribution(numbers, log_std, mask)

    def env_action(self, action: Any) -> Tensor:
        return self._choice.env_action(action["choice"])


@final
class SearchPolicy(NetworkPolicy):
    """Takes the action that a tree search finds best, with a model that is learned or given: see `gumbel_search`.

    A raw action has three parts: the `choice`; the improved `policy` [A] that the search found, which is not what the
    action was drawn from, but what a network should learn; and the `value` of the observation under it. Where actions
    are deterministic nothing is drawn; else Gumbel noise makes the search try other actions.

    Args:
        network: a `PlanningNetwork`.
        observation_spec: what an observation looks like; a dict's key `action_mask` says which actions are allowed.
        action_spec: a `DiscreteSpec` of A actions.
        normalizer: of what the network sees; a simulator needs observations as they are.
        exploration: none; noise is part of the search.

    Raises:
        ConfigError: the action space is not discrete; the message says what fits it.
    """

    network: PlanningNetwork  # pyright: ignore[reportIncompatibleVariableOverride]
    rounds_searches = False
    """Whether products in searches are in bfloat16; `Algorithm.set_precision` says so, and no artefact keeps it."""

    @classmethod
    def action_head(cls, observation_spec: SpecTree, action_spec: SpecTree) -> Head:
        return _SearchHead(require_discrete(cls.__name__, action_spec))

    @classmethod
    def network_for(
        cls, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig, planning: Any = None
    ) -> nn.Module:
        """A fresh network with a model.

        Args:
            observation_spec: of one observation.
            action_spec: of A choices.
            config: of the networks.
            planning: the fields of `PlanningOptions`.

        Raises:
            ConfigError: the action space, the config or the options do not fit.
        """
        num_actions = require_discrete(cls.__name__, action_spec).num
        options = PlanningOptions(*planning)
        kind = LearnedModel if options.state_size else SimulatorModel
        return kind(observation_spec, num_actions, config, options)

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        with bfloat16_products(self.device) if self.rounds_searches else contextlib.nullcontext():
            return self._searched(observation, state, deterministic)

    def _searched(self, observation: Any, state: Any, deterministic: bool) -> PolicyStep:
        root = self.network.root(self.seen_normalized(observation))
        gumbel = None if deterministic else -torch.empty_like(root.logits).exponential_(generator=self.generator).log()
        found = gumbel_search(root, self.network.expand, self.network.search, gumbel)
        plan = {"choice": found.action, "policy": found.policy, "value": found.value}
        return PolicyStep(Batch.of(plan), state)
