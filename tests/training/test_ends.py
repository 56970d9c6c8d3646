"""Tests of `palaestra.training.trainer`: what ends a run, what it survives, and what hooks see."""

import itertools
import json
import logging
from pathlib import Path

import pytest
import torch

from palaestra import Trainer
from palaestra.algorithms import UpdateInfo
from palaestra.core import CheckpointError, ConfigError, NonFiniteError, load_tensors
from palaestra.training import CheckpointStore, Evaluated
from palaestra.training.learning import PolicyRecord
from tests.algorithms.parts import collected
from tests.training.parts import Hooks, Recorder, evaluation_in, trainer


class Result:
    """An evaluation with a mean return and nothing else."""

    def __init__(self, return_mean: float) -> None:
        self.return_mean, self.parts, self.against_best = return_mean, {}, None


# -- early ends


def test_a_run_stops_once_an_evaluation_reaches_the_goal():
    """TS-28, MARO-47: stop_fn, early stopper; the reason is in the result."""
    returns = iter([1.0, 3.0])
    made = trainer(
        "ppo", total=10_000, eval_every_steps=50, stop_at_return=2.5, evaluate=lambda policy: Result(next(returns))
    )
    result = made.run()
    assert (result.status, result.exit_code) == ("stopped", 0)
    assert 100 <= result.env_steps < 200
    assert "reached a mean return of 3.0, the goal was 2.5" in result.reason


@pytest.mark.parametrize("settings", [{"stop_at_return": 0.0}, {"time_limit_s": 1e-9}])
def test_a_run_that_stops_where_a_row_is_due_has_one_row_of_its_end(settings):
    rows = Recorder()
    made = trainer(
        "ppo", total=10_000, log_every_steps=1, loggers=[rows], evaluate=lambda policy: Result(1.0), **settings
    )
    made.run()
    steps = [row["env_steps"] for row in rows.rows]
    assert len(set(steps)) == len(steps)
    assert "learning/surrogate" in rows.rows[-1]


def test_the_best_is_known_whatever_the_first_evaluation_was():
    returns = iter([float("nan"), 1.0, 3.0, 2.0])
    kept = list[float]()
    hooks = Hooks(evaluated=lambda _, result: result.best and kept.append(result.evaluation.return_mean))
    made = trainer("ppo", total=400, evaluate=lambda policy: Result(next(returns)), callbacks=[hooks])
    for _ in range(4):
        made.evaluate()
    assert kept[1:] == [1.0, 3.0]
    assert made.best_return == 3.0


def test_of_equal_returns_the_newest_is_kept_however_they_were_rounded():
    """Self-play in a game of no sum: +0.3 and -0.1 -0.2 are no reason to keep an early policy for ever."""
    returns = iter([0.0, 0.3 - (0.1 + 0.2), 0.0, 0.0 - 1e-3])
    found = list[bool]()
    hooks = Hooks(evaluated=lambda _, result: found.append(result.best))
    made = trainer("ppo", total=400, evaluate=lambda policy: Result(next(returns)), callbacks=[hooks])
    for _ in range(4):
        made.evaluate()
    assert found == [True, True, True, False]


def test_an_evaluation_that_brings_nothing_is_not_the_one_before(monkeypatch):
    same = Result(7.0)
    made = trainer("ppo", total=400, evaluate=lambda policy: same)
    assert made.evaluate().return_mean == made.evaluate().return_mean == 7.0
    monkeypatch.setattr(made, "_begin_evaluation", lambda wait: None)
    with pytest.raises(ConfigError, match="no evaluation episode ended in time"):
        made.evaluate()


