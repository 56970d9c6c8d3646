"""Actor-critics and evolution strategies bring a point to 0: the best mean return is -1/6, never moving gets -10.7."""

import pytest

from palaestra import NetworkConfig
from tests.learning.parts import POINT, evaluated, learned

THRESHOLD = -0.35

OFF_POLICY = {
    "network": NetworkConfig(hidden_sizes=(32, 32), activation="relu"),
    "learning_rate": 3e-3,
    "mini_batch_size": 64,
    "unroll_length": 2,
    "gradient_steps": 4,
    "capacity": 10_000,
    "learning_starts": 200,
    "tau": 0.02,
}
SETTINGS = {
    "ddpg": {**OFF_POLICY, "exploration_std": 0.3},
    "td3": {**OFF_POLICY, "exploration_std": 0.3, "policy_period": 2},
    "sac": {**OFF_POLICY, "temperature_learning_rate": 3e-3},
    "crossq": {**OFF_POLICY, "network": NetworkConfig(hidden_sizes=(32, 32), activation="relu", batch_norm=True)},
    "xqc": {**OFF_POLICY, "network": NetworkConfig(hidden_sizes=(32, 32), activation="relu", block="xqc")},
    "redq": {**OFF_POLICY, "temperature_learning_rate": 3e-3, "num_critics": 5},
    "quantile_sac": {**OFF_POLICY, "temperature_learning_rate": 3e-3, "num_critics": 2, "num_quantiles": 8},
    "evolution_strategies": {
        "network": NetworkConfig(hidden_sizes=(8,)),
        "learning_rate": 0.1,
        "unroll_length": 18,
        "noise_std": 0.2,
        "num_envs": 16,
    },
}
STEPS = {"evolution_strategies": 15_000}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_point_is_brought_to_zero(name, seed):
    algorithm = learned(name, POINT, STEPS.get(name, 3_000), seed=seed, **SETTINGS[name])
    assert evaluated(algorithm, POINT).return_mean > THRESHOLD
