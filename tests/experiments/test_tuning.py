"""Tests of `palaestra.experiments.tuning`: what is searched, and studies that go on."""

import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna")

import palaestra
from palaestra.cli.main import main
from palaestra.config.config import ExperimentConfig, config_from_mapping
from palaestra.config.dimensions import first_values, with_values
from palaestra.core import CheckpointError, ConfigError, PalaestraError
from palaestra.envs.tiny import Chain
from palaestra.experiments import RunDirectory, Search, load_config, preset, search_space, study, tuning
from palaestra.experiments.seeds import GroupResult, SeedResult
from palaestra.rollout import Evaluation
from palaestra.runs.records import try_lock
from palaestra.training import StoppedError, TrainerConfig

LEARNING_RATE = {"algorithm.learning_rate": (1e-4, 1e-2)}


class Pretended:
    """Training that gives the learning rate as return, plus 100 on seeds of the search; keeps the names of trials."""

    def __init__(self):
        self.names: list[str] = []

    def __call__(self, config, path, seeds, first, ended=None):
        self.names.append(path.name)
        value = config.algorithm.learning_rate + (100 if first == 0 else 0)
        runs = [
            SeedResult(seed, Path(f"{value:.9f}"), "done", 0, 1, value, None) for seed in range(first, first + seeds)
        ]
        return GroupResult(path, tuple(runs))


@pytest.fixture
def trained(monkeypatch):
    pretended = Pretended()
    monkeypatch.setattr(study, "trained", pretended)
    monkeypatch.setattr(tuning, "evaluate_run", lambda path, **_: SimpleNamespace(return_mean=float(str(path))))
    return pretended


def searched(folder, trials=4, jobs=1, **options):
    search = Search(output=str(folder), trials=trials, jobs=jobs, fresh_seeds=2, top=2)
    space = {one.path: None for one in search_space(preset("sac", "Pendulum-v1"))} | LEARNING_RATE
    return palaestra.tune("sac", "Pendulum-v1", search=search, space=space, **options)


def test_a_run_to_begin_with_is_found_where_the_search_is_asked_for(trained, tmp_path):
    run = dataclasses.replace(preset("sac", "Pendulum-v1").run, directory=str(tmp_path), name="first")
    RunDirectory.create(dataclasses.replace(preset("sac", "Pendulum-v1"), run=run))
    searched(tmp_path / "study", run__directory=str(tmp_path), run__initial_policy="first")
    asked = json.loads((tmp_path / "study/study.json").read_text())["config"]
    assert asked["run"]["initial_policy"] == str((tmp_path / "first").resolve())


def test_a_configuration_of_another_task_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the configuration is for dqn on Acrobot-v1"):
        searched(tmp_path, config=preset("dqn", "Acrobot-v1"))


def test_the_preset_is_the_best_of_the_search_with_its_fresh_score(tmp_path, trained):
    found = searched(tmp_path)
    first, second = found.winners
    assert first.search_score > second.search_score and first.winners_curse == pytest.approx(100)
    loaded = load_config(tmp_path / "preset.yaml")
    assert loaded.algorithm.learning_rate == pytest.approx(first.fresh_score)
    assert json.loads((tmp_path / "summary.json").read_text())["winners"][0]["trial"] == first.trial
    assert len([name for name in trained.names if name.startswith("trial")]) == found.complete == 4


