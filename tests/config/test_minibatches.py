"""What a size of minibatches counts: rows, whatever learns from them; sequences have a name of their own."""

import dataclasses

import pytest

from palaestra import R2D2, NetworkConfig
from palaestra.algorithms import ALGORITHMS
from palaestra.cli.main import main
from palaestra.core import ConfigError
from palaestra.experiments import config_from_mapping, load_config, preset, save_config
from palaestra.multiagent import AgentsConfig
from palaestra.runs.run_directory import RunDirectory


class OwnR2D2(R2D2):
    """An algorithm of a user's own."""


OF_SEQUENCES = {"alphazero", "decision_transformer", "dreamer", "impala", "muzero", "r2d2"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_size_counts_rows_and_what_counts_sequences_says_so(name):
    kind = ALGORITHMS[name].config_class
    assert (name in OF_SEQUENCES) == hasattr(kind, "mini_batch_sequences")
    if name in OF_SEQUENCES:
        assert not hasattr(kind, "mini_batch_size")
        assert kind(mini_batch_sequences=7).plan.mini_batch_size == 7
    elif hasattr(kind, "mini_batch_size"):
        network = {"network": NetworkConfig(recurrent="lstm")} if name in ("ppo", "sac", "td3", "ddpg") else {}
        plan = kind(mini_batch_size=96, **network).plan
        length = 1 if name == "rebrac" else plan.mini_batch_length  # it draws a row and the next one's action
        assert plan.mini_batch_size * length == 96


def test_a_run_of_an_older_version_means_what_it_meant(tmp_path):
    """Its size was one of sequences, also of a policy among others; rows of another policy and of PPO stay rows."""
    policies = {"first": {"algorithm": "impala", "mini_batch_sequences": 3}, "second": {"algorithm": "dqn"}}
    policies["second"] |= {"mini_batch_size": 5}
    for config in (preset("r2d2", "CartPole-v1"), preset("ppo", "CartPole-v1"), preset(OwnR2D2, "CartPole-v1")):
        config = dataclasses.replace(config, agents=AgentsConfig(policies=policies))
        save_config(config, tmp_path / "config.yaml")
        old = (tmp_path / "config.yaml").read_text().replace("mini_batch_sequences", "mini_batch_size")
        (tmp_path / "config.yaml").write_text(old)
        assert RunDirectory(tmp_path).config == config


def test_rows_asked_for_of_what_counts_sequences_are_refused(tmp_path, capsys):
    """In a file, from Python and on the command line, each time with the other name."""
    (tmp_path / "r2d2.yaml").write_text("{algorithm_name: r2d2, algorithm: {mini_batch_size: 256}, env: {name: a}}")
    meant = r"unknown key algorithm.mini_batch_size — did you mean 'algorithm.mini_batch_sequences'\? \(int, 32\)"
    with pytest.raises(ConfigError, match=meant):
        load_config(tmp_path / "r2d2.yaml")
    base = preset("r2d2", "CartPole-v1")
    with pytest.raises(ConfigError, match=meant):
        config_from_mapping(type(base), {"algorithm__mini_batch_size": 256}, base=base)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "r2d2", "CartPole-v1", "--algorithm.mini-batch-size", "256"])
    assert "--algorithm.mini-batch-size — did you mean --algorithm.mini-batch-sequences?" in capsys.readouterr().err
