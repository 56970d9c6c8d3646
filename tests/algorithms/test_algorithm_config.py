"""Tests of `palaestra.algorithms.algorithm_config`: settings that no algorithm can work with."""

import math
import re

import numpy as np
import pytest

from palaestra.algorithms import ALGORITHMS, DiscreteCQLConfig
from palaestra.core import ConfigError, DiscreteSpec, Linear, TensorSpec
from palaestra.nn import NetworkConfig

POSITIVE, FRACTION = "it must be greater than 0", "it must lie in [0, 1]"
ANNEALED, NOT_NEGATIVE = "it must be greater than 0, where a schedule may end at 0", "it must be at least 0"
FINITE = "it must be finite"
OPEN = "it must be above 0 and below 1"

IMPOSSIBLE = [
    ("iqn", "num_fractions", 0, POSITIVE),
    ("iqn", "num_target_fractions", 0, POSITIVE),
    ("iqn", "num_acting_fractions", -1, POSITIVE),
    ("iqn", "huber_delta", math.inf, "it must be finite"),
    ("qr_dqn", "huber_delta", math.inf, "it must be finite"),
    ("sarsa", "trace_decay", 1.5, FRACTION),
    ("sarsa", "trace_decay", Linear(0.9, -0.1), FRACTION),
    ("discrete_sac", "target_entropy_share", 1.1, FRACTION),
    ("discrete_sac", "target_entropy_share", Linear(2.0, 0.5), FRACTION),
    ("ppo", "clip", 0.0, ANNEALED),
    ("ppo", "clip", Linear(0.0, 0.0), ANNEALED),
    ("ppg", "clip", -0.2, ANNEALED),
    ("mappo", "clip", float("nan"), ANNEALED),
    ("ppo", "target_kl", 0.0, POSITIVE),
    ("trpo", "target_kl", -0.01, POSITIVE),
    ("trpo", "num_line_steps", 0, POSITIVE),
    ("trpo", "num_conjugate_steps", 0, POSITIVE),
    ("ppg", "num_policy_phases", 0, POSITIVE),
    ("ppg", "num_auxiliary_updates", 0, POSITIVE),
    ("impala", "rho_clip", 0.0, POSITIVE),
    ("impala", "trace_clip", 0.0, POSITIVE),
    ("iql", "max_weight", 0.0, POSITIVE),
    ("iql", "expectile", 0.0, OPEN),
    ("iql", "expectile", 1.0, OPEN),
    ("td3", "target_noise_std", -0.1, NOT_NEGATIVE),
    ("td3", "target_noise_clip", -0.1, NOT_NEGATIVE),
    ("td3_bc", "target_noise_clip", -0.1, NOT_NEGATIVE),
    ("rebrac", "actor_penalty", -0.1, NOT_NEGATIVE),
    ("rebrac", "critic_penalty", -0.1, NOT_NEGATIVE),
    ("ddpg", "exploration_std", Linear(0.1, -0.1), NOT_NEGATIVE),
    ("maddpg", "exploration_std", -0.1, NOT_NEGATIVE),
    ("cql", "num_actions", 0, POSITIVE),
    ("trpo", "damping", -1.0, NOT_NEGATIVE),
    ("iql", "inverse_temperature", -3.0, NOT_NEGATIVE),
    ("ppo", "value_cost", Linear(0.5, -0.5), NOT_NEGATIVE),
    ("c51", "max_return", math.inf, FINITE),
    ("xqc", "min_return", -math.inf, FINITE),
    ("dqn", "unroll_length", math.inf, FINITE),
    ("sac", "learning_rate", math.inf, FINITE),
    ("ppo", "entropy_cost", -math.inf, FINITE),
    ("decision_transformer", "target_return", math.inf, FINITE),
    ("ppo", "gamma", "0.9", "it must be a number"),
    ("ppo", "num_epochs", 1.5, "it must be a whole number"),
]


@pytest.mark.parametrize(("name", "setting", "value", "needed"), IMPOSSIBLE)
def test_an_impossible_setting_is_refused_when_the_configuration_is_made(name, setting, value, needed):
    """F27: what was given and what is needed."""
    with pytest.raises(ConfigError, match=f"^{re.escape(f'algorithm.{setting} is {value!r}; {needed}')}$"):
        ALGORITHMS[name].config_class(**{setting: value})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"clip": Linear(0.2, 0.0), "target_kl": None}),
        ("td3", {"exploration_std": 0.0, "target_noise_std": 0.0, "target_noise_clip": 0.0}),
        ("sarsa", {"trace_decay": 0.0}),
        ("discrete_sac", {"target_entropy_share": Linear(1.0, 0.0)}),
        ("impala", {"rho_clip": 0.5, "trace_clip": 0.5}),
        ("impala", {"rho_clip": math.inf, "trace_clip": math.inf}),
        ("ppo", {"entropy_cost": -0.1, "max_grad_norm": math.inf, "num_epochs": np.int64(4), "gamma": np.float32(0.5)}),
    ],
)
def test_values_at_the_edge_of_a_range_are_accepted(name, settings):
    """Presets use schedules that end at 0; noise may be switched off."""
    assert ALGORITHMS[name].config_class(**settings)


def test_all_problems_are_named_at_once():
    """F27."""
    with pytest.raises(ConfigError, match=r"algorithm.gamma is 2.0.*\n.*algorithm.expectile is 1.0"):
        ALGORITHMS["iql"].config_class(gamma=2.0, expectile=1.0)


def test_the_trace_clip_of_impala_is_at_most_the_other_one():
    """F27; Espeholt et al. 2018, section 4.1."""
    with pytest.raises(
        ConfigError, match=r"trace_clip is 1.0 and algorithm.rho_clip is 0.5; trace_clip must be at most"
    ):
        ALGORITHMS["impala"].config_class(rho_clip=0.5)


def test_discrete_cql_refuses_noisy_layers():
    """F27: it draws no noise for them."""
    config = DiscreteCQLConfig(network=NetworkConfig(hidden_sizes=(8,), noisy=True))
    with pytest.raises(ConfigError, match=r"leave network\.noisy off"):
        ALGORITHMS["discrete_cql"](TensorSpec((3,)), DiscreteSpec(num=2), config)