def test_all_trials_stand_in_the_summary_as_they_trained_and_are_shown_when_a_study_goes_on(tmp_path, trained):
    """Of a discount itself, not 1 - x, which Optuna keeps; in the preset a schedule is one setting, to be typed."""
    config = config_from_mapping(
        ExperimentConfig, {"algorithm__learning_rate": 1e-3}, base=preset("dqn", "CartPole-v1")
    )
    space = {one.path: None for one in search_space(config)}
    space |= {"algorithm.epsilon.end": (0.01, 0.1), "algorithm.gamma": (0.9, 0.99)}
    for trials in (2, 3):
        told, search = [], Search(output=str(tmp_path), trials=trials, fresh_seeds=2, top=1)
        found = palaestra.tune("dqn", "CartPole-v1", search=search, space=space, config=config, on_trial=told.append)
    head, first = "| trial | score | status | gamma | epsilon.end |", "| 0 | 100.0 | complete | 0.98 | 0.04 |"
    page, shown = (tmp_path / "summary.md").read_text(), told[0]
    assert head in page and first in page and page.count("| complete |") == 3
    assert head in shown and first in shown and shown.count("| complete |") == 2
    assert found.preset == {"algorithm.epsilon": "linear(1, 0.04, 0.16)", "algorithm.gamma": 0.98}
    assert "- algorithm.epsilon: linear(1, 0.04, 0.16)" in page
    kept = json.loads((tmp_path / "summary.json").read_text())["trials"]
    assert [one["number"] for one in kept] == [0, 1, 2]
    assert all(0.9 <= one["settings"]["algorithm.gamma"] <= 0.99 for one in kept)


def test_the_preset_and_the_trials_are_there_before_winners_are_trained(tmp_path, trained, monkeypatch):
    def stopped(config, path, *given):
        if path.name.startswith("winner"):
            raise KeyboardInterrupt
        return trained(config, path, *given)

    monkeypatch.setattr(study, "trained", stopped)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["winners"] == [] and len(summary["trials"]) == summary["complete"] == 4
    rate = load_config(tmp_path / "preset.yaml").algorithm.learning_rate
    assert rate == max(one["settings"]["algorithm.learning_rate"] for one in summary["trials"])
    assert "None has been trained on fresh seeds yet." in (tmp_path / "summary.md").read_text()
    monkeypatch.setattr(study, "trained", trained)
    searched(tmp_path)
    whole = (tmp_path / "summary.json").read_text()
    monkeypatch.setattr(study, "trained", stopped)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path)
    assert (tmp_path / "summary.json").read_text() == whole, "a call that is stopped loses no winner of one before"


def test_a_search_that_is_stopped_while_winners_train_says_how_it_goes_on(tmp_path, monkeypatch):
    seed = SeedResult(0, tmp_path, "interrupted", 143, 1, None, None)
    monkeypatch.setattr(study, "train_seeds", lambda *_, **__: GroupResult(tmp_path, (seed,)))
    with pytest.raises(StoppedError, match="the study is saved, and the same call goes on"):
        study.trained(preset("sac", "Pendulum-v1"), tmp_path / "winner_0_2seeds", 2, 0)


def test_each_task_has_a_study_of_its_own(tmp_path, trained, monkeypatch):
    """A second algorithm was refused as another study; classes and `__` were no names."""
    monkeypatch.chdir(tmp_path)
    search, space = Search(trials=1, fresh_seeds=2, top=1), {"algorithm__learning_rate": (1e-4, 1e-2)}
    for algorithm, env in ((palaestra.SAC, "Pendulum-v1"), (palaestra.PPO, Chain)):
        found = palaestra.tune(algorithm, env, config=preset(algorithm, env), search=search, space=space)
        assert {one.path: one.high for one in found.space}["algorithm.learning_rate"] == 1e-2
    names = sorted(path.name for path in Path("studies").iterdir())
    assert names == ["ppo_palaestra.envs.worlds.tabular-Chain", "sac_Pendulum-v1"]


def test_a_study_that_was_ended_goes_on_to_the_same_trials(tmp_path, trained, monkeypatch):
    whole = searched(tmp_path / "whole")

    def ended(config, path, seeds, first, *asked):
        if path.name == "trial_2":
            raise KeyboardInterrupt
        return trained(config, path, seeds, first, *asked)

    monkeypatch.setattr(study, "trained", ended)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "parts")
    monkeypatch.setattr(study, "trained", trained)
    assert searched(tmp_path / "parts").winners == whole.winners