def test_a_time_limit_ends_the_run_evaluated_and_saved(tmp_path):
    """The run directory of a limited run is complete, and resuming it goes on."""
    store, seen = CheckpointStore(tmp_path), []
    hooks = Hooks(evaluated=lambda trainer, result: seen.append(result.env_steps))
    made = trainer(
        "ppo",
        total=10**7,
        time_limit_s=0.2,
        eval_every_steps=0,
        evaluate=evaluation_in(),
        callbacks=[hooks],
        checkpoints=store,
    )
    result = made.run()
    assert (result.status, result.reason) == ("stopped", "time limit of 0.2 s")
    assert seen == [result.env_steps] == [store.load_newest()[0]]
    assert result.train_s < 20.0


def test_a_callback_may_end_the_run():
    made = trainer("ppo", total=10_000, callbacks=[Hooks(iteration_ended=lambda t, updates: t.stop("enough"))])
    result = made.run()
    assert (result.status, result.reason) == ("stopped", "enough")
    assert made.algorithm.policy_version == 1


def test_evaluations_may_come_by_time():
    """Evaluation by seconds instead of env steps; the end has one of its own."""
    calls: list[str] = []
    trainer(
        "ppo",
        total=400,
        eval_every_s=1e-6,
        evaluate=lambda policy: (calls.append("evaluation"), Result(0.0))[1],
        callbacks=[Hooks(iteration_ended=lambda t, updates: calls.append("iteration"))],
    ).run()
    assert calls.count("evaluation") == calls.count("iteration") > 5


# -- hooks


def test_callbacks_are_called_in_order_and_may_add_to_rows():
    """TS-28, MARO-47: train_fn and post_collect, test_fn and post_evaluate, save_fn; one protocol for all of them."""
    calls, recorder = [], Recorder()
    hooks = Hooks(
        iteration_began=lambda t: calls.append("began"),
        iteration_ended=lambda t, updates: calls.append(("ended", updates["policy"].policy_version)),
        evaluation_began=lambda t: calls.append(("evaluating", t.algorithm.policy_version)),
        evaluated=lambda t, result: calls.append(("evaluated", result.best)),
        logged=lambda t, row: row.__setitem__("mine", 7.0),
        ended=lambda t: calls.append("over"),
    )
    made = trainer("ppo", total=60, loggers=[recorder], evaluate=lambda policy: Result(0.0), callbacks=[hooks])
    made.run()
    assert calls[:2] == ["began", ("ended", 1)]
    assert calls[-3:] == [("evaluating", made.algorithm.policy_version), ("evaluated", True), "over"]
    assert all(row["mine"] == 7.0 for row in recorder.rows)


def test_a_callback_that_raises_ends_the_run():
    def broken(t: Trainer) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer("ppo", callbacks=[Hooks(iteration_began=broken)]).run()


