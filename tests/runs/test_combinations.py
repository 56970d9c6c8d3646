"""Settings that are each right alone, and not together."""

import importlib.util

import pytest

from palaestra import EnvConfig, preset
from palaestra.buffers import ReplayBuffer
from palaestra.config.config import config_from_mapping
from palaestra.core import ConfigError
from palaestra.experiments import dry_run, make_learner
from palaestra.rollout import origin_of
from tests.experiments.data import PENDULUM, saved

SHAPED = ("ScaleReward(scale=0.1)",)
BARGAIN = "tests.algorithms.test_rewards:Bargain"


def config_of(algorithm, env, **settings):
    base = preset(algorithm, env)
    return config_from_mapping(type(base), settings, base=base)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "message"),
    [
        (
            "evolution_strategies",
            "Pendulum-v1",
            {"env__num_envs": 4, "env__variants": ({"kwargs": {"g": 2.0}}, {"kwargs": {"g": 15.0}})},
            "ranks perturbations by what each earned in its own environment, and env.variants pay differently",
        ),
        (
            "evolution_strategies",
            "CartPole-v1",
            {"env__num_envs": 6, "distributed__runtime": "local", "distributed__num_workers": 2},
            "gives each of 2 workers 3, .* in pairs of opposite signs.*: 8 in all",
        ),
        (
            "decision_transformer",
            "Pendulum-v1",
            {"env__train_wrappers": SHAPED, "offline__data": "demo", "offline__fraction": 0.5, "offline__updates": 5},
            "asks for a return and is told rewards as it acts",
        ),
        (
            "ppo",
            BARGAIN,
            {
                "algorithm__bonus__kind": "gail",
                "offline__data": "demo",
                "algorithm__rewards__weights": (1.0, 0.0),
                "algorithm__rewards__thresholds": (None, -0.3),
            },
            "thresholds are of rewards that algorithm.bonus replaces",
        ),
        (
            "td3_bc",
            "tests.experiments.test_hindsight:Parts",
            {
                "offline__data": "demo",
                "algorithm__rewards__weights": (1.0, 0.0),
                "algorithm__rewards__thresholds": (None, 0.3),
            },
            "td3_bc would learn their weights from rewards of data, which it did not earn",
        ),
        (
            "sac",
            "tests.experiments.test_hindsight:Parts",
            {
                "offline__data": "demo",
                "offline__fraction": 0.5,
                "algorithm__rewards__weights": (1.0, 0.0),
                "algorithm__rewards__thresholds": (None, 0.3),
            },
            "sac would learn their weights from rewards of data, which it did not earn",
        ),
        ("sac", "Pendulum-v1", {"algorithm__target_entropy": 0.7}, "target of the entropy is 0.7 nats"),
        (
            "flash_sac",
            "Pendulum-v1",
            {"env__vectorization": "process", "env__num_envs": 4, "env__num_workers": 2, "env__num_ready": 2},
            "with env.num_ready each is of other environments",
        ),
        ("flash_sac", "Pendulum-v1", {"algorithm__target_std": 0.5}, "target of the entropy is 0.726 nats"),
        ("ppo", "CartPole-v1", {"algorithm__unroll_length": 1, "env__num_envs": 1}, "that of one step to 0"),
        (
            "muzero",
            "pettingzoo:classic/tictactoe-v3",
            {"algorithm__alternating": True},
            "alternating says that the next row is another player's",
        ),
        ("ppo", "palaestra.envs.tiny:Chain", {"env__vectorization": "batch"}, "Chain' makes single environments"),
    ],
)
def test_what_would_learn_nonsense_is_refused(algorithm, env, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_learner(config_of(algorithm, env, **settings)).require_new()


def test_a_batch_can_be_asked_for_where_there_is_one():
    for env in ("Hopper-v5", "palaestra.envs.tiny:TensorCartPole"):
        make_learner(config_of("ppo", env, env__vectorization="batch", env__num_envs=2)).require_new()


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="the extra `atari`")
def test_pictures_that_the_layers_of_atari_games_do_not_show_are_refused():
    """They were gray, whatever was asked for."""
    settings = {"env__vectorization": "serial", "env__num_envs": 1, "env__kwargs": {"obs_type": "ram"}}
    with pytest.raises(ConfigError, match=r"obs_type='ram', but 'ALE/Pong-v5' shows gray .*: ale_py:ALE/Pong-v5"):
        make_learner(config_of("ppo", "ALE/Pong-v5", **settings)).require_new()
    make_learner(config_of("ppo", "ALE/Pong-v5", **settings | {"env__kwargs": {"obs_type": "grayscale"}})).require_new()


def test_rewards_of_training_are_named_to_who_asks_for_a_return(tmp_path, caplog):
    """It asks for returns of the data's size, and is told the environment's rewards."""
    shaped = EnvConfig(name=PENDULUM.name, max_episode_steps=10, train_wrappers=SHAPED)
    ReplayBuffer.load(saved(tmp_path / "plain")).save(tmp_path / "data", origin=origin_of(shaped))
    config = config_of("decision_transformer", PENDULUM.name, env__max_episode_steps=10)
    learner = make_learner(config_from_mapping(type(config), {"offline__data": str(tmp_path / "data")}, base=config))
    learner.load_data()
    assert "A return of the data's is asked for" in caplog.text


def test_compiling_what_makes_no_gradient_steps_is_said(caplog):
    dry_run(config_of("trpo", "CartPole-v1", run__compile=True, trainer__total_env_steps=2048))
    assert "--compile compiles gradient steps, and trpo makes none" in caplog.text