def test_the_first_trial_has_the_values_of_the_configuration(tmp_path, trained):
    found = searched(tmp_path, trials=1)
    asked = preset("sac", "Pendulum-v1").algorithm.learning_rate
    assert found.winners[0].settings == {"algorithm.learning_rate": pytest.approx(asked)}
    config = preset("dqn", "Acrobot-v1")
    space = search_space(config, {"algorithm.mini_batch_size": (100, 300), "algorithm.gamma": (0.5, 0.6)})
    first = first_values(config, space)
    assert with_values(config, first) == config
    assert first["algorithm.epsilon.end"] == config.algorithm.epsilon.end


def test_the_first_trial_has_values_that_no_power_of_two_gives(tmp_path, trained):
    path, search = "algorithm.learning_starts", Search(output=str(tmp_path), trials=1, fresh_seeds=2, top=1)
    space = {one.path: None for one in search_space(preset("sac", "Pendulum-v1"))} | {path: (64, 4096)}
    found = palaestra.tune("sac", "Pendulum-v1", search=search, space=space, algorithm__learning_starts=1000)
    assert found.winners[0].settings[path] == 1000


def test_any_seed_of_a_run_may_be_searched_with(tmp_path, trained):
    """NumPy takes seeds below 2**32 alone, and each trial's is 100,003 times as large."""
    search = Search(output=str(tmp_path), trials=2, fresh_seeds=2, top=1)
    found = palaestra.tune("sac", "Pendulum-v1", search=search, space=LEARNING_RATE, run__seed=60_000)
    assert found.complete == 2


def test_trials_run_side_by_side(tmp_path, trained, monkeypatch):
    both = threading.Barrier(2)

    def together(config, path, *given):
        if path.name.startswith("trial"):
            both.wait(60)
        return trained(config, path, *given)

    monkeypatch.setattr(study, "trained", together)
    assert searched(tmp_path, jobs=2).complete == 4


def test_trials_on_tensors_are_one_population(tmp_path, monkeypatch):
    """As many at a time as asked for; their scores are told one by one."""
    told, asked = [], []

    def members(configs, seeds, *, names, ended):
        asked.append([names, [list(own) for own in seeds]])
        groups = []
        for config, own, name in zip(configs, seeds, names, strict=True):
            rate = config.algorithm.learning_rate
            runs = tuple(SeedResult(seed, Path(f"{rate:.9f}"), "done", 0, 1, rate, None) for seed in own)
            failed = dataclasses.replace(runs[0], status="failed", exit_code=4, error="it broke")
            groups.append(GroupResult(tmp_path / name, (failed,) if name == "trial_1" else runs))
        return groups

    monkeypatch.setattr(study, "train_members", members)
    monkeypatch.setattr(study, "trained", Pretended())
    monkeypatch.setattr(tuning, "evaluate_run", lambda path, **_: SimpleNamespace(return_mean=float(str(path))))
    search = Search(output=str(tmp_path / "study"), trials=5, jobs=3, fresh_seeds=2, top=1)
    base = preset("ppo", "palaestra.envs.tiny:TensorCartPole")
    space = {one.path: None for one in search_space(base)} | LEARNING_RATE
    found = palaestra.tune("ppo", base.env.name, search=search, space=space, on_trial=told.append)
    assert asked == [[[f"trial_{n}" for n in some], [[0, 1]] * len(some)] for some in ((0, 1, 2), (3, 4))]
    assert told[0] == "3 trials at a time are a population in one graph, and train to their ends"
    assert found.complete == 4 and "trial 1 failed: seed 0 failed: it broke" in told
    assert found.winners[0].search_score == pytest.approx(found.winners[0].settings["algorithm.learning_rate"])


def test_trials_that_cannot_be_a_population_run_alone_and_it_is_said_why(tmp_path, trained):
    told, search = [], Search(output=str(tmp_path), trials=2, jobs=2, fresh_seeds=2, top=1)
    env = "palaestra.envs.tiny:TensorCartPole"
    assert palaestra.tune("ppo", env, search=search, on_trial=told.append).complete == 2
    assert told[0].startswith("trials run in processes of their own, not as a population in one graph: members of one ")
    assert "differ in algorithm.unroll_length" in told[0]


