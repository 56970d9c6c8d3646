"""Tests of `palaestra.training.loggers` and `palaestra.training.learning`."""

import contextlib
import csv
import itertools
import json
import os
import resource
import signal
from fractions import Fraction

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, join_state, split_state
from palaestra.rollout import Episode
from palaestra.training import (
    Averages,
    Callback,
    CheckpointStore,
    FileLogger,
    SimplePolicyManager,
    TensorBoardLogger,
    Trainer,
    TrainerConfig,
    loggers,
)
from tests.devices import pretend_device
from tests.multiagent.parts import RandomWorld
from tests.multiagent.test_collector import TWO_KINDS, collector_of
from tests.training.parts import kept, trainer

START = {"env_steps": 0, "metrics": 0, "episodes": 0}


@pytest.mark.parametrize("name", ["speed (m/s)", "a,b", "a\nb", 'a"b', "\0", "漢", "\ud800"])
def test_an_entry_may_have_any_name(tmp_path, name):
    """In JSON, CSV and for TensorBoard; what is no text is replaced before any logger sees it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written, shown = loggers.plain_row({"env_steps": 10, name: 1.5}), name.replace("\ud800", "?")
    for logger in (FileLogger(tmp_path), TensorBoardLogger(tmp_path)):
        logger.start(START)
        logger.metrics(written)
        logger.episodes(10, [Episode(1.5, 7, 2, {name: 3.0})])
        logger.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())[shown] == 1.5
    with (tmp_path / "episodes.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert json.loads(row["info"]) == {name: 3.0}
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == [shown]


def test_metrics_are_json_lines_and_episodes_are_csv(tmp_path):
    """ALF-57: a row per period, a row per episode; an episode's infos are JSON in one column."""
    logger = FileLogger(tmp_path)
    logger.start(START)
    logger.metrics({"env_steps": 10, "return_mean": 1.5})
    logger.episodes(10, [Episode(1.5, 7, 2, {}), Episode(-2.0, 1, 0, {"x@max": 3.0})])
    logger.close()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"env_steps": 10, "return_mean": 1.5}
    ]
    rows = list(csv.DictReader((tmp_path / "episodes.csv").read_text().splitlines()))
    assert [row["return"] for row in rows] == ["1.5", "-2.0"]
    assert (rows[1]["env_steps"], rows[1]["length"], rows[1]["env_id"]) == ("10", "1", "0")
    assert json.loads(rows[1]["info"]) == {"x@max": 3.0}


def test_a_file_of_episodes_says_what_its_columns_are_before_the_first_ends(tmp_path):
    logger = FileLogger(tmp_path)
    logger.start(START)
    assert (tmp_path / "episodes.csv").read_text() == "env_steps,return,length,env_id,info\n"
    logger.close()


def test_lines_are_in_the_file_as_soon_as_they_are_told(tmp_path):
    """F28: a process that is killed loses no line."""
    logger = FileLogger(tmp_path)
    logger.start(START)
    logger.metrics({"env_steps": 1})
    logger.episodes(1, [Episode(1.0, 1, 0, {})])
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 2
    logger.close()


