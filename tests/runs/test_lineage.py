"""Tests of `palaestra.runs.run_directory`: what a run remembers, forks, overrides, faults, locks."""

import dataclasses
import json
import logging
import os
import shutil
import subprocess
import sys
from typing import Literal

import pytest

import palaestra
from palaestra.core import CheckpointError, ConfigError, EnvError
from palaestra.distributed import DistributedConfig, WorkerFault
from palaestra.envs import EventLog, Fault
from palaestra.experiments import (
    RunDirectory,
    changes_between,
    list_runs,
    load_config,
    preset,
    read_faults,
    read_metrics,
)
from palaestra.runs.lineage import _computes_exactly
from palaestra.runs.records import FaultRecord, KeepFaults, _git_revision, write_fault
from tests.experiments.parts import CHAIN, trained


def contents(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_folder_without_git_has_no_revision(tmp_path, monkeypatch):
    """None, and not an empty commit that is clean, which two runs of unlike code would share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _git_revision() is None
    who = ("-c", "user.name=a", "-c", "user.email=a@a")
    for command in (["init", "-q"], [*who, "commit", "-qm", "a", "--allow-empty"]):
        subprocess.run(["git", *command], check=True)
    found = _git_revision()
    assert found is not None and len(found["commit"]) == 40 and not found["dirty"]


def test_a_fork_goes_on_beside_its_parent(tmp_path):
    """DESIGN section 9: lineage in the manifest; the parent stays as it is, byte for byte."""
    parent = trained(tmp_path).directory
    before = contents(parent)
    fork = palaestra.resume(parent, fork="child", trainer__total_env_steps=160)
    assert contents(parent) == before
    assert fork.directory == tmp_path / "child"
    assert fork.result.env_steps >= 160
    info = RunDirectory(fork.directory).info
    assert info["lineage"]["forked_from"] == str(parent.resolve())
    assert info["lineage"]["env_steps"] == RunDirectory(parent).info["env_steps"]
    (entry,) = info["overrides"]
    assert entry["changes"] == {"trainer.total_env_steps": [96, 160]}
    steps = [row["env_steps"] for row in read_metrics(fork.directory)]
    assert steps == sorted(set(steps))
    assert steps[0] < 96 < steps[-1]  # the whole curve, the parent's part included


def test_a_fork_of_the_folder_one_is_in_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(trained(tmp_path, "here").directory)
    fork = palaestra.resume(".", fork=True, trainer__total_env_steps=160).directory
    assert fork.resolve() == tmp_path / "here_fork"


def test_a_fork_that_changes_nothing_ends_as_the_parent_would_have(tmp_path):
    """F25: going on in a copy is going on."""
    whole = trained(tmp_path, "whole", trainer__total_env_steps=160)
    half = trained(tmp_path, "half", trainer__total_env_steps=160, trainer__stop_at_return=-9)
    assert half.result.env_steps < 100
    fork = palaestra.resume(half.directory, fork=True, trainer__stop_at_return=None)
    assert fork.directory.name == "half_fork"
    assert (fork.directory / "episodes.csv").read_text() == (whole.directory / "episodes.csv").read_text()
    again = palaestra.resume(half.directory, fork=True, run__device="cpu").directory
    assert again.name == "half_fork2"
    assert "overrides" not in RunDirectory(again).info
    assert RunDirectory(again).info["threads"] == RunDirectory(half.directory).info["threads"]


def test_a_fork_goes_on_exactly_or_not_by_what_changes_from_its_parent(tmp_path, monkeypatch):
    """F25: on another device, say; here the budget stands for it."""
    budgets = lambda before, now: before.trainer.total_env_steps == now.trainer.total_env_steps  # noqa: E731
    monkeypatch.setattr(sys.modules["palaestra.runs.lineage"], "_computes_exactly", budgets)
    parent = trained(tmp_path).directory
    for budget, exactness in ((96, "exact"), (160, "statistical")):
        fork = palaestra.resume(parent, fork=True, trainer__total_env_steps=budget)
        assert RunDirectory(fork.directory).info["resume"] == exactness


def test_shares_of_gradient_workers_by_experience_are_not_those_of_before(tmp_path):
    """F25: what they follow is not in a checkpoint."""
    config = load_config(trained(tmp_path).directory / "config.yaml")
    shared = {"runtime": "local", "num_learners": 2}
    for settings, exact in (({}, True), ({"allocation": "by-agent"}, True), ({"allocation": "by-experience"}, False)):
        now = dataclasses.replace(config, distributed=DistributedConfig(**shared, **settings))
        assert _computes_exactly(now, now) is exact
    sharded = dataclasses.replace(now, distributed=dataclasses.replace(now.distributed, gradient_shards=2))
    assert _computes_exactly(sharded, sharded)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "changed"),
    [
        ("r2d2", CHAIN, {"algorithm__mini_batch_length": 8}, {"algorithm__mini_batch_length": 4}),
        ("dqn", CHAIN, {}, {"algorithm__prioritized": True}),
        ("sac", "Pendulum-v1", {}, {"algorithm__initial_temperature": 0.5}),
        ("vmpo", CHAIN, {}, {"algorithm__initial_multiplier": 2.0}),
        ("ppo", "palaestra.multiagent:Meeting", {}, {"agents__sharing": "separate"}),
    ],
)
def test_what_a_checkpoint_is_shaped_by_cannot_change(tmp_path, algorithm, env, settings, changed):
    """F25: hidden states lie with the beginnings of sequences, priorities with rows, weights with policies."""
    small = {"trainer__eval_episodes": 0, "trainer__total_env_steps": 64, "run__directory": str(tmp_path)}
    run = palaestra.train(algorithm, env, **small, **settings).directory
    (name,) = changed
    with pytest.raises(ConfigError, match=rf"{name.replace('__', '.')} cannot change in a run that continues"):
        palaestra.resume(run, trainer__total_env_steps=128, **changed)


def test_a_period_that_changes_holds_from_where_the_run_goes_on(tmp_path):
    """What was due next by the old period is not waited for."""
    run = trained(tmp_path, trainer__eval_every_steps=1000).directory
    before = {int(path.stem) for path in (run / "evals").glob("*.json")}
    palaestra.resume(run, trainer__total_env_steps=192, trainer__eval_every_steps=32)
    later = sorted({int(path.stem) for path in (run / "evals").glob("*.json")} - before)
    assert len(later) > 1
    assert later[0] < 140


def test_the_policy_that_is_kept_is_better_than_a_later_one_after_an_older_checkpoint(tmp_path):
    """Its evaluation came after the newest checkpoint, and the run was killed."""
    run = trained(tmp_path).directory
    newest = max((run / "evals").glob("*.json"), key=lambda path: int(path.stem))
    found = json.loads(newest.read_text())
    (run / "evals/97.json").write_text(json.dumps({**found, "return_mean": 1e6}))
    kept = (run / "policy/weights.safetensors").read_bytes()
    done = palaestra.resume(run, trainer__total_env_steps=160)
    assert done.result.best_return == 1e6
    assert (run / "policy/weights.safetensors").read_bytes() == kept


def test_a_fork_keeps_the_policy_that_was_evaluated_after_the_newest_checkpoint(tmp_path):
    run = trained(tmp_path).directory
    newest = max((run / "evals").glob("*.json"), key=lambda path: int(path.stem))
    (run / "evals/97.json").write_text(json.dumps({**json.loads(newest.read_text()), "return_mean": 1e6}))
    fork = palaestra.resume(run, fork=True, trainer__total_env_steps=160)
    assert fork.result.best_return == 1e6
    kept = [(path / "policy/weights.safetensors").read_bytes() for path in (run, fork.directory)]
    assert kept[0] == kept[1]


def test_a_changed_setting_is_recorded_and_stays(tmp_path):
    """F25: `--override` is in `run.json`, and in `config.yaml` for the next resume."""
    run = trained(tmp_path).directory
    palaestra.resume(run, trainer__total_env_steps=128, algorithm__entropy_cost=0.1)
    (entry,) = RunDirectory(run).info["overrides"]
    assert entry["changes"] == {"trainer.total_env_steps": [96, 128], "algorithm.entropy_cost": [0.0, 0.1]}
    assert entry["env_steps"] == RunDirectory(run).info["resumed_at"]
    assert palaestra.resume(run).result.env_steps >= 128
    assert len(RunDirectory(run).info["overrides"]) == 1
    assert RunDirectory(run).config.algorithm.entropy_cost == 0.1


def test_a_longer_budget_is_evaluated_at_its_end(tmp_path):
    run = trained(tmp_path, trainer__eval_every_steps=0).directory
    done = palaestra.resume(run, trainer__total_env_steps=160)
    assert (run / "evals" / f"{done.result.env_steps}.json").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("env__num_envs", 4),
        ("algorithm__network__hidden_sizes", (9,)),
        ("algorithm__bonus__kind", "rnd"),
        ("run__seed", 3),
        ("algorithm_name", "dqn"),
    ],
)
def test_what_a_checkpoint_holds_the_results_of_cannot_change(setting, value, tmp_path):
    """F27: refused before anything starts, and nothing is written."""
    run = trained(tmp_path).directory
    before = contents(run)
    with pytest.raises(ConfigError, match="cannot change in a run that continues"):
        palaestra.resume(run, **{setting: value})
    with pytest.raises(ConfigError, match="cannot change in a run that continues"):
        palaestra.resume(run, fork=True, **{setting: value})
    assert contents(run) == before
    assert len(list_runs(tmp_path)) == 1


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("less", [40, 0])
def test_a_budget_that_the_run_has_used_already_is_refused(less, fork, tmp_path):
    """F27: nothing could be done with it, so nothing is written."""
    done = trained(tmp_path, trainer__total_env_steps=90)
    run, until, before = done.directory, done.result.env_steps - less, contents(done.directory)
    words = f"the run has {done.result.env_steps} env steps already; --until must be above, {until} was given"
    with pytest.raises(ConfigError, match=words):
        palaestra.resume(run, fork=fork, trainer__total_env_steps=until)
    assert contents(run) == before
    assert len(list_runs(tmp_path)) == 1


@pytest.mark.parametrize("rest", [["checkpoints"], []])
@pytest.mark.parametrize("facts", [{}, {"env_steps": None, "saved": True}, {"env_steps": None, "resumed_at": 48}])
def test_a_run_whose_checkpoints_are_gone_is_never_begun_anew(rest, facts, tmp_path):
    """F11: what it has come to would be overwritten; whether it ended, was killed, or was resumed before."""
    run = trained(tmp_path).directory
    RunDirectory(run).write_info(facts)
    shutil.rmtree(run / "checkpoints")
    for name in rest:
        (run / name).mkdir()
    before = contents(run)
    with pytest.raises(CheckpointError, match="are gone, so it cannot go on"):
        palaestra.resume(run, trainer__total_env_steps=160)
    assert contents(run) | {run / "run.lock": b""} == before


def test_a_configuration_edited_by_hand_is_noticed_and_recorded(tmp_path, caplog):
    """F27: nobody can say that such a run goes on as it would have."""
    run = RunDirectory(trained(tmp_path, trainer__total_env_steps=96).directory)
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 7"))
    palaestra.resume(run.path, trainer__total_env_steps=160)
    assert "config.yaml was edited by hand" in caplog.text
    assert run.info["resume_reasons"] == ["with a config.yaml that was edited by hand"]
    assert list(run.info["overrides"][0]["changes"]) == ["trainer.total_env_steps", "config.yaml"]
    fork = palaestra.resume(run.path, fork=True, trainer__total_env_steps=192)
    assert RunDirectory(fork.directory).info["resume"] == "statistical"  # as its parent, though all was restored
    palaestra.resume(run.path, trainer__total_env_steps=192)
    assert run.info["resume_reasons"] == ["with a config.yaml that was edited by hand"]
    path.write_text(path.read_text().replace("seed: 7", "seed: 8"))
    fork = palaestra.resume(run.path, fork=True, trainer__total_env_steps=240)
    assert RunDirectory(fork.directory).info["resume"] == "statistical"
    path.write_text(path.read_text().partition("trainer:")[0])
    with pytest.raises(ConfigError, match=r"config\.yaml has no trainer"):
        palaestra.resume(run.path, trainer__total_env_steps=240)


def test_a_kept_policy_that_is_damaged_is_replaced_after_the_next_evaluation(tmp_path, caplog):
    """F11: else what is said to be kept could not be used."""
    run = trained(tmp_path, trainer__eval_every_steps=48).directory
    RunDirectory(run).write_info({"best_return": 1e9})
    (run / "policy/weights.safetensors").write_bytes(b"half")
    palaestra.resume(run, trainer__total_env_steps=160)
    assert "is replaced after the next evaluation" in caplog.text
    assert palaestra.load_policy(run / "policy").action_spec.num == 2
    best = RunDirectory(run).info["best_return"]
    assert best < 1e9
    first = min((run / "evals").iterdir(), key=lambda file: int(file.stem))
    first.write_text(first.read_text().replace('"return_mean": ', '"return_mean": 9'))
    assert RunDirectory(run).kept_return == best  # not that of the policy that is gone
    shutil.rmtree(run / "policy")
    assert palaestra.resume(run).result.best_return is None  # its budget is used, so nothing is evaluated again
    assert palaestra.resume(run, fork=True, trainer__total_env_steps=240).result.best_return is not None


def test_a_fork_that_is_killed_leaves_no_run(tmp_path, monkeypatch):
    """F9: it gets its name when it has everything."""
    parent = trained(tmp_path).directory
    monkeypatch.setattr(shutil, "copyfile", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        palaestra.resume(parent, fork="child", trainer__total_env_steps=160)
    assert [path.name for path in list_runs(tmp_path)] == [parent.name]
    assert not (tmp_path / "child").exists()


def test_a_fork_needs_a_valid_checkpoint(tmp_path):
    """F11: and leaves no half of a directory behind."""
    run = trained(tmp_path).directory
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.write_text("damaged")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        palaestra.resume(run, fork=True)
    assert list_runs(tmp_path) == [run]


def test_differences_are_named_by_path():
    changes = changes_between(preset("ppo", "CartPole-v1"), preset("ppo", "Pendulum-v1"))
    assert changes["algorithm.gamma"] == (0.98, 0.9)
    assert "algorithm.value_cost" not in changes


# -- locks, status, faults


def test_a_run_whose_process_is_gone_is_said_to_be_killed(tmp_path, caplog):
    """F26: a stale lock is detected, named, and no obstacle."""
    run = RunDirectory(trained(tmp_path).directory)
    run.write_info({"status": "created"})
    assert run.status == "created"  # of a group, whose turn has not come
    (run.path / "run.lock").write_text("process 12345 on elsewhere\n")
    assert run.status == "killed"  # while it started
    run.write_info({"status": "running"})
    assert run.status == "killed"
    with caplog.at_level(logging.WARNING):
        run.lock()
    assert "was held by process 12345 on elsewhere, which is gone" in caplog.text
    assert RunDirectory(run.path).status == "running"
    assert f"process {os.getpid()} on " in (run.path / "run.lock").read_text()
    run.unlock()
    assert RunDirectory(run.path).status == "killed"
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        run.lock()
    assert not caplog.text  # the one before had let go
    run.unlock()


def test_faults_are_files_that_can_be_read_back(tmp_path, monkeypatch):
    fault = FaultRecord("EnvError", "environment 2 died", env_steps=5, details={"seed": 7})
    path = write_fault(tmp_path, fault)
    assert path == tmp_path / "faults" / "0001.json"
    assert write_fault(tmp_path, fault).name == "0002.json"
    assert read_faults(tmp_path) == [fault, fault]
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"0001.json is no record of a fault"):
        read_faults(tmp_path)
    (tmp_path / "faults" / "0003.json").touch()  # another process's
    monkeypatch.setattr("pathlib.Path.glob", lambda *_: pytest.fail("every fault looks at all others"))
    assert write_fault(tmp_path, fault).name == "0004.json"


def test_the_error_that_ends_a_run_is_kept_with_its_traceback(tmp_path):
    """F1, F5: `faults/NNNN.json`."""
    with pytest.raises(palaestra.core.PalaestraError):
        trained(tmp_path, env__name="tests.rollout.test_collector:Poisoned", env__kwargs={"reward": float("nan")})
    fault, *others = read_faults(tmp_path / "run")  # of either environment: both are poisoned
    assert {found.kind for found in (fault, *others)} == {"NonFiniteError"}
    assert "reward" in fault.message
    assert fault.action == "stopped"
    assert "Traceback" in fault.trace or fault.details


class Reported:
    """Environments with one fault."""

    def __init__(self, handled: Literal["raise", "restart", "drop"]) -> None:
        where = {"episode": 3, "seed": 7, "step": 2, "action": "1"}
        self.faults = EventLog()
        self.faults.append(Fault(env_id=1, kind="died", what="died", detail="signal 9", handled=handled, **where))


def test_faults_that_were_survived_are_kept_once(tmp_path):
    """F3: restarts and drops are on the record."""
    keep = KeepFaults(Reported("restart"), tmp_path)  # type: ignore[arg-type]
    keep.write(10)
    keep.write(20)
    (fault,) = read_faults(tmp_path)
    assert fault.message.startswith("environment 1 died in episode 3 (seed 7), at step 2 with action 1")
    assert (fault.env_steps, fault.action, fault.details["seed"]) == (10, "restarted", 7)
    keep.write(30, ValueError("another thing"))
    assert [fault.kind for fault in read_faults(tmp_path)] == ["EnvError", "ValueError"]


def test_faults_come_by_the_hundred_and_the_record_says_how_many_are_missing(tmp_path):
    """F14: of workers; what is kept of them does not grow with the run."""
    env = Reported("restart")
    env.faults = log = EventLog(most=3)
    keep = KeepFaults(env, tmp_path)  # type: ignore[arg-type]
    for count in (2, 1, 5):
        for _ in range(count):
            log.append(WorkerFault("actor-1", log.total, "killed", "restart"))
        keep.write(10)
    faults = read_faults(tmp_path)
    assert [fault.details.get("incarnation") for fault in faults] == [0, 1, 2, None, 5, 6, 7]
    assert faults[3].message.startswith("2 faults since the last row of metrics are not written down")
    assert faults[3].details == {"restart, actor-1": 8}


def test_the_fault_that_ends_a_run_is_not_written_twice(tmp_path):
    KeepFaults(Reported("raise"), tmp_path).write(10, palaestra.core.EnvError("the same"))  # type: ignore[arg-type]
    assert len(read_faults(tmp_path)) == 1


def test_the_manifest_says_where_a_run_comes_from(tmp_path):
    """DESIGN section 9: command, versions, hardware, seed, source, status, lineage."""
    info = json.loads((trained(tmp_path).directory / "run.json").read_text())
    needed = {"format", "command", "versions", "hardware", "git", "seed", "algorithm", "env", "status", "lineage"}
    assert needed | {"started", "ended", "process", "threads"} <= info.keys()
    assert {"cores", "memory_bytes", "processor", "gpus"} <= info["hardware"].keys()
    assert info["lineage"] is None


def test_a_run_that_a_fault_has_ended_goes_on_by_restarts(tmp_path):
    """F5: the error names `on_fault`, which is the one thing that may change of an environment."""
    settings = {"env__chaos": "raise@7#0", "trainer__total_env_steps": 60, "env__max_episode_steps": 20}
    with pytest.raises(EnvError, match="at step 7"):
        trained(tmp_path, trainer__checkpoint_every_steps=4, **settings)
    (run,) = list_runs(tmp_path)
    done = palaestra.resume(run, env__on_fault="restart", env__max_restarts=100)
    assert done.result.env_steps >= 60 and RunDirectory(done.directory).config.env.on_fault == "restart"
