"""Recurrent algorithms remember a cue; without memory nobody can. The thresholds are closed forms."""

import pytest

from palaestra import EnvConfig, Linear, NetworkConfig
from tests.learning.parts import evaluated, learned

RECALL = EnvConfig(name="palaestra.envs.tiny:Recall", kwargs={"num_cues": 2, "delay": 4})
ON_POLICY = {"learning_rate": 1e-2, "unroll_length": 32}
PPO = {
    **ON_POLICY,
    "learning_rate": 5e-3,
    "num_epochs": 4,
    "mini_batch_size": 64,
    "mini_batch_length": 8,
    "gae_lambda": 0.9,
}
R2D2 = {
    "learning_rate": 5e-3,
    "unroll_length": 8,
    "gradient_steps": 2,
    "mini_batch_sequences": 16,
    "mini_batch_length": 8,
    "burn_in": 4,
    "n_step": 3,
    "capacity": 4000,
    "learning_starts": 200,
    "target_period": 50,
    "epsilon": Linear(1.0, 0.1, 0.5),
}
A2C = {"learning_rate": Linear(3e-3, 0.0), "unroll_length": 32, "gae_lambda": 0.9}
IMPALA = {"learning_rate": Linear(3e-3, 0.0), "unroll_length": 32, "num_epochs": 2}
CASES = {
    "ppo": ("gru", PPO, 9_000),
    "reinforce": ("lstm", ON_POLICY, 10_000),
    "r2d2": ("lstm", R2D2, 6_000),
    "a2c": ("gru", A2C, 15_000),
    "impala": ("lstm", IMPALA, 15_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_memory_finds_the_cue_again(name, seed):
    """The best return is 1, and 1/2 is the most that a policy without memory can reach."""
    kind, settings, env_steps = CASES[name]
    network = NetworkConfig(hidden_sizes=(16,), recurrent=kind, recurrent_size=16)
    algorithm = learned(name, RECALL, env_steps, seed=seed, network=network, **settings)
    assert evaluated(algorithm, RECALL).return_mean == 1.0


@pytest.mark.slow
def test_without_a_memory_half_of_the_answers_are_wrong():
    """The mutant: the same algorithm, environment and steps with a network that cannot remember."""
    algorithm = learned("ppo", RECALL, 9_000, network=NetworkConfig(hidden_sizes=(16,)), **PPO)
    assert evaluated(algorithm, RECALL).return_mean <= 0.75  # 20 episodes of a fair coin


ANSWER = EnvConfig(name="palaestra.envs.tiny:Recall", kwargs={"num_cues": 2, "delay": 4, "continuous": True})
REPLAYED = {
    "learning_rate": 3e-3,
    "unroll_length": 8,
    "gradient_steps": 4,
    "mini_batch_size": 128,
    "mini_batch_length": 8,
    "burn_in": 2,
    "capacity": 4000,
    "learning_starts": 200,
    "tau": 0.02,
}
CONTINUOUS = {
    "sac": {"target_entropy": -2.0, "temperature_learning_rate": 3e-3, "initial_temperature": 0.1},
    "td3": {"exploration_std": 0.8},
    "ddpg": {"exploration_std": 0.8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_memory_finds_the_answer_that_is_a_number(name):
    """Beyond the list 5: the best return is 1; the mutant that cannot remember gets 1/2."""
    returns = []
    for recurrent in ("lstm", None):
        network = NetworkConfig(hidden_sizes=(32,), activation="relu", recurrent=recurrent, recurrent_size=16)
        algorithm = learned(name, ANSWER, 6_000, seed=1, network=network, **REPLAYED, **CONTINUOUS[name])
        returns.append(evaluated(algorithm, ANSWER).return_mean)
    assert returns[0] > 0.95
    assert returns[1] < 0.8  # 20 episodes of a fair coin
