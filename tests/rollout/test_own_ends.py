"""Training on an environment that resets itself, and does not say so, is no longer silent."""

import pytest

import palaestra
from palaestra import Collector, EnvConfig, create_environment
from palaestra.rollout.rows import OwnEnds
from tests.algorithms.parts import make

SAID = "seems to reset itself where an episode ends"


def told(caplog):
    return [one.message for one in caplog.records if SAID in one.message]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_training_warns_once_of_an_environment_that_resets_itself(algorithm, tmp_path, caplog):
    settings = {"trainer__total_env_steps": 480, "trainer__eval_episodes": 0, "run__directory": str(tmp_path)}
    if algorithm == "ppo":
        settings["algorithm__unroll_length"] = 16
    palaestra.train(algorithm, "tests.envs.test_check_seen:Fresh", env__num_envs=4, **settings)
    (text,) = told(caplog)
    assert "`palaestra check-env` says more" in text


def test_what_was_seen_of_episodes_of_one_step_is_not_kept_for_ever():
    env = create_environment(EnvConfig(name="palaestra.envs.tiny:Bandit", num_envs=8), seed=0)
    collector = Collector.of(env, make("ppo", env))
    ends = OwnEnds()
    for _ in range(20):
        collector.unroll(100)
        ends.look(collector.buffer, 100)
    assert not any(value for value in vars(ends).values() if isinstance(value, list))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("CartPole-v1", 800),
        ("palaestra.envs:TicTacToe", 400),
        ("palaestra.envs.tiny:TensorCartPole", 800),
        ("tests.envs.test_check_seen:Told", 400),
        ("palaestra.envs.tiny:Recall", 400),  # ends with the blank that most rows show
    ],
)
def test_ends_that_are_their_own_are_not_warned_of(name, steps, caplog):
    env = create_environment(EnvConfig(name=name, num_envs=8), seed=0)
    collector = Collector.of(env, make("ppo", env))
    while collector.env_steps < steps:
        collector.unroll(50)
    assert not told(caplog)
