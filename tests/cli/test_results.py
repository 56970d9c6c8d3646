"""Tests of `palaestra eval`, `plot`, `report`, `compare`, `list`, `show-code`, `bench` and `train --dry-run`."""

import importlib.util
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

import palaestra.algorithms.ppo
from palaestra.algorithms import ALGORITHMS
from palaestra.core import ConfigError
from palaestra.experiments import RunDirectory, algorithm_catalogue
from palaestra.runs.records import read_evaluations
from tests.cli.parts import CHAIN, exit_code, output, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two runs that differ in gamma, and a group of two seeds made of them."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(name="a")
        train("--algorithm.gamma", "0.5", name="b")
        for seed in ("5", "6"):
            train("--run.directory", "runs/g", "--seed", seed, name=f"seed_{seed}")
        Path("runs/g/group.json").write_text('{"format": 1, "seeds": [5, 6]}')
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")


def answer(capsys, *arguments):
    """What a command prints as JSON."""
    capsys.readouterr()
    assert exit_code(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_runs_and_groups_are_evaluated_beside_chance(capsys):
    """USERS need 9: interval over seeds, and what random actions reach."""
    result = answer(capsys, "eval", "g", "a", "--episodes", "3", "--baseline")
    assert list(result["runs"]) == ["runs/g/seed_5", "runs/g/seed_6", "runs/a"]
    assert result["return_ci95"][0] <= result["return_mean"] <= result["return_ci95"][1]
    assert result["baseline"]["episodes"] == 3
    assert exit_code("eval", "g", "--episodes", "2", "--baseline") == 0
    text = output(capsys)
    assert "95% interval over 2 runs" in text
    lanes = [one["seeds"] for one in answer(capsys, "eval", "g", "--seed", "3", "--episodes", "2")["runs"].values()]
    assert not set(lanes[0]) & set(lanes[1]), "each plays episodes of its own, or their mean has that of these in it"
    assert "random actions " in text


def test_the_last_policy_and_that_of_a_checkpoint_can_be_evaluated(capsys):
    steps = [int(path.name.removeprefix("step_")) for path in sorted(Path("runs/a/checkpoints").iterdir())]
    last = answer(capsys, "eval", "a", "--which", "last", "--episodes", "2")
    assert answer(capsys, "eval", "a", "--which", str(steps[-1]), "--episodes", "2") == last
    assert exit_code("eval", "a", "--which", "7") == 5
    assert f"runs/a has no checkpoint 7; there are: {steps[0]}" in output(capsys)
    assert exit_code("eval", "a", "--run.directory", "runs") == 2
    assert "unknown option --run.directory — did you mean --root?" in output(capsys)
    assert exit_code("eval", "a", "--which", "worst") == 2
    assert "--which is 'worst'; give best, last, or the env steps of a checkpoint" in output(capsys)


def test_curves_are_drawn_here_or_written_as_files(capsys):
    """F27: a metric that does not exist is named with the closest."""
    assert exit_code("plot", "a", "b") == 0
    text = output(capsys)
    assert "algorithm.gamma=0.5" in text
    curves = answer(capsys, "plot", "g", "--statistic", "iqm", "--x", "episodes")
    assert [curve["label"] for curve in curves] == ["ppo palaestra.envs.tiny:Chain"]
    assert len(curves[0]["x"]) == len(curves[0]["low"])
    assert exit_code("plot", "a", "--output", "curve.csv") == 0
    assert Path("curve.csv").read_text().startswith("label,env_steps,return_mean")
    capsys.readouterr()
    assert exit_code("plot", "a", "--output", "both.csv", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["label"] and Path("both.csv").is_file() and "both.csv" in printed.err
    assert exit_code("plot", "a", "--metric", "eval/return_men") == 2
    assert "there is no metric 'eval/return_men' — did you mean 'eval/return_mean'?" in output(capsys)


def test_a_report_lies_where_it_is_looked_for(capsys):
    assert answer(capsys, "report", "a") == {"report": "runs/a/report.html"}
    assert answer(capsys, "report", "g") == {"report": "runs/g/report.html"}
    assert answer(capsys, "report", "a", "b", "--output", "both.html") == {"report": "both.html"}
    assert "gamma" in Path("both.html").read_text()


def test_two_runs_are_compared_by_settings_and_curves(capsys):
    result = answer(capsys, "compare", "a", "b")
    assert result["differences"] == {"algorithm.gamma": [0.99, 0.5]}
    assert [curve["label"] for curve in result["curves"]] == ["a", "b"]
    assert exit_code("compare", "a", "b") == 0
    text = output(capsys)
    assert "algorithm.gamma 0.99 0.5" in text
    assert "return_mean at " in text


@pytest.mark.slow
def test_every_algorithm_says_what_it_supports(capsys):
    """A new entry in ALGORITHMS enrols by itself; what is said is tried."""
    listing = answer(capsys, "list", "algorithms")["algorithms"]
    assert [entry["name"] for entry in listing] == sorted(ALGORITHMS)
    assert all(entry["actions"] and entry["observations"] and entry["summary"] for entry in listing)
    by_name = {entry["name"]: entry for entry in listing}
    assert by_name["dqn"]["actions"] == ["discrete"]
    assert {"discrete", "box"} <= set(by_name["ppo"]["actions"])
    assert (by_name["ppo"]["data"], by_name["dqn"]["data"]) == ("on-policy", "replay")
    assert by_name["r2d2"]["features"] == ["memory", "n-step", "priorities", "bonus", "gradient workers"]
    assert by_name["evolution_strategies"]["features"] == []
    teams = [name for name, entry in by_name.items() if "team" in entry["features"]]
    assert teams == ["coma", "maddpg", "mappo", "masac", "qmix"]
    assert by_name["qmix"]["features"] == ["n-step", "gradient workers", "team"]
    assert exit_code("list", "algorithms") == 0
    assert re.search(r"ppo .* nested +memory, bonus, gradient workers", capsys.readouterr().out)
    assert [json.loads(json.dumps(asdict(entry))) for entry in algorithm_catalogue()] == listing


def test_environments_runs_and_groups_are_listed(capsys):
    names = {env["name"]: env for env in answer(capsys, "list", "envs")["envs"]}
    assert names["CartPole-v1"] == {
        "name": "CartPole-v1",
        "suite": "classic_control",
        "max_episode_steps": 500,
        "native": True,
    }
    assert "CartPole-v0" not in names  # the newest version only
    runs = answer(capsys, "list", "runs")["runs"]
    assert {"path": "runs/g", "seeds": [5, 6], "seeds_done": 2} in runs
    assert {"path": "runs/a", "status": "done", "done": 56, "unit": "env steps"}.items() <= runs[0].items()
    assert exit_code("list", "runs") == 0
    assert "runs/g 2 of 2 seeds done" in output(capsys)


def test_tasks_of_envpool_are_listed_where_all_are_asked_for(capsys):
    few = {env["name"] for env in answer(capsys, "list", "envs")["envs"]}
    names = {env["name"] for env in answer(capsys, "list", "envs", "--all")["envs"]}
    assert few <= names and not any(name.startswith("envpool:") for name in few)
    assert ("envpool:Pong-v5" in names) == (importlib.util.find_spec("envpool") is not None)
    assert exit_code("list", "envs") == 0 and "`envpool:TASK`: --all" in capsys.readouterr().out


def test_the_code_of_an_algorithm_is_its_file(capsys):
    assert exit_code("show-code", "ppo") == 0
    assert capsys.readouterr().out == Path(palaestra.algorithms.ppo.__file__).read_text()
    assert answer(capsys, "show-code", "ppo")["path"].endswith("ppo.py")
    assert exit_code("show-code", "ppoo") == 2
    assert "did you mean 'ppo'?" in output(capsys)


def test_the_code_of_an_algorithm_is_also_one_script(capsys):
    assert exit_code("show-code", "ppo", "--flat") == 0
    assert "import palaestra" not in (code := capsys.readouterr().out)
    assert "def train(" in code
    assert exit_code("show-code", "iqn", "--flat") == 2
    assert "iqn has no single-file script; those that have one are dqn, ppo, sac" in output(capsys)


def test_an_environment_and_a_configuration_are_timed(capsys):
    speed = answer(capsys, "bench", "CartPole-v1", "--env.num-envs", "2", "--duration-s", "0.05")
    assert (speed["num_envs"], speed["vectorization"], speed["repetitions"]) == (2, "serial", 3)
    assert 0 < speed["slowest"] <= speed["env_steps_per_s"] <= speed["fastest"]
    assert answer(capsys, "bench", "ppo", CHAIN[0], "--env.max-episode-steps", "6")["env_steps_per_s"] > 0
    pool = answer(capsys, "bench", "palaestra.envs.tiny:TensorCartPole", "--duration-s", "0.05")
    assert pool["vectorization"] == "native"
    assert exit_code("bench", "CartPole-v1", "--duration-s", "0") == 2
    assert "measures nothing" in output(capsys)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_dry_run_says_what_a_run_will_take_and_leaves_nothing(algorithm, capsys, tmp_path, monkeypatch):
    """USERS: builds all, estimates memory and time, makes an update."""
    monkeypatch.chdir(tmp_path)
    estimate = answer(capsys, "train", algorithm, *CHAIN, "--dry-run", "--trainer.total-env-steps", "1e6")
    assert estimate["updates"] >= 2
    assert estimate["train_s"] == pytest.approx(1e6 / estimate["env_steps_per_s"])
    assert estimate["memory_bytes"] > estimate["buffer_bytes"] + estimate["model_bytes"] > 0
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_once_what_it_warns_of(caplog):
    words = ("train", "ppo", *CHAIN, "--dry-run", "--env.info", "nothing", "--trainer.total-env-steps", "64")
    assert exit_code(*words) == 0
    assert sum("has 'nothing'" in record.message for record in caplog.records) == 1


def test_a_dry_run_of_several_seeds_speaks_of_each(capsys):
    for which, count in (("3", 3), ("3,7", 2)):
        assert exit_code("train", "ppo", *CHAIN, "--seeds", which, "--dry-run") == 0
        assert f"seeds all of this for each of {count}" in output(capsys)


@pytest.mark.parametrize("which", ["", ","])
def test_seeds_of_an_unset_variable_are_no_single_run(which, capsys):
    assert exit_code("train", "ppo", *CHAIN, "--seeds", which, "--dry-run") == 2
    assert "--seeds: an empty text was given, as a shell makes of an unset variable" in output(capsys)


def test_a_dry_run_of_seeds_that_would_train_together_is_that_of_one_alone(capsys):
    """It was told to give several seeds, and had."""
    words = ("train", "ppo", "palaestra.envs.tiny:TensorCartPole", "--run.together", "true", "--dry-run")
    assert exit_code(*words, "--seeds", "2") == 0, output(capsys)
    assert "seeds all of this for each of 2" in output(capsys)
    assert exit_code(*words) == 2
    assert "run.together is for several seeds" in output(capsys)


def test_a_group_cannot_be_changed_as_a_whole(capsys):
    """F27."""
    assert exit_code("resume", "g", "--until", "500") == 2
    text = output(capsys)
    assert "g is a group; settings can change, and forks begin, in one of its runs at a time" in text
    assert "palaestra resume runs/g/seed_" in text
    assert 'for run in runs/g/seed_*; do palaestra resume "$run" --until 500; done' in text


def test_a_run_goes_on_with_other_settings_or_beside_itself(capsys):
    """DESIGN section 9: --until, --override, --fork."""
    assert exit_code("resume", "a", "--fork", "--name", "c", "--until", "1e2") == 0
    text = output(capsys)
    assert "changed trainer.total_env_steps: 48 -> 100" in text
    assert "with other settings since" in text
    assert RunDirectory("runs/c").info["env_steps"] >= 100
    assert exit_code("resume", "c", "--override", "trainer.total_env_steps=120", "algorithm.entropy_cost=0.1") == 0
    assert RunDirectory("runs/c").config.algorithm.entropy_cost == 0.1
    assert exit_code("resume", "c", "--until", "150", "--override", "trainer.eval_at_steps=130,140") == 0
    assert RunDirectory("runs/c").config.trainer.eval_at_steps == (130, 140)
    assert exit_code("resume", "a", "--override", "algorithm.gama=0.1") == 2
    assert "unknown option --algorithm.gama — did you mean --algorithm.gamma?" in output(capsys)
    for option, setting in {"--env.on-fault": "env.on_fault", "--time-limit": "trainer.time_limit_s"}.items():
        assert exit_code("resume", "a", option, "2h") == 2
        assert f"takes settings by --override {setting}=2h" in output(capsys)
    assert exit_code("resume", "a", "--override", "env.num_envs=7") == 2
    text = output(capsys)
    assert "env.num_envs cannot change in a run that continues (it is 2, 7 was given)" in text
    assert "changed" not in text
    assert exit_code("resume", "a", "--fork", "--name", "c") == 2
    assert "the run directory runs/c exists already; choose another name, or continue it" in output(capsys)


def test_a_mapping_that_is_overridden_is_the_one_that_was_typed(capsys):
    """Only the entries that changed were taken, so that an optimizer lost its kind."""
    given = "{{value: {{cls: adamw, params: {{lr: {}, weight_decay: 0.01}}}}}}".format
    train("--algorithm.optimizers", given("1e-3"), name="d")
    assert exit_code("resume", "d", "--until", "70", "--override", f"algorithm.optimizers={given('1e-4')}") == 0
    (policy,) = RunDirectory("runs/d").config.algorithm.optimizers.values()
    assert policy == {"cls": "adamw", "params": {"lr": 1e-4, "weight_decay": 0.01}}


def test_last_is_a_group_in_python_too():
    """Of five seeds one went on, without a word."""
    with pytest.raises(ConfigError, match=r"g is the group .*; all of them: palaestra\.resume_seeds\('runs/g'\)"):
        palaestra.resume("g")


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1d", 86_400)])
def test_a_duration_is_read(text, value, capsys):
    assert exit_code("train", "ppo", *CHAIN, "--time-limit", text, "--print-config") == 0
    assert f"time_limit_s: {value:.1f}\n" in output(capsys)


@pytest.mark.parametrize("text", ["soon", "-3m", "3 weeks", "0s", ""])
def test_another_text_is_no_duration(text, capsys):
    """F27."""
    assert exit_code("train", "ppo", *CHAIN, f"--time-limit={text}", "--print-config") == 2
    assert "give a duration such as 90s, 30m or 2h" in output(capsys)


def test_short_forms_are_settings(capsys):
    assert exit_code("train", "ppo", *CHAIN, "--time-limit", "30m", "--chaos", "raise:0.5", "--print-config") == 0
    text = output(capsys)
    assert "time_limit_s: 1800.0" in text
    assert "chaos: raise:0.5" in text


def test_a_tracking_service_that_is_not_installed_is_named_before_anything_starts(capsys, tmp_path, monkeypatch):
    """F27, F28."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trackio" else find_spec(name))
    monkeypatch.chdir(tmp_path)
    assert exit_code("train", "ppo", *CHAIN, "--loggers", "trackio") == 2
    assert "run.loggers=trackio needs the package 'trackio': pip install 'palaestra[trackio]'" in output(capsys)
    assert exit_code("train", "ppo", *CHAIN, "--loggers", "wandb,tensorbord") == 2
    assert "'wandb', 'mlflow' or 'trackio' is needed" in output(capsys)
    assert not list(tmp_path.iterdir())


def test_tensorboard_is_left_out_where_it_is_not_installed_and_refused_where_it_is_asked_for(
    capsys, tmp_path, monkeypatch
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name))
    monkeypatch.chdir(tmp_path)
    small = ("--trainer.total-env-steps", "16", "--trainer.eval-episodes", "0", "--algorithm.unroll-length", "8")
    assert exit_code("train", "ppo", *CHAIN, *small, "--run.tensorboard") == 2
    assert "run.tensorboard needs the package 'tensorboard': pip install 'palaestra[tensorboard]'" in output(capsys)
    assert exit_code("train", "ppo", *CHAIN, *small, "--run.name", "run") == 0
    assert "tensorboard" not in output(capsys)
    assert (tmp_path / "runs/run/metrics.jsonl").stat().st_size
    assert not (tmp_path / "runs/run/tensorboard").exists()


@pytest.mark.parametrize("names", [("a", "a"), ("x=g", "x=g/seed_5")])
def test_stats_counts_each_run_once(names, capsys):
    assert exit_code("stats", *names) == 2
    assert "is given twice, and would count as two" in output(capsys)


def test_returns_of_several_environments_have_no_mean(tmp_path, capsys):
    small = ("--trainer.total-env-steps", "64", "--run.name", "recall")
    assert exit_code("train", "ppo", "palaestra.envs.tiny:Recall", *small) == 0
    assert exit_code("eval", "a", "recall") == 2
    said = output(capsys)
    assert "palaestra.envs.tiny:Chain " in said and "palaestra.envs.tiny:Recall delay=5 num_cues=4, whose" in said
    other = ("--trainer.total-env-steps", "64", "--run.name", "other", "--env.kwargs", "delay", "2")
    assert exit_code("train", "ppo", "palaestra.envs.tiny:Recall", *other) == 0
    assert exit_code("eval", "recall", "other") == 2
    assert "Recall delay=2 num_cues=4, palaestra.envs.tiny:Recall delay=5 num_cues=4, whose" in output(capsys)


def test_seeds_that_have_not_begun_are_left_out(folder, tmp_path, capsys, caplog, monkeypatch):
    shutil.copytree(folder / "runs/g", tmp_path / "runs/g")
    new = tmp_path / "runs/g/seed_7"
    new.mkdir()
    (new / "config.yaml").write_bytes((folder / "runs/g/seed_5/config.yaml").read_bytes())
    (new / "run.json").write_text('{"format": 1, "status": "created"}')
    monkeypatch.chdir(tmp_path)
    assert list(answer(capsys, "eval", "g", "--episodes", "2")["runs"]) == ["runs/g/seed_5", "runs/g/seed_6"]
    (part,) = answer(capsys, "stats", "g")["stats"]
    assert len(part["scores"]["g"][part["environments"][0]]) == 2
    assert caplog.messages == ["left out, for they have not begun: runs/g/seed_7"] * 2


def test_stats_takes_runs_and_groups(capsys):
    record = answer(capsys, "stats", "two=g", "one=a")
    (part,) = record["stats"]
    assert {name: len(runs[part["environments"][0]]) for name, runs in part["scores"].items()} == {"two": 2, "one": 1}
    assert record["metrics"]["two"] == ["eval/return_mean"]
    ends = [read_evaluations(f"runs/{run}")[-1][0] for run in ("g/seed_5", "g/seed_6", "a")]
    assert [*record["env_steps"].values()] == [min(ends)]  # to where all of them got
    assert not part["improvements"][0]["differs"]


def test_a_run_without_episodes_is_drawn_by_its_evaluations(tmp_path, capsys):
    run = tmp_path / "offline"
    run.mkdir()
    for name in ("config.yaml", "run.json"):
        (run / name).write_bytes(Path("runs/a", name).read_bytes())
    rows = [{"env_steps": step, "eval/return_mean": float(step)} for step in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (curve,) = answer(capsys, "plot", str(run))
    assert curve["value"][-1] == 20


def test_class_names_in_messages_are_not_turned_into_emoji(capsys):
    assert exit_code("train", "ppo", "of_nobody:Robot:robot:") != 0
    assert ":robot:" in capsys.readouterr().err
