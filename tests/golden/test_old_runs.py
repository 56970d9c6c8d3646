"""A run that revision c859395d wrote is evaluated, goes on, and is begun from; its policy loads.

`runs/c859395d` is PPO with 8 hidden units, trained for 370 env steps; it is never written again.
"""

import shutil
from pathlib import Path

import pytest

from palaestra import load_policy
from palaestra.cli import main

RUN = Path(__file__).with_name("runs") / "c859395d"


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
