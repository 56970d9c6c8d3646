"""Tests of `palaestra.training.summaries`."""

import json

import numpy as np
import pytest
import torch

from palaestra.algorithms import BonusConfig
from palaestra.training import FileLogger, Histogram, Histograms, Summary, TensorBoardLogger
from tests.training.parts import Hooks, Recorder, trainer


def test_numbers_are_averaged_scoped_and_put_into_the_next_row():
    """ALF summaries: scoped by name; a row begins anew."""
    summary, row = Summary(), {}
    with summary.scope("actor"), summary.scope("noise"):
        summary.scalar("scale", 1.0)
        summary.scalar("scale", torch.tensor(3.0))
    summary.scalar("plain", 5)
    summary.logged(None, row)
    assert row == {"actor/noise/scale": 2.0, "plain": 5.0}
    again = {}
    summary.logged(None, again)
    assert again == {}


def test_recording_may_depend_on_a_condition():
    """ALF summaries: conditionally; whoever computes something costly asks first."""
    summary, row, on = Summary(), {}, False
    with summary.record_if(lambda: on):
        assert not summary.records
        summary.scalar("x", 1.0)
        on = True
        assert summary.records
        summary.scalar("x", 2.0)
    summary.logged(None, row)
    assert row == {"x": 2.0}


def test_recording_may_happen_at_an_interval():
    """ALF summaries: every third training iteration of a real run."""
    summary, recorder, seen = Summary(every=3), Recorder(), []

    def note(made, updates):
        seen.append(summary.records)
        summary.scalar("version", updates["policy"].policy_version)

    made = trainer("ppo", total=400, log_every_steps=10**6, loggers=[recorder], callbacks=[summary])
    made.callbacks.append(Hooks(iteration_ended=note))
    made.run()
    assert seen == [(number + 1) % 3 == 0 for number in range(len(seen))]
    assert recorder.rows[-1]["version"] == np.mean([n + 1 for n, records in enumerate(seen) if records])


@pytest.mark.parametrize(("name", "kind"), [("ppo", "continuous"), ("dqn", "discrete"), ("reinforce", "discrete")])
def test_histograms_of_observations_actions_and_gradients_change_nothing(name, kind):
    """ALF summaries: on request; training is bit-equal to training without."""
    recorder = Recorder()
    plain = trainer(name, kind, total=200)
    plain.run()
    made = trainer(name, kind, total=200, log_every_steps=50, loggers=[recorder], callbacks=[Histograms()])
    made.run()
    found = [row for row in recorder.rows if "histogram/action" in row]
    assert found
    for row in found:
        histograms = {key: value for key, value in row.items() if isinstance(value, Histogram)}
        assert "histogram/observation" in histograms
        assert any(key.startswith("histogram/gradient/") for key in histograms)
        assert all(sum(value.counts) > 0 for value in histograms.values())
    for key, value in plain.algorithm.model.state_dict().items():
        assert torch.equal(value, made.algorithm.model.state_dict()[key])


def test_histograms_of_a_run_that_a_callback_ends_are_those_of_its_last_unroll():
    """The row at its end comes without another unroll to draw from."""
    recorder = Recorder()
    stop = Hooks(logged=lambda trainer, row: trainer.stop("enough"))
    made = trainer("ppo", total=200, log_every_steps=50, loggers=[recorder], callbacks=[Histograms(), stop])
    assert made.run().reason == "enough"
    assert ["histogram/action" in row for row in recorder.rows] == [True, False]


def test_gradients_of_a_bonus_have_histograms_too():
    """ALF summaries: of the fields that losses read beside those of `preprocess`, too."""
    recorder, bonus = Recorder(), BonusConfig(kind="rnd")
    made = trainer("ppo", total=100, log_every_steps=40, loggers=[recorder], callbacks=[Histograms()], bonus=bonus)
    made.run()
    assert any("histogram/gradient/bonus" in key for row in recorder.rows for key in row)


def test_values_that_are_not_finite_are_left_out_of_a_histogram():
    histogram = Histogram.of([1.0, float("nan"), float("inf"), 3.0], bins=2)
    assert (histogram.counts, histogram.edges) == ((1, 1), (1.0, 2.0, 3.0))


@pytest.mark.parametrize("values", [[1e17] * 4, [1.7e18, 1.7e18 + 256]])
def test_large_numbers_between_which_nothing_lies_have_a_histogram(values):
    histogram = Histogram.of(values)
    assert sum(histogram.counts) == len(values)
    assert histogram.edges[0] <= values[0] <= values[-1] <= histogram.edges[-1]


def test_histograms_of_a_resumed_run_are_those_of_one_that_went_on():
    """They are drawn, and the run says `exact`."""

    def made(total):
        recorder = Recorder()
        one = trainer("dqn", total=total, log_every_steps=40, loggers=[recorder], callbacks=[Histograms()])
        return one, recorder.rows

    (whole, expected), (first, _), (again, later) = made(200), made(90), made(200)
    whole.run()
    first.run()
    again.load_state(first.state())
    again.run()
    drawn = [
        {row["env_steps"]: value for row in rows for key, value in row.items() if key == "histogram/action"}
        for rows in (expected, later)
    ]
    assert drawn[1]
    assert drawn[1].items() <= drawn[0].items()


def test_files_and_tensorboard_take_histograms_and_outcomes_against_episodes_and_updates(tmp_path):
    """ALF summaries: against env steps, episodes and updates."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    row = {"env_steps": 100, "episodes": 7, "policy_version": 3, "return_mean": 1.5}
    row["histogram/action"] = Histogram.of([0.0, 1.0, 1.0], bins=2)
    for logger in (FileLogger(tmp_path), TensorBoardLogger(tmp_path / "tensorboard")):
        logger.start({"env_steps": 0, "metrics": 0, "episodes": 0})
        logger.metrics(row)
        logger.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["histogram/action"] == {"counts": [1, 2], "edges": [0.0, 0.5, 1.0]}
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    steps = {tag: events.Scalars(tag)[0].step for tag in events.Tags()["scalars"] if "return_mean" in tag}
    assert steps == {"return_mean": 100, "against episodes/return_mean": 7, "against updates/return_mean": 3}
    (histogram,) = events.Histograms("histogram/action")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.sum) == (100, 3, 2)
