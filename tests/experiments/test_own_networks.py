"""Tests of runs whose networks are the user's own: from the command line, files and Python; saved, resumed, loaded."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import palaestra
from palaestra.config.config import config_to_mapping
from palaestra.core import ConfigError, spec_leaves
from palaestra.experiments import RunDirectory, config_from_mapping, preset
from palaestra.policies import load_policy
from tests.cli.parts import exit_code, output

CHAIN = ("palaestra.envs.tiny:Chain", "--env.max-episode-steps", "6", "--env.num-envs", "2")
PENDULUM = ("Pendulum-v1", "--env.num-envs", "2")
SHORT = (
    "--trainer.total-env-steps",
    "96",
    "--trainer.eval-episodes",
    "2",
    "--run.no-tensorboard",
    "--trainer.checkpoint-every-steps",
    "40",
)
SMALL = ("--algorithm.learning-starts", "32", "--algorithm.mini-batch-size", "16")
RUNS = {
    "ppo": (*CHAIN, "--algorithm.unroll-length", "8"),
    "dqn": (*CHAIN, *SMALL),
    "sac": (*PENDULUM, *SMALL),
    "td3": (*PENDULUM, *SMALL),
    "iql": (*PENDULUM[:1], "--env.max-episode-steps", "6", "--offline.data", "demo", *SMALL[2:]),
    "mappo": ("palaestra.multiagent:Meeting", *PENDULUM[1:], "--algorithm.unroll-length", "8"),
}


class Net(nn.Module):
    """Takes any nest of numbers."""

    def __init__(self, observation_spec) -> None:
        super().__init__()
        self.leaves = spec_leaves(observation_spec)
        size = sum(spec.size for spec in self.leaves.values())
        self.layer = nn.Linear(size, 6)

    def forward(self, observation):
        parts = [observation]
        if not isinstance(observation, torch.Tensor):
            parts = [observation[path] for path in self.leaves]
        return self.layer(torch.cat([part.flatten(1).float() for part in parts], -1)).tanh()


class Nets:
    """Makers of networks."""

    @classmethod
    def plain(cls, observation_spec) -> Net:
        return Net(observation_spec)

    def make(self, observation_spec) -> Net:
        return Net(observation_spec)


NAMED = f"{__name__}:Net"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ones(spec):
    """An observation."""
    return {key: ones(child) for key, child in spec.items()} if isinstance(spec, dict) else np.ones(spec.shape)


def trained(name: str, *options: str) -> Path:
    arguments = ("train", name, *RUNS[name], *SHORT, "--algorithm.network", NAMED, *options)
    assert exit_code(*arguments) == 0
    return Path("runs") / options[options.index("--run.name") + 1]


FAST = ("dqn", "mappo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_an_own_network_is_trained_saved_loaded_and_resumed_from_the_command_line(name, capsys):
    if name == "iql":
        assert exit_code("data", "collect", "random", PENDULUM[0], "demo", "--steps", "60", *RUNS[name][1:3]) == 0
    whole = trained(name, "--run.name", "whole")
    assert RunDirectory(whole).config.algorithm.network.encoder == NAMED
    saved = Path("policy", "shared") if name == "mappo" else Path("policy")
    policy = load_policy(whole / saved)
    assert any(type(module) is sys.modules[__name__].Net for module in policy.modules())
    assert np.isfinite(policy(ones(policy.observation_spec))).all()
    assert exit_code("eval", str(whole), "--episodes", "1") == 0, output(capsys)
    again = trained(name, "--run.name", "again")
    kept = sorted((again / "checkpoints").glob("step_*"))
    assert len(kept) > 1
    for newer in kept[1:]:
        shutil.rmtree(newer)
    assert exit_code("resume", str(again)) == 0, output(capsys)
    for ours, theirs in zip(policy.parameters(), load_policy(again / saved).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_file_and_python_name_it_in_the_place_of_the_whole_network():
    data = {"algorithm_name": "ppo", "algorithm": {"network": NAMED}}
    config = config_from_mapping(type(preset("ppo", "x")), data)
    assert config.algorithm.network.encoder == NAMED
    assert config_to_mapping(config)["algorithm"]["network"]["encoder"] == NAMED
    again = config_from_mapping(type(config), yaml.safe_load(yaml.safe_dump(config_to_mapping(config))))
    assert again == config


def test_options_and_the_shorthand_go_together(capsys):
    options = ("--algorithm.network", NAMED, "--algorithm.network.hidden-sizes", "8", "--print-config")
    assert exit_code("train", "ppo", *CHAIN, *options) == 0
    network = yaml.safe_load(capsys.readouterr().out)["algorithm"]["network"]
    assert (network["encoder"], network["hidden_sizes"]) == (NAMED, [8])
    parts = ("--algorithm.network.encoder", "policy", NAMED, "value", NAMED, "--print-config")
    assert exit_code("train", "ppo", *CHAIN, *parts) == 0
    network = yaml.safe_load(capsys.readouterr().out)["algorithm"]["network"]
    assert network["encoder"] == {"policy": NAMED, "value": NAMED}


def test_a_wrong_name_is_refused_before_anything_is_trained(capsys):
    assert exit_code("train", "ppo", *CHAIN, *SHORT, "--algorithm.network", "collections:OrderedDict") != 0
    assert "an nn.Module is needed: a class, or a function that makes one" in output(capsys)


def test_a_class_given_in_python_is_written_by_its_name():
    for given in (config_network(Net), Net):
        run = palaestra.train("ppo", CHAIN[0], algorithm__network=given, trainer__total_env_steps=48)
        assert RunDirectory(run.directory).config.algorithm.network.encoder == NAMED
    with pytest.raises(ConfigError, match="which has no importable name"):
        config_to_mapping(config_network(lambda spec: Net(spec)))


def trained_body(observation_spec) -> nn.Module:
    body = nn.Linear(observation_spec.size, 6)
    body.load_state_dict(torch.load("body.pt", weights_only=True))
    return body


def test_a_trained_module_comes_into_a_run_by_a_function_that_loads_it():
    """The advice was to name its class, whose weights are new ones."""
    body = nn.Linear(5, 6)
    with pytest.raises(ConfigError, match=r"holds a Linear, .*function that makes it and loads its weights, .*:body"):
        config_to_mapping(config_network(body))
    torch.save(body.state_dict(), "body.pt")
    named = {"algorithm__network": f"{__name__}:trained_body", "algorithm__learning_rate": 0.0}
    run = palaestra.train("dqn", CHAIN[0], **named, env__max_episode_steps=6, trainer__total_env_steps=48)
    resumed = palaestra.resume(run.directory, trainer__total_env_steps=96)
    weights = dict(load_policy(resumed.directory / "policy").named_parameters())
    assert torch.equal(weights["network.encoder.module.weight"], body.weight)


def test_a_method_is_written_by_its_name_if_that_is_the_method():
    assert config_to_mapping(config_network(Nets.plain))["encoder"] == f"{__name__}:Nets.plain"
    with pytest.raises(ConfigError, match="which has no importable name"):
        config_to_mapping(config_network(Nets().make))


def config_network(encoder):
    return palaestra.nn.NetworkConfig(encoder=encoder)
