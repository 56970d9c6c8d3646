"""Trainers that are given the state of another: what was decided, recorded and counted before goes on."""

import copy
import dataclasses
import json

import pytest
import torch

import palaestra
from palaestra import PPO, Collector, EnvConfig, Trainer, TrainerConfig, create_environment, preset
from palaestra.core import POLICY, ConfigError
from palaestra.rollout.collection import OfflineFirst
from palaestra.runs.lineage import _moved_schedules
from palaestra.training import CheckpointStore, Summary
from palaestra.training.callbacks import callback_states, load_callback_states
from tests.algorithms.parts import collected, environment, make
from tests.training.parts import Hooks, Recorder, evaluation_in, kept, trainer


def paused_at(made, env_steps):
    """Runs until an unroll is cut short, when so many env steps were taken."""
    step, taken = made.collector.env.step, []

    def counted(action):
        taken.append(action)
        if len(taken) * made.collector.num_lanes >= env_steps:
            made.collector.pause()
        return step(action)

    made.collector.env.step = counted
    while not made.collector.unfinished:
        made.train_iter()
    made.collector.env.step = step


def test_an_unroll_that_began_with_random_actions_ends_with_them():
    """F22: learning starts in its middle; the rest is asked of nobody anew."""
    settings = {"learning_starts": 16, "unroll_length": 12, "num_envs": 2, "total": 96}
    whole = trainer("dqn", **settings)
    whole.run()
    cut = trainer("dqn", **settings)
    paused_at(cut, 21)
    assert cut.collector.env_steps > 16
    resumed = trainer("dqn", **settings)
    resumed.load_state(cut.state())
    resumed.run()
    actions = [made.collector.buffer.newest(24).action for made in (whole, resumed)]
    assert torch.equal(*actions)


def test_exactly_the_initial_steps_are_random():
    """ALF-10: with 2 environments an unroll ends at env step 20; what follows is the policy's, and is learned from."""
    made = trainer("dqn", "discrete", learning_starts=20, unroll_length=1, gradient_steps=1, num_envs=2)
    unroll, at_random = made.collector.unroll, {}

    def noted(length, *, random):
        at_random[made.collector.env_steps] = bool(random)
        return unroll(length, random=random)

    made.collector.unroll = noted
    while not made.algorithm.num_gradient_steps:
        made.train_iter()
    assert at_random == {steps: steps < 20 for steps in range(0, 22, 2)}
    assert made.collector.env_steps == 22


def test_a_finished_run_with_a_larger_budget_ends_with_an_evaluation_and_a_row():
    never = {"eval_every_steps": 0, "log_every_steps": 0}
    evaluated: list[int] = []
    hooks = [Hooks(evaluated=lambda t, result: evaluated.append(result.env_steps))]
    first = trainer("ppo", total=60, evaluate=evaluation_in(), callbacks=hooks, **never)
    first.run()
    longer = trainer("ppo", total=120, evaluate=evaluation_in(), callbacks=hooks, **never)
    longer.load_state(first.state())
    assert longer.run().status == "done"
    assert evaluated == [first.collector.env_steps, longer.collector.env_steps]
    assert [kept(made)["position"]["metrics"] for made in (first, longer)] == [1, 2]


def test_a_goal_that_nothing_can_reach_is_refused():
    with pytest.raises(
        ConfigError, match="stop_at_return is 5, which evaluations decide, but this trainer was made with"
    ):
        trainer("ppo", stop_at_return=5.0)


def test_a_run_on_data_and_then_on_its_own_rows_resumes_wherever_it_is():
    _, source = collected("dqn", "discrete")

    def made():
        env = environment("discrete", 2)
        algorithm = make("dqn", env)
        collect = OfflineFirst(Collector.of(env, algorithm), {POLICY: source.buffer}, 10)
        return Trainer(collect, algorithm, TrainerConfig(total_env_steps=60, log_every_steps=0))

    finished = made()
    finished.run()
    again = made()
    again.load_state(finished.state())
    assert again.collector.env_steps == finished.collector.env_steps


def test_a_summary_goes_on_with_what_it_has_recorded():
    summary, other = Summary(every=2), Summary(every=2)
    summary.iteration_began(None)
    summary.iteration_began(None)
    summary.scalar("x", 1.0)
    summary.histogram("h", [0.0, 1.0, 1.0, 4.0])
    load_callback_states([other], copy.deepcopy(callback_states([summary])))
    assert other.records
    rows = [{}, {}]
    for one, row in zip((summary, other), rows, strict=True):
        one.scalar("x", 3.0)
        one.logged(None, row)
    assert rows[0] == rows[1] and rows[1]["x"] == 2.0


