"""Tests of `palaestra.analysis.stats`, `palaestra.analysis.logs` and `palaestra stats`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from palaestra.config.config import config_from_mapping
from palaestra.core import CheckpointError, ConfigError
from palaestra.experiments import (
    ExperimentConfig,
    LoggedRun,
    RunDirectory,
    elo_ratings,
    preset,
    read_logs,
    read_references,
    sample_efficiency,
    stats,
)
from tests.cli.parts import exit_code, output
from tests.experiments.parts import CHAIN, rows_of, trained, written

LOGS = Path(__file__).parent / "logs"


def test_statistics_of_numbers_done_by_hand():
    scores = {"a": {"x": [0.0, 1.0, 2.0, 7.0], "y": [1.0, 1.0, 3.0, 9.0]}, "b": {"x": [0.0] * 4, "y": [1.0] * 4}}
    result = stats(scores, references={"x": [0, 2], "y": [1, 5]}, resamples=100)
    # normalised: 0 .5 1 3.5 and 0 0 .5 2; sorted 0 0 0 .5 .5 1 2 3.5, the middle four are 0 .5 .5 1
    assert result.estimates["a"]["iqm"].value == pytest.approx(0.5)
    assert result.estimates["a"]["mean"].value == pytest.approx(7.5 / 8)
    assert result.estimates["a"]["median"].value == pytest.approx(0.9375)  # of the means 1.25 and 0.625
    assert result.estimates["a"]["optimality_gap"].value == pytest.approx(1 - (0.5 + 1 + 1 + 0.5 + 1) / 8)
    # of x three of four are above 0 and one is equal; of y two are above 0 and two are equal
    assert result.improvements[0].probability.value == pytest.approx((3.5 / 4 + 3 / 4) / 2)
    assert result.profiles["b"][0].value == 0


def test_runs_are_drawn_again_within_their_environment():
    """Without spread inside environments there is no interval, however far apart the environments are."""
    result = stats({"a": {"x": [0.0, 0.0], "y": [1.0, 1.0]}}, references={"x": [0, 1], "y": [0, 1]})
    assert result.estimates["a"]["mean"].low == result.estimates["a"]["mean"].high == 0.5


def test_two_seeds_that_never_overlap_say_nothing():
    result = stats({"a": {"x": [9.0, 10.0]}, "b": {"x": [1.0, 2.0]}})
    assert result.improvements[0].probability.low == 1.0
    assert not result.improvements[0].differs
    assert "nothing follows" in str(result)
    assert "9, 10" in str(result)


def test_ten_seeds_that_never_overlap_differ():
    result = stats({"a": {"x": range(10, 20)}, "b": {"x": range(10)}})
    assert result.improvements[0].differs


def test_among_many_pairs_chance_names_none():
    """Holm: of six pairs the least p counts six times, the next five times, and none less than one before it."""
    scores = {"a": {"x": range(10, 20)}, **{name: {"x": range(10)} for name in "bc"}, "d": {"x": np.arange(10) + 3.5}}
    pairs = {one.first + one.second: one.p_value for one in stats(scores, resamples=199).improvements}
    assert pairs["ab"] == pytest.approx(6 / 200) and pairs["bc"] == 1
    alone = stats({name: scores[name] for name in "bd"}, resamples=1999).improvements[0]
    assert alone.differs
    assert not next(one for one in stats(scores).improvements if one.first + one.second == "bd").differs


def published():
    scores: dict[str, dict[str, list[float]]] = {}
    for run in read_logs(LOGS / "simba_v2.csv"):
        scores.setdefault(run.algorithm, {}).setdefault(run.environment, []).append(run.score())
    return scores, read_references(LOGS / "simba_v2_references.json")


@pytest.mark.parametrize(
    ("name", "value", "low", "high"), [("simbaV2_utd2", 1.637, 1.474, 1.792), ("CrossQ", 1.566, 1.397, 1.721)]
)
def test_published_intervals_come_out(name, value, low, high):
    """Its notebook hands rliable the matrix as [environments, seeds], so that environments are drawn, not seeds."""
    scores, references = published()
    assert stats(scores, references=references).estimates[name]["iqm"].value == pytest.approx(value, abs=0.005)
    matrix = np.array([(np.array(scores[name][e]) - a) / (b - a) for e, (a, b) in references.items()])
    turned = {str(seed): column.tolist() for seed, column in enumerate(matrix.T)}
    iqm = stats({name: turned}, references=dict.fromkeys(turned, (0, 1)), resamples=10_000).estimates[name]["iqm"]
    assert (iqm.value, iqm.low, iqm.high) == pytest.approx((value, low, high), abs=0.015)


@pytest.mark.parametrize(
    ("scores", "references", "message"),
    [
        ({}, None, "no scores"),
        ({"a": {"x": [1.0], "y": [1.0]}}, None, "cannot be averaged"),
        ({"a": {"x": [1.0]}, "b": {"y": [1.0]}}, None, "same environments"),
        ({"a": {"x": [1.0, 2.0], "y": [1.0]}}, {"x": [0, 1], "y": [0, 1]}, "as many runs"),
        ({"a": {"x": [float("nan")]}}, None, "finite"),
        ({"a": {"x": [1.0]}}, {"y": [0, 1]}, "no reference of x"),
        ({"a": {"x": [1.0]}}, {"x": [1, 1]}, "two different numbers"),
    ],
)
def test_bad_scores_are_refused(scores, references, message):
    with pytest.raises(ConfigError, match=message):
        stats(scores, references=references)


def test_sample_efficiency_follows_the_curves():
    line = np.array([[0.0, 0.0], [100.0, 10.0]])
    steps, found = sample_efficiency({"a": {"x": [line, line]}})
    assert [estimate.value for estimate in found["a"]] == pytest.approx(steps / 10)


def test_the_curves_of_runs_of_different_length_are_compared_where_all_of_them_are():
    long, short = np.array([[0.0, 0.0], [100.0, 10.0]]), np.array([[20.0, 2.0], [60.0, 6.0]])
    steps, found = sample_efficiency({"a": {"x": [long]}, "b": {"x": [short]}})
    assert (steps[0], steps[-1]) == (20.0, 60.0)
    for name in "ab":
        assert [estimate.value for estimate in found[name]] == pytest.approx(steps / 10)


def test_logs_written_by_stable_baselines3_and_tianshou_are_read():
    (run,) = read_logs(LOGS / "sb3")
    assert (run.metric, run.environment, len(run.points)) == ("eval/mean_reward", "CartPole-v1", 4)
    (tianshou,) = read_logs(LOGS / "tianshou")
    assert tianshou.points.tolist() == [[1000 * n, 20 * n] for n in range(1, 6)]
    (training,) = read_logs(LOGS / "sb3" / "progress.csv")
    assert training.points[-1, 0] == 1024
    (episodes,) = read_logs(LOGS / "sb3" / "0.monitor.csv")
    assert episodes.points[0].tolist() == [25, 25]


def test_results_of_rllib_are_read(tmp_path):
    rows = [
        {"num_env_steps_sampled_lifetime": n, "env_runners": {"episode_return_mean": n / 2}, "config": {"env": "Walk"}}
        for n in (10, 20)
    ]
    (tmp_path / "result.json").write_text("\n".join(map(json.dumps, rows)))
    (run,) = read_logs(tmp_path)
    assert (run.environment, run.points.tolist()) == ("Walk", [[10, 5], [20, 10]])


@pytest.mark.parametrize("tag", ["charts/episodic_return", "test/returns_stat/mean", "test/reward"])
def test_tensorboard_events_of_cleanrl_and_tianshou_are_read(tmp_path, tag):
    """By the writer that both use."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    folder = tmp_path / "Walk-v1__ppo__1__1700000000"
    with tensorboard.SummaryWriter(str(folder)) as writer:
        for step in (10, 20):
            writer.add_scalar(tag, step / 2, step)
    (run,) = read_logs(tmp_path)
    assert (run.environment, run.metric, run.points.tolist()) == ("Walk-v1", tag, [[10, 5], [20, 10]])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("progress.csv", "time/total_timesteps,rollout/ep_rew_mean\n1,2\n2,oops\n", "line 3: rollout/ep_rew_mean"),
        ("progress.csv", "a,b\n1,2\n", "no return that is known"),
        ("progress.csv", "a,b\n1,2,3\n", "line 2: more fields"),
        ("0.monitor.csv", "r,l,t\n", "line 1: it must be"),
        ("0.monitor.csv", '#{"env_id": "x"}\nr,l,t\n1,2,inf\n', "line 3: t is 'inf'"),
        ("result.json", '{"a": 1}\n[\n', "line 2: not a JSON object"),
        ("table.csv", "algorithm,score\na,1\n", "line 2: no environment"),
        ("evaluations.npz", "no archive", "not an evaluations.npz"),
    ],
)
def test_damaged_logs_name_file_and_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_logs(tmp_path / name)


