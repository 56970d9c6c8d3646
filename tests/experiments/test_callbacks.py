"""Callbacks in every way of training: as objects, and by name."""

import os
import re
from pathlib import Path

import pytest

import palaestra
from palaestra.core import ConfigError, StepType
from palaestra.experiments import RunDirectory
from palaestra.training import Callback
from tests.cli import parts as cli
from tests.experiments.parts import CHAIN, SMALL, Hook, config_of, trained

NAME = "tests.experiments.parts:Hook"


def test_train_run_and_resume_take_callbacks(tmp_path):
    """TS-28: hooks and a run directory, whichever function trains."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run = trained(tmp_path, callbacks=[Hook(str(first), stop_at=1)])
    assert (run.result.status, run.result.reason) == ("stopped", "enough")
    steps = run.result.env_steps
    assert first.read_text().splitlines() == [f"learned {steps}", f"evaluated {steps}", "ended"]
    done = palaestra.resume(run.directory, callbacks=[Hook(str(second))])
    assert done.result.status == "done"
    kinds = [line.split()[0] for line in second.read_text().splitlines()]
    assert (kinds[0], kinds[-2:], kinds.count("ended")) == ("learned", ["evaluated", "ended"], 1)
    assert f"learned {steps}" not in second.read_text()
    palaestra.run(config_of(tmp_path, run__name="other"), callbacks=[Hook(str(third))])
    assert third.read_text().count("learned") == kinds.count("learned") + 1


class Counting(Callback):
    """Has a state of its own."""

    count = 0

    def iteration_ended(self, trainer, updates):
        self.count += 1

    def state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"]


def test_a_run_that_goes_on_without_a_callback_says_so(tmp_path):
    """TS-28, F25: what it had done is not done any more."""
    run = trained(tmp_path, callbacks=[Counting()], trainer__total_env_steps=96)
    palaestra.resume(run.directory, callbacks=[again := Counting()], trainer__total_env_steps=160)
    assert again.count > 6 and RunDirectory(run.directory).info["resume"] == "exact"
    palaestra.resume(run.directory, trainer__total_env_steps=192)
    why = RunDirectory(run.directory).info["resume_reasons"]
    assert why == ["without Counting, a callback that it had before"]


def test_a_method_that_is_nearly_called_as_a_hook_is_noticed(caplog):
    type("Own", (Callback,), {"iteration_end": lambda self, trainer: None, "helper": lambda self: None})
    assert "Own.iteration_end is no hook that a run calls; did you mean iteration_ended?" in caplog.text
    assert "helper" not in caplog.text


class Greedy(Callback):
    """Tianshou's `train_fn`: sets epsilon before each iteration, and notes what acted in it."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int]]] = []

    def iteration_began(self, trainer):
        trainer.algorithm.policy.exploration.epsilon = 0.0 if self.seen else 1.0

    def iteration_ended(self, trainer, updates):
        rows = trainer.collector.sources["policy"][-20:]
        acted = rows.action[rows.step_type != StepType.LAST]
        self.seen.append((trainer.algorithm.policy.exploration.epsilon, acted.tolist()))


@pytest.mark.parametrize("distributed", [{}, {"distributed__runtime": "local", "distributed__num_workers": 1}])
def test_ts_28_train_fn_sets_epsilon(distributed, tmp_path):
    """TS-28: what a hook sets is what the iteration acts with: at random, then always alike."""
    hook = Greedy()
    settings = {**SMALL, "run__directory": str(tmp_path), "algorithm__unroll_length": 20, "env__num_envs": 1}
    settings |= {"algorithm__learning_rate": 1e-9, "algorithm__learning_starts": 0, "trainer__total_env_steps": 60}
    settings |= distributed
    palaestra.train("dqn", "palaestra.envs.tiny:Bandit", callbacks=[hook], **settings)
    assert [epsilon for epsilon, _ in hook.seen] == [1.0, *[0.0] * (len(hook.seen) - 1)]
    assert len(set(hook.seen[0][1])) > 1 and len(set(hook.seen[-1][1])) == 1


def test_the_command_line_takes_callbacks_by_name(tmp_path, monkeypatch, capsys):
    """TS-28: the run remembers them, and goes on with them."""
    monkeypatch.chdir(tmp_path)
    run = cli.train("--callbacks", f"{NAME}(file='notes', stop_at=1)")
    notes = (tmp_path / "notes").read_text().splitlines()
    assert [line.split()[0] for line in notes if "evaluated" not in line] == ["learned", "ended"]
    assert cli.exit_code("resume", str(run)) == 0
    both = (tmp_path / "notes").read_text().splitlines()
    assert both[: len(notes)] == notes
    assert [line.split()[0] for line in both[len(notes) :] if "evaluated" not in line] == ["learned", "ended"]
    assert "evaluation" in cli.output(capsys)


@pytest.mark.slow
def test_seeds_take_callbacks_by_name_in_their_processes(tmp_path):
    """TS-28."""
    notes, name = tmp_path / "notes", f"{NAME}(file={str(tmp_path / 'notes')!r})"
    settings = {**SMALL, "run__directory": str(tmp_path), "run__callbacks": (name,)}
    assert palaestra.train("ppo", CHAIN, seeds=2, **settings).exit_code == 0
    assert notes.read_text().count("ended") == 2
    with pytest.raises(ConfigError, match="name callbacks instead"):
        palaestra.train("ppo", CHAIN, seeds=2, callbacks=[Hook(str(notes))], **settings)  # type: ignore


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:system", "a callback is needed"),
        ("palaestra:PPO", "a callback is needed"),
        ("tests.experiments.parts:Hooks", "did you mean 'Hook'"),
        (NAME, "missing a required argument: 'file'"),
        (f"{NAME}(fil='x')", "does not fit"),
        (f"{NAME}('x')", "arguments need names"),
        ("Hook", "not of the form"),
    ],
)
def test_a_name_that_means_no_callback_is_refused_before_anything_starts(tmp_path, name, message):
    """TS-28, F27: nothing but callbacks is called."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        trained(tmp_path, run__callbacks=(name,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{"callbacks": [Callback]}, {"callbacks": Callback()}, {"loggers": print}])
def test_hooks_that_a_run_could_not_call_are_refused_before_it_begins(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="give a list of"):
        palaestra.train("ppo", "CartPole-v1", **given)
    assert not list(tmp_path.iterdir())


class Elsewhere(Callback):
    """Changes the working directory, as some environments do."""

    def iteration_ended(self, trainer, updates):
        os.chdir("/")


def test_the_working_directory_may_change_while_a_run_goes_on(tmp_path, monkeypatch):
    """The run ended, for its directory was "gone"."""
    for run in ({"fork": False}, {"fork": True}):
        monkeypatch.chdir(tmp_path)
        if not run["fork"]:
            done = trained(Path("runs"), callbacks=[Elsewhere()], trainer__checkpoint_every_steps=32)
        else:
            done = palaestra.resume("runs/run", **run, callbacks=[Elsewhere()], trainer__total_env_steps=160)
        assert done.result.status == "done"
        assert RunDirectory(done.directory).status == "done" and done.directory.is_relative_to(tmp_path / "runs")
        assert RunDirectory(done.directory).env_steps == done.result.env_steps
