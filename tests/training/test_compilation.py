"""Training that begins eagerly and goes on compiled: the same numbers each time, and no process left behind."""

import dataclasses
import functools
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import palaestra
from palaestra.core import ConfigError, Offline, OnPolicy, Replay
from palaestra.experiments import load_config
from palaestra.runs.build import make_compiled_later, make_learner
from palaestra.runtime import Companion
from palaestra.training import Callback, planned_gradient_steps
from tests.algorithms.parts import collected

AFTER = 20
SMALL = {
    "trainer__total_env_steps": 640,
    "trainer__eval_episodes": 0,
    "env__num_envs": 2,
    "algorithm__unroll_length": 16,
    "algorithm__mini_batch_size": 16,
    "algorithm__num_epochs": 2,
    "algorithm__network__hidden_sizes": (8,),
    "run__num_threads": 1,
    "run__tensorboard": False,
}
STEPS = 84  # of 21 iterations, for resets are no env steps


@pytest.fixture
def early(monkeypatch):
    """The switch comes after 20 gradient steps of a run of 40 or more."""
    build = importlib.import_module("palaestra.runs.build")
    monkeypatch.setattr(build.training, "COMPILED_AFTER", AFTER)
    monkeypatch.setattr(build.training, "LEAST_COMPILED", 2 * AFTER)


@pytest.fixture
def pretended(monkeypatch, early):
    """Nothing is compiled: `compiled` has the gradient steps made by what would be, `sent` what would compile it."""
    steps = importlib.import_module("palaestra.algorithms.compiled_steps")
    later = importlib.import_module("palaestra.training.compilation")
    made = {"compiled": [], "sent": []}

    def compiled_method(owner, method, example, *rest):
        def call(batch):
            if method.__name__ != "preprocess_in_graph":
                made["compiled"].append(owner.num_gradient_steps)
            return method(owner, batch)

        return call

    class Pretended:
        def __init__(self, call):
            made["sent"].append(call)

        def wait(self, timeout_s=0.0):
            return ""

        def end(self):
            pass

    monkeypatch.setattr(steps, "compiled_method", compiled_method)
    monkeypatch.setattr(later, "Companion", Pretended)
    return made


class StopAt(Callback):
    """Ends a run after so many iterations."""

    def __init__(self, iterations):
        self.left = iterations

    def iteration_ended(self, trainer, updates):
        self.left -= 1
        if not self.left:
            trainer.stop("enough")


def train(path, *, callbacks=(), **settings):
    return palaestra.train("ppo", "CartPole-v1", run__directory=str(path), callbacks=callbacks, **SMALL | settings)


def said(result):
    return json.loads((result.directory / "run.json").read_text())["compiled"]


def weights(result):
    return {name: value.clone() for name, value in result.policy.state_dict().items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("plan", "lanes", "expected"),
    [
        (OnPolicy(unroll_length=5), 2, 100),
        (OnPolicy(unroll_length=100, num_epochs=4, mini_batch_size=50, mini_batch_length=1), 2, 80),
        (OnPolicy(unroll_length=10, clear=False, capacity=200, mini_batch_size=20, mini_batch_length=1), 1, 1000),
        (Replay(unroll_length=1, gradient_steps=3, learning_starts=500), 1, 1500),
        (Replay(unroll_length=10, num_epochs=2, capacity=100, mini_batch_size=10), 1, 2000),
        (Offline(gradient_steps=2), 1, 2000),
    ],
)
def test_gradient_steps_are_planned_from_settings_alone(plan, lanes, expected):
    assert planned_gradient_steps(plan, 1000, lanes) == expected


@pytest.mark.parametrize(("gradient_steps", "policy_period"), [(1, 2), (4, 2), (3, 6)])
def test_all_is_prepared_that_a_pass_needs(monkeypatch, gradient_steps, policy_period):
    """Terms that are due in other steps of an update have graphs of their own."""
    made = []

    def compiled_method(owner, method, example, *rest):
        made.append(owner.is_due("actor"))
        return method

    monkeypatch.setattr("palaestra.algorithms.compiled_steps.compiled_method", compiled_method)
    settings = {"gradient_steps": gradient_steps, "policy_period": policy_period}
    algorithm, collector = collected("td3", "continuous", **settings)
    algorithm.compile(after=100)
    for _ in range(4):
        algorithm.update(collector.source)
    before = algorithm.num_gradient_steps
    algorithm.prepare()
    assert sorted(made) == [False, True]
    assert algorithm.num_gradient_steps == before


