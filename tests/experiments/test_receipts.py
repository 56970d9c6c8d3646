"""Tests of `palaestra verify --run`: a receipt for a run, which anyone can check on the same kind of machine."""

import dataclasses
import json
import shutil

import pytest
import torch

import palaestra
from palaestra.core import CheckpointError, ConfigError, EnvError
from palaestra.experiments import RunDirectory, read_metrics, verify_run
from palaestra.experiments.receipts import Receipt
from palaestra.training import Callback, CheckpointStore
from tests.cli.parts import exit_code, output
from tests.experiments.parts import CHAIN, SMALL, trained
from tests.runs.test_lineage import contents

SAVED = {"trainer__checkpoint_every_steps": 32, "run__num_threads": 1}
REPLAYED = {"algorithm__capacity": 64, "algorithm__learning_starts": 16, "algorithm__mini_batch_size": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with three checkpoints."""
    return trained(tmp_path_factory.mktemp("receipts"), **SAVED).directory


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it that a test may spoil."""
    return RunDirectory(shutil.copytree(finished, tmp_path / "run"))


def flattened(value):
    """The tensors of a nest."""
    if isinstance(value, dict):
        return [one for part in value.values() for one in flattened(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def spoil(run, step, part="algorithm"):
    """Changes one weight of a checkpoint, which stays whole."""
    store = run.checkpoints()
    state = store.load(store.directory / f"step_{step:010d}")[1]
    first = next(one for one in flattened(state[part]) if one.is_floating_point())
    first.view(-1)[0] += 1e-6
    store.save(step, state, replace=True)


def newest(run):
    return run.env_steps


def test_f33_the_last_iterations_come_to_the_same_bits_and_the_run_stays_as_it_is(run, capsys):
    before = contents(run.path)
    assert exit_code("verify", "--run", str(run.path)) == 0
    assert contents(run.path) == before
    said = output(capsys)
    assert "replaying " in said and ", env steps " in said
    assert "the same, bit for bit" in said
    assert exit_code("verify", "--run", str(run.path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert (found["ends"], found["other_bits"], found["machine"]) == (newest(run), [], {})
    assert 0 < found["begins"] < found["ends"]


def test_a_receipt_counts_what_the_run_counts():
    assert "5 iterations, updates 0 to 10" in str(Receipt("run", 0, 10, 5, (10,), (), {}, "updates"))


class EndsAt(Callback):
    """Ends a run early, as a time limit does."""

    def iteration_ended(self, trainer, updates):
        if trainer.collector.env_steps >= 80:
            trainer.stop("time limit")


def test_a_run_that_was_ended_early_is_verified_too(tmp_path):
    """Its last evaluation and row of metrics are part of its end, which the replay comes to in the same way."""
    hook = "tests.experiments.test_receipts:EndsAt"
    ended = trained(tmp_path, **SAVED, run__callbacks=(hook,), trainer__log_every_steps=1000)
    assert ended.result.status == "stopped"
    run = RunDirectory(ended.directory)
    alone = dataclasses.replace(run.config.run, callbacks=())
    run.save_config(dataclasses.replace(run.config, run=alone))
    assert verify_run(run.path).ok


def test_a_run_that_still_trains_is_not_replayed(run):
    """It deletes the checkpoints that are compared in the end, and the work was for nothing."""
    run.lock()
    with pytest.raises(ConfigError, match=r"still trains, and deletes the checkpoints .*; wait until it has ended"):
        verify_run(run.path)
    run.unlock()


@pytest.mark.parametrize("again", [{"from_start": True}, {"iterations": 4}])
def test_more_of_it_is_replayed_if_asked(run, again):
    receipt = verify_run(run.path, **again)
    assert receipt.ok
    assert (receipt.begins == 0) == ("from_start" in again)
    logged = {row["env_steps"]: row["iterations"] for row in read_metrics(run.path)}
    assert receipt.iterations == logged[receipt.ends] - logged.get(receipt.begins, 0) >= 4
    assert len(receipt.compared) >= 2


def test_what_earlier_rows_left_in_a_buffer_is_no_other_bit(run):
    """The open row has no action yet: what lies there is of another unroll, and a buffer that was loaded lacks it."""
    store = run.checkpoints()
    state = store.load(store.directory / f"step_{newest(run):010d}")[1]
    buffer = state["buffer"]
    buffer["field.action"][int(buffer["head"][0]), 0] += 1
    store.save(newest(run), state, replace=True)
    assert verify_run(run.path).ok


def test_a_single_bit_is_found_and_another_machine_is_named(run, capsys):
    """The mutant: were the comparison blind, the tests above would prove nothing."""
    spoil(run, newest(run))
    assert exit_code("verify", "--run", str(run.path)) == 1
    assert "has the code changed since?" in output(capsys)
    (other,) = verify_run(run.path).other_bits
    assert other.startswith(".algorithm.")
    info = run.info
    run.write_info({"versions": {**info["versions"], "torch": "1.13.0"}})
    assert exit_code("verify", "--run", str(run.path)) == 1
    said = output(capsys)
    assert "machine torch: 1.13.0 then" in said
    assert "what computed it is named above" in said


def test_what_the_replay_takes_from_the_run_is_no_difference_of_machine(run, capsys):
    """The facts of a process that has not begun yet were compared, and excused other bits."""
    spoil(run, newest(run))
    torch.set_num_threads(2)  # the run has one
    assert exit_code("verify", "--run", str(run.path)) == 1
    said = output(capsys)
    assert "machine" not in said.replace("the machine is of the same kind", "")
    assert "has the code changed since?" in said


def test_a_run_of_self_play_is_verified_too(tmp_path):
    """Where its last evaluation was the best, the policy that is kept is another rival than the one of then."""
    sizes = {"env__num_envs": 2, "algorithm__unroll_length": 8, "algorithm__network__hidden_sizes": (8,)}
    pool = {"agents__self_play__pool_size": 2, "agents__self_play__snapshot_period": 1}
    steps = {"trainer__total_env_steps": 96, "trainer__eval_every_steps": 0, "trainer__eval_episodes": 4}
    where = {"run__directory": str(tmp_path), "run__tensorboard": False}
    done = palaestra.train("ppo", "palaestra.multiagent:Meeting", **sizes, **pool, **steps, **where, **SAVED)
    run = RunDirectory(done.directory)
    assert verify_run(run.path).other_bits == ()
    spoil(run, newest(run), "algorithm.shared")
    (other,) = verify_run(run.path).other_bits
    assert other.startswith(".algorithm.shared.")


def test_what_nobody_could_replay_is_refused_with_what_to_do(run):
    steps = sorted(int(path.name.removeprefix("step_")) for path in run.checkpoints().steps())
    with pytest.raises(CheckpointError, match=r"keeps 3 checkpoints.*give at most \d+, or --from-start, or train with"):
        verify_run(run.path, iterations=1_000)
    with pytest.raises(ConfigError, match="iterations is 0; give at least 1"):
        verify_run(run.path, iterations=0)
    run.write_info({"overrides": [{"env_steps": steps[1], "changes": {"algorithm.gamma": [0.9, 0.5]}}]})
    assert verify_run(run.path).ok
    with pytest.raises(ConfigError, match=r"settings of .* changed .* \(algorithm.gamma\).*; leave out --from-start"):
        verify_run(run.path, from_start=True)
    with pytest.raises(ConfigError, match="iterations is 3, and from_start replays all"):
        verify_run(run.path, iterations=3, from_start=True)
    run.write_info({"overrides": [], "resumed_at": steps[1], "resume": "statistical", "resume_reasons": ["so"]})
    with pytest.raises(ConfigError, match=r"went on at .* so, so that nothing that begins before"):
        verify_run(run.path, iterations=4)
    for step in steps[:2]:
        shutil.rmtree(run.path / "checkpoints" / f"step_{step:010d}")
    with pytest.raises(CheckpointError, match="has one checkpoint, so there is nothing to replay from"):
        verify_run(run.path)


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("distributed", {"runtime": "process", "mode": "async"}),
        ("distributed", {"runtime": "process", "min_finished_workers": 1}),
        ("env", {"vectorization": "process", "num_ready": 1}),
    ],
)
def test_what_learns_from_whatever_comes_first_is_refused_before_it_begins(run, part, settings):
    changed = dataclasses.replace(getattr(run.config, part), **settings)
    run.save_config(dataclasses.replace(run.config, **{part: changed}))
    with pytest.raises(ConfigError, match=r"learned from whatever came first \(mode=async, .*; leave these out"):
        verify_run(run.path, from_start=True)


def test_a_replay_that_fails_names_no_folder_that_is_gone(run, monkeypatch):
    """What a run that fails says of itself, and how to resume it, is of the copy."""

    def fails(self, *args, **kwargs):
        raise EnvError("it broke")

    monkeypatch.setattr("palaestra.training.Trainer.train_iter", fails)
    with pytest.raises(EnvError, match="it broke") as failed:
        verify_run(run.path)
    assert not failed.value.__notes__


def test_options_that_do_not_belong_together_are_refused(capsys):
    assert exit_code("verify", "ppo_CartPole-v1", "--iterations", "3") == 2
    assert "--iterations is for --run RUN" in output(capsys)
    assert exit_code("verify", "ppo_CartPole-v1", "--run", "last") == 2
    assert "leave out the row" in output(capsys)
    assert exit_code("verify") == 2
    assert "or palaestra verify --run RUN" in output(capsys)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("dqn", REPLAYED),
        pytest.param("r2d2", {"algorithm__capacity": 64, "algorithm__learning_starts": 16}, marks=pytest.mark.slow),
        pytest.param("ppo", {"distributed__runtime": "process", "distributed__num_workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_buffers_and_workers_are_replayed_as_well(algorithm, settings, tmp_path):
    small = {name: value for name, value in SMALL.items() if not name.startswith("algorithm") or algorithm == "ppo"}
    where = {"run__directory": str(tmp_path), "run__name": "it"}
    run = palaestra.train(algorithm, CHAIN, **small | SAVED | where | settings).directory
    assert len(CheckpointStore(run / "checkpoints").steps()) == 3
    receipt = verify_run(run)
    assert receipt.other_bits == ()
    assert verify_run(run, from_start=True).ok
