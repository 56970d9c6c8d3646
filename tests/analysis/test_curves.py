"""Tests of `palaestra.analysis.curves`: what is averaged over which runs, and how sure it is."""

import json
import re
import shutil

import numpy as np
import pytest

from palaestra.analysis import curves
from palaestra.analysis.curves import shown_metric, thinned_metrics
from palaestra.analysis.report import one_run, write_report
from palaestra.config.config import config_from_mapping
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import (
    Comparison,
    ExperimentConfig,
    RunDirectory,
    compare_runs,
    curves_of,
    preset,
    read_metrics,
)
from palaestra.ops import mean_interval
from palaestra.ops.statistics import half_width, iqm
from palaestra.runs import records
from tests.experiments.parts import CHAIN, rows_of, trained, written
from tests.faults.parts import command


def at(curve, x):
    """Value and interval at a point."""
    return [float(np.interp(x, curve.x, values)) for values in (curve.value, curve.low, curve.high)]


def test_one_run_is_its_own_curve_without_an_interval(tmp_path):
    (curve,) = curves_of([written(tmp_path, rows_of([1, 2, 3]))])
    assert at(curve, 20) == pytest.approx([2, 2, 2])
    assert (curve.x[0], curve.x[-1], set(curve.num_runs.tolist())) == (10, 30, {1})


def test_seeds_of_one_configuration_are_averaged_and_others_are_kept_apart(tmp_path):
    """Grouped by configuration: seed and name do not count, gamma does."""
    runs = [
        written(tmp_path, rows_of([0, value, value]), f"s{seed}", run__seed=seed) for seed, value in enumerate((2, 4))
    ]
    runs.append(written(tmp_path, rows_of([9, 9, 9]), "other", algorithm__gamma=0.5))
    first, other = curves_of(runs)
    assert (first.label, other.label) == (
        "ppo palaestra.envs.tiny:Chain algorithm.gamma=0.99",
        "ppo palaestra.envs.tiny:Chain algorithm.gamma=0.5",
    )
    mean, low, high = at(first, 30)
    assert (mean, low, high) == pytest.approx((3, *mean_interval([2, 4])))
    assert at(other, 30) == [9, 9, 9]


@pytest.mark.parametrize("count", [2, 3, 20])
def test_the_interval_covers_the_true_mean_as_often_as_it_says(count):
    """A percentile bootstrap of 2 normal draws covers in 50%, of 3 in 75%."""
    generator = np.random.default_rng(0)
    covered = sum(low < 0 < high for low, high in (mean_interval(generator.normal(size=count)) for _ in range(400)))
    assert 0.93 <= covered / 400 <= 0.97
    assert mean_interval([3.0]) == (3, 3)


@pytest.mark.parametrize(("cut", "count"), [(0, 2), (0, 5), (1, 5), (2, 9)])
def test_the_band_of_a_curve_covers_as_often_as_it_says_without_those_cut_off_too(cut, count):
    """By Student's t, a little less often where some are cut off; a percentile bootstrap of 5 normal draws in 85%."""
    values = np.random.default_rng(0).normal(size=(count, 4000))
    middle = np.sort(values, axis=0)[cut : count - cut].mean(axis=0)
    assert (0.915 if cut else 0.94) <= (np.abs(middle) < half_width(values, cut)).mean() <= 0.975
    if cut == 0:
        assert half_width(values, 0)[7] == pytest.approx(mean_interval(values[:, 7])[1] - middle[7], rel=1e-6)


def test_the_interquartile_mean_ignores_an_outlier():
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0])[:, None]
    assert iqm(values).tolist() == [3.5]
    assert iqm(values[:3]).tolist() == [1.0]  # nothing is cut off from three


def test_a_run_that_broke_off_is_left_out_from_there_on(tmp_path):
    runs = [
        written(tmp_path, rows_of([1] * 10), "whole", run__seed=1),
        written(tmp_path, rows_of([3] * 4), "broken", run__seed=2),
    ]
    (curve,) = curves_of(runs)
    assert at(curve, 39)[0] == 2
    assert at(curve, 60)[0] == 1
    assert (curve.num_runs[0], curve.num_runs[-1]) == (2, 1)


def test_a_seed_that_reached_its_goal_stays_at_what_it_had(tmp_path):
    """It left the curve, so that `compare` spoke of those that had failed alone."""
    reached = trained(tmp_path, "reached", run__seed=1, trainer__stop_at_return=-1e9).directory
    assert RunDirectory(reached).status == "stopped"
    (reached / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of([5] * 3)))
    goal = {"trainer__stop_at_return": -1e9}
    runs = [RunDirectory(reached), written(tmp_path, rows_of([1] * 10), "failed", run__seed=2, **goal)]
    (curve,) = curves_of(runs)
    assert (curve.x[-1], at(curve, 90)[0], curve.num_runs[-1]) == (100, 3, 2)
    (alone,) = curves_of(runs[:1])
    assert (alone.x[-1], alone.value[-1]) == (30, 5)


