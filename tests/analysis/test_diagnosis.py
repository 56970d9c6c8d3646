"""Tests of `palaestra.analysis.diagnosis`: logs as broken runs leave them, beside one of a healthy run."""

import ast
import dataclasses
import inspect
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import palaestra
from palaestra import preset
from palaestra.algorithms import ALGORITHMS, BonusConfig
from palaestra.analysis import diagnosis, played
from palaestra.analysis.diagnosis import logged_symptoms
from palaestra.config.config import algorithms_with
from palaestra.core import CheckpointError, Linear, NonFiniteError
from palaestra.experiments import RunDirectory, write_report
from palaestra.training.learning import PolicyRecord
from tests.cli.parts import exit_code

HEALTHY = {
    "env_steps": 6000,
    "gradient_steps": 480,
    "policy_version": 5,
    "updates_skipped": 0,
    "length_mean": 47.0,
    "discounted_return_mean": 23.5,
    "learning/kl": 0.004,
    "learning/entropy": 0.6,
    "learning/explained_variance": 0.87,
}


def made(tmp_path: Path, *, name="ppo", returns=(14.0, 60.0), settings=None, **metrics) -> RunDirectory:
    config = preset(name, "CartPole-v1")
    place = dataclasses.replace(config.run, directory=str(tmp_path), name="it")
    algorithm = dataclasses.replace(config.algorithm, **(settings or {}))
    run = RunDirectory.create(dataclasses.replace(config, run=place, algorithm=algorithm))
    row = {**HEALTHY, **metrics}
    (run.path / "metrics.jsonl").write_text("\n".join([json.dumps(row)] * 4) + "\n")
    lines = [f"{100 + i},{returns[i % len(returns)]},14,0," for i in range(30)]
    (run.path / "episodes.csv").write_text("\n".join(["env_steps,return,length,env_id,info", *lines]) + "\n")
    return run


def test_nothing_is_found_in_the_log_of_a_healthy_run(tmp_path):
    assert palaestra.diagnose(made(tmp_path).path).findings == ()


@pytest.mark.parametrize(
    ("returns", "found"),
    [
        ([20, 440, 441, 130, 141], ["performance_collapse"]),
        ([20, 440, 130, 141], ["performance_collapse"]),
        ([-500, -100, -90, -500, -500], ["performance_collapse"]),  # equal ones are two, too
        ([20, 500, 500, 100, 100], ["performance_collapse"]),
        ([20, 440, 130, 300], []),
        ([20, 440, 130], []),
        ([400, 300, 200, 100], []),
        ([20, 100, 100, 500], []),
    ],
)
@pytest.mark.parametrize("half", [0, 300])
def test_a_policy_that_has_lost_what_it_had_gained_is_noticed(tmp_path, returns, found, half):
    """Twice in a row, after at least four evaluations, and by more than chance; who never gained has lost nothing."""
    run = made(tmp_path)
    for number, value in enumerate(returns):
        record = {"return_mean": value, "returns": [value], "return_ci95": [value - half, value + half]}
        record |= {"length_mean": 1.0, "episodes": 1}
        (run.path / "evals" / f"{number}.json").write_text(json.dumps(record))
    assert [one.name for one in palaestra.diagnose(run.path).findings] == (found if half == 0 else [])


@pytest.mark.parametrize(("rate", "falling"), [(3e-4, True), (Linear(3e-4, 0.0), False)])
def test_a_falling_learning_rate_is_advised_where_it_is_constant(tmp_path, rate, falling):
    run = made(tmp_path, settings={"learning_rate": rate})
    for number, value in enumerate([20, 440, 130, 141]):
        record = {"return_mean": value, "returns": [value], "return_ci95": [value, value]}
        (run.path / "evals" / f"{number}.json").write_text(json.dumps(record | {"length_mean": 1.0, "episodes": 1}))
    (finding,) = palaestra.diagnose(run.path).findings
    assert ("one that falls" in finding.advice[0]) is falling


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("not_finite", {"learning/ppo": float("nan")}),
        ("no_updates", {"gradient_steps": 0}),
        ("policy_jumps", {"learning/kl": 3.0}),
        ("policy_moves_ahead", {"learning/kl": 3.0, "workers/lag_mean": 4.5}),
        ("policy_stands_still", {"learning/kl": 1e-10}),
        ("acts_at_random", {"learning/entropy": 0.6931}),
        ("entropy_collapse", {"learning/entropy": 1e-4}),
        ("short_sighted", {"settings": {"gamma": 0.0}}),
        ("short_sighted", {"settings": {"gamma": Linear(0.0, 0.9)}}),
        ("no_reward_signal", {"returns": (0.0,)}),
        ("reward_scale", {"discounted_return_mean": 2e7}),
        ("learning_rate_is_0", {"settings": {"learning_rate": 0.0}, "learning/kl": 0.0}),
        ("learning_rate_is_0", {"settings": {"learning_rate": Linear(3e-4, 0.0, 0.1)}, "learning/learning_rate": 0.0}),
        ("value_worse_than_constant", {"learning/explained_variance": -4.0}),
    ],
)
def test_what_is_broken_is_found_and_nothing_else(tmp_path, name, broken):
    (finding,) = palaestra.diagnose(made(tmp_path, **broken).path).findings
    assert finding.name == name


