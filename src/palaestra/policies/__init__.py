"""How to act: policies, exploration, observation normalisation."""

from palaestra.policies.action_range import ActionRange
from palaestra.policies.artefact import load_policy, save_policy
from palaestra.policies.categorical import CategoricalPolicy
from palaestra.policies.composite import CompositePolicy
from palaestra.policies.deterministic import DeterministicPolicy
from palaestra.policies.exploration import EpsilonGreedy, Exploration, GaussianNoise, UniformNoise
from palaestra.policies.gaussian import GaussianPolicy
from palaestra.policies.network_policy import NetworkPolicy, StochasticPolicy
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import Phase, Policy, PolicyStep
from palaestra.policies.population import PopulationPolicy
from palaestra.policies.raw_actions import raw_actions
from palaestra.policies.rule_based import RandomPolicy, RulePolicy
from palaestra.policies.squashed_gaussian import SquashedGaussianPolicy
from palaestra.policies.stochastic import stochastic_policy
from palaestra.policies.team import (
    TeamCategoricalPolicy,
    TeamDeterministicPolicy,
    TeamGreedyPolicy,
    TeamNetwork,
    central_spec,
    central_view,
    team_size,
)
from palaestra.policies.value_greedy import ValueGreedyPolicy

__all__ = [
    "ActionRange",
    "CategoricalPolicy",
    "CompositePolicy",
    "DeterministicPolicy",
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "GaussianPolicy",
    "NetworkPolicy",
    "ObservationNormalizer",
    "Phase",
    "Policy",
    "PolicyStep",
    "PopulationPolicy",
    "RandomPolicy",
    "RulePolicy",
    "SquashedGaussianPolicy",
    "StochasticPolicy",
    "TeamCategoricalPolicy",
    "TeamDeterministicPolicy",
    "TeamGreedyPolicy",
    "TeamNetwork",
    "UniformNoise",
    "ValueGreedyPolicy",
    "central_spec",
    "central_view",
    "load_policy",
    "raw_actions",
    "save_policy",
    "stochastic_policy",
    "team_size",
]