def test_a_seed_that_begins_after_another_has_ended_is_not_read_before_it(tmp_path):
    late = [row | {"env_steps": 103 + number} for number, row in enumerate(rows_of([9, 9]))]
    (curve,) = curves_of(
        [written(tmp_path, rows_of([1] * 10), "first", run__seed=1), written(tmp_path, late, "late", run__seed=2)]
    )
    assert (curve.x.tolist(), curve.value.tolist(), curve.num_runs.tolist()) == ([100], [1], [1])


def test_a_comparison_says_how_many_runs_it_is_of_and_needs_a_place_that_both_have(tmp_path):
    for seed, count in ((1, 10), (2, 4)):
        written(tmp_path / "g", rows_of([1] * count), f"seed_{seed}", run__seed=seed)
    (tmp_path / "g/group.json").write_text("{}")
    written(tmp_path, rows_of([3] * 10), "other")
    written(tmp_path, [row | {"env_steps": 200} for row in rows_of([3])], "late")
    found = compare_runs("g", "other", root=tmp_path)
    assert isinstance(found, Comparison) and found.to_json()["num_runs"] == (1, 1)
    written(tmp_path, rows_of([3] * 3), "short")
    found = compare_runs("g", "short", root=tmp_path)
    assert str(found).endswith("a difference of +2 (of 2 and 1 runs that came so far)")
    with pytest.raises(ConfigError, match=r"g and late have no env steps in common: one begins at 200, .* ends at 100"):
        compare_runs("g", "late", root=tmp_path)
    elsewhere = written(tmp_path, rows_of([5] * 3), "elsewhere", env__name="Pendulum-v1")
    assert str(compare_runs("short", elsewhere.path, root=tmp_path)).endswith("3 and 5, of two tasks")


def test_a_run_differs_in_nothing_from_its_fork_where_that_was_taken(tmp_path):
    """The longer one was read between points of its picture, at none of which the shorter one ends."""
    returns = np.random.default_rng(0).normal(size=701).tolist()
    written(tmp_path, rows_of(returns), "origin")
    written(tmp_path, rows_of(returns[:311]), "fork")
    assert compare_runs("origin", "fork", root=tmp_path).at_common == (returns[310], returns[310])


def test_a_curve_ends_where_the_first_whole_run_does(tmp_path):
    """The last rows of finished runs lie a few env steps apart; nothing jumps there."""
    runs = [
        written(tmp_path, [*rows_of([1] * 9), {**rows_of([1])[0], "env_steps": last}], f"s{last}", run__seed=last)
        for last in (100, 104)
    ]
    (curve,) = curves_of(runs)
    assert curve.x[-1] == 100
    assert set(curve.num_runs.tolist()) == {2}


@pytest.mark.parametrize(("x", "last"), [("steps", 30), ("time", 1.5), ("episodes", 3)])
def test_the_x_axis_may_be_steps_time_or_episodes(x, last, tmp_path):
    (curve,) = curves_of([written(tmp_path, rows_of([1, 2, 3]))], x=x)
    assert curve.x[-1] == last


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path):
    run = written(tmp_path, rows_of([1, 2]))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 30, "ret')
    assert [row["env_steps"] for row in read_metrics(run.path)] == [10, 20]


def test_a_metric_that_is_not_there_is_named_with_those_that_are(tmp_path):
    """F27."""
    run = written(tmp_path, rows_of([1, 2]))
    with pytest.raises(ConfigError, match=r"there is no metric 'learning/k' — did you mean 'learning/kl'\?"):
        curves_of([run], metric="learning/k")
    empty = written(tmp_path, [], "empty")
    with pytest.raises(CheckpointError, match=r"nothing to draw yet: no return_mean has been logged in .*empty"):
        curves_of([empty])


def test_a_run_of_which_nothing_is_drawn_is_named(tmp_path, caplog):
    """One that learned from data alone has no episodes of training; its evaluations compare with those of others."""
    rows = [row | {"eval/return_mean": 3.0} for row in rows_of([1, 2])]
    run = written(tmp_path, rows)
    offline = written(tmp_path, [{k: v for k, v in row.items() if k != "return_mean"} for row in rows], "offline")
    assert shown_metric([run]) == "return_mean"
    assert shown_metric([run, offline]) == "eval/return_mean"
    assert len(curves_of([run, offline], metric="return_mean")) == 1
    assert f"no return_mean has been logged in {offline.path}" in caplog.text


