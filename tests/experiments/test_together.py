"""Tests of `palaestra.train_together`: runs of a population, each with a directory as it would have alone."""

import json
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import palaestra
from palaestra.core import ConfigError, computing
from palaestra.experiments import find_runs, read_evaluations
from palaestra.experiments import seeds as module
from palaestra.experiments.together import child_process, train_directories
from tests.experiments.parts import CHAIN, SMALL, rows_of, written
from tests.faults.parts import child_environment

CARTPOLE = "palaestra.envs.tiny:TensorCartPole"
KWARGS = {"max_episode_steps": 6}
TINY = {name: value for name, value in SMALL.items() if name != "env__max_episode_steps"} | {"env__kwargs": KWARGS}


def require_same_runs(one, other):
    """Episodes exactly; numbers of metrics, evaluations and policies up to rounding."""
    texts = [(path / "episodes.csv").read_text() for path in (one, other)]
    assert texts[0] == texts[1]
    rows = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (one, other)]
    for mine, theirs in zip(*rows, strict=True):
        for name in mine.keys() & theirs.keys():
            if not name.startswith(("time/", "process/", "memory/")):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-4), name
    means = [[result["return_mean"] for _, result in read_evaluations(path)] for path in (one, other)]
    assert means[0] == pytest.approx(means[1])
    states = [palaestra.load_policy(path / "policy").state_dict() for path in (one, other)]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-4, atol=1e-4)


def test_members_leave_the_runs_that_they_would_leave_alone(tmp_path, monkeypatch):
    """Two learning rates, two seeds each: a group of runs for each learning rate."""

    def here(parts, title, **_):
        for part in parts:
            assert train_directories([seed.directory for seed in part]) == 0

    monkeypatch.setattr(module, "_train_parts", here)
    settings = TINY | {"run__directory": str(tmp_path), "run__name": "g", "run__compile": False}
    rates = [{"algorithm__learning_rate": rate} for rate in (1e-3, 1e-2)]
    groups = palaestra.train_together("ppo", CARTPOLE, seeds=[2, 3], members=rates, **settings)
    assert [group.directory.name for group in groups] == ["g_1", "g_2"]
    assert [[seed.status for seed in group.seeds] for group in groups] == [["done", "done"]] * 2
    assert [run.config.algorithm.learning_rate for run in find_runs(["g_2"], tmp_path)] == [1e-2, 1e-2]
    alone = palaestra.train("ppo", CARTPOLE, **settings | rates[1] | {"run__seed": 3, "run__name": "alone"})
    require_same_runs(groups[1].directory / "seed_3", alone.directory)
    more = {"trainer__total_env_steps": 2 * TINY["trainer__total_env_steps"]}
    palaestra.resume(groups[1].directory / "seed_3", **more)
    info = find_runs(["g_2"], tmp_path)[1].info
    assert (info["resume"], info["resume_reasons"]) == ("continued", ["with population 1 instead of 4"])
    with pytest.raises(ConfigError, match=r"members is \{.*; give a list with a mapping"):
        palaestra.train_together("ppo", CARTPOLE, seeds=1, members={"algorithm__gamma": 0.9})
    with pytest.raises(ConfigError, match=r"run\.together is for several seeds"):
        palaestra.train("ppo", CARTPOLE, run__together=True, **settings)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "message"),
    [
        ("ppo", CHAIN, {"env__max_episode_steps": 6}, "for environments that are tensors, and .* is a"),
        ("trpo", CARTPOLE, {}, "for one agent that learns by a loss"),
        ("ppo", CARTPOLE, {"distributed__runtime": "local"}, r"distributed\.runtime is 'local'"),
        ("ppo", CARTPOLE, {"run__precision": "bf16"}, r"run\.precision is 'bf16'"),
        ("ppo", CARTPOLE, {"algorithm__target_kl": 0.1}, r"algorithm\.target_kl"),
    ],
)
def test_what_a_population_cannot_have_is_refused_before_anything_is_written(
    tmp_path, algorithm, env, settings, message
):
    with pytest.raises(ConfigError, match=message):
        palaestra.train_together(algorithm, env, seeds=2, run__directory=str(tmp_path), **settings)
    assert not list(tmp_path.iterdir())


