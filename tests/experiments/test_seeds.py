"""Tests of `palaestra.experiments.seeds`: real processes, side by side."""

import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import palaestra
from palaestra.core import CheckpointError, ConfigError
from palaestra.core.reading import NewLines
from palaestra.envs.tiny import Chain
from palaestra.experiments import (
    RunDirectory,
    find_run,
    find_runs,
    group_summary,
    list_groups,
    list_runs,
    read_evaluations,
    resume_seeds,
)
from palaestra.experiments import seeds as module
from palaestra.runs import records
from palaestra.training import TrainResult
from tests.experiments.parts import CHAIN, SMALL, rows_of, trained, written
from tests.faults.parts import COMMAND, child_environment
from tests.training.parts import Hooks

LONG = ("--trainer.total-env-steps", "1e8", "--env.max-episode-steps", "6", "--run.no-tensorboard", "--run.name", "g")
VERB = ("train", "ppo", CHAIN, *LONG, "--algorithm.unroll-length", "8", "--trainer.log-every-steps", "1e3")


class Sometimes(Chain):
    """A chain that cannot be stepped by the run with seed 1."""

    def step(self, action):
        if "seed_1" in " ".join(sys.argv):
            raise ValueError("the wheel came off")
        return super().step(action)


@pytest.fixture(autouse=True)
def _children_import_this_checkout(monkeypatch):
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)


def small_group(folder: Path, seeds, env: str = CHAIN, **settings):
    return palaestra.train("ppo", env, seeds=seeds, run__directory=str(folder), run__name="g", **(SMALL | settings))


def seed_of(run: RunDirectory, **process: Any) -> Any:
    """One of a group, whose process has ended so."""
    seed: Any = module.SeedProcess(run)
    seed.process = SimpleNamespace(**process) if process else None
    return seed


def test_seeds_train_in_a_group_and_equal_single_runs(tmp_path):
    """ALF-56, F25: each seed of a group is the run that it would be alone."""
    group = small_group(tmp_path, 2, run__seed=3)
    assert group.exit_code == 0
    assert group.directory == tmp_path / "g"
    assert [(seed.seed, seed.status, seed.error) for seed in group.seeds] == [(3, "done", None), (4, "done", None)]
    alone = trained(tmp_path, "alone", run__seed=4)
    texts = [(path / "episodes.csv").read_text() for path in (tmp_path / "g" / "seed_4", alone.directory)]
    assert texts[0] == texts[1]
    # the group is found wherever runs are
    assert list_groups(tmp_path) == [tmp_path / "g"]
    assert [run.path.name for run in find_runs(["g"], tmp_path)] == ["seed_3", "seed_4"]
    assert find_runs(["g/seed_3"], tmp_path)[0].path == find_run("g/seed_3", tmp_path).path
    with pytest.raises(ConfigError, match=r"g is the group .*g of 2 runs; name one of them, such as .*seed_[34]"):
        find_run("g", tmp_path)
    again = resume_seeds("g", root=tmp_path)
    assert [seed.status for seed in again.seeds] == ["done", "done"]  # nothing was left to do
    assert module.SeedResult.__annotations__["status"] is TrainResult.__annotations__["status"]
    said = group_summary(again)[-1]
    assert said.startswith("highest evaluation, by which the policy was chosen: ") and said.endswith("of 2 of 2 seeds")


def test_a_run_with_the_settings_of_a_seed_is_none_of_its_group(tmp_path):
    """It would be trained on with them, and be one more curve of theirs."""
    config = written(tmp_path / "group", [], "seed_0").config
    (tmp_path / "group/group.json").write_text("{}")
    new = module.for_new_run(config).run
    assert (new.directory, new.name) == (str(tmp_path), None)
    named = module.for_new_run(replace(config, run=replace(config.run, name="another"))).run
    assert (named.directory, named.name) == (str(tmp_path), "another")


@pytest.mark.slow
def test_a_failing_seed_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    """F1: with its exit code, and its error in words. As many run at a time as there are cores."""
    started, most = [], []
    start = module.SeedProcess.start

    def counting(seed, others):
        started.append(start(seed, others))
        most.append(sum(one.running for one in started))
        return seed

    monkeypatch.setattr(module.SeedProcess, "start", counting)
    monkeypatch.setattr(module, "num_cores", lambda: 1)
    group = small_group(tmp_path, [1, 0], "tests.experiments.test_seeds:Sometimes")
    assert most == [1, 1]
    good, bad = group.seeds
    assert (good.status, good.exit_code) == ("done", 0)
    assert (bad.status, bad.exit_code) == ("failed", 3)
    assert bad.error is not None
    assert "the wheel came off" in bad.error
    assert group.exit_code == 3
    assert any(line.startswith("seed 1 failed after 0 env steps: EnvError") for line in group_summary(group))


