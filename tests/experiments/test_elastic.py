"""Learners that join and leave a run while it goes on: `palaestra scale`."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palaestra import preset, train
from palaestra.cli import main
from palaestra.config.config import config_from_mapping
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import ExperimentConfig, RunDirectory, scale
from palaestra.experiments.elastic import FollowScale
from palaestra.training import Callback
from tests.faults.parts import differences, run_contents

SMALL: dict[str, Any] = {
    "env__num_envs": 4,
    "distributed__runtime": "local",
    "distributed__num_workers": 1,
    "distributed__gradient_shards": 4,
    "algorithm__network__hidden_sizes": (8,),
    "algorithm__unroll_length": 16,
    "trainer__total_env_steps": 640,
    "trainer__log_every_steps": 64,
    "run__tensorboard": False,
}


class Asks(Callback):
    """Asks for other numbers of learners on the way, as `palaestra scale` does from outside."""

    def __init__(self, folder: Path, *numbers: int) -> None:
        self.there, self._folder, self._numbers = list[float](), folder, list(numbers)

    def logged(self, trainer: Any, row: dict[str, float]) -> None:
        self.there.append(row["learners/there"])
        if self._numbers:
            scale(self._folder, learners=self._numbers.pop(0))


def run(folder: Path, name: str, *numbers: int, **settings: Any) -> tuple[dict[str, Any], list[float]]:
    asks = Asks(folder / name, *numbers)
    given = {**SMALL, "run__directory": str(folder), "run__name": name, **settings}
    made = train("ppo", "CartPole-v1", callbacks=[asks], **given)
    return run_contents(made.directory), asks.there


@pytest.mark.slow
def test_a_run_that_learners_join_and_leave_ends_with_the_bits_of_the_one_without(tmp_path, monkeypatch):
    """F35: the numbers are of the run, and nobody waits for who joins."""
    monkeypatch.setattr("palaestra.experiments.elastic._PERIOD_S", 0.0)
    alone, there = run(tmp_path, "alone")
    assert set(there) == {1}
    elastic, there = run(tmp_path, "elastic", 3, 3, 3, 2, 4, 4, 1)
    assert (there[0], there[-1]) == (1, 1)
    assert max(there) > 2
    assert not differences(alone["state"], elastic["state"])
    assert alone["files"] == elastic["files"]
    message = r"does not go on now \(done\).* \[--until ENV_STEPS\] --override distributed.num_learners=2"
    with pytest.raises(ConfigError, match=message):
        scale("elastic", learners=2, root=tmp_path)
    with pytest.raises(CheckpointError, match="none"):
        scale("none", learners=2, root=tmp_path)


def test_what_would_change_bits_is_refused(tmp_path, caplog):
    with pytest.raises(ConfigError, match="learners is 5; give 1 to 4"):
        run(tmp_path, "more", 5)
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigError, match=r"has no distributed\.gradient_shards"):
        run(tmp_path, "none", 2, distributed__num_learners=2, distributed__gradient_shards=None)
    with pytest.raises(ConfigError, match=r"has no distributed\.gradient_shards"):  # which a resume does not change
        scale("none", learners=2, root=tmp_path)


def test_whoever_asks_while_learners_join_is_heard_next(tmp_path, monkeypatch):
    monkeypatch.setattr("palaestra.experiments.elastic._PERIOD_S", 0.0)
    follow, file, had = FollowScale(tmp_path), tmp_path / "scale.json", list[int]()

    def resize(number: int) -> None:
        had.append(number)
        if number == 1:
            file.write_text('{"learners": 4}')

    trainer: Any = SimpleNamespace(learner=SimpleNamespace(gradient_workers=SimpleNamespace(resize=resize)))
    file.write_text('{"learners": 2}')
    for _ in range(3):
        follow.iteration_began(trainer)
    assert had == [1, 3] and not file.exists()


def scaled(capsys: Any, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `palaestra scale`."""
    with pytest.raises(SystemExit) as ended:
        main(["scale", *arguments])
    return int(str(ended.value)), "".join(capsys.readouterr())


def test_without_a_number_it_is_said_how_many_learners_there_are(tmp_path, capsys):
    """It scaled the run down to one."""
    given = {**SMALL, "run__directory": str(tmp_path), "run__name": "mine", "distributed__num_learners": 2}
    mine = RunDirectory.create(config_from_mapping(ExperimentConfig, given, base=preset("ppo", "CartPole-v1")))
    mine.lock()
    code, said = scaled(capsys, str(mine.path), "--learners", "3")
    assert code == 2 and "is still starting" in said
    mine.write_info({"status": "running"})
    assert scaled(capsys, str(mine.path)) == (0, "learners    2\n")
    asked = scaled(capsys, str(mine.path), "--learners", "3", "--json")
    assert asked == scaled(capsys, str(mine.path), "--json") == (0, '{"there": 2, "asked": 3}\n')
    assert scaled(capsys, str(mine.path)) == (0, "learners    2, asked for 3\n")
    follow, row = FollowScale(mine.path), dict[str, float]()
    scale(mine.path, learners=4)
    trainer: Any = SimpleNamespace(learner=SimpleNamespace(gradient_workers=SimpleNamespace(resize=lambda _: None)))
    follow.iteration_began(trainer)
    follow.logged(trainer, row)
    (mine.path / "metrics.jsonl").write_text(json.dumps({"learners/there": 3, **row}) + "\n")
    assert scaled(capsys, str(mine.path)) == (0, "learners    3, asked for 4\n")
    mine.unlock()