@pytest.mark.parametrize(
    "healthy",
    [
        {"learning/kl": 0.0, "policy_version": 480},  # of one step by the policy that acted, as IMPALA makes
        {
            "learning/a/kl": 0.0,  # and b and c, which have no KL, make steps as well
            **{f"learning/{policy}/gradient_norm/q": 1.0 for policy in "abc"},
            "gradient_steps": 720,
            "policy_version": 240,
        },
        {"settings": {"bonus": BonusConfig(kind="rnd")}, "returns": (0.0,), "discounted_return_mean": 1e-7},
    ],
)
def test_what_says_nothing_in_such_a_run_is_not_judged(tmp_path, healthy):
    assert palaestra.diagnose(made(tmp_path, **healthy).path, episodes=0).findings == ()


@pytest.mark.parametrize("rates", [(3e-4, 2e-4, 1e-4, 0.0), (3e-4, 0.0), (0.0,)])
def test_a_schedule_that_ends_with_the_run_is_no_step_size_of_0(tmp_path, rates):
    run = made(tmp_path, settings={"learning_rate": Linear(3e-4, 0.0)})
    rows = [{**HEALTHY, "learning/learning_rate": rate} for rate in rates]
    (run.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert palaestra.diagnose(run.path).findings == ()


def test_more_threads_than_are_fast_are_named(tmp_path):
    """Two for networks of 64 units: every product waits for both."""
    small = {"trainer__total_env_steps": 64, "trainer__eval_episodes": 0, "algorithm__unroll_length": 32}
    for threads, expected in ((2, {"too_many_threads"}), (1, set())):
        settings = small | {"run__num_threads": threads, "run__directory": str(tmp_path), "run__name": str(threads)}
        run = palaestra.train("ppo", "CartPole-v1", **settings).directory
        found = {one.name: one for one in palaestra.diagnose(run, episodes=1).findings}
        assert found.keys() & {"too_many_threads"} == expected
        assert all("--run.num-threads" in found[name].advice[0] for name in expected)


def test_opponents_that_share_one_reward_are_named_and_not_a_lack_of_exploration(tmp_path):
    """Issue 51: MAPPO on tic-tac-toe was advised to explore more; its reward is 0 by construction."""
    place = palaestra.RunConfig(directory=str(tmp_path), name="it")
    config = ALGORITHMS["mappo"].config_class()
    run = RunDirectory.create(palaestra.ExperimentConfig(run=place, algorithm_name="mappo", algorithm=config))
    row = {"env_steps": 6000, "return_mean": 0.0, "info/a/return": 0.25, "info/b/return": -0.25}
    lines = ["env_steps,return,length,env_id,info", *["1,0.0,9,0,"] * 30]
    (run.path / "episodes.csv").write_text("\n".join(lines) + "\n")
    for agents, found in ((row, "opponents_share_a_reward"), ({**row, "info/a/return": 0.0, "info/b/return": 0.0}, "")):
        (run.path / "metrics.jsonl").write_text(json.dumps(agents) + "\n")
        (finding,) = palaestra.diagnose(run.path, episodes=0).findings
        assert finding.name == (found or "no_reward_signal")


def test_values_are_not_blamed_where_all_returns_are_nearly_the_same(tmp_path):
    """In a solved run there is no variance to explain."""
    solved = made(tmp_path, returns=(500.0, 500.0, 490.0, 500.0), **{"learning/explained_variance": -4.0})
    assert palaestra.diagnose(solved.path).findings == ()


def advised() -> list[str]:
    """Every piece of advice that the two modules have."""
    found = list[str]()
    for module in (diagnosis, played):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.keyword) and call.arg == "advice":
                value = call.value.value if isinstance(call.value, ast.Subscript) else call.value
                found += ast.literal_eval(value) if isinstance(value, ast.Tuple) else []
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_options_that_the_algorithm_has_are_advised(tmp_path, monkeypatch, algorithm):
    """`--algorithm.epsilon` was, to those who ran MAPPO."""
    place = palaestra.RunConfig(directory=str(tmp_path), name="it")
    config = ALGORITHMS[algorithm].config_class()
    run = RunDirectory.create(palaestra.ExperimentConfig(run=place, algorithm_name=algorithm, algorithm=config))
    (run.path / "metrics.jsonl").write_text(json.dumps({"env_steps": 6000}) + "\n")
    symptom = played.Symptom(name="all", severity=1, evidence="", threshold="", advice=tuple(advised()))
    monkeypatch.setattr(diagnosis, "_CHECKS", (lambda log: [symptom],))
    (finding,) = palaestra.diagnose(run.path, episodes=0).findings
    options = re.findall(r"--(algorithm\.[\w.-]+)", " ".join(finding.advice))
    assert all(algorithm in algorithms_with(option.split(".")[1]) for option in options)
    assert len(finding.advice) > 10
    assert "--algorithm.learning-rate" in str(finding) or algorithm not in algorithms_with("learning_rate")