@pytest.mark.slow
def test_seeds_that_stop_at_their_goal_have_come_to_an_end(tmp_path):
    """They were not broken off, and the group says why they stopped; a fork of one is none of the group."""
    group = small_group(tmp_path, 2, trainer__stop_at_return=-9)
    assert [(seed.status, seed.exit_code) for seed in group.seeds] == [("stopped", 0)] * 2
    assert group.exit_code == 0
    assert "the goal was -9" in group_summary(group)[0]
    fork = palaestra.resume(group.seeds[0].directory, fork=True, trainer__stop_at_return=None).directory
    assert fork == tmp_path / "g_seed_0_fork"
    assert [run.path.name for run in find_runs(["g"], tmp_path)] == ["seed_0", "seed_1"]


def test_a_seed_that_reached_its_goal_is_finished(tmp_path):
    done = trained(tmp_path, "goal", trainer__stop_at_return=-1e9)
    assert RunDirectory(done.directory).status == "stopped"
    assert seed_of(RunDirectory(done.directory)).finished


def test_a_resumed_seed_that_is_killed_has_no_numbers_of_the_session_before(tmp_path):
    """They stood in `run.json` until the next end, which a killed process does not write."""
    run, left = RunDirectory(trained(tmp_path, trainer__log_every_steps=8).directory), []
    best, before = run.kept_return, run.info["env_steps"]
    assert best is not None
    seen = Hooks(logged=lambda trainer, row: left.append(run.info))
    reached = palaestra.resume(run.path, trainer__total_env_steps=160, callbacks=[seen]).result.env_steps
    assert all(left[-1][name] is None for name in ("env_steps", "train_s", "reason", "error", "ended", "not_logged"))
    run.write_info(left[-1])
    newer = {**read_evaluations(run.path)[-1][1], "return_mean": best + 1, "best": True}
    (run.path / f"evals/{reached + 1}.json").write_text(json.dumps(newer))
    seed = seed_of(run, returncode=-9)
    seed.refresh()
    result = seed.result()
    assert (result.status, result.env_steps, result.best_return) == ("killed", reached, best + 1)
    assert reached > before


def test_the_newest_row_is_found_where_rows_are_long(tmp_path):
    """Of 100 agents, say; only the last 16 KiB were looked at."""
    run = RunDirectory(trained(tmp_path).directory)
    rows = [{"env_steps": number, **{f"agent_{i}/return_mean": 0.5 for i in range(2_000)}} for number in (1, 2)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"env_ste')
    seed = seed_of(run)
    seed.refresh()
    assert seed.metrics == rows[1]


def test_a_script_without_a_guard_begins_no_second_run_in_a_new_process(tmp_path, monkeypatch):
    """Where that process imports the script; the run would have had a directory of its own, and become `last`."""
    run = trained(tmp_path).directory
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    begin = (lambda: trained(tmp_path, "other"), lambda: palaestra.resume(run), lambda: small_group(tmp_path, 2))
    for one in begin:
        with pytest.raises(ConfigError, match='under `if __name__ == "__main__":`'):
            one()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [run.name]


def test_a_group_without_runs_is_named(tmp_path):
    (tmp_path / "g").mkdir()
    (tmp_path / "g/group.json").write_text("{}")
    for find in (lambda: find_runs(["g"], tmp_path), lambda: find_run("g", tmp_path), lambda: find_run(tmp_path / "g")):
        with pytest.raises(CheckpointError, match=r"the group .*g has no runs in it"):
            find()


def test_a_group_that_lacks_a_seed_is_refused(tmp_path):
    """It would end as if all had been trained."""
    for seed in (0, 1):
        written(tmp_path / "g", rows_of([1.0]), f"seed_{seed}")
    (tmp_path / "g/group.json").write_text(json.dumps({"seeds": [0, 1]}))
    shutil.rmtree(tmp_path / "g/seed_1")
    with pytest.raises(CheckpointError, match=r"g has no runs any more of the seeds 1, which its group.json names"):
        resume_seeds("g", root=tmp_path)
    (tmp_path / "g/group.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"group.json says no more which seeds there are"):
        resume_seeds("g", root=tmp_path)


def test_a_group_that_could_not_be_made_leaves_nothing(tmp_path, monkeypatch):
    """On a full disk, say; it can be begun again."""
    begin, count = RunDirectory.begin, itertools.count()

    def full(run, *arguments):
        if next(count):
            raise OSError(28, "No space left on device")
        begin(run, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "begin", full)
        with pytest.raises(CheckpointError, match=r"g cannot be written: .*No space left on device"):
            small_group(tmp_path, 2)
    assert not list(tmp_path.iterdir())
    assert small_group(tmp_path, 1).exit_code == 0


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-3]])
def test_seeds_that_are_none_are_refused(seeds, tmp_path):
    """F27."""
    with pytest.raises(ConfigError, match="give a number of at least 1, or different seeds of at least 0"):
        small_group(tmp_path, seeds)
    assert not list(tmp_path.iterdir())