def test_members_go_on_from_the_newest_checkpoint_of_all_whatever_its_digits(tmp_path, monkeypatch):
    """The first has one more, which a killed process has left; 10^10 counts as more than 9,999,999,999."""
    runs = [written(tmp_path, rows_of([1.0]), name) for name in ("one", "two")]
    for run, last in zip(runs, (10_000_000_001, 10_000_000_000), strict=True):
        run.write_info({"status": "interrupted"})
        for step in range(9_999_999_999, last + 1):
            run.checkpoints().save(step, {"trainer": {}})

    def stops(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("palaestra.experiments.together.make_learner", stops)
    with pytest.raises(KeyboardInterrupt):
        train_directories(runs)
    for run in runs:
        names = [path.name for path in run.checkpoints().steps()]
        assert names == ["step_9999999999", "step_10000000000"]


@pytest.mark.slow
def test_a_group_of_seeds_trains_together_in_processes_and_can_go_on(tmp_path, monkeypatch):
    """Eight seeds, by the option of the command line; then each goes on alone."""
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    settings = TINY | {"run__directory": str(tmp_path), "run__name": "g", "run__compile": False}
    group = palaestra.train("ppo", CARTPOLE, seeds=8, run__together=True, **settings)
    assert group.exit_code == 0
    assert [seed.status for seed in group.seeds] == ["done"] * 8
    assert json.loads((group.directory / "group.json").read_text())["seeds"] == list(range(8))
    beside = palaestra.train("ppo", CARTPOLE, **settings | {"run__seed": 7, "run__name": "alone"})
    require_same_runs(group.directory / "seed_7", beside.directory)
    more = palaestra.resume(group.directory / "seed_7", trainer__total_env_steps=150)
    assert more.result.status == "done"


@pytest.mark.parametrize(("seeds", "library"), [(8, True), (2, False)])
def test_products_of_a_population_are_those_of_all_members(tmp_path, monkeypatch, seeds, library):
    """Eight minibatches of 256 rows by 64 x 64 weights are one call, large enough for oneDNN where it is faster."""
    chosen = []
    monkeypatch.setattr(computing, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr(computing, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(computing, "prefer_onednn", chosen.append)
    monkeypatch.setattr(module, "_train_parts", lambda *_, **__: None)
    settings = {"env__kwargs": KWARGS, "run__directory": str(tmp_path), "run__compile": False}
    palaestra.train_together("ppo", CARTPOLE, seeds=seeds, **settings)
    assert chosen[-1] is library


def test_a_member_that_failed_stays_one_whose_process_ends_well(tmp_path, monkeypatch):
    """Its process went on with the others, and ended with 0; a score of before it failed is none."""

    def failed(parts, title, **_):
        for seed in (seed for part in parts for seed in part):
            seed.process = SimpleNamespace(returncode=0, poll=lambda: 0)
            if seed.number == 2:
                seed.directory.write_info({"status": "failed", "error": "NaN"})

    monkeypatch.setattr(module, "_train_parts", failed)
    settings = TINY | {"run__directory": str(tmp_path), "run__compile": False}
    (group,) = palaestra.train_together("ppo", CARTPOLE, seeds=[2, 3], **settings)
    assert [(seed.status, bool(seed.exit_code)) for seed in group.seeds] == [("failed", True), ("created", False)]


def test_a_population_of_which_all_have_failed_goes_on(tmp_path, monkeypatch):
    """By what they share, such as a full disk."""
    directories = []

    def here(parts, title, **_):
        directories.extend(seed.directory for part in parts for seed in part)
        train_directories(directories)

    monkeypatch.setattr(module, "_train_parts", here)
    palaestra.train_together("ppo", CARTPOLE, seeds=[2, 3], **TINY, run__directory=str(tmp_path), run__compile=False)
    for directory in directories:
        directory.write_info({"status": "failed"})
    assert train_directories(directories) == 0
    assert [directory.status for directory in directories] == ["done", "done"]


def test_what_a_seed_reads_from_a_terminal_fails_and_stops_it_not(monkeypatch):
    """It is no more in the foreground of the terminal of its parent, which would stop it for ever."""
    numbers = (signal.SIGTTIN, signal.SIGTTOU)
    before, path = [signal.getsignal(number) for number in numbers], [*sys.path]
    monkeypatch.setattr(threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))  # there is no parent
    try:
        assert child_process(lambda: sum(signal.getsignal(one) is signal.SIG_IGN for one in numbers), (), path) == 2
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