def test_what_a_run_has_already_is_not_advised(tmp_path):
    run = made(tmp_path, settings={"entropy_cost": 0.0, "target_kl": 0.02}, **{"learning/entropy": 0.6931})
    (finding,) = palaestra.diagnose(run.path).findings
    assert finding.advice == ("more env steps",)


def test_the_report_calls_no_solved_run_broken(tmp_path):
    """Equal returns have no variance to explain: it said so in red where `diagnose` found nothing."""
    solved = made(tmp_path, returns=(500.0, 500.0, 490.0, 500.0), **{"learning/explained_variance": -1.37})
    assert "usual" not in write_report([solved.path], tmp_path / "report.html").read_text()


def test_each_policy_of_many_agents_is_looked_at(tmp_path):
    """F24: its metrics are called after it."""
    broken = {"learning/red/kl": 3.0, "learning/blue/kl": 0.004, "learning/blue/explained_variance": -4.0}
    jumps, value = palaestra.diagnose(made(tmp_path, **broken).path).findings
    assert jumps.evidence.startswith("an update moves policy 'red' by KL 3")
    assert value.evidence.startswith("explained variance of the value of policy 'blue': -4")


def test_what_is_most_severe_comes_first(tmp_path):
    run = made(tmp_path, **{"learning/entropy": 1e-4, "gradient_steps": 0})
    assert [f.name for f in palaestra.diagnose(run.path).findings] == ["no_updates", "entropy_collapse"]


