"""Tests of `palaestra.analysis.logs`: logs that were cut, continued or begun anew, against a plain referee."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from palaestra.analysis import logs
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import read_logs
from tests.cli.parts import exit_code, output
from tests.experiments.parts import rows_of, written


def referee(points):
    """A point stays unless the log later goes back to its step or before."""
    backs = [(place, points[place][0]) for place in range(1, len(points)) if points[place][0] < points[place - 1][0]]
    return [
        point
        for place, point in enumerate(points)
        if not any(later > place and step <= point[0] for later, step in backs)
    ]


def sessions(rng):
    """Points of one to four sessions: each goes on, begins anew or returns to any step; some steps stand twice."""
    points, step = [], 0
    for _ in range(rng.integers(1, 5)):
        step = int(rng.choice([0, step, rng.integers(0, step + 1)]))
        for _ in range(rng.integers(1, 8)):
            step += int(rng.integers(0, 3) > 0) * 10
            points.append((float(step), float(rng.integers(0, 100))))
    return points


def write_progress(folder, points):
    with (folder / "progress.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("time/total_timesteps", "rollout/ep_rew_mean"), *points])


def write_result(folder, points):
    rows = [{"timesteps_total": step, "episode_reward_mean": value} for step, value in points]
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_evaluations(folder, points):
    steps, values = zip(*points, strict=True)
    np.savez(folder / "evaluations.npz", timesteps=steps, results=np.array(values)[:, None])


def write_events(folder, points):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder)) as writer:
        for step, value in points:
            writer.add_scalar("charts/episodic_return", value, int(step))


def write_tensor_events(folder, points):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder)) as writer:
        for step, value in points:
            writer.add_scalar("charts/episodic_return", value, int(step), new_style=True)


WRITERS = [write_progress, write_result, write_evaluations, write_events, write_tensor_events]


@pytest.mark.parametrize("write", WRITERS)
def test_of_a_log_that_goes_back_the_later_session_counts(tmp_path, write):
    rng = np.random.default_rng(0)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        points = sessions(rng)
        write(folder, points)
        (run,) = read_logs(folder)
        kept = referee(points)
        assert run.points.tolist() == [list(point) for point in kept]
        assert run.replaced == len(points) - len(kept)


@pytest.mark.parametrize(
    ("write", "name"), [(write_progress, "progress.csv"), (write_result, "result.json"), (None, "0.monitor.csv")]
)
def test_a_log_that_is_cut_anywhere_has_its_whole_rows(tmp_path, write, name):
    points = [(10.0 * n, 17.0 * n) for n in range(1, 5)]
    if write is None:
        rows = "".join(f"{17.0 * n},10,{n}.25\n" for n in range(1, 5))
        (tmp_path / name).write_text('#{"t_start": 1700000000.5, "env_id": "x"}\nr,l,t\n' + rows)
    else:
        write(tmp_path, points)
    whole = (tmp_path / name).read_bytes()
    for end in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:end])
        headers = 0 if name == "result.json" else 1 if write else 2
        complete = max(whole[:end].count(b"\n") - headers, 0) + (
            name == "result.json" and whole[end : end + 1] == b"\n"
        )
        try:
            (run,) = read_logs(tmp_path)
        except (ConfigError, CheckpointError):
            assert complete == 0
        else:
            assert run.points.tolist() == [list(point) for point in points[:complete]]


def monitor(folder, name, t_start, *parts):
    head = json.dumps({"t_start": t_start, "env_id": "Walk-v1"})
    rows = [f"{value},{length},{seconds}\n" for part in parts for value, length, seconds in part]
    (folder / name).write_text(f"#{head}\nr,l,t\n" + "".join(rows))


def test_monitor_files_follow_each_other_by_when_they_began(tmp_path):
    """`t` counts from `t_start`: 30.0 came out where 110 is right."""
    monitor(tmp_path, "0.monitor.csv", 1000.0, [(10, 10, 1), (20, 20, 2), (30, 30, 3)])
    monitor(tmp_path, "1.monitor.csv", 1100.0, [(100, 100, 0.5), (110, 110, 1.5)])
    (run,) = read_logs(tmp_path)
    assert run.points.tolist() == [[10, 10], [30, 20], [60, 30], [160, 100], [270, 110]]
    assert run.score() == 110


def test_of_monitor_files_whose_seconds_begin_anew_the_last_session_counts(tmp_path):
    """Of several files those that have it; with `override_existing=False` the head is that of the first."""
    for name in ("0.monitor.csv", "1.monitor.csv"):
        old, new = [(10, 5, n / 4) for n in range(1, 51)], [(100, 50, n / 2) for n in range(1, 4)]
        monitor(tmp_path, name, 1000.0, old, new)
    monitor(tmp_path, "2.monitor.csv", 1000.0, [(10, 5, n / 4) for n in range(1, 51)])
    (run,) = read_logs(tmp_path)
    assert run.points.tolist() == [[50.0 * n, 100] for n in range(1, 7)]
    assert run.replaced == 150


def test_the_command_says_what_was_replaced(tmp_path, capsys):
    steps = range(1000, 11000, 1000)
    write_progress(tmp_path, [(step, 10) for step in steps] + [(step, 100) for step in steps])
    assert exit_code("stats", str(tmp_path), "--env", "Walk") == 0
    said = output(capsys)
    assert "iqm 100" in said
    assert "progress.csv goes back; 10 points from before were replaced" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed,score\n0,1\n0,9\n", "line 3: step 0 of seed 0 of a in W stands behind its step 0; .* its seed"),
        ("seed,step,score\n0,10,1\n1,10,1\n0,10,9\n", "line 4: step 10 of seed 0 of a in W stands behind its step 10"),
        ("seed,step,score\n0,10,1\n0,20,1\n0,5,9\n", "line 4: step 5 of seed 0 of a in W stands behind its step 20"),
    ],
)
def test_two_rows_of_one_seed_are_refused(tmp_path, text, message):
    head, *rows = text.splitlines()
    lines = [f"algorithm,environment,{head}", *(f"a,W,{row}" for row in rows)]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        read_logs(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("0.monitor.csv", '#{"t_start": 1.0, "env_id": "x"}\nr,l,t\n'),
        ("progress.csv", "time/total_timesteps,rollout/ep_rew_mean\n"),
        ("progress.csv", ""),
        ("result.json", ""),
        ("table.csv", "algorithm,environment,seed,score\n"),
    ],
)
def test_an_empty_log_is_no_damage(tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)
    assert exit_code("stats", str(tmp_path / name), "--env", "x") == 2
    assert name in output(capsys)


def test_a_folder_without_a_log_is_a_mistake_of_the_caller(tmp_path, capsys):
    folder = Path(tmp_path / "empty")
    folder.mkdir()
    assert exit_code("stats", str(folder)) == 2
    assert "there is no log in" in output(capsys)


def test_hidden_folders_have_no_runs_and_a_copy_is_none(tmp_path):
    """What is not whole yet, old versions, and `cp -r seed_0 seed_0.bak` were further runs."""
    run = written(tmp_path, rows_of([1.0, 2.0]), "seed_0").path
    for name in (".tmp-0", ".Trash/seed_0", "seed_0.bak"):
        shutil.copytree(run, tmp_path / name)
    assert [one.directory and one.directory.path for one in read_logs(tmp_path)] == [run]


def test_a_single_run_may_have_any_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_FILES", 2)
    run = written(tmp_path, rows_of([1.0, 2.0]), "seed_0").path
    assert len(read_logs(run)) == 1
    with pytest.raises(ConfigError, match="has more than 2 files; name the folders of the runs"):
        read_logs(tmp_path)
