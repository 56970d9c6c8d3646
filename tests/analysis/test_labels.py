"""Tests of `palaestra.analysis.labels`: what runs are called in pictures, terminals, reports and comparisons."""

import re

import pytest

from palaestra.analysis.labels import OF_EXECUTION, labels_of, names_of, shown_labels, table_cells
from palaestra.config.config import flat_settings
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import (
    ExperimentConfig,
    RunDirectory,
    compare_runs,
    curves_of,
    evaluate_runs,
    save_plot,
    terminal_plot,
    write_report,
)
from tests.cli.parts import exit_code, output
from tests.experiments.parts import config_of, rows_of, written


def test_labels_say_only_what_differs(tmp_path):
    same = [config_of(tmp_path, run__seed=seed) for seed in (1, 2)]
    assert labels_of(same) == ["ppo palaestra.envs.tiny:Chain"] * 2


def test_where_and_how_a_run_is_executed_and_logged_makes_no_other_sample(tmp_path):
    assert flat_settings(ExperimentConfig()).keys() | {"env.kwargs.render_mode"} >= OF_EXECUTION
    elsewhere = {"run__device": "cuda", "trainer__log_every_steps": 5, "env__vectorization": "native"}
    elsewhere |= {"env__kwargs": {"render_mode": "rgb_array"}, "distributed__runtime": "process"}
    assert len({*labels_of([config_of(tmp_path), config_of(tmp_path, **elsewhere)])}) == 1


OTHERS = {
    "algorithm.gamma": 0.5, "run.initial_policy": "pretrained", "run.precision": "bf16", "offline.data": "data",
    "env.wrappers": ("FrameStack",), "env.gym_wrappers": ("ClipReward",), "env.train_wrappers": ("NormalizeReward",),
    "env.train_kwargs": {"easy": None}, "env.discount": 0.9, "env.num_envs": 4, "trainer.episodes_per_iteration": 4,
    "trainer.total_env_steps": 960,
}  # fmt: skip


def test_all_other_settings_make_another_sample(tmp_path, capsys):
    """A run from nothing and one from a pretrained policy were one curve, and one algorithm of `stats`."""
    for path, value in OTHERS.items():
        plain, other = labels_of([config_of(tmp_path), config_of(tmp_path, **{path.replace(".", "__"): value})])
        assert path in other and plain != other
    for name, own in (("a", {}), ("b", {"run.initial_policy": "pretrained"})):
        written(tmp_path / "runs", rows_of([1.0, 2.0]), name, **own)
    assert len(curves_of([RunDirectory(tmp_path / "runs" / name) for name in "ab"])) == 2
    assert exit_code("stats", str(tmp_path / "runs")) == 2
    assert "no seeds of one algorithm" in (said := output(capsys)) and "run.initial_policy=pretrained" in said
    assert exit_code("stats", f"x={tmp_path / 'runs'}") == 0


MAPPING = {"agents.mapping": {"agent_0": "first", "*": "second"}}
RULE = MAPPING | {"agents.policies": {"second": "random"}}


@pytest.mark.parametrize(
    "own", [{"algorithm.rewards.weights": (1.0, 0.5)}, MAPPING | {"agents.judged": ("first",)}, RULE]
)
def test_returns_that_count_other_things_are_of_another_task(tmp_path, capsys, own):
    """They were averaged, and compared."""
    one, other = (written(tmp_path, rows_of([1.0, 2.0]), name, **of) for name, of in (("a", {}), ("b", own)))
    with pytest.raises(ConfigError, match="whose returns have no mean; evaluate those of one task at a time"):
        evaluate_runs([one.path, other.path])
    assert exit_code("stats", f"a={one.path}", f"b={other.path}") == 2
    assert "scores of different tasks" in output(capsys)
    assert str(compare_runs(one.path, other.path)).endswith("2 and 2, of two tasks")


def test_what_counts_the_same_is_of_one_task(tmp_path):
    def task(**own):
        return config_of(tmp_path, **own).task

    assert task() == task(**MAPPING) == task(**MAPPING, **{"agents.judged": ("first", "second")})
    assert task(**RULE) == task(**RULE, **{"agents.judged": ("first",)})
    constrained = {"algorithm.rewards.weights": (1.0, 0.1), "algorithm.rewards.thresholds": (None, -1.0)}
    fixed = {"algorithm.rewards.weights": (1.0, 0.0)}  # what has a threshold counts nothing in evaluations
    assert task(**constrained) == task(**fixed)


@pytest.mark.parametrize("command", ["plot", "stats", "eval"])
def test_one_seed_that_was_trained_twice_is_no_independent_run(tmp_path, caplog, command):
    """The interval over a run and its fork was as wide as nothing."""
    runs = [written(tmp_path, rows_of([1.0, 2.0]), f"{seed}{end}", run__seed=seed) for seed in (0, 1) for end in "ab"]

    def ask(several):
        if command == "plot":
            curves_of(several)
        elif command == "stats":
            assert exit_code("stats", *(f"x={run.path}" for run in several)) == 0
        else:
            with pytest.raises(CheckpointError, match="has not been evaluated yet"):
                evaluate_runs([run.path for run in several])

    ask(runs[1:3])
    assert "same seed" not in caplog.text
    ask(runs[:3])
    assert [text for text in caplog.messages if "same seed" in text] == [
        f"{runs[0].path}, {runs[1].path} have the same seed (0): they are no independent runs, so an interval over "
        "them is too narrow; train each with a seed of its own (--seed)"
    ]


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