def test_a_short_run_is_eager_starts_no_process_and_says_so_in_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr("palaestra.training.compilation.Companion", None)
    record = said(train(tmp_path))
    assert record["after"] == {}
    assert "about 80 gradient steps" in record["eager"]["policy"]


def test_the_switch_comes_at_its_gradient_step(tmp_path, pretended):
    record = said(train(tmp_path))
    assert record["after"] == {"policy": AFTER}
    assert pretended["compiled"] == list(range(AFTER, STEPS))
    assert len(pretended["sent"]) == 1


@pytest.mark.parametrize("compile", [True, False])
def test_what_is_asked_for_is_done_from_the_start(tmp_path, pretended, compile):
    result = train(tmp_path, run__compile=compile)
    assert "compiled" not in json.loads((result.directory / "run.json").read_text())
    assert pretended["compiled"] == (list(range(STEPS)) if compile else [])


@pytest.mark.parametrize("iterations", [3, 5, 9])
def test_a_resumed_run_switches_where_the_whole_one_does(tmp_path, pretended, iterations):
    result = train(tmp_path, callbacks=[StopAt(iterations)])
    palaestra.resume(result.directory)
    assert pretended["compiled"] == list(range(AFTER, STEPS))


def test_a_resumed_run_keeps_its_switch_where_the_default_is_another_by_now(tmp_path, pretended, monkeypatch):
    result = train(tmp_path, callbacks=[StopAt(3)])
    build = importlib.import_module("palaestra.runs.build")
    monkeypatch.setattr(build.training, "COMPILED_AFTER", 40)
    monkeypatch.setattr(build.training, "LEAST_COMPILED", 1000)
    assert said(palaestra.resume(result.directory))["after"] == {"policy": AFTER}
    assert pretended["compiled"] == list(range(AFTER, STEPS))


@pytest.mark.parametrize("compile", [True, False])
def test_a_resumed_run_that_is_told_whether_to_compile_has_no_switch(tmp_path, pretended, compile):
    result = train(tmp_path, callbacks=[StopAt(3)])
    palaestra.resume(result.directory, run__compile=compile)
    assert pretended["compiled"] == (list(range(12, STEPS)) if compile else [])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_switch_is_kept_only_where_the_run_may_still_be_compiled(tmp_path, pretended, device):
    learner = make_learner(load_config(train(tmp_path, callbacks=[StopAt(3)]).directory / "config.yaml"))
    learner.config = dataclasses.replace(learner.config, run=dataclasses.replace(learner.config.run, device=device))
    later = make_compiled_later(learner, print)
    later.load_state({"after": {"policy": AFTER}, "eager": {}, "planned": {"policy": 80}})
    assert later.record()["after"] == ({"policy": AFTER} if device == "cpu" else {})


def test_a_budget_that_became_larger_may_be_worth_it(tmp_path, pretended, monkeypatch):
    build = importlib.import_module("palaestra.runs.build")
    monkeypatch.setattr(build.training, "LEAST_COMPILED", 100)
    result = train(tmp_path)
    assert pretended["compiled"] == []
    again = palaestra.resume(result.directory, trainer__total_env_steps=960)
    assert said(again)["after"] == {"policy": AFTER}
    assert pretended["compiled"][0] == STEPS


def test_what_cannot_be_compiled_stays_eager_and_says_why_once(tmp_path, pretended, monkeypatch, caplog):
    def refuse(owner, method, example, *rest):
        raise RuntimeError("graph break\n\nlong story\n  fast.h:3:1: fatal error: no such file\nand error: more")

    monkeypatch.setattr("palaestra.algorithms.compiled_steps.compiled_method", refuse)
    result = train(tmp_path)
    assert result.result.status == "done"
    why = "PPO cannot be compiled: RuntimeError: graph break (fast.h:3:1: fatal error: no such file)"
    assert caplog.text.count(f"stays eager: {why}") == 1
    assert said(result) == {
        "after": {},
        "eager": {"policy": why},
        "planned": {"policy": 80},
    }


def test_without_a_compiler_a_long_run_stays_eager_and_says_why(tmp_path, pretended, monkeypatch, caplog):
    monkeypatch.setattr("palaestra.nn.fast.shutil.which", lambda name: None)
    record = said(train(tmp_path))
    assert record["after"] == {}
    assert "C++ compiler" in record["eager"]["policy"]
    assert caplog.text.count("C++ compiler") == 1