def test_a_pair_that_does_not_fit_is_said_once_and_starts_nothing(tmp_path):
    """F27."""
    with pytest.raises(ConfigError, match="does not fit"):
        palaestra.train("dqn", "Pendulum-v1", seeds=2, run__directory=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_loggers_of_ones_own_cannot_reach_several_seeds(tmp_path):
    """F27."""
    with pytest.raises(ConfigError, match="processes of their own"):
        palaestra.train("ppo", CHAIN, seeds=2, loggers=[object()], run__directory=str(tmp_path))  # type: ignore


def logged(run: Path) -> bool:
    path = run / "metrics.jsonl"
    return path.exists() and path.stat().st_size > 0


def folder_of(pid: str) -> Path | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink()
    return None


def processes_of(group: Path) -> list[str]:
    # whole lines: with COLUMNS set, `ps` cuts them before the name of the run, and no process would ever be found
    listing = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    called = ("seed_process", "palaestra: run")  # until it has begun, and since
    lines = [line for line in listing.splitlines() if any(one in line for one in called)]
    seeds = [line for line in lines if f"{group.name}/seed_" in line]
    return [line for line in seeds if folder_of(line.split()[0]) == group.parent.parent]  # other tests have some, too


@pytest.mark.fault
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("everybody", [False, True])
@pytest.mark.needs_linux
@pytest.mark.usefixtures("hears_hangups")
def test_a_signal_stops_and_saves_all_seeds(how, code, everybody, tmp_path, wait_until):
    """F22: Ctrl-C on a terminal leaves out the seeds, schedulers do not; every seed saves, and can be resumed."""
    command = [sys.executable, "-c", COMMAND, *VERB, "--seeds", "2"]
    group = tmp_path / "runs" / "g"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: logged(group / "seed_0"), 90)
        for line in processes_of(group) if everybody else ():
            os.kill(int(line.split()[0]), how)
        os.killpg(process.pid, how)
        assert process.wait(90) == code
    for run in find_runs([group]):
        if run.status != "created":  # one core: the second has not begun
            assert run.status == "interrupted"
            assert list(run.path.glob("checkpoints/step_*/manifest.json"))
    assert not processes_of(group)


def test_a_fault_of_their_parent_lets_seeds_save(tmp_path, monkeypatch):
    """They are asked to, as by a signal, and waited for."""
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); print(flush=True); signal.pause()"

    started, asked = [], iter([False])

    def start(seed, others):
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        seed.process = subprocess.Popen([sys.executable, "-c", program], **pipes)
        started.append(seed.process.stdout.readline() and seed.process)

    monkeypatch.setattr(module.SeedProcess, "start", start)
    written(tmp_path / "g", [], "seed_0")
    (tmp_path / "g" / "group.json").write_text('{"seeds": [0]}')
    with pytest.raises(StopIteration):
        resume_seeds(tmp_path / "g", ended=lambda: next(asked))
    assert [process.returncode for process in started] == [143]


@pytest.mark.fault
@pytest.mark.needs_linux
def test_seeds_end_with_the_process_that_started_them(tmp_path, wait_until):
    """F16: even if that is killed; what they have learned is saved."""
    command = [sys.executable, "-c", COMMAND, *VERB, "--seeds", "2"]
    group = tmp_path / "runs" / "g"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: logged(group / "seed_0"), 90)
        process.kill()
    wait_until(lambda: not processes_of(group), 60)
    assert RunDirectory(group / "seed_0").status == "interrupted"
    assert list((group / "seed_0").glob("checkpoints/step_*/manifest.json"))


