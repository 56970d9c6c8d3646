"""What is learned from fixed data: by imitation, and beyond what made the data."""

import pytest
import torch

from palaestra import NetworkConfig
from tests.learning.parts import POINT, evaluated, learned_offline
from tests.learning.test_tiny import CHAIN

SMALL = {
    "network": NetworkConfig(hidden_sizes=(32, 32), activation="relu"),
    "learning_rate": 3e-3,
    "mini_batch_size": 64,
    "gradient_steps": 10,
    "tau": 0.02,
}
SETTINGS = {
    "td3_bc": {**SMALL, "value_weight": 10.0},
    "rebrac": {**SMALL, "actor_penalty": 0.1, "critic_penalty": 0.01},
    "fql": {**SMALL, "normalize_value": True, "imitation_weight": 0.3},
    "cql": {**SMALL, "temperature_learning_rate": 3e-3, "conservative_cost": 0.5, "num_actions": 4},
    "iql": {**SMALL, "expectile": 0.9, "inverse_temperature": 10.0},
}
every_seed = pytest.mark.parametrize("seed", [0, 1, 2])


def to_zero(observation: torch.Tensor) -> torch.Tensor:
    return (-observation).clamp(-1.0, 1.0)


@pytest.mark.slow
@every_seed
def test_behaviour_cloning_does_what_the_data_does(seed):
    """The rule that made the data is the best one: -1/6 from a uniform start."""
    algorithm = learned_offline("behaviour_cloning", POINT, to_zero, 100, seed=seed, **SMALL)
    assert evaluated(algorithm, POINT).return_mean > -0.3


@pytest.mark.slow
@every_seed
@pytest.mark.parametrize("name", SETTINGS)
def test_offline_algorithms_learn_from_random_actions_what_cloning_does_not(name, seed):
    """Random actions have the mean 0, so cloning hardly moves (see below); no action of the best policy is favoured."""
    algorithm = learned_offline(name, POINT, None, 120, seed=seed, **SETTINGS[name])
    assert evaluated(algorithm, POINT).return_mean > -1.5


@pytest.mark.slow
def test_cloning_random_actions_is_far_off():
    """The mutant of the test above: what learns nothing but the mean action gets about -1 in every step."""
    algorithm = learned_offline("behaviour_cloning", POINT, None, 100, **SMALL)
    assert evaluated(algorithm, POINT).return_mean < -5.0


@pytest.mark.slow
@every_seed
def test_discrete_cql_finds_the_end_of_the_chain_in_random_data(seed):
    """The best return is 1, after 4 steps; the data goes left as often as right."""
    algorithm = learned_offline("discrete_cql", CHAIN, None, 60, seed=seed, conservative_cost=0.1, **SMALL)
    evaluation = evaluated(algorithm, CHAIN)
    assert (evaluation.return_mean, evaluation.length_mean) == (1.0, 4.0)


@pytest.mark.slow
@every_seed
def test_a_decision_transformer_does_what_the_return_asked_for_takes(seed):
    """Random data goes left as often as right. The best episode is over after 4 steps, and so is what was asked for."""
    memory = NetworkConfig(hidden_sizes=(32,), recurrent="attention", recurrent_size=16, attention_window=5)
    settings = SMALL | {"network": memory, "mini_batch_length": 5, "mini_batch_sequences": 32}
    algorithm = learned_offline("decision_transformer", CHAIN, None, 60, seed=seed, **settings)
    assert algorithm.policy.target_return == 1.0
    assert evaluated(algorithm, CHAIN).return_mean == 1.0
    algorithm.policy.target_return = 0.0
    assert evaluated(algorithm, CHAIN).return_mean < 0.5
