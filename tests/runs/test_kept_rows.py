"""`OnPolicy(clear=False)` from a configuration."""

import json
from dataclasses import dataclass

import palaestra
from palaestra.algorithms import A2C, A2CConfig
from tests.experiments.parts import CHAIN, SMALL


@dataclass(frozen=True, kw_only=True)
class KeepingConfig(A2CConfig):
    """What a plan calls `clear` and `capacity` are settings like others."""

    clear: bool = False
    capacity: int = 64


class Keeping(A2C):
    """A2C that goes through the newest rows again and again."""

    config_class = KeepingConfig


def test_alf_08_rows_that_are_kept_are_learned_from_again(tmp_path):
    """ALF-08: each of 6 iterations of 16 rows learns from the newest 48: 16, 32, and four times 48."""
    name = f"{__name__}:Keeping"
    settings = SMALL | {"run__directory": str(tmp_path), "trainer__eval_episodes": 0, "env__max_episode_steps": None}
    del settings["trainer__eval_every_steps"]
    rows = {}
    for capacity in (48, None):
        extra = {"algorithm__capacity": 48} if capacity else {}
        done = palaestra.train(name if capacity else "a2c", CHAIN, run__name=str(capacity), **settings, **extra)
        last = json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])
        rows[capacity] = last["rows_trained"], last["iterations"]
    assert rows[48][1] == rows[None][1]
    assert rows[48][0] > 2 * rows[None][0]
