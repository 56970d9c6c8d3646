"""What the gallery says of its policies."""

import json

import pytest

from palaestra.deployment import check_shared
from tools.gallery import RESULTS, ZOO, row_of


def offered(name):
    return row_of(check_shared(ZOO / name), RESULTS / f"{name.replace('/', '_')}.json")


@pytest.mark.parametrize("name", ["ppo/CartPole-v1", "dqn/MountainCar-v0", "sac/MountainCarContinuous-v0"])
def test_a_row_is_offered_where_it_trains_the_policy_again(name):
    assert offered(name) == name.replace("/", "_")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ppo/Recall", "other options"),
        ("ppo/Acrobot-v1", "another budget"),
        ("crossq/Pendulum-v1", "the row is compiled"),
        ("ppo/tictactoe-v3", "there is no row"),
    ],
)
def test_no_row_is_offered_that_trains_something_else(name, why):
    assert offered(name) is None, why


def test_no_row_is_offered_of_another_command_or_budget(tmp_path):
    facts = {"command": "palaestra train ppo CartPole-v1 --run.name ppo_CartPole-v1"}
    row = {"algorithm": "ppo", "env": "CartPole-v1", "env_steps": 100_000, "compile": False}
    file = tmp_path / "row.json"
    for change, found in (
        ({}, "row"),
        ({"env_steps": 50_000}, None),
        ({"settings": {"run__precision": "bf16"}}, None),
        ({"compile": True}, None),
        ({"algorithm": "dqn"}, None),
    ):
        file.write_text(json.dumps({"row": {**row, **change}}), encoding="utf-8")
        assert row_of(facts, file) == found