def test_runs_that_do_not_count_the_same_are_compared_by_time_alone(tmp_path):
    """30 updates and 30 env steps are not one place of an axis."""
    written(tmp_path, rows_of([1.0, 2.0, 3.0]), "acts")
    base = preset("behaviour_cloning", CHAIN)
    settings = {"env__num_envs": 2, "run__directory": str(tmp_path), "run__name": "cloned"}
    cloned = RunDirectory.create(config_from_mapping(ExperimentConfig, settings, base=base))
    shutil.copyfile(tmp_path / "acts/metrics.jsonl", cloned.path / "metrics.jsonl")
    with pytest.raises(ConfigError, match=r"acts and cloned do not count the same \(env steps, updates\).*x='time'"):
        compare_runs("acts", "cloned", root=tmp_path)
    by_time = compare_runs("acts", "cloned", root=tmp_path, x="time")
    assert (by_time.common_x, by_time.at_common) == (1.5, (3.0, 3.0))
    assert compare_runs("cloned", "cloned", root=tmp_path).common_x == 30


def test_what_changed_while_a_run_went_on_is_said(tmp_path):
    """Else it is one curve with those that had the last settings all along, and no difference to them."""
    changed, whole = (written(tmp_path, rows_of([1.0, 2.0]), name) for name in ("changed", "whole"))
    midway = {"algorithm.gamma": [0.5, 0.9], "trainer.total_env_steps": [96, 192], "run.device": ["cuda", "cpu"]}
    first = {"env_steps": 0, "changes": {"algorithm.entropy_cost": [0.5, 0.0]}}
    changed.write_info({"overrides": [first, {"env_steps": 1_000, "changes": midway}]})
    name = f"ppo {CHAIN}"
    assert [curve.label for curve in curves_of([changed, whole])] == [f"{name} algorithm.gamma=0.5 until 1,000", name]
    now = whole.config.algorithm.gamma
    assert compare_runs(changed.path, whole.path).differences == {"algorithm.gamma until 1,000": (0.5, now)}
    whole.write_info({"overrides": changed.info["overrides"]})
    assert compare_runs(changed.path, whole.path).differences == {}


def test_a_thinned_curve_keeps_its_ends():
    points = np.stack([np.arange(5000.0), np.arange(5000.0) ** 2], axis=1)
    thin = one_run(points, "env steps")
    assert len(thin.x) == len(thin.value) == len(thin.low) == 200
    assert (thin.x[0], thin.x[-1], thin.value[-1]) == (0, 4999, 4999**2)
    assert one_run(points[:7], "env steps").x.tolist() == list(range(7))


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Of 200,000 rows, with a metric that only three have, and half a line at the end."""
    run = written(tmp_path_factory.mktemp("runs"), [])
    row = rows_of([0.0])[0]
    with (run.path / "metrics.jsonl").open("w") as file:
        for i in range(200_000):
            rare = {"rare": float(i)} if i % 70_000 == 9 else {}
            file.write(json.dumps(row | {"env_steps": 10 * i, "return_mean": i / 1000, **rare}) + "\n")
        file.write('{"env_steps": 20')
    return run


@pytest.mark.slow
def test_a_curve_of_many_rows_is_read_in_places(long_run, monkeypatch):
    """D13: from the first row to the last, without reading what no picture can show; the values are the file's."""
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text, **options: (parsed.append(len(text)), loads(text, **options))[1])
    (curve,) = curves_of([long_run])
    assert len(parsed) <= 2_010  # with run.json, as often as it is read
    assert (curve.x[0], curve.x[-1]) == (0, 1_999_990)
    assert curve.value == pytest.approx(curve.x / 10_000)


def test_a_metric_that_few_of_many_rows_have_is_found(long_run):
    """D13."""
    (curve,) = curves_of([long_run], metric="rare")
    assert (curve.x[0], curve.x[-1], curve.value[-1]) == (90, 1_400_090, 140_009)
    with pytest.raises(ConfigError, match="there is no metric 'return_men' — did you mean 'return_mean'"):
        curves_of([long_run], metric="return_men")