def test_a_policy_with_a_hidden_state_stays_eager(tmp_path, pretended, caplog):
    record = said(train(tmp_path, algorithm__network__recurrent="gru"))
    assert record["after"] == {}
    assert "hidden state" in record["eager"]["policy"]
    assert "hidden state" in caplog.text


def test_policies_that_learn_with_gradient_workers_stay_eager(tmp_path, pretended):
    record = said(train(tmp_path, distributed__runtime="local", distributed__gradient_shards=2))
    assert "gradient workers" in record["eager"]["policy"]


def test_a_companion_that_dies_is_named(wait_until):
    companion = Companion(functools.partial(time.sleep, 100))
    try:
        assert companion.wait() is None
        os.kill(companion.pid, signal.SIGKILL)
        wait_until(lambda: companion.wait() is not None, timeout_s=30)
        assert companion.wait() == "was killed by signal 9"
    finally:
        companion.end()


def test_the_other_process_warns_of_kernels_where_the_run_does(tmp_path, pretended):
    """It raised, and nothing was compiled."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        train(tmp_path)
        torch.use_deterministic_algorithms(False)
        sent = pretended["sent"][0]
        sent.func([], *sent.args[1:], **sent.keywords)
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)


def test_a_companion_takes_no_script_and_refuses_what_cannot_be_sent():
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        Companion(functools.partial(next, (number for number in range(3))))


@pytest.mark.slow
def test_a_companion_says_what_its_function_raised(wait_until):
    companion = Companion(functools.partial(os.listdir, "/no/such/folder"))
    try:
        wait_until(lambda: companion.wait() is not None, timeout_s=120)
        assert "No such file or directory: '/no/such/folder'" in (companion.wait() or "")
    finally:
        companion.end()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_runs_with_a_switch_in_the_middle_are_equal_and_resume_exactly(tmp_path, early, caplog):
    caplog.set_level(logging.INFO)
    whole = train(tmp_path / "a")
    assert "learns compiled after 20 gradient steps" in caplog.text
    assert same(weights(train(tmp_path / "b")), weights(whole))
    for iterations in (3, 9):  # before and after the switch
        part = train(tmp_path / str(iterations), callbacks=[StopAt(iterations)])
        assert same(weights(palaestra.resume(part.directory)), weights(whole))
    assert not same(weights(train(tmp_path / "c", run__compile=False)), weights(whole))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_tensor_environments_are_stepped_compiled_from_the_same_iteration_on(tmp_path, early, algorithm, caplog):
    caplog.set_level(logging.INFO)

    def run(name):
        env, settings = "palaestra.envs.tiny:TensorCartPole", SMALL
        if algorithm == "dqn":
            settings = {key: value for key, value in SMALL.items() if not key.startswith("algorithm__")}
            settings |= {"algorithm__learning_starts": 64, "algorithm__unroll_length": 4}
        return palaestra.train(algorithm, env, run__directory=str(tmp_path / name), **settings)

    assert same(weights(run("a")), weights(run("b")))
    assert caplog.text.count("learns compiled after") == 2
    assert "stay eager" not in caplog.text


def companions(pid):
    """Processes of the group that a run's companion leads, its compilers included."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if (int(fields[1]) == pid and b"palaestra: compiler" in command) or int(fields[2]) in found:
            found.append(int(entry.name))
    return found


@pytest.mark.fault
@pytest.mark.needs_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_while_another_process_compiles_leaves_none(tmp_path, wait_until, number):
    """F: Ctrl-C ends the process that compiles, and its compilers; so does the death of the run."""
    options = ["--trainer.total-env-steps", "500000", "--run.directory", str(tmp_path), "--trainer.eval-episodes", "0"]
    code = "from palaestra.cli import main; main()"
    run = subprocess.Popen(
        [sys.executable, "-c", code, "train", "dqn", "CartPole-v1", *options],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: companions(run.pid), timeout_s=120)
        (leader, *_) = companions(run.pid)
        run.send_signal(number)
        run.wait(120)

        def over():
            try:
                os.killpg(leader, 0)
            except ProcessLookupError:
                return True
            return False

        wait_until(over, timeout_s=60)
    finally:
        run.kill()


def test_an_optimizer_that_cannot_be_compiled_is_named_at_once():
    algorithm, _ = collected("ppo", "discrete", optimizers={"ppo": "RAdam"})
    with pytest.raises(ConfigError, match="steps of RAdam cannot be compiled; leave out --compile, or use adam"):
        algorithm.compile()