def test_pickled_evaluations_are_refused(tmp_path):
    np.savez(tmp_path / "evaluations.npz", timesteps=[1], results=np.array([[print]], object))
    with pytest.raises(CheckpointError, match="allow_pickle"):
        read_logs(tmp_path)


def test_the_command_compares_algorithms(tmp_path, capsys):
    for name in ("one", "two"):
        shutil.copytree(LOGS / "sb3", tmp_path / "logs" / name)
    picture = str(tmp_path / "s.svg")
    arguments = ("stats", f"ours={tmp_path / 'logs'}", f"theirs={LOGS / 'sb3'}", "--output", picture)
    pytest.importorskip("matplotlib")
    assert exit_code(*arguments, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["stats"][0]["improvements"][0]["probability"]["value"] == 0.5
    assert Path(picture).stat().st_size > 1000
    assert exit_code("stats", str(LOGS / "nothing")) == 5
    assert "there is no run" in output(capsys)


def test_ratings_relative_to_some_players_are_differences_with_intervals_of_their_own():
    won, games = np.array([[0, 15, 12], [5, 0, 9], [8, 11, 0]]), 20 * (1 - np.eye(3))
    mean, last = elo_ratings(won, games), elo_ratings(won, games, zero=[2])
    assert [one.value for one in last] == pytest.approx([one.value - mean[2].value for one in mean])
    assert (last[2].low, last[2].high) == pytest.approx((0, 0), abs=1e-6)
    others = elo_ratings(won, games, zero=[1, 2])
    assert others[1].value + others[2].value == pytest.approx(0, abs=1e-6)
    assert others[0].value == pytest.approx(1.5 * mean[0].value)  # of three whose mean is 0
    assert others[0].high - others[0].value == pytest.approx(1.5 * (mean[0].high - mean[0].value))


def test_elo_of_known_strengths_is_found_and_its_intervals_hold_it():
    """True ratings lie in 95% intervals about 95 times of 100; a player that won everything has a finite rating."""
    rng = np.random.default_rng(0)
    truth = np.array([-150.0, -40.0, 30.0, 160.0])
    chance = 1 / (1 + 10 ** ((truth[None] - truth[:, None]) / 400))
    inside, errors = [], []
    for _ in range(200):
        won = np.triu(rng.binomial(60, chance), 1).astype(float)
        scores = won + np.triu(60 - won, 1).T
        found = elo_ratings(scores, 60 * (1 - np.eye(4)))
        inside += [one.low <= rating <= one.high for one, rating in zip(found, truth, strict=True)]
        errors.append([one.value - rating for one, rating in zip(found, truth, strict=True)])
    assert 0.92 < np.mean(inside) < 0.98
    assert np.abs(np.mean(errors, 0)).max() < 10
    best, worst = elo_ratings(np.array([[0, 20], [0, 0]]), np.array([[0, 20], [20, 0]]))
    assert best.low > 0 > worst.high
    assert np.isfinite([best.high, worst.low]).all()


@pytest.mark.parametrize("scores", [["x"], [[1.0], [1.0, 2.0]], None])
def test_scores_that_are_no_numbers_are_refused(scores):
    with pytest.raises(ConfigError):
        stats({"a": {"Walk": scores}})


def test_elo_refuses_scores_that_are_none():
    with pytest.raises(ConfigError, match="add up to their games"):
        elo_ratings(np.array([[0, 3], [3, 0]]), np.array([[0, 5], [5, 0]]))
    with pytest.raises(ConfigError, match="at least 2 players"):
        elo_ratings(np.zeros((1, 1)), np.zeros((1, 1)))
    with pytest.raises(ConfigError, match=r"zero is \[7\], which names none of the 2 players"):
        elo_ratings(np.array([[0, 3], [2, 0]]), np.array([[0, 5], [5, 0]]), zero=[7])


def test_of_a_run_of_ours_evaluations_count_once_each(tmp_path):
    """Rows of metrics repeat the newest one until the next."""
    run = trained(tmp_path, trainer__log_every_steps=8).directory
    (found,) = read_logs(run)
    evaluated = sorted(int(path.stem) for path in (run / "evals").glob("*.json"))
    assert [int(step) for step, _ in found.points] == evaluated


def test_a_run_that_begins_after_others_have_ended_has_no_score(tmp_path):
    curve = np.array([[740.0, 1.0], [800.0, 2.0]])
    late = LoggedRun(tmp_path / "late", "return_mean", curve)
    assert late.score() == 1.5
    with pytest.raises(
        ConfigError, match=r"first score in .*late \(return_mean\) is at 740 env steps, .* of another run .* at 60"
    ):
        late.score(60)


def test_runs_of_one_length_count_their_last_scores_although_some_end_an_unroll_later(tmp_path, capsys):
    """Wrong without a word: 26.4 was the score of a run that ended with 37.2, six env steps after another."""
    ends = {"a": (1221, 20.6), "b": (1227, 37.2), "c": (1500, 99.0)}
    for name, (end, last) in ends.items():
        (tmp_path / name).mkdir()
        rows = [("time/total_timesteps", "rollout/ep_rew_mean"), (600, 1.0), (857, 26.4), (end, last)]
        (tmp_path / name / "progress.csv").write_text("".join(f"{step},{score}\n" for step, score in rows))
    found = [read_logs(tmp_path / name)[0] for name in ends]
    assert [run.score(1221) for run in found] == [20.6, 37.2, 26.4]
    sparse = LoggedRun(tmp_path / "d", "eval", np.array([[2484, 312.8], [2734, 213.45], [3237, 211.25]]))
    assert [sparse.score(end) for end in (3167, 3000, 2600)] == [211.25, 213.45, 312.8]
    names = [f"x={tmp_path / name}" for name in "ab"]
    assert exit_code("stats", *names, "--env", "CartPole-v1") == 0
    assert "CartPole-v1: 20.6, 37.2" in capsys.readouterr().out


def finished(folder, name, ends, budget=3_940, **settings):
    """A run that is done, with an evaluation at each of these env steps, which earned as much."""
    run = written(folder, [], name, trainer__total_env_steps=budget, **settings)
    (run.path / "metrics.jsonl").write_text(json.dumps({"env_steps": ends[-1]}) + "\n")
    for step in ends:
        record = {"return_mean": step, "returns": [step], "return_ci95": [step] * 2, "length_mean": 1, "episodes": 1}
        (run.path / f"evals/{step}.json").write_text(json.dumps(record))
    run.write_info({"status": "done"})


def test_runs_that_are_done_with_one_budget_count_at_their_own_ends_and_others_are_named(tmp_path, capsys):
    """A seed whose last unroll was longer was scored at 2,950 of 4,925, without a word."""
    for name, ends in (("a", (2_000, 3_946)), ("b", (2_950, 4_925))):
        finished(tmp_path / "runs", name, ends)
    assert exit_code("stats", str(tmp_path / "runs")) == 0
    said = output(capsys)
    assert ": 3946, 4925" in said and "scored at" not in said
    assert "3,946 (others of its budget to their own ends, 4,925 at most)" in said
    (tmp_path / "z.csv").write_text(f"algorithm,environment,seed,step,score\nz,{CHAIN},0,3900,1\n")
    for order in (["x=runs", "z=z.csv"], ["z=z.csv", "x=runs"]):
        assert exit_code("stats", *(one.replace("=", f"={tmp_path}/") for one in order)) == 0
        assert "x on" not in order and ": 3946, 4925" in output(capsys)
    finished(tmp_path / "runs", "c", (3_000, 8_000), budget=8_000)
    assert exit_code("stats", f"x={tmp_path / 'runs'}", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["stats"][0]["scores"]["x"][CHAIN] == [3946, 4925, 3000]
    assert record["scored_early"] == [[[3000, 8000], [str(tmp_path / "runs/c/metrics.jsonl")]]]
    assert exit_code("stats", f"x={tmp_path / 'runs'}") == 0
    assert "note: scored at 3,000 of 8,000 env steps: " in output(capsys)


def test_two_folders_of_one_name_are_not_taken_for_one_algorithm(tmp_path, capsys):
    folders = [tmp_path / side / "ppo" for side in ("ours", "theirs")]
    for folder in folders:
        shutil.copytree(LOGS / "sb3", folder)
    assert exit_code("stats", *map(str, folders), "--env", "Pendulum-v1") == 2
    assert "would both be 'ppo'; give each its own name: NAME=" in output(capsys)
    assert exit_code("stats", f"one={folders[0]}", f"two={folders[1]}", "--env", "Pendulum-v1") == 0


def test_a_folder_of_other_algorithms_or_settings_is_no_sample_of_one(tmp_path, capsys):
    for name, gamma in (("one", 0.99), ("two", 0.99), ("other", 0.5)):
        written(tmp_path, rows_of([1.0, 2.0]), name, algorithm__gamma=gamma)
    assert exit_code("stats", str(tmp_path)) == 2
    said = output(capsys)
    assert "no seeds of one algorithm" in said and "gamma=0.5" in said and "NAME=RUN" in said
    assert exit_code("stats", f"all={tmp_path}") == 0
    shutil.rmtree(tmp_path / "other")
    assert exit_code("stats", str(tmp_path)) == 0


def test_kinds_of_scores_of_one_algorithm_are_told_of_and_steps_are_called_what_they_are(tmp_path, capsys):
    written(tmp_path / "runs", rows_of([1.0, 2.0]), "training")
    rows = [row | {"eval/return_mean": 3.0} for row in rows_of([1.0, 2.0])]
    run = written(tmp_path / "runs", rows, "evaluated")
    assert exit_code("stats", str(tmp_path / "runs")) == 0
    said = output(capsys)
    assert "shortest run ends, env steps: " in said
    assert "the scores are of different kinds: {'runs': ['eval/return_mean', 'return_mean']}" in said
    base = preset("behaviour_cloning", CHAIN)
    settings = {"run__directory": str(tmp_path), "run__name": "cloned"}
    cloned = RunDirectory.create(config_from_mapping(ExperimentConfig, settings, base=base))
    shutil.copyfile(run.path / "metrics.jsonl", cloned.path / "metrics.jsonl")
    assert exit_code("stats", str(cloned.path)) == 0
    assert "shortest run ends, updates: " in output(capsys)


def test_scores_of_different_tasks_or_counts_are_not_put_beside_each_other(tmp_path, capsys):
    """An episode of 6 steps and one of 60 are not worth the same, nor are 96 env steps and 96 updates."""
    short, long, both = (str(tmp_path / name) for name in ("short", "long", "both"))
    written(tmp_path, rows_of([1.0, 2.0]), "short")
    written(tmp_path, rows_of([10.0, 20.0]), "long", env__max_episode_steps=60)
    shutil.copytree(short, Path(both) / "one")
    base = preset("behaviour_cloning", CHAIN)
    settings = {"env__max_episode_steps": 6, "env__num_envs": 2, "run__directory": str(tmp_path), "run__name": "cloned"}
    cloned = RunDirectory.create(config_from_mapping(ExperimentConfig, settings, base=base))
    shutil.copyfile(Path(short) / "metrics.jsonl", cloned.path / "metrics.jsonl")
    assert exit_code("stats", f"a={short}", f"b={long}") == 2
    said = output(capsys)
    assert "scores of different tasks" in said and "max_episode_steps=6" in said and "max_episode_steps=60" in said
    assert exit_code("stats", f"a={short}", f"b={cloned.path}") == 2
    said = output(capsys)
    assert "by different counts" in said and "by env steps" in said and "by updates" in said
    assert exit_code("stats", f"a={short}", f"b={both}") == 0


def test_a_run_may_be_called_as_a_setting(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "runs", "lr=0.1")
    for word in ("lr=0.1", "runs/lr=0.1", "mine=lr=0.1"):
        assert exit_code("stats", word) == 0
    assert "mine" in output(capsys)


def test_a_return_of_0_is_a_return(tmp_path):
    """Of numbers, too, as logs of JSON have them."""
    file = tmp_path / "result.json"
    rows = [
        {"env_runners": {"episode_return_mean": value, "num_env_steps_sampled_lifetime": 10 * (place + 1)}}
        for place, value in enumerate([0.0, 0.0, 1.0, 0.0])
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,) = read_logs(file)
    assert run.points[:, 1].tolist() == [0, 0, 1, 0]


def test_references_may_be_json_of_any_layout(tmp_path):
    path = tmp_path / "references.json"
    path.write_text(json.dumps({"Hopper-v5": [0, 1e3], "Ant-v5": [-5.5, 2.5]}, indent="\t"))
    assert read_references(path) == {"Hopper-v5": [0, 1000], "Ant-v5": [-5.5, 2.5]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("references.yaml", "Hopper-v5: [0, 2]\nHopper-v5: [0, 3]\n"),
        ("references.json", '{"Hopper-v5": [0, 2], "Hopper-v5": [0, 3]}'),
    ],
)
def test_references_in_which_an_environment_stands_twice_are_refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match="Hopper-v5"):
        read_references(path)