@pytest.mark.slow
def test_an_asynchronous_evaluation_is_of_the_policy_as_it_was(wait_until):
    """Evaluation in a process of its own: training goes on, results come in order, with the copy that was evaluated."""
    seen: list[Evaluated] = []
    made = trainer(
        "ppo",
        "continuous",
        total=400,
        eval_every_steps=150,
        eval_async=True,
        normalize_observation=True,
        evaluate=evaluation_in("continuous"),
        callbacks=[Hooks(evaluated=lambda t, result: seen.append(result))],
    )
    plain = trainer("ppo", "continuous", total=400, normalize_observation=True)
    plain.run()
    result = made.run()
    assert [evaluated.env_steps // 150 for evaluated in seen] == [1, 2, 2]
    assert result.evaluation == seen[-1].evaluation
    assert seen[0].policy is not made.algorithm.policy
    assert evaluation_in("continuous")(seen[0].policy).returns == seen[0].evaluation.returns
    assert evaluation_in("continuous")(made.algorithm.policy).returns == seen[-1].evaluation.returns
    for name, value in plain.algorithm.model.state_dict().items():
        assert torch.equal(value, made.algorithm.model.state_dict()[name])


# -- time


@pytest.mark.slow
def test_the_time_split_adds_up():
    """Environment, inference, storing, learning and waiting are all of the time, and none is negative."""
    recorder = Recorder()
    trainer("ppo", total=2000, evaluate=evaluation_in(), eval_every_steps=100, loggers=[recorder]).run()
    for row in recorder.rows:
        parts = [row[f"time/{part}"] for part in ("environment", "inference", "storing", "learning", "waiting")]
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(1.0)


# -- what is not finite


def poisoned(made: Trainer, updates: set[int]) -> None:
    """Makes the loss of some updates NaN."""
    count, losses = itertools.count(1), made.algorithm.losses
    preprocess = made.algorithm.preprocess
    now = 0

    def preprocessing(batch, source):
        nonlocal now
        now = next(count)
        return preprocess(batch, source)

    def losing(batch):
        stated = losses(batch)
        return (
            stated._replace(terms={k: v * float("nan") for k, v in stated.terms.items()}) if now in updates else stated
        )

    made.algorithm.preprocess, made.algorithm.losses = preprocessing, losing


def test_an_update_that_is_not_finite_is_skipped_so_often_and_then_ends_the_run(tmp_path, caplog):
    """F23: parameters bit-identical to before, batch and parameters kept, exit code 4."""
    made = trainer("ppo", total=10_000, max_skipped_updates=2, checkpoints=CheckpointStore(tmp_path / "checkpoints"))
    poisoned(made, {2, 3, 5, 6, 7})
    states = []
    made.callbacks.append(Hooks(iteration_ended=lambda t, updates: states.append((updates.get("policy"), copied(t)))))
    with caplog.at_level(logging.WARNING), pytest.raises(NonFiniteError, match=r"3 update\(s\) in a row") as caught:
        made.run()
    assert caught.value.exit_code == 4
    assert [update is None for update, _ in states] == [False, True, True, False, True, True]
    for (update, after), (_, before) in zip(states[1:], states, strict=False):
        if update is None:
            assert all(torch.equal(after[name], before[name]) for name in before)
    assert "an update was skipped (1 in a row of at most 2)" in caplog.text
    (first, *others) = sorted((tmp_path / "faults").iterdir())
    assert len(others) == 2
    fault = json.loads((first / "fault.json").read_text())
    assert "not finite" in fault["error"]
    batch = load_tensors(first / "batch.safetensors")
    assert {"observation", "action", "advantage"} <= batch.keys()
    kept = load_tensors(first / "algorithm.safetensors")
    skipped = next(i for i, (update, _) in enumerate(states) if update is None)
    saved = {name: kept[name] for name in states[skipped][1] if name in kept}
    assert saved
    assert all(torch.equal(value, states[skipped][1][name]) for name, value in saved.items())


def copied(made: Trainer) -> dict[str, torch.Tensor]:
    tensors = made.algorithm.model.state_tensors()
    return {name: value.clone() for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def test_by_default_the_first_update_that_is_not_finite_ends_the_run(tmp_path):
    """F23."""
    made = trainer("dqn", total=1000)
    poisoned(made, {3})
    with pytest.raises(NonFiniteError, match=r"1 update\(s\) in a row were not finite"):
        made.run()
    assert made.algorithm.policy_version == 2


def test_what_is_kept_of_an_update_is_of_then_or_said_to_be_of_now(tmp_path, caplog):
    """F23: robots learn on before the error is counted; compiled steps on a GPU hold no batch."""
    algorithm = collected("dqn", "discrete")[0]
    record, error = PolicyRecord(algorithm, 2, tmp_path), NonFiniteError("nan")
    record.skip(error, 10)
    assert "the parameters of now, but no batch, are in" in caplog.text
    error.batch, error.state = {"x": torch.ones(1)}, {"weight": torch.zeros(2)}
    record.skip(error, 20)
    assert "the batch and the parameters are in" in caplog.text
    (kept,) = tmp_path.glob("*_2/algorithm.safetensors")
    assert load_tensors(kept).keys() == {"weight"}


# -- what cannot be saved


class Full(CheckpointStore):
    """Fails to save so often."""

    def __init__(self, directory: Path, failures: set[int]) -> None:
        super().__init__(directory, keep=20)
        self.failures, self.count = failures, 0

    def save(self, step, state, *, replace=False):
        self.count += 1
        if self.count in self.failures:
            raise CheckpointError("No space left on device")
        return super().save(step, state, replace=replace)


def test_some_checkpoints_may_fail_and_training_goes_on(tmp_path, caplog):
    """F10: a loud warning each time; the counter begins anew after one that works."""
    made = trainer(
        "ppo",
        total=600,
        checkpoint_every_steps=40,
        max_failed_saves=2,
        checkpoints=Full(tmp_path, {2, 3, 5, 6}),
    )
    with caplog.at_level(logging.WARNING):
        assert made.run().status == "done"
    assert caplog.text.count("Training continues unsaved") == 4
    assert "failure 2 in a row of at most 2" in caplog.text


@pytest.mark.parametrize("failures", [{1, 2, 3}, {1}])
def test_too_many_failed_checkpoints_end_the_run_with_5(tmp_path, failures):
    """F10: with one more than allowed; and the last one of a run has to work."""
    made = trainer(
        "ppo",
        total=600,
        checkpoint_every_steps=0 if failures == {1} else 40,
        max_failed_saves=2,
        checkpoints=Full(tmp_path, failures),
    )
    with pytest.raises(CheckpointError, match="No space left") as caught:
        made.run()
    assert caught.value.exit_code == 5


def test_a_checkpoint_that_cannot_fit_is_not_begun(tmp_path, monkeypatch):
    """F10: free space is estimated first, and the message has both numbers."""
    import collections

    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 3 * 2**20))
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"it needs 4\.0 MiB and 3\.0 are free"):
        store.save(1, {"buffer": {"x": torch.zeros(2**20)}})
    assert list(store.directory.glob("*")) == []