def test_hopeless_trials_are_pruned_and_cannot_win(tmp_path, trained, monkeypatch, wait_until):
    """Evaluations appear while a trial runs; the last one's are worse than the others' and it is asked to end.

    They come a little after they are due, by another number of env steps in every seed of every trial.
    """
    told = []

    def evaluated(config, path, seeds, first, ended=None):
        hopeless = path.name == "trial_5"
        for seed in range(seeds):
            for number in (1, 2, 3):
                late = seed + 10 * int(path.name.partition("_")[2].partition("_")[0])
                file = path / f"seed_{seed}/evals/{number * 10_000 + late}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                score = -9.0 if hopeless else float(number)
                result = Evaluation(score, 0.0, (score, score), 1.0, 1, [0], deterministic=True, returns=[score])
                file.write_text(json.dumps(result.to_json()))
        if hopeless:
            wait_until(ended, what="the trial is asked to end")
            raise KeyboardInterrupt
        assert ended is None or not ended()
        return trained(config, path, seeds, first)

    monkeypatch.setattr(study, "trained", evaluated)
    found = searched(tmp_path / "pruned", trials=6, on_trial=told.append)
    assert (found.complete, found.pruned) == (5, 1)
    assert told[5] == "trial 5 was pruned at 10,000 env steps with -9.00"
    assert 5 not in [winner.trial for winner in found.winners]


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"eval_every_steps": 300}, [0, 300, 900]),
        ({"eval_at_steps": (5, 400)}, [5, 400, 400]),
        ({"eval_every_s": 3.0}, [200, 400, 1000]),
        ({"eval_every_steps": 0}, [200, 400, 1000]),
    ],
)
def test_evaluations_are_compared_by_when_they_were_due(settings, due):
    trainer = TrainerConfig(total_env_steps=1000, **settings)
    assert [study.due_at(env_steps, trainer) for env_steps in (299, 400, 1003)] == due


def test_another_question_is_refused_in_the_same_folder(tmp_path, trained):
    searched(tmp_path, trials=1)
    with pytest.raises(ConfigError, match="other settings"):
        searched(tmp_path, trials=1, algorithm__gamma=0.5)


def test_a_study_of_a_version_that_had_fewer_settings_goes_on(tmp_path, trained):
    searched(tmp_path, trials=1)
    asked = json.loads((tmp_path / "study.json").read_text())
    del asked["config"]["trainer"]["eval_epsilon"]
    (tmp_path / "study.json").write_text(json.dumps(asked))
    assert searched(tmp_path, trials=2).complete == 2
    assert "eval_epsilon" in (tmp_path / "study.json").read_text()
    (tmp_path / "study.json").write_text(json.dumps({**asked, "seeds": 9}))
    with pytest.raises(ConfigError, match="other settings"):
        searched(tmp_path, trials=3)


def test_failed_trials_are_counted_with_their_message(tmp_path, monkeypatch):
    def failed(*_):
        raise ConfigError("it does not fit")

    told = []
    monkeypatch.setattr(study, "trained", failed)
    with pytest.raises(ConfigError, match="it does not fit"):
        searched(tmp_path, trials=2, on_trial=told.append)
    assert told == [f"trial {number} failed: it does not fit" for number in (0, 1)]


