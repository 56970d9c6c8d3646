"""Tests of `palaestra.config.presets`: families, and training out of the box."""

import dataclasses

import pytest
import torch

import palaestra
from palaestra.algorithms import ALGORITHMS
from palaestra.config.presets import tuned
from palaestra.core import ConfigError
from palaestra.envs.tiny import Chain
from palaestra.experiments import PRESETS, make_algorithm, preset


def test_a_pattern_gives_its_settings_to_a_whole_family():
    pytest.importorskip("ale_py")
    one, two = preset("ppo", "ALE/Pong-v5"), preset("ppo", "ALE/Seaquest-v5")
    assert (one.env.name, two.env.name) == ("ALE/Pong-v5", "ALE/Seaquest-v5")
    assert dataclasses.replace(two, env=one.env) == one
    assert one.env.vectorization == "native"
    assert ("ppo", "ALE/Pong-v5") not in PRESETS
    assert preset("ppo", "Pong").env.vectorization == "auto"
    network = make_algorithm(one).policy.network
    shapes = {tuple(weight.shape) for weight in network.parameters() if weight.ndim == 4}
    assert shapes == {(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)}


def test_an_environment_with_settings_of_its_own_does_not_get_those_of_a_pattern():
    assert not any("*" in env for _, env in PRESETS)
    assert {algorithm for algorithm, _ in tuned()} <= ALGORITHMS.keys()


@pytest.mark.parametrize("key", [key for key in tuned() if "*" in key[1]], ids=str)
def test_the_settings_of_a_family_are_known_and_in_range(key):
    """F27: those of single environments are read by other tests."""
    assert preset(*key).algorithm_name == key[0]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("ALE/Pong-v5", "ale_py"),
        ("HalfCheetah-v5", "mujoco"),
        ("envpool:Hopper-v5", "envpool"),
        ("envpool:Pong-v5", "envpool"),
    ],
)
@pytest.mark.slow
def test_a_preset_trains_and_evaluates_out_of_the_box(name, package, tmp_path, monkeypatch):
    """Its own environments, network and wrappers; only lengths are cut."""
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    try:
        done = palaestra.train(
            "ppo",
            name,
            env__max_episode_steps=12,
            algorithm__unroll_length=8,
            algorithm__num_epochs=1,
            trainer__total_env_steps=128,
            trainer__eval_episodes=2,
            trainer__eval_every_steps=0,
        )
    finally:
        torch.set_num_threads(before)
    assert done.result.env_steps >= 128
    assert done.result.evaluation.length_mean <= 12


def test_quantile_sac_has_the_name_of_its_paper_too():
    assert preset("tqc", "HalfCheetah-v5") == preset("quantile_sac", "HalfCheetah-v5")


def test_a_class_has_the_settings_of_its_name():
    """As in `train`; a bare TypeError came of it."""
    assert preset(palaestra.PPO, Chain) == preset("ppo", "palaestra.envs.worlds.tabular:Chain")
    with pytest.raises(ConfigError, match="the algorithm comes first: ppo, then the environment"):
        preset(Chain, "ppo")


def test_a_run_may_be_asked_for_by_the_name_of_the_paper(tmp_path):
    small = {"algorithm__network__hidden_sizes": (8,), "trainer__total_env_steps": 16, "trainer__eval_episodes": 0}
    done = palaestra.train("tqc", "Pendulum-v1", run__directory=str(tmp_path), run__tensorboard=False, **small)
    assert done.result.env_steps == 16
