"""Tests of `palaestra.analysis.labels`: what runs are called in pictures, terminals, reports and comparisons."""

import re

import pytest

from palaestra.analysis.labels import labels_of, names_of, shown_labels, table_cells
from palaestra.experiments import RunDirectory, curves_of, save_plot, terminal_plot, write_report
from tests.cli.parts import exit_code
from tests.experiments.parts import config_of, rows_of, written


def test_labels_say_only_what_differs(tmp_path):
    same = [config_of(tmp_path, run__seed=seed) for seed in (1, 2)]
    assert labels_of(same) == ["ppo palaestra.envs.tiny:Chain"] * 2


@pytest.fixture
def trials(tmp_path):
    """As a search leaves them: groups of two seeds, each with settings of many digits."""
    runs = []
    for number in range(8):
        group = tmp_path / "runs" / f"trial_{number}"
        settings = {"gamma": 1 - 0.0123456789 * (number + 1), "entropy_cost": 0.123456789 / (number + 1)}
        settings |= {"gae_lambda": 1 - 0.023456789 * (number + 1)}
        own = {f"algorithm__{name}": value for name, value in settings.items()}
        for seed in (0, 1):
            rows = rows_of([1.0, 2.0 + number + seed])
            runs.append(written(group, rows, f"seed_{seed}", run__seed=seed, **own))
        (group / "group.json").write_text("{}")
    return runs


def test_curves_with_long_labels_have_the_names_of_their_groups_everywhere(trials, tmp_path, capsys):
    """A picture of a search had no room for its axes, and a terminal eight lines for a curve."""
    names = [f"trial_{number}" for number in range(8)]
    curves = curves_of(trials)
    assert [curve.label for curve in curves] == names
    table = save_plot(curves, tmp_path / "plot.csv").read_text()
    assert f"algorithm.gamma={trials[0].config.algorithm.gamma} " in table, "a table has room"
    assert max(map(len, terminal_plot(curves, width=80).plain.splitlines())) <= 90
    page = write_report([run.path for run in trials[:6]], tmp_path / "page.html").read_text()
    assert re.findall("<h1>(.*)</h1>", page) == ["trial_0 · trial_1 · trial_2"]
    summaries = [f"trial_{number}/seed_{seed}" for number in range(3) for seed in (0, 1)]
    assert re.findall("<summary>(trial.*?)</summary>", page) == summaries
    assert re.findall("<td>(trial.*?)</td>", page) == summaries
    chart = re.findall(r'<svg viewBox="0 0 \d+ (\d+)".*?</svg>', page)[0]
    assert all(float(y) < float(chart) for y in re.findall(r'<text x="4" y="(\d+)"', page))
    assert exit_code("compare", str(trials[0].path), str(trials[2].path)) == 0
    assert "algorithm.gamma 0.9877 0.9753" in re.sub(" +", " ", capsys.readouterr().out)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_of_many_curves_has_axes_of_full_size(trials, tmp_path, monkeypatch, suffix):
    """Warnings are errors: one said that the axes had collapsed."""
    figures = pytest.importorskip("matplotlib.figure")
    made, figure = [], figures.Figure
    monkeypatch.setattr(figures, "Figure", lambda *args, **options: made.append(figure(*args, **options)) or made[-1])
    save_plot(curves_of(trials), tmp_path / f"plot.{suffix}")
    (axes,), (legend,) = made[0].axes, made[0].legends
    box, words = axes.get_window_extent(), legend.get_window_extent()
    assert box.width > 0.8 * made[0].bbox.width and box.height > 0.5 * made[0].bbox.height
    assert words.x0 >= 0 and words.y1 < box.y0 and words.x1 <= made[0].bbox.width


def test_members_of_one_group_with_settings_of_their_own_have_their_own_names(trials):
    group = trials[0].path.parent
    members = [RunDirectory(run.path.rename(group / f"member_{place}")) for place, run in enumerate(trials[::2])]
    assert shown_labels(members) == [f"member_{place}" for place in range(8)]


def test_short_numbers_stay_different(tmp_path):
    several = [written(tmp_path, [], f"{gamma}", algorithm__gamma=gamma) for gamma in (0.987654321, 0.95)]
    name = "ppo palaestra.envs.tiny:Chain algorithm.gamma"
    assert shown_labels(several) == [f"{name}=0.9877", f"{name}=0.95"]
    assert table_cells([0.98765432, 0.98765431]) == ["0.98765432", "0.98765431"]
    assert len(table_cells(["x" * 300, 1])[0]) == 64
    long = ["x" * 300 + end for end in "ab"]
    assert table_cells(long) == long


def test_runs_are_called_by_as_much_of_their_paths_as_tells_them_apart(tmp_path):
    assert names_of([tmp_path / "a/seed_0", tmp_path / "a/seed_1"]) == ["seed_0", "seed_1"]
    assert names_of([tmp_path / "a/seed_0", tmp_path / "b/seed_0"]) == ["a/seed_0", "b/seed_0"]
    assert names_of([tmp_path / "a", tmp_path / "a"]) == ["a", "a"]
