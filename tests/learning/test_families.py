"""The on-policy and value-based families reach the closed form for three seeds of three, in seconds each.

Catch with 6 rows and 3 columns: the best return is 1, a paddle that never moves gets -1/3.
"""

from typing import Any

import pytest
import torch

from palaestra import EnvConfig, Linear, NetworkConfig
from tests.learning.parts import evaluated, learned

pytestmark = pytest.mark.slow

CATCH = EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3})
CHAIN = EnvConfig(name="palaestra.envs.tiny:Chain", kwargs={"num_states": 4}, max_episode_steps=20)
NOISY_BANDIT = EnvConfig(name="palaestra.envs.tiny:Bandit", kwargs={"num_arms": 3, "noise": 0.5})

REPLAY: dict[str, Any] = {
    "learning_rate": 5e-3,
    "unroll_length": 4,
    "gradient_steps": 2,
    "mini_batch_size": 64,
    "capacity": 4000,
    "learning_starts": 100,
    "target_period": 50,
    "epsilon": Linear(1.0, 0.1, 0.5),
}
ATOMS = {"min_return": -1.5, "max_return": 1.5, "num_atoms": 31}
NOISY = NetworkConfig(hidden_sizes=(32, 32), activation="relu", dueling=True, noisy=True)
TWO_LAYERS = NetworkConfig(hidden_sizes=(32, 32), activation="relu")
ON_POLICY_STEPS, REPLAY_STEPS = 12_000, 6_000

FAMILIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "a2c": ("a2c", ON_POLICY_STEPS, {"learning_rate": 5e-3, "unroll_length": 8, "gae_lambda": 0.9}),
    "impala": ("impala", ON_POLICY_STEPS, {"learning_rate": 5e-3, "unroll_length": 12}),
    "ppg": (
        "ppg",
        ON_POLICY_STEPS,
        {"learning_rate": 5e-3, "unroll_length": 32, "num_epochs": 2, "mini_batch_size": 64, "num_policy_phases": 8},
    ),
    "trpo": (
        "trpo",
        ON_POLICY_STEPS,
        {
            "unroll_length": 64,
            "num_epochs": 5,
            "mini_batch_size": 64,
            "value_learning_rate": 1e-2,
            "target_kl": 0.05,
        },
    ),
    "sarsa": ("sarsa", ON_POLICY_STEPS, {"learning_rate": 5e-3, "unroll_length": 8, "epsilon": Linear(1.0, 0.02, 0.7)}),
    "pqn": (
        "pqn",
        ON_POLICY_STEPS,
        {"learning_rate": 5e-3, "unroll_length": 16, "num_epochs": 2, "mini_batch_size": 32},
    ),
    "c51": ("c51", REPLAY_STEPS, {**REPLAY, **ATOMS}),
    "qr_dqn": ("qr_dqn", REPLAY_STEPS, {**REPLAY, "num_quantiles": 11}),
    "iqn": ("iqn", REPLAY_STEPS, {**REPLAY, "network": TWO_LAYERS}),
    "rainbow": ("rainbow", REPLAY_STEPS, {**REPLAY, **ATOMS, "epsilon": 0.0, "network": NOISY}),
    "dqn, prioritised": ("dqn", REPLAY_STEPS, {**REPLAY, "prioritized": True}),
    "dqn, noisy": ("dqn", REPLAY_STEPS, {**REPLAY, "epsilon": 0.0, "network": NOISY}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_ball_is_caught(family, seed):
    name, steps, settings = FAMILIES[family]
    assert evaluated(learned(name, CATCH, steps, seed=seed, **settings), CATCH).return_mean == 1.0


@pytest.mark.parametrize("name", ["c51", "qr_dqn", "iqn"])
def test_the_distribution_of_a_noisy_return_is_learned(name):
    """The best arm pays 1 with a standard deviation of 0.5; a mean alone would not show it."""
    settings = {**REPLAY, "learning_rate": Linear(5e-3, 0.0), "epsilon": 0.5, "huber_delta": 0.05}
    settings |= {"num_quantiles": 21, "num_atoms": 51, "min_return": -2.0, "max_return": 3.0, "network": TWO_LAYERS}
    algorithm: Any = learned(name, NOISY_BANDIT, 3_500, **settings)
    network, observation = algorithm.network, torch.ones(1, 1)
    with torch.no_grad():
        if name == "c51":
            probs = network.outputs(observation)[0, 2].softmax(-1)
            mean = probs @ network.support
            std = (probs @ (network.support - mean).square()).sqrt()
        else:
            fraction = (torch.arange(21) + 0.5) / 21
            outputs = network.outputs(observation, fraction[None]) if name == "iqn" else network.outputs(observation)
            quantile = outputs[0, 2]
            normal = torch.special.ndtri(fraction)
            mean, std = quantile.mean(), (quantile @ normal) / normal.square().sum()
            assert (quantile - (1 + 0.5 * normal)).abs().max() < 0.3, quantile
    assert float(mean) == pytest.approx(1.0, abs=0.1)
    assert float(std) == pytest.approx(0.5, abs=0.1)


def test_sarsa_learns_the_values_of_its_own_epsilon_greedy_policy():
    """Not those of the greedy one: here solved for exactly, as a linear system over four states and two actions."""
    gamma, epsilon = 0.9, 0.4
    settings = {"learning_rate": Linear(5e-3, 0.0), "unroll_length": 16, "epsilon": epsilon, "trace_decay": 0.5}
    algorithm: Any = learned("sarsa", CHAIN, 20_000, gamma=gamma, huber_delta=100.0, **settings)
    with torch.no_grad():
        q = algorithm.policy.q_values(torch.eye(4))
    right, left = 1 - epsilon / 2, epsilon / 2
    matrix, reward = torch.eye(4), torch.tensor([0.0, 0.0, 0.0, right])
    for s in range(4):
        matrix[s, max(s - 1, 0)] -= gamma * left
        if s < 3:
            matrix[s, s + 1] -= gamma * right
    value = torch.linalg.solve(matrix, reward)
    exact_right = torch.cat((gamma * value[1:], torch.ones(1)))
    exact_left = gamma * torch.cat((value[:1], value[:-1]))
    assert (q - torch.stack((exact_left, exact_right), -1)).abs().max() < 0.05, q
    greedy = torch.tensor([gamma ** (3 - s) for s in range(4)])
    assert (greedy - exact_right)[0] > 0.1  # so Q-learning's values would not pass