def test_the_command_says_what_it_would_search(capsys):
    typed = ["tune", "dqn", "CartPole-v1", "--space.algorithm.gamma", "0.9", "0.95", "--dry-run", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(typed)
    space = {one["path"]: one for one in json.loads(capsys.readouterr().out)}
    assert ended.value.code == 0 and space["algorithm.gamma"]["high"] == 0.95


def test_a_winner_that_fails_makes_room_for_the_next(tmp_path, trained, monkeypatch):
    told, first, errors = [], [], [PalaestraError("seed 10000 failed")]

    def failing(config, path, *given):
        if path.name.startswith("winner") and errors:
            first.append(path.name)
            raise errors.pop()
        return trained(config, path, *given)

    monkeypatch.setattr(study, "trained", failing)
    found = searched(tmp_path, on_trial=told.append)
    assert len(found.winners) == 2
    assert f"winner_{found.winners[0].trial}_2seeds" != first[0]
    assert any("failed on fresh seeds: seed 10000 failed" in line for line in told)
    assert list(found.failed.values()) == ["on fresh seeds: seed 10000 failed"]
    errors.append(CheckpointError("runs are missing"))  # which another winner would not mend
    with pytest.raises(CheckpointError, match="runs are missing"):
        searched(tmp_path)


@pytest.mark.parametrize("there", ["runs", "run.json", "group.json"])
def test_a_folder_with_runs_of_something_else_is_left_alone(there, tmp_path):
    (tmp_path / there).mkdir()
    with pytest.raises(ConfigError, match="has runs and no study"):
        searched(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / there]


def test_half_a_line_that_a_machine_left_at_its_end_does_not_hold_a_study_up(tmp_path, trained):
    """The rest of the study goes on."""
    searched(tmp_path, trials=2)
    with (tmp_path / "journal.log").open("a") as journal:
        journal.write('{"op_code": 4, "wor')
    assert searched(tmp_path, trials=3).complete == 3


def test_a_damaged_line_inside_a_journal_is_said_and_what_follows_is_asked_again(tmp_path, trained):
    """Issue 51: one byte that was changed was a raw JSONDecodeError."""
    found = searched(tmp_path)
    journal = tmp_path / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    lines[middle] = b"?" + lines[middle][1:]
    journal.write_bytes(b"".join(lines))
    told = []
    assert searched(tmp_path, on_trial=told.append) == found
    assert f"journal.log is damaged in line {middle + 1}; trials from there on are asked again" in told[0]


def test_a_journal_that_says_what_cannot_be_is_refused_by_name(tmp_path, trained):
    searched(tmp_path, trials=2)
    journal = tmp_path / "journal.log"
    journal.write_text(journal.read_text().replace('"trial_id"', '"trail_id"'))
    with pytest.raises(CheckpointError, match=r"journal.log is damaged: .*; give another folder"):
        searched(tmp_path, trials=3)


@pytest.mark.parametrize("more", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("dqn", "dqn does not fit Pendulum-v1"),
        ("sac --space.algorithm.gamma 1", "space.algorithm.gamma is [1.0]; give the lowest and the highest value"),
        ("sac --space.algorithm.gamma a b", "space is {'algorithm.gamma': ['a', 'b']}: a number is needed"),
        ("sac --trainer.stop-at-return=-200", "trainer.stop_at_return is -200, so trials that reach it would end"),
        ("sac --space.algorithm.tau 0.001 2", "space.algorithm.tau is 0.001 to 2, but algorithm.tau is 2.0"),
        ("sac --env.max-episode-steps 64 --space.env.max-episode-steps 64 128", "cannot be compared"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_it_begins(more, typed, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    algorithm, *options = typed.split()
    with pytest.raises(SystemExit) as ended:
        main(["tune", algorithm, "Pendulum-v1", *options, *more])
    assert ended.value.code == 2 and says in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_study_that_began_with_a_goal_goes_on(tmp_path, trained, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(tuning, "_require_scores", lambda _: None)
        searched(tmp_path, trials=1, trainer__stop_at_return=-200.0)
    assert searched(tmp_path, trials=2, trainer__stop_at_return=-200.0).complete == 2


def test_a_folder_in_which_another_process_searches_is_refused(tmp_path, trained):
    with (tmp_path / "lock").open("a") as lock:
        assert try_lock(lock)
        with pytest.raises(ConfigError, match="another process searches in"):
            searched(tmp_path)
    assert searched(tmp_path, trials=2).complete == 2
