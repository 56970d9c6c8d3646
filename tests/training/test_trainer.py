"""Tests of `palaestra.training.trainer`."""

import signal
import threading
from typing import Any

import pytest
import torch

from palaestra import NetworkConfig, Trainer, TrainerConfig
from palaestra.core import ConfigError, Linear, StepType
from palaestra.training import CheckpointStore
from tests.training.parts import Hooks, Recorder, evaluation_in, rows_trained, trainer


def parameters(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in made.algorithm.model.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# -- the scheme: unroll, then learn by the plan


def test_unrolls_and_updates_alternate(monkeypatch):
    """ALF-02, ALF-03: parameters move in the updates and nowhere else."""
    made = trainer("ppo")
    calls: list[tuple[str, bool]] = []
    for owner, method in ((made.collector, "unroll"), (made.algorithm, "begin_update")):
        original = getattr(owner, method)

        def spy(argument: Any, original: Any = original, method: str = method, **named: Any) -> Any:
            before = parameters(made)
            result = original(argument, **named)
            calls.append((method, not equal(before, parameters(made))))
            return result

        monkeypatch.setattr(owner, method, spy)
    for _ in range(3):
        made.train_iter()
    assert calls == [("unroll", False), ("begin_update", True)] * 3


@pytest.mark.parametrize("name", ["reinforce", "ppo"])
def test_on_policy_experience_is_used_once_and_env_steps_are_what_is_trained_on(name):
    """ALF-05, ALF-07, ALF-11, scenario 3: counters at the ends of iterations."""
    made = trainer(name, "continuous", num_epochs=1, mini_batch_size=10**6)
    for iteration in range(1, 4):
        made.train_iter()
        assert made.algorithm.num_gradient_steps == iteration
        if name == "ppo":  # REINFORCE leaves out what has not ended
            assert rows_trained(made) == made.collector.env_steps


def test_replayed_experience_is_used_many_times():
    """ALF-06, ALF-09, ALF-11, scenario 3: one draw of U minibatches an iteration; env steps ≪ rows trained on."""
    made = trainer("dqn", gradient_steps=4, mini_batch_size=32, unroll_length=3)
    for _ in range(10):
        made.train_iter()
    assert made.algorithm.num_gradient_steps == 40
    assert rows_trained(made) == 40 * 32
    assert made.collector.env_steps < rows_trained(made) / 10


def test_nothing_is_trained_before_the_initial_steps():
    """ALF-10: with 3 environments and 1 step each, the 21st env step is the first that is followed by an update."""
    made = trainer("dqn", "discrete", learning_starts=20, unroll_length=1, gradient_steps=1)
    trained = []
    while made.collector.env_steps < 30:
        made.train_iter()
        trained.append((made.collector.env_steps, made.algorithm.num_gradient_steps))
    assert all(steps == 0 for env_steps, steps in trained if env_steps <= 20)
    assert next(env_steps for env_steps, steps in trained if steps) in (21, 22, 23)


@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_learning_waits_until_every_lane_holds_a_window(n_step):
    """ALF-10, TS-22: without initial steps, several environments and n-step targets."""
    made = trainer("dqn", "discrete", learning_starts=0, unroll_length=1, n_step=n_step, num_envs=4)
    for _ in range(12):
        made.train_iter()
    assert made.algorithm.num_gradient_steps > 0


def test_learning_waits_for_the_burn_in_of_sequences_too():
    """With 40 environments, and sequences of 20 steps after 20 of burn-in."""
    sizes = {
        "network": NetworkConfig(hidden_sizes=(8,), recurrent="lstm"),
        "mini_batch_length": 20,
        "burn_in": 20,
        "mini_batch_size": 4,
        "gradient_steps": 1,
    }
    made = trainer("r2d2", "discrete", learning_starts=0, unroll_length=1, num_envs=40, total=2000, **sizes)
    for _ in range(52):
        made.train_iter()
    assert made.collector.env_steps > 1600
    assert made.algorithm.num_gradient_steps > 0


def test_a_fractional_unroll_length_trains_every_iteration():
    """ALF-04: half a time step is one every second iteration; replay learns in between."""
    made = trainer("dqn", unroll_length=0.5, gradient_steps=1)
    for _ in range(40):
        made.train_iter()
    assert len(made.collector.buffer) == 20 * made.collector.num_lanes
    assert made.algorithm.num_gradient_steps > 30


def test_schedules_follow_env_steps():
    """MARO-46: learning rate and epsilon are functions of env steps divided by the budget."""
    made = trainer("dqn", total=200, epsilon=Linear(1.0, 0.0), learning_rate=Linear(1e-2, 0.0), loggers=[])
    for _ in range(4):
        made.train_iter()
        left = 1 - made.collector.env_steps / 200
        assert made.algorithm.policy.exploration.strength == pytest.approx(left)
        assert float(made.algorithm.model.optimizers["q"].learning_rate) == pytest.approx(1e-2 * left)


def test_the_budget_is_used_up_and_hardly_more():
    result = trainer("ppo", total=100).run()
    assert result.status == "done"
    assert result.exit_code == 0
    assert 100 <= result.env_steps < 100 + 36


# -- what is told


def test_metrics_come_once_a_period_and_once_at_the_end():
    """TS-28: env steps, episodes, iterations, versions, gradient steps, rows, returns, losses and times."""
    recorder = Recorder()
    made = trainer("ppo", total=300, log_every_steps=100, loggers=[recorder])
    made.run()
    steps = [row["env_steps"] for row in recorder.rows]
    assert len(steps) == len(set(steps)) == 3
    assert [step // 100 for step in steps] == [1, 2, 3]
    last = recorder.rows[-1]
    assert last["episodes"] == len(recorder.ended)
    assert last["iterations"] == last["policy_version"] == made.algorithm.policy_version
    assert last["gradient_steps"] == made.algorithm.num_gradient_steps
    assert last["rows_trained"] == 2 * last["env_steps"]  # two passes
    assert {"return_mean", "length_mean", "learning/ppo", "learning/gradient_norm/ppo"} <= last.keys()
    assert {"time/train_s", "time/env_steps_per_s", "discounted_return_mean"} <= last.keys()
    assert recorder.calls == ["start", "close"]


def test_every_episode_is_told_once_with_its_env_steps():
    """ALF-57: returns and lengths of every episode, and its infos in the metrics."""
    recorder = Recorder()
    made = trainer("ppo", "continuous", total=300, loggers=[recorder])
    made.run()
    running = sum(1 for kind in made.collector.buffer.recent("step_type", 1)[0].tolist() if kind != StepType.LAST)
    lengths = sum(episode.length for episode in recorder.ended)
    assert lengths <= made.collector.env_steps <= lengths + 5 * (running + 3)
    assert {"info/error", "info/error@mean", "info/error@max"} <= recorder.rows[-1].keys()


def test_losses_of_all_gradient_steps_since_the_last_row_are_averaged():
    recorder = Recorder()
    made = trainer("reinforce", total=200, log_every_steps=100, loggers=[recorder])
    losses: list[float] = []
    update = made.algorithm.begin_update

    def spy(source: Any) -> Any:
        info = update(source)
        losses.append(info.metrics["policy"])
        return info

    made.algorithm.begin_update = spy
    made.run()
    counts = [int(row["gradient_steps"]) for row in recorder.rows]
    assert recorder.rows[0]["learning/policy"] == pytest.approx(sum(losses[: counts[0]]) / counts[0])
    rest = losses[counts[0] : counts[1]]
    assert recorder.rows[1]["learning/policy"] == pytest.approx(sum(rest) / len(rest))


class Failing(Recorder):
    """Raises in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, self._raise)

    def _raise(self, *args: Any) -> None:
        raise ConnectionError("no route to the tracking server")


@pytest.mark.parametrize("method", ["start", "metrics", "episodes", "close"])
def test_a_logger_that_raises_does_not_disturb_training(method, caplog):
    """F28: training is unaffected, the other loggers are complete, and the end says what one has missed and why."""
    reference, whole = Recorder(), Recorder()
    plain = trainer("ppo", total=100, loggers=[reference])
    plain.run()
    made = trainer("ppo", total=100, loggers=[Failing(method), whole])
    result = made.run()
    assert result.status == "done"
    (said,) = result.not_logged
    assert "no route to the tracking server" in caplog.text
    assert said.startswith("Failing")
    assert caplog.text.count("it is told again later") == {"start": 3, "close": 0}.get(method, 1)
    assert equal(parameters(plain), parameters(made))
    assert whole.ended == reference.ended
    assert [row["env_steps"] for row in whole.rows] == [row["env_steps"] for row in reference.rows]


def test_a_logger_that_failed_comes_back(caplog):
    """D6: it begins where it is told to begin, and what it missed in between is counted."""

    class Sometimes(Recorder):
        calls_left = 3

        def start(self, position):
            self.calls_left -= 1
            if self.calls_left > 0:
                raise ConnectionError("not yet")
            super().start(position)

    back, whole = Sometimes(), Recorder()
    result = trainer("ppo", total=300, log_every_steps=10, loggers=[back, whole]).run()
    assert back.calls == ["start", "close"]
    assert 0 < len(back.ended) < len(whole.ended)
    assert back.ended == whole.ended[-len(back.ended) :]
    assert result.not_logged == (f"Sometimes missed {len(whole.ended) - len(back.ended)} episodes",)
    assert "Sometimes works again" in caplog.text


# -- evaluation


@pytest.mark.parametrize(("name", "kind"), [("ppo", "continuous"), ("dqn", "discrete")])
def test_evaluation_leaves_training_as_it_is(name, kind):
    """The same training with and without evaluations, bit for bit."""
    plain = trainer(name, kind, total=200)
    plain.run()
    made: Trainer = trainer(name, kind, total=200, eval_every_steps=20, evaluate=evaluation_in(kind))
    made.run()
    assert equal(parameters(plain), parameters(made))
    assert torch.equal(plain.algorithm.policy.generator.get_state(), made.algorithm.policy.generator.get_state())


def test_evaluations_come_once_a_period_and_at_the_end_and_the_best_is_known():
    """MARO-47: evaluation after every period and after the last episode, with a callback."""
    seen: list[tuple[int, bool]] = []
    returns = iter([3.0, 1.0, 3.0, 2.0])

    class Result:
        def __init__(self, value: float) -> None:
            self.return_mean, self.parts, self.against_best = value, {}, None

    made: Trainer = trainer(
        "ppo",
        total=200,
        eval_every_steps=50,
        evaluate=lambda policy: Result(next(returns)),
        callbacks=[Hooks(evaluated=lambda trainer, result: seen.append((result.env_steps // 50, result.best)))],
    )
    made.run()
    assert seen == [(1, True), (2, False), (3, True), (4, False)]


def test_there_is_nothing_to_evaluate_in_without_an_evaluation():
    with pytest.raises(ConfigError, match="made without `evaluate`"):
        trainer("ppo").evaluate()


# -- checkpoints and signals


def test_checkpoints_come_once_a_period_and_at_the_end(tmp_path):
    store = CheckpointStore(tmp_path, keep=10)
    made = trainer("ppo", total=200, checkpoint_every_steps=60, checkpoints=store)
    made.run()
    steps = [int(path.name.removeprefix("step_")) for path in store.steps()]
    assert [step // 60 for step in steps] == [1, 2, 3, 3]
    assert steps[-1] == made.collector.env_steps


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_iteration_saves_and_says_so(tmp_path, number, code):
    """F22: the handler that was there before is back afterwards."""
    store = CheckpointStore(tmp_path)
    before = signal.getsignal(number)

    class Interrupting(Recorder):
        def metrics(self, row: Any) -> None:
            signal.raise_signal(number)

    made = trainer("ppo", total=10_000, log_every_steps=100, loggers=[Interrupting()], checkpoints=store)
    result = made.run()
    assert (result.status, result.exit_code) == ("interrupted", code)
    step, state = store.load_newest()
    assert step == result.env_steps == state["collect"]["env_steps"] < 200
    assert signal.getsignal(number) is before


def test_a_second_signal_stops_at_once_and_saves_nothing(tmp_path):
    """F22: Ctrl-C twice."""
    store = CheckpointStore(tmp_path)

    class Impatient(Recorder):
        def metrics(self, row: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    recorder = Impatient()
    made = trainer("ppo", total=10_000, log_every_steps=100, loggers=[recorder], checkpoints=store)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert store.steps() == []
    assert recorder.calls == ["start", "close"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finished_run_that_is_resumed_changes_nothing(tmp_path):
    """F25: no second evaluation, no further row, no further checkpoint."""
    store = CheckpointStore(tmp_path)
    made: Trainer = trainer("ppo", total=100, evaluate=evaluation_in(), checkpoints=store)
    first = made.run()
    _, state = store.load_newest()
    recorder = Recorder()
    again: Trainer = trainer(
        "ppo", total=100, evaluate=lambda policy: pytest.fail("evaluated"), loggers=[recorder], checkpoints=store
    )
    again.load_state(state)
    assert again.state()["trainer"]["seconds"] == state["trainer"]["seconds"]  # training time counts on
    assert state["trainer"]["seconds"]["learning"] > 0
    result = again.run()
    assert (result.status, result.env_steps, result.evaluation) == ("done", first.env_steps, first.evaluation)
    assert recorder.rows == []
    assert equal(parameters(made), parameters(again))


# -- configuration


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_env_steps": 0}, r"trainer.total_env_steps is 0; it must be greater than 0"),
        ({"eval_every_steps": -1}, r"trainer.eval_every_steps is -1; it must be at least 0"),
        ({"checkpoint_every_steps": -5}, r"trainer.checkpoint_every_steps is -5"),
        ({"log_every_steps": -5}, r"trainer.log_every_steps is -5"),
        ({"eval_episodes": -1}, r"trainer.eval_episodes is -1; it must be at least 0"),
    ],
)
def test_an_impossible_budget_is_refused(settings, message):
    """F27: what was given and what is needed."""
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(**settings)


def test_periods_default_to_parts_of_the_run():
    config = TrainerConfig(total_env_steps=5_000, checkpoint_every_steps=7)
    assert [config.period(name) for name in ("eval", "checkpoint", "log")] == [500, 7, 50]
    assert TrainerConfig(total_env_steps=5).period("log") == 1
    for when in ({"eval_every_s": 3.0}, {"eval_at_steps": (10, 20)}):  # evaluations alone have another clock then
        config = TrainerConfig(total_env_steps=5_000, **when)
        assert [config.period(name) for name in ("eval", "checkpoint", "log")] == [0, 500, 50]


# -- nothing is global


def test_two_trainers_in_one_process_do_not_meet():
    """REQUIREMENTS section 6, ALF: no global singletons; interleaved they learn what each learns alone."""
    alone = []
    for name in ("ppo", "dqn"):
        made = trainer(name)
        for _ in range(4):
            made.train_iter()
        alone.append(parameters(made))
    ppo, dqn = trainer("ppo"), trainer("dqn")
    for one in [ppo, dqn] * 4:
        one.train_iter()
    assert equal(parameters(ppo), alone[0])
    assert equal(parameters(dqn), alone[1])


def test_training_works_in_a_thread_where_python_delivers_no_signals():
    results = []
    thread = threading.Thread(target=lambda: results.append(trainer("ppo", total=100).run()))
    thread.start()
    thread.join(60)
    assert [result.status for result in results] == ["done"]


def test_schedules_of_a_longer_run_are_where_they_would_be_from_the_first_update_on():
    """Half of a run is a quarter of one that is twice as long; a run of equal length goes on to the bit."""
    first = trainer("ppo", total=240)
    while first.progress < 0.5:
        first.train_iter()
    state, share = first.state(), first.progress
    for total, expected in ((240, share), (480, share / 2), (60, 1.0)):
        other = trainer("ppo", total=total)
        other.load_state(state)
        assert other.algorithm.progress == expected