@pytest.mark.slow
@pytest.mark.needs_linux
def test_a_million_rows_are_drawn_in_five_seconds_and_500_mb(tmp_path):
    """D13: `plot` and `report` in processes of their own; seconds of the processor, whatever else the machine does."""
    run = written(tmp_path, [])
    row = rows_of([0.0])[0] | {f"learning/metric_{i}": 0.123456789 for i in range(18)}
    with (run.path / "metrics.jsonl").open("w") as file:
        for i in range(1_000_000):
            file.write(json.dumps(row | {"env_steps": 10 * i, "return_mean": i / 1000}) + "\n")
    used = "import time; print('cpu', time.process_time(), open('/proc/self/status').read())"
    program = f"from palaestra.cli import main\ntry: main()\nfinally: {used}"
    for verb in ("plot", "report"):
        text = command(verb, str(run.path), folder=tmp_path, program=program)
        assert float(re.search(r"cpu ([\d.]+)", text)[1]) < 5
        assert int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) < 500_000  # ru_maxrss has that of who started it


@pytest.mark.parametrize(
    "line", ["garbage", '{"env_steps": 5, "return_mean": 9.0}', '{"return_mean": 9.0}', "[" * 5_000]
)
def test_damage_inside_metrics_is_said(tmp_path, caplog, line):
    run = written(tmp_path, rows_of([1, 2, 3])).path
    file = run / "metrics.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([first, line, *others]) + "\n")
    assert [row["return_mean"] for row in read_metrics(run)] == [1, 2, 3]
    assert "metrics.jsonl is damaged: 1 of its lines" in caplog.text


@pytest.mark.parametrize("wide", [100_000, 900_000])
def test_long_rows_are_read_from_a_large_file(tmp_path, wide, caplog):
    """Those of more than 64 KiB, as of 400 agents, were lost, and a sound file called damaged."""
    run = written(tmp_path, [])
    histogram = {"learning/histogram": [0] * (wide // 3)}
    count = 13 * 10**6 // wide
    rows = [{"env_steps": 10 * i, "eval/return_mean": i, **(histogram if i % 5 else {})} for i in range(count)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = thinned_metrics(run.path)
    steps = [row["env_steps"] for row in found]
    assert (steps[0], steps[-1], steps == sorted(set(steps))) == (0, 10 * count - 10, True)
    assert sum(len(row) > 2 for row in found) > count // 3 and "damaged" not in caplog.text
    assert shown_metric([run]) == "eval/return_mean"


def test_of_a_huge_file_rows_of_so_many_bytes_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "_MOST_BYTES", 2**20)
    run = written(tmp_path, [{"env_steps": 10 * i, "learning/histogram": [0] * 20_000} for i in range(200)])
    steps = [row["env_steps"] for row in thinned_metrics(run.path)]
    assert (len(steps) < 25, steps[0], steps[-1], steps == sorted(set(steps))) == (True, 0, 1_990, True)


def test_lines_that_are_none_of_ours_are_named(tmp_path):
    run = written(tmp_path, rows_of([1]))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write("x" * 2**23 + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be read: it has a line of more than"):
        thinned_metrics(run.path)


def test_evaluations_are_drawn_where_they_were_made(tmp_path):
    """Rows of metrics repeat the newest until the next, which beside training is one of much earlier."""
    rows = [row | {"eval/return_mean": 5.0, "eval/info/cost": 1.0} for row in rows_of([0] * 4)]
    run = written(tmp_path, rows)
    (held,) = curves_of([run], metric="eval/return_mean")
    assert (held.x[0], held.x[-1]) == (10, 40)
    for step, value in ((12, 5.0), (32, 7.0)):
        record = {"return_mean": value, "returns": [value], "return_ci95": [value] * 2, "length_mean": 1, "episodes": 1}
        (run.path / f"evals/{step}.json").write_text(json.dumps(record | {"parts": {"cost": -value}}))
    for metric, sign in (("eval/return_mean", 1), ("eval/info/cost", -1)):
        (curve,) = curves_of([run], metric=metric)
        assert (curve.x[0], curve.x[-1], *at(curve, 22)) == (12, 32, *[6.0 * sign] * 3)
    (by_time,) = curves_of([run], metric="eval/return_mean", x="time")
    assert set(by_time.value) == {5.0}


def test_logs_are_hashed_once_for_a_report_and_again_when_they_change(tmp_path, monkeypatch):
    run = written(tmp_path, rows_of([1, 2]))
    (run.path / "episodes.csv").write_text("env_steps,return,length,env_id,info\n")
    run.write_info({"logs": run.log_fingerprints()})
    read, hashed = [], records.fingerprint
    monkeypatch.setattr(records, "fingerprint", lambda file: (read.append(file.name), hashed(file))[1])
    write_report([run.path], tmp_path / "report.html")
    assert sorted(read) == ["episodes.csv", "metrics.jsonl"]
    (run.path / "episodes.csv").write_text("env_steps,return,length,env_id,info\n1,2.0,3,0,\n")
    write_report([run.path], tmp_path / "report.html")
    assert sorted(read) == ["episodes.csv", "episodes.csv", "metrics.jsonl"]
