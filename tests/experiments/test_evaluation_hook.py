"""`Callback.evaluation_began` in every kind of run."""

from typing import Any

import pytest

import palaestra
from palaestra.training import Callback, Evaluated, Trainer
from tests.experiments.parts import CHAIN, SMALL
from tests.experiments.test_robots import ROBOT, SIZES, WORLD

AGENTS = {
    "env__num_envs": 2,
    "algorithm__unroll_length": 16,
    "trainer__total_env_steps": 96,
    "trainer__eval_every_steps": 40,
    "trainer__eval_episodes": 2,
    "run__tensorboard": False,
}


class Order(Callback):
    """Notes which policies were there when evaluations began, and when they had been made."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, list[str]]] = []

    def evaluation_began(self, trainer: Trainer) -> None:
        self.calls.append(("began", trainer.collector.env_steps, sorted(trainer.algorithms)))

    def evaluated(self, trainer: Trainer, result: Evaluated) -> None:
        self.calls.append(("made", result.env_steps, sorted(trainer.algorithms)))


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        (("ppo", CHAIN), SMALL),
        (("ppo", "palaestra.multiagent:Meeting"), AGENTS),
        (("ppo", "palaestra.multiagent:Meeting"), AGENTS | {"agents__sharing": "separate"}),
        ((ROBOT, WORLD), SIZES),
    ],
    ids=["one agent", "shared", "separate", "robot"],
)
def test_each_evaluation_is_announced_where_its_policies_are(what: Any, settings: dict[str, Any], tmp_path):
    """TS-28: one agent, many agents of one policy and of several, and the tasks of a robot."""
    order = Order()
    done = palaestra.train(*what, run__directory=str(tmp_path), callbacks=[order], **settings)
    assert done.result.status == "done"
    began, made = order.calls[::2], order.calls[1::2]
    assert len(began) == len(made) >= 2
    assert [call[0] for call in began] == ["began"] * len(began)
    assert [("began", *call[1:]) for call in made] == began
    if settings.get("agents__sharing") == "separate":
        assert began[0][2] == ["agent_0", "agent_1", "agent_2"]
