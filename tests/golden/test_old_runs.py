"""A run that revision c859395d wrote is evaluated, goes on, and is begun from; its policy loads.

`runs/c859395d` is PPO with 8 hidden units, trained for 370 env steps; it is never written again. `old_configs.json` has
the `config.yaml` of every algorithm as three older revisions wrote it, the first of them version 0.1.0.
"""

import json
import shutil
from pathlib import Path

import pytest

from palaestra import load_policy
from palaestra.cli import main
from palaestra.config.config import flat_settings, saved_config
from palaestra.core import ConfigError

RUN = Path(__file__).with_name("runs") / "c859395d"
OLD = json.loads(Path(__file__).with_name("old_configs.json").read_text())


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of runs with a copy of it, called old."""
    shutil.copytree(RUN, tmp_path / "runs" / "old")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_its_policy_loads():
    policy = load_policy(RUN / "policy")
    assert sum(weight.numel() for weight in policy.parameters()) == 58  # 4 → 8 → 2


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("eval old --episodes 2", "2 episodes"),
        ("resume old --until 600", "runs/old"),
        ("train ppo CartPole-v1 --from old --trainer.total-env-steps 200 --algorithm.network.hidden-sizes 8", "runs/"),
    ],
    ids=["evaluated", "resumed", "begun from"],
)
def test_what_a_run_of_this_revision_does_one_of_an_older_does(root, capsys, typed, says):
    with pytest.raises(SystemExit, match="0"):
        main(typed.split())
    assert says in capsys.readouterr().out


def old_config(revision, algorithm):
    """What the revision wrote; parts that are equal stand in the file once."""

    def whole(value):
        value = OLD["shared"].get(value, value) if isinstance(value, str) else value
        return {name: whole(one) for name, one in value.items()} if isinstance(value, dict) else value

    return {"algorithm_name": algorithm, **whole(OLD[revision][algorithm])}


def given(node, path=""):
    """Settings by their path."""
    if not isinstance(node, dict) or not node:
        return {path[1:]: node}
    return {key: one for name, value in node.items() for key, one in given(value, f"{path}.{name}").items()}


@pytest.mark.parametrize("revision", [name for name in OLD if name != "shared"])
def test_the_configuration_of_every_algorithm_of_an_older_version_is_read_as_it_is(revision):
    renamed = {"algorithm.mini_batch_size": "algorithm.mini_batch_sequences"}
    for name in OLD[revision]:
        old, now = given(old_config(revision, name)), flat_settings(saved_config(old_config(revision, name)))
        gone = {path for path in old if path not in now and renamed.get(path) not in now}
        assert all("bonus" in path or path.startswith("distributed") for path in gone), name
        assert all(
            now.get(path, now.get(renamed.get(path))) == value for path, value in old.items() if path not in gone
        )


@pytest.mark.parametrize("path", ["algorithm.bonus.kind", "distributed.num_gradient_workers"])
def test_a_setting_that_is_gone_and_did_something_is_named(path):
    config = old_config("a3a7bdb0", "qmix")
    *groups, name = path.split(".")
    node = config
    for group in groups:
        node = node[group]
    node[name] = "rnd" if name == "kind" else 1
    with pytest.raises(
        ConfigError, match=r"(bonus|num_gradient_workers) is .*, and there is none here: .* version that"
    ):
        saved_config(config)
