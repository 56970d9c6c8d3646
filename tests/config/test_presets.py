"""Tests of `palaestra.config.presets`: families, and training out of the box."""

import dataclasses

import pytest
import torch

import palaestra
from palaestra.algorithms import ALGORITHMS
from palaestra.cli.options import parse
from palaestra.config.presets import preset_line, tuned
from palaestra.core import ConfigError
from palaestra.envs.tiny import Chain
from palaestra.experiments import (
    PRESETS,
    ExperimentConfig,
    RunDirectory,
    config_from_mapping,
    load_config,
    make_algorithm,
    preset,
    save_config,
)


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


GAME = "palaestra.envs:TicTacToe"


@pytest.mark.parametrize(
    "given", [{"env__train_kwargs": {"random_moves": None}}, {"env__train_kwargs__random_moves": None}]
)
def test_arguments_of_an_environment_come_on_top_of_those_of_the_preset(given, tmp_path):
    """The others were lost without a word: rewards unclipped, an opponent that moves at random."""
    base = preset("alphazero", GAME)
    config = config_from_mapping(ExperimentConfig, given, base=base)
    assert config.env.train_kwargs == {"opponent": None, "random_moves": None}
    assert config.env.kwargs == {"opponent": "random"}
    file = tmp_path / "some.yaml"
    file.write_text(f"{{algorithm_name: alphazero, env: {{name: '{GAME}', train_kwargs: {{random_moves: 2}}}}}}")
    assert load_config(file).env.train_kwargs == {"opponent": None, "random_moves": 2}
    typed = parse(base, ["--env.train-kwargs", "random_moves", "3"])
    assert typed.env.train_kwargs == {"opponent": None, "random_moves": 3}
    assert parse(base, ["--env.train-kwargs", ""]).env.train_kwargs == {}


def test_a_file_of_all_settings_has_all_arguments(tmp_path):
    """So a run whose arguments are fewer than its preset's is repeated as it was."""
    base = preset("alphazero", GAME)
    config = dataclasses.replace(base, env=dataclasses.replace(base.env, kwargs={}, train_kwargs={"opponent": None}))
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config == RunDirectory(tmp_path).config


def test_the_line_about_the_preset_names_its_wrappers_that_are_gone():
    base = preset("ppo", "HalfCheetah-v5")
    assert preset_line(base) == "settings    preset of ppo for HalfCheetah-v5"
    config = config_from_mapping(ExperimentConfig, {"env__train_wrappers": ["ScaleReward(scale=2)"]}, base=base)
    assert preset_line(config) == "settings    preset of ppo for HalfCheetah-v5, but without NormalizeReward"