@pytest.mark.parametrize(
    ("code", "ended", "status"), [(2, "before", "failed"), (3, "now", "interrupted"), (130, "before", "interrupted")]
)
def test_a_seed_that_does_not_begin_again_says_why(tmp_path, code, ended, status):
    """What `run.json` says is of the session before; a process that was refused has left its reason in its output."""
    run = written(tmp_path, rows_of([1.0]), "seed_0")
    run.write_info({"status": "interrupted", "ended": "before"})
    (run.path / "output.txt").write_text("ConfigError  the module envs cannot be imported\n")
    seed = seed_of(run, returncode=code, poll=lambda: code)
    run.write_info({"ended": ended})
    result = seed.result()
    assert (result.status, result.exit_code) == (status, code)
    assert ("cannot be imported" in str(result.error)) == (status == "failed")


@pytest.mark.parametrize("seeds", ["3", True, 1.0, [0, "1"], [True, False]])
def test_seeds_are_whole_numbers(tmp_path, seeds):
    with pytest.raises(ConfigError, match="give a whole number of them"):
        palaestra.train("ppo", CHAIN, seeds=seeds, run__directory=str(tmp_path), **SMALL)


def test_what_a_script_defines_trains_in_it_and_says_where_it_cannot_go_on(tmp_path, monkeypatch, caplog):
    """USERS 3: another program says what to do, too."""
    own_chain = type("OwnChain", (Chain,), {"__module__": "__main__"})
    with monkeypatch.context() as script:
        script.setattr(sys.modules["__main__"], "OwnChain", own_chain, raising=False)
        done = palaestra.train("ppo", own_chain, run__directory=str(tmp_path), **SMALL)
    assert (
        "only this script can go on with what it trains with __main__:OwnChain; other programs need it" in caplog.text
    )
    with pytest.raises(ConfigError, match="is of the script in which it was named, and this is another program; move"):
        palaestra.evaluate_run(done.directory)


class OwnPPO(palaestra.PPO):
    """As users write one."""


def test_an_algorithm_may_be_given_as_its_class(tmp_path):
    """As an environment may."""
    done = palaestra.train(palaestra.PPO, Chain, run__directory=str(tmp_path), **SMALL)
    assert RunDirectory(done.directory).config.algorithm_name == "ppo"
    own = palaestra.train(OwnPPO, CHAIN, run__directory=str(tmp_path), **SMALL)
    assert RunDirectory(own.directory).config.algorithm_name == f"{__name__}:OwnPPO"
    with pytest.raises(ConfigError, match="has no name by which a run would find it again"):
        palaestra.train(type("Inside", (palaestra.PPO,), {"__module__": "nowhere"}), CHAIN)


def own_chain(**settings) -> Chain:
    """An environment that a function makes."""
    return Chain(**settings)


def test_a_function_that_makes_environments_trains_by_its_name(tmp_path):
    done = palaestra.train("ppo", own_chain, run__directory=str(tmp_path), **SMALL)
    assert RunDirectory(done.directory).config.env.name == "tests.experiments.test_seeds:own_chain"


def test_what_a_script_defines_is_refused_where_seeds_train_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "OwnChain", Chain, raising=False)
    with pytest.raises(ConfigError, match="move it into a module"):
        palaestra.train("ppo", "__main__:OwnChain", seeds=2, run__directory=str(tmp_path), **SMALL)
    assert not list(tmp_path.iterdir())


def test_runs_that_others_keep_to_themselves_are_not_listed(tmp_path, monkeypatch):
    """The superuser, as which tests may run, can read all, so the question is answered in place of the system."""
    mine, theirs = (trained(tmp_path, name, trainer__total_env_steps=8).directory for name in ("one", "two"))
    monkeypatch.setattr(os, "access", lambda path, mode: theirs not in Path(path).parents)
    assert list_runs(tmp_path) == [mine]
    assert find_run("last", tmp_path).path == mine


def test_what_a_seed_warns_of_is_said_once_by_its_parent(tmp_path, caplog):
    """A search that waited for episodes without an end waited without a word."""
    outputs, said = [tmp_path / "0.txt", tmp_path / "1.txt"], set()
    lines = [NewLines(path) for path in outputs]
    for path in outputs:
        path.write_text("WARNING  episodes do not end\nother\n")
    for seed, output in enumerate(lines):
        records.pass_on(output, f"seed {seed}", said)
    assert [one.getMessage() for one in caplog.records] == ["seed 0: episodes do not end"]