def test_what_lies_beyond_the_checkpoint_is_cut_off(tmp_path, caplog):
    """F25, F9: rows of a process that was killed after its last checkpoint, and half a line."""
    logger = FileLogger(tmp_path)
    logger.start(START)
    for step in (1, 2, 3):
        logger.metrics({"env_steps": step})
        logger.episodes(step, [Episode(float(step), 1, 0, {})])
    logger.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_st')
    again = FileLogger(tmp_path)
    again.start({"env_steps": 2, "metrics": 2, "episodes": 1})
    assert caplog.text == ""  # nothing is missing
    again.metrics({"env_steps": 30})
    again.episodes(30, [Episode(9.0, 1, 0, {})])
    again.close()
    assert [json.loads(line)["env_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
        30,
    ]
    assert [row["return"] for row in csv.DictReader((tmp_path / "episodes.csv").read_text().splitlines())] == [
        "1.0",
        "9.0",
    ]


def test_rows_after_the_checkpoint_are_cut_off_where_earlier_ones_were_taken_out(tmp_path, caplog):
    """F25: else the resumed run would log them twice."""
    logger = FileLogger(tmp_path)
    logger.start(START)
    for step in (1, 2, 3, 4, 5):
        logger.metrics({"env_steps": step})
        logger.episodes(step, [Episode(float(step), 1, 0, {})])
    logger.close()
    for file in (tmp_path / "metrics.jsonl", tmp_path / "episodes.csv"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:-4] + lines[-3:]))
    again = FileLogger(tmp_path)
    again.start({"env_steps": 3, "metrics": 3, "episodes": 3})
    again.close()
    assert "2 of the 3 rows that were written before the checkpoint" in caplog.text
    assert [json.loads(line)["env_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 3]
    assert [line.partition(",")[0] for line in (tmp_path / "episodes.csv").read_text().splitlines()[1:]] == ["1", "3"]


@contextlib.contextmanager
def full_disk(size_bytes):
    """The operating system lets no file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_that_do_not_fit_on_the_disk_wait_until_there_is_room(tmp_path, caplog):
    """D6: nothing is missing, nothing is half a line, at any moment; a warning at both ends."""
    logger = FileLogger(tmp_path)
    logger.start(START)
    with full_disk(100):
        for step in range(20):
            logger.metrics({"env_steps": step})
            logger.episodes(step, [Episode(float(step), 1, 0, {})])
        for name in ("metrics.jsonl", "episodes.csv"):
            assert 0 < (tmp_path / name).stat().st_size <= 100
            assert (tmp_path / name).read_text().endswith("\n")
    assert "metrics.jsonl cannot be written" in caplog.text
    logger.metrics({"env_steps": 20})
    logger.close()
    rows = [json.loads(line)["env_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(21))
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 21
    assert "metrics.jsonl is written again" in caplog.text


def test_a_row_larger_than_what_may_wait_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "_MOST_WAITING_BYTES", 10)
    logger = FileLogger(tmp_path)
    logger.start(START)
    logger.metrics({"env_steps": 1, "return_mean": 1.5})
    logger.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"env_steps": 1, "return_mean": 1.5}


def test_rows_that_never_fit_are_named_at_the_end(tmp_path, caplog):
    """D6: the run is done, and says what its files lack; a run that goes on says so too."""
    made = trainer("ppo", total=200, log_every_steps=10, loggers=[FileLogger(tmp_path)])
    with full_disk(1000):
        result = made.run()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert result.status == "done"
    (said,) = result.not_logged
    rows = kept(made)["position"]["metrics"]
    missing = rows - len(lines)
    assert said.startswith(f"FileLogger: {missing:,} row(s) of metrics.jsonl could not be written ([Errno 27]")
    FileLogger(tmp_path).start({**START, "env_steps": result.env_steps, "metrics": rows})
    assert f"has {len(lines)} of the {rows} rows that were written" in caplog.text


def interrupt(owner, name, at):
    """Ctrl-C in the n-th call."""
    step, count = getattr(owner, name), itertools.count(1)

    def interrupted(*arguments):
        if next(count) == at:
            signal.raise_signal(signal.SIGINT)
        return step(*arguments)

    setattr(owner, name, interrupted)


def team_trainer(**settings):
    """Of two policies, in a world of agents that act at different times."""
    collector, actors = collector_of(RandomWorld, mapping=TWO_KINDS, algorithm="ppo", seed=5)
    config = TrainerConfig(total_env_steps=500, log_every_steps=settings.pop("log_every_steps"))
    return Trainer(collector, SimplePolicyManager(actors), config, **settings)


@pytest.mark.parametrize(("cut", "team"), [(15, False), (40, False), (77, False), (43, True)])
def test_the_files_of_a_run_that_was_cut_inside_an_unroll_are_the_same(tmp_path, cut, team):
    """D9: Ctrl-C after any env step: every row of episodes.csv, and every digit of every metric is what it would be."""
    contents = {}
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        store = CheckpointStore(tmp_path / name / "checkpoints")
        for go in range(2 if name == "cut" else 1):
            settings = {"loggers": [FileLogger(tmp_path / name)], "checkpoints": store, "log_every_steps": 150}
            made = team_trainer(**settings) if team else trainer("ppo", total=600, unroll_length=50, **settings)
            if go:
                made.load_state(store.load_newest()[1])
            elif name == "cut":
                steps = (made.collector, "_step") if team else (made.collector.env, "step")
                interrupt(*steps, cut)
            assert made.run().exit_code == (130 if name == "cut" and not go else 0)
            assert made.collector.unfinished == (name == "cut" and not go)
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        timeless = [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]
        contents[name] = timeless, (tmp_path / name / "episodes.csv").read_text()
    assert contents["cut"] == contents["whole"]


def test_tensorboard_files_hold_every_number_against_env_steps(tmp_path):
    """ALF-57: summarised in TensorBoard automatically."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = trainer("ppo", "continuous", total=100, log_every_steps=50, loggers=[TensorBoardLogger(tmp_path)])
    made.run()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert {"return_mean", "info/error@max", "learning/ppo", "policy_version", "time/train_s"} <= names
    assert "env_steps" not in names
    assert [scalar.step // 50 for scalar in events.Scalars("return_mean")] == [1, 2]


@pytest.mark.parametrize("cut", [0, 3])
def test_tensorboard_shows_rows_that_are_made_again_once_on_every_axis(tmp_path, cut):
    """F25: rows of a killed process stayed on the axes of episodes and of updates."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def goes_on(at: int, rows: range, number: int) -> None:
        logger = TensorBoardLogger(tmp_path)
        logger.start(START | {"env_steps": at})
        for step in rows:
            logger.metrics({"env_steps": 100 * step, "episodes": step, "policy_version": 2 * step, "return_mean": 1.0})
        logger.close()
        (newest,) = (path for path in tmp_path.iterdir() if path.name.endswith(f".{os.getpid()}"))
        newest.rename(tmp_path / f"events.out.tfevents.{number:010d}.host.{number}")

    goes_on(0, range(1, 9), 1)
    first, other = (tmp_path / f"events.out.tfevents.0000000001.host.{name}" for name in ("1", "3.0"))
    first.write_bytes(written := first.read_bytes()[: -cut or None])  # the machine went down in a record
    other.write_bytes(written)  # by another writer
    goes_on(300, range(4, 7), 2)
    goes_on(500, range(6, 8), 3)
    assert other.read_bytes() == written
    other.unlink()
    events = EventAccumulator(str(tmp_path)).Reload()
    shown = {name: [scalar.step for scalar in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert shown["return_mean"] == [100 * step for step in range(1, 8)]
    assert shown["against episodes/return_mean"] == [*range(1, 8)]
    assert shown["against updates/return_mean"] == [2 * step for step in range(1, 8)]


def test_a_run_that_logs_nothing_writes_no_tensorboard_file(tmp_path):
    logger = TensorBoardLogger(tmp_path / "tensorboard")
    logger.start(START)
    logger.close()
    assert not (tmp_path / "tensorboard").exists()
    logger.start(START)
    logger.metrics({"env_steps": 3, "return_mean": 1.0})
    logger.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))  # the first number makes it


def test_averages_do_not_depend_on_where_a_run_was_cut():
    """F25: sums in float64, in order; the last digit is the same."""
    generator = torch.Generator().manual_seed(0)
    records = [
        {"a": x, **({"b": x * 3} if i % 3 == 0 else {})} for i, x in enumerate(torch.rand(50, generator=generator))
    ]
    whole = Averages()
    whole.add(records)
    expected = whole.take()
    for cut in (0, 1, 17, 50):
        before, after = Averages(), Averages()
        before.add(records[:cut])
        after.load_state(join_state(*split_state(before.state())))
        after.add(records[cut:])
        assert after.take() == expected
    assert whole.take() == {}


def test_a_metric_is_averaged_over_the_records_that_have_it():
    averages = Averages()
    averages.add([{"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0), "b": torch.tensor(5.0)}])
    assert averages.take() == {"a": 1.5, "b": 5.0}


@pytest.mark.parametrize("count", [31, 32, 1000])
def test_many_records_are_settled_on_the_way(count):
    averages = Averages()
    for _ in range(count):
        averages.add([{"a": torch.tensor(0.5)}])
    assert len(averages._waiting.get("a", [])) < 32
    assert averages.take() == {"a": 0.5}


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_every_byte_once(tmp_path, monkeypatch):
    """A write may be short; the rest follows where it stopped."""
    write = loggers.os.pwrite
    monkeypatch.setattr(loggers.os, "pwrite", lambda file, data, at: write(file, data[:5], at))
    logger = FileLogger(tmp_path)
    logger.start(START)
    rows = [{"env_steps": 10, "return_mean": 1.5}, {"env_steps": 20, "return_mean": 2.5}]
    for row in rows:
        logger.metrics(row)
    logger.close()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == rows


class Adding(Callback):
    """Puts something into every row."""

    def __init__(self, value):
        self.value = value

    def logged(self, trainer, row):
        row["mine"] = self.value


@pytest.mark.parametrize("value", [np.float32(1.5), np.int64(2), np.bool_(True), torch.tensor(3.0), Fraction(1, 2)])
def test_callbacks_may_add_numbers_of_any_kind(tmp_path, value):
    trainer("ppo", loggers=[FileLogger(tmp_path)], callbacks=[Adding(value)]).run()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert all(row["mine"] == float(value) for row in rows)


def test_a_text_in_a_row_costs_tensorboard_nothing_else(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    assert trainer("ppo", loggers=[logger], callbacks=[Adding("warm-up")]).run().not_logged == ()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert "iterations" in read.Tags()["scalars"] and "mine" not in read.Tags()["scalars"]


@pytest.mark.parametrize("value", [np.ones(2), torch.ones(2), object()])
def test_what_is_no_number_ends_the_run_and_is_named(tmp_path, value):
    with pytest.raises(ConfigError, match="put 'mine' into a row"):
        trainer("ppo", loggers=[FileLogger(tmp_path)], callbacks=[Adding(value)]).run()


def test_averages_are_of_values_from_several_devices():
    """Eager updates leave them where they learn, compiled ones on a GPU bring them here."""
    averages = Averages()
    with pretend_device() as device:
        averages.add([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0).to(device)}])
        assert averages.take() == {"loss": 1.5}
