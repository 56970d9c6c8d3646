"""Every algorithm solves the analytic environments in seconds; the thresholds are their closed forms."""

import pytest
import torch

from palaestra import EnvConfig, Linear
from palaestra.core import RunSeeds
from tests.learning.parts import evaluated, learned

GAMMA = 0.9

BANDIT = EnvConfig(name="palaestra.envs.tiny:Bandit", kwargs={"num_arms": 5})
CHAIN = EnvConfig(name="palaestra.envs.tiny:Chain", kwargs={"num_states": 4}, max_episode_steps=20)
CATCH = EnvConfig(name="palaestra.envs.tiny:Catch", kwargs={"num_rows": 6, "num_columns": 3})

SETTINGS = {
    "reinforce": {"learning_rate": 2e-2, "unroll_length": 32},
    "ppo": {"learning_rate": 1e-2, "unroll_length": 32, "num_epochs": 4, "mini_batch_size": 64, "gae_lambda": 0.9},
    "dqn": {
        "learning_rate": 5e-3,
        "unroll_length": 4,
        "gradient_steps": 2,
        "mini_batch_size": 64,
        "capacity": 4000,
        "learning_starts": 100,
        "target_period": 50,
        "epsilon": Linear(1.0, 0.1, 0.5),
    },
}


def every_algorithm(fast):
    """One of them in the fast tests."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name == fast else pytest.mark.slow) for name in SETTINGS]
    )


@every_algorithm(fast="reinforce")
def test_the_last_arm_of_the_bandit_is_found(name):
    """The best return is 1; the second best arm pays 0.75, a uniform policy 0.5."""
    assert evaluated(learned(name, BANDIT, 2_500, **SETTINGS[name]), BANDIT).return_mean == 1.0


@every_algorithm(fast="dqn")
def test_the_end_of_the_chain_is_found_by_the_shortest_way(name):
    """The best return is 1, after 4 steps."""
    evaluation = evaluated(learned(name, CHAIN, 4_000, **SETTINGS[name]), CHAIN)
    assert (evaluation.return_mean, evaluation.length_mean) == (1.0, 4.0)


@every_algorithm(fast="ppo")
def test_every_ball_is_caught(name):
    """The best return is 1; a paddle that never moves gets -1/3."""
    steps = {"reinforce": 14_000}.get(name, 7_000)
    assert evaluated(learned(name, CATCH, steps, **SETTINGS[name]), CATCH).return_mean == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("n_step", [1, 3])
def test_action_values_of_the_chain_are_the_closed_form(n_step):
    """TS-21, TS-22: Q(s, right) = gamma^(3 - s), Q(s, left) = gamma V(max(s - 1, 0)); n steps respect the end.

    Three steps without off-policy correction learn the behaviour policy's values, so there only order is asserted.
    """
    settings = {**SETTINGS["dqn"], "epsilon": 0.5, "learning_rate": Linear(5e-3, 0.0), "n_step": n_step}
    algorithm = learned("dqn", CHAIN, 8_000, gamma=GAMMA, **settings)
    with torch.no_grad():
        q = algorithm.policy.q_values(torch.eye(4))
    value = torch.tensor([GAMMA ** (3 - s) for s in range(4)])
    left = GAMMA * torch.cat((value[:1], value[:-1]))
    assert (q[:, 1] > q[:, 0]).all(), q
    if n_step == 1:
        assert (q - torch.stack((left, value), -1)).abs().max() < 0.02, q
    else:
        assert q[3, 1].item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_continuous_actions_are_learned(name):
    """Track pays -(a - 0.3)^2 in each of two dimensions: its mean action goes to 0.3."""
    track = EnvConfig(name="tests.algorithms.parts:Track", max_episode_steps=5)
    algorithm = learned(name, track, 12_000, **SETTINGS[name])
    observation = torch.rand(64, 3, generator=RunSeeds(0).generator("evaluation")) * 2 - 1
    action = torch.from_numpy(algorithm.policy(observation.numpy()))
    assert (action - 0.3).abs().mean() < 0.15, action.mean(0)