def test_a_run_without_metrics_is_refused(tmp_path):
    run = made(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has no row of metrics yet"):
        palaestra.diagnose(run.path)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_that_failed_before_its_first_row_says_why(tmp_path, keeps):
    """F23: it was refused, although it had kept the minibatch of its first update."""
    run = made(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    if keeps:
        algorithm: Any = SimpleNamespace(num_gradient_steps=0, policy_version=0, state_tensors=dict)
        error = NonFiniteError("a gradient is not finite")
        error.batch = {"reward": torch.tensor([math.inf])}
        with pytest.raises(NonFiniteError):
            PolicyRecord(algorithm, 0, run.path / "faults").skip(error, 40)
    run.write_info({"status": "failed", "error": "NonFiniteError: a gradient is not finite\nin a batch"})
    *kept, ended = palaestra.diagnose(run.path).findings
    assert (ended.name, ended.evidence) == ("run_failed", "the run ended with NonFiniteError: a gradient is not finite")
    assert [finding.name for finding in kept] == ["not_finite_update"] * keeps
    assert all("reward has 1 of 1 numbers that are not finite" in finding.evidence for finding in kept)


@pytest.mark.parametrize(
    ("row", "found", "tried"),
    [
        ({"learning/kl": 0.0, "policy_version": 1}, "policy_stands_still", ["a larger --algorithm.target-kl"]),
        ({"learning/entropy": 1e-4}, "entropy_collapse", ["a smaller --algorithm.target-kl"]),
        (
            {"updates_skipped": 1.0},
            "not_finite",
            ["a smaller --algorithm.value-learning-rate", "a larger --algorithm.damping", "a smaller reward scale"],
        ),
    ],
)
def test_trpo_is_advised_by_the_settings_that_it_has(tmp_path, row, found, tried):
    """It was told nothing: it has no `learning_rate`, no `max_grad_norm` and no `entropy_cost`."""
    (finding,) = palaestra.diagnose(made(tmp_path, name="trpo", **row).path, episodes=0).findings
    assert (finding.name, list(finding.advice)) == (found, tried)
    assert "None" not in finding.evidence


@pytest.mark.parametrize("weight", [0.5, float("nan")])
def test_the_newest_update_that_was_not_finite_is_looked_into(tmp_path, weight):
    """F23: what was kept for it was read by nobody."""
    run = made(tmp_path, updates_skipped=2.0)
    learned = {"normalizer": {"low": torch.full((2,), -math.inf)}, "model": {"weight": torch.full((2,), weight)}}
    algorithm: Any = SimpleNamespace(num_gradient_steps=7, policy_version=2, state_tensors=lambda: learned)
    record = PolicyRecord(algorithm, 5, run.path / "faults")
    for reward in (1.0, 3e8):
        error = NonFiniteError("a gradient is not finite")
        error.batch = {"observation": torch.tensor([[1.0, math.inf]]), "reward": torch.tensor([reward]), "n": 2}
        record.skip(error, 40)
        algorithm.num_gradient_steps = 12
    names = {finding.name: finding for finding in palaestra.diagnose(run.path, episodes=0).findings}
    finding = names["not_finite_update"]
    assert "normalizer" not in finding.evidence, "bounds are infinite before the first update"
    assert "the update after 12 gradient steps" in finding.evidence
    assert "observation has 1 of 2 numbers that are not finite, reward is of size 3e+08" in finding.evidence
    assert ("model.weight has 2 of 2" in finding.evidence) == (weight != 0.5)
    assert finding.advice[0].startswith("a look at the environment")


def test_returns_are_read_beside_a_long_info(tmp_path):
    """That of 1,900 agents is longer than a field of csv may be: it was a traceback."""
    run = made(tmp_path)
    info = json.dumps({f"agent_{i}/return": 0.1234567890123 for i in range(5_000)}).replace('"', '""')
    with (run.path / "episodes.csv").open("w") as file:
        file.write("env_steps,return,length,env_id,info\n" + f'1,2.5,14,0,"{info}"\n' * 30 + "2,")
    (finding,) = palaestra.diagnose(run.path, episodes=0).findings
    assert finding.evidence == "all 30 training episodes had the return 2.5"


@pytest.mark.parametrize(("others", "found"), [(-3.0, []), (5.0, ["reward_scale"])])
def test_the_scale_of_the_rewards_of_many_agents_is_looked_at(tmp_path, others, found):
    """By what an agent of a policy earns, but for opponents, whose returns cancel out."""
    row = {"return_mean": 3.0 + others, "info/a/return": 3.0, "info/b/return": others, "discounted_return_mean": None}
    run = made(tmp_path, **row, **{"info/shared/discounted_return": 1e-6})
    assert [finding.name for finding in palaestra.diagnose(run.path, episodes=0).findings] == found


def test_the_report_knows_the_actions_of_the_policy_that_is_kept(tmp_path):
    run = made(tmp_path, **{"learning/entropy": 1e-4})
    assert logged_symptoms(run) == [], "nothing is made for it"
    (run.path / "policy").mkdir(exist_ok=True)
    for text, found in (('{"action_spec": {"num": 2}}', ["entropy_collapse"]), ('{"action_spec": 3}', [])):
        (run.path / "policy/policy.json").write_text(text)
        assert [one.name for one in logged_symptoms(run)] == found


def test_the_command_ends_with_1_where_something_is_found(tmp_path, capsys):
    assert exit_code("diagnose", str(made(tmp_path, **{"learning/kl": 3.0}).path), "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "policy_jumps"


def test_the_command_ends_with_0_where_nothing_is_found(tmp_path, capsys):
    assert exit_code("diagnose", str(made(tmp_path).path)) == 0
    assert "nothing found" in capsys.readouterr().out


def test_the_report_has_what_the_log_says(tmp_path):
    broken, healthy = made(tmp_path / "a", **{"learning/kl": 3.0}), made(tmp_path / "b")
    texts = [write_report([run.path], tmp_path / "report.html").read_text() for run in (broken, healthy)]
    assert "policy_jumps" in texts[0] and "Findings" in texts[0]
    assert "Findings" not in texts[1]


def test_the_report_says_how_long_a_run_took_that_never_waited(tmp_path):
    times = {"time/train_s": 8.0, "time/env_steps_per_s": 10.0, "time/learning": 0.5}
    run = made(tmp_path, **times)
    assert "where it went, of 8.0 s" in write_report([run.path], tmp_path / "report.html").read_text()
    waited = made(tmp_path / "b", **times, **{"time/waiting": 0.75})
    assert "where it went, of 32.0 s" in write_report([waited.path], tmp_path / "report.html").read_text()