def test_a_best_policy_that_cannot_be_kept_does_not_end_the_run(caplog):
    """F10: it counts among the failures that are allowed, and is tried again."""
    failed: list[int] = []

    def full(made: Trainer, result: Evaluated) -> None:
        if len(failed) < 2:
            failed.append(result.env_steps)
            raise CheckpointError("No space left on device")

    made = trainer("ppo", total=600, eval_every_steps=100, evaluate=evaluation_in(), callbacks=[Hooks(evaluated=full)])
    with caplog.at_level(logging.WARNING):
        assert made.run().status == "done"
    assert len(failed) == 2
    assert caplog.text.count("Training continues unsaved") == 2


def test_an_update_that_a_gpu_has_only_begun_counts_when_the_next_one_has_begun():
    """F23: it is skipped then, at its own env steps; rows are whole numbers, however many there were."""
    record = PolicyRecord(collected("dqn", "discrete")[0], 1, None)
    asked = []

    def begun(loss, error=None):
        def require():
            asked.append(loss)
            if error is not None:
                raise error

        return UpdateInfo(1, 1, torch.tensor(float(2**24 + 2)), [{"loss": torch.tensor(loss)}], require)

    record.add(begun(1.0), 10)
    assert not asked and record.rows_trained == 0
    record.add(begun(2.0, NonFiniteError("nan")), 20)
    assert asked == [1.0] and record.rows_trained == 2**24 + 2
    record.add(UpdateInfo(1, 1, 1, [{"loss": torch.tensor(3.0)}]), 30)
    assert asked == [1.0, 2.0] and record.skipped == 1 and record.rows_trained == 2**24 + 3
    assert record.averages.take() == {"loss": 2.0}
    record.add(begun(4.0, NonFiniteError("nan")), 40)
    record.add(begun(5.0, NonFiniteError("nan")), 50)
    with pytest.raises(NonFiniteError, match=r"2 update\(s\) in a row were not finite"):
        record.settle()