def test_environments_that_begin_anew_leave_no_row_without_its_log_probability():
    """F25: a pool of Gymnasium cannot go on exactly; the signal came when an episode had just ended."""

    def made():
        env = create_environment(EnvConfig(name="CartPole-v1", num_envs=4, vectorization="native"), seed=0)
        return Collector.of(env, algorithm := PPO(env.observation_spec, env.action_spec)), algorithm

    collector, algorithm = made()
    step = collector.env.step

    def until_an_end(action):
        time_step = step(action)
        if time_step.last.any():
            collector.pause()
        return time_step

    collector.env.step = until_an_end
    collector.unroll(64)
    assert collector.unfinished
    resumed, other = made()
    other.load_state_tensors(algorithm.state_tensors())
    resumed.buffer.load_state_tensors(copy.deepcopy(collector.buffer.state_tensors()))
    resumed.load_state(collector.state())
    resumed.unroll(64)
    unroll = resumed.buffer.reader.everything()
    exact = other.policy.behaviour(unroll.observation[:-1], unroll.action).log_prob
    wrong = (unroll.policy_info.log_prob - exact).abs() > 1e-4
    assert not (wrong & (unroll.valid > 0)).any()


def test_a_schedule_that_nothing_follows_is_not_said_to_move():
    """A plain DQN was said to move `priority_beta`."""
    for prioritized in (False, True):
        one = preset("dqn", "CartPole-v1")
        one = dataclasses.replace(one, algorithm=dataclasses.replace(one.algorithm, prioritized=prioritized))
        longer = dataclasses.replace(one.trainer, total_env_steps=2 * one.trainer.total_env_steps)
        said = _moved_schedules(one, dataclasses.replace(one, trainer=longer), one.trainer.total_env_steps // 10)
        assert "epsilon from" in said
        assert ("priority_beta" in said) is prioritized


def test_a_larger_budget_moves_schedules_and_says_so(tmp_path, caplog):
    """A learning rate that had come near 0 is half of its first again; metrics show it."""
    settings = {
        "env__num_envs": 2,
        "algorithm__unroll_length": 8,
        "algorithm__learning_rate": "linear(1e-3, 0)",
        "algorithm__network__hidden_sizes": (4,),
        "algorithm__clip": 0.2,
        "trainer__eval_episodes": 0,
        "trainer__log_every_steps": 16,
        "run__tensorboard": False,
    }
    done = palaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=64, run__directory=str(tmp_path), **settings)
    palaestra.resume(done.directory, trainer__total_env_steps=128)
    assert "so the new one moves learning_rate from 0 to 0.000" in caplog.text
    rows = [json.loads(line) for line in (done.directory / "metrics.jsonl").read_text().splitlines()]
    ends = done.result.env_steps
    for row in rows:
        budget = 64 if row["env_steps"] <= ends else 128
        assert row["learning/learning_rate"] == pytest.approx(1e-3 * max(0.0, 1 - row["env_steps"] / budget), abs=1e-9)


@pytest.mark.parametrize("eval_every_steps", [0, 30])
def test_a_finished_run_that_is_extended_evaluates_logs_and_saves_at_the_next_period(tmp_path, eval_every_steps):
    """Its end was evaluated, logged and saved; nothing of it is overdue."""

    def made(total, store):
        at, rows = list[int](), Recorder()
        hooks = Hooks(evaluated=lambda _, result: at.append(result.env_steps))
        every = {"eval_every_steps": eval_every_steps, "log_every_steps": 30, "checkpoint_every_steps": 30}
        parts = {"callbacks": [hooks], "loggers": [rows], "checkpoints": store, "evaluate": evaluation_in()}
        return trainer("ppo", total=total, unroll_length=10, **every, **parts), at, rows

    store = CheckpointStore(tmp_path / "extended")
    made(60, store)[0].run()
    extended, evaluated, rows = made(120, store)
    extended.load_state(store.load_newest()[1])
    extended.run()
    assert evaluated == ([102, 126] if eval_every_steps else [126])
    assert [row["env_steps"] for row in rows.rows] == [102, 126]
