"""Tests of `palaestra.robots.helpers`: what an agent asks, stores and learns from."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from palaestra.algorithms import A2C, DQN, PPO, A2CConfig, DQNConfig, PPOConfig
from palaestra.core import (
    ConfigError,
    DiscreteSpec,
    StepType,
    TensorSpec,
    TimeStep,
    game_over_of,
    restart,
    termination,
    transition,
    truncation,
)
from palaestra.nn import NetworkConfig
from palaestra.robots import AgentHelper, ComputationTask, OffPolicyHelper, OnPolicyHelper
from palaestra.robots.helpers import helper_for
from tests.robots.parts import Ticks, ToyCommunicator

OBSERVATION, CHOICE = TensorSpec((2,)), DiscreteSpec(num=3)


def on_policy(unroll_length=4, **settings):
    return ComputationTask(A2C(OBSERVATION, CHOICE, A2CConfig(unroll_length=unroll_length)), **settings)


def off_policy(unroll_length=1, **settings):
    config = DQNConfig(unroll_length=unroll_length, mini_batch_size=4, learning_starts=0, capacity=100)
    task = ComputationTask(DQN(OBSERVATION, CHOICE, config), **settings)
    task.make_buffer(1)
    return task


def helper_of(task, communicator=None):
    communicator, clock = communicator or ToyCommunicator(task), Ticks()
    return helper_for(task.spec("act"), communicator, clock), communicator, clock


def seen(i):
    return np.full(2, i, np.float32)


def play(helper, clock, rows, start=0):
    """One stream: FIRST, then so many MID steps, each chosen and stored."""
    step = restart(seen(start)) if start == 0 else transition(seen(start), 0.5)
    for i in range(start + 1, start + rows + 1):
        helper.predict(step)
        clock.env_steps += 1
        step = transition(seen(i), float(i))
        helper.store_data(step)
    return step


@pytest.mark.parametrize(("make", "kind"), [(on_policy, OnPolicyHelper), (off_policy, OffPolicyHelper)])
def test_the_plan_says_which_helper(make, kind):
    """PARL-16, PARL-21."""
    assert type(helper_of(make())[0]) is kind


def test_a_helper_of_your_own_takes_its_place():
    """PARL-08: the parts of a robot can be replaced."""

    class Quiet(AgentHelper):
        def open_stream(self, row):
            pass

        def append(self, choice, row, state):
            pass

        def learning_data(self):
            return None

    assert type(helper_of(on_policy(helper=Quiet))[0]) is Quiet


def test_learning_while_storing():
    """PARL-19, PARL-20: every fourth `store_data` learns and waits for it."""
    helper, communicator, clock = helper_of(on_policy())
    play(helper, clock, 9)
    assert communicator.asked.count("learn") == 2 and helper.spec.learning == "store"
    assert helper.metrics is not None and "gradient_norm/a2c" in helper.metrics


def test_learning_by_the_agent():
    """PARL-20: nothing is learned before the agent says so; then from all rows since."""
    helper, communicator, clock = helper_of(on_policy(learning="agent"))
    assert helper.learn() is None and communicator.asked == []
    play(helper, clock, 9)
    assert communicator.asked.count("learn") == 0
    assert helper.learn() is not None
    assert len(communicator.sent[0].valid) == 9
    assert helper.learn() is None


def test_learning_in_the_background():
    """PARL-20: the agent goes on, but not past a second update; errors come out at the next one, or at the end."""

    class Slow(ToyCommunicator):
        futures: list[Future] = []  # noqa: RUF012

        def learn_later(self, data):
            self.futures.append(Future())
            return self.futures[-1]

        def finish(self, answer):
            if not answer.done():
                answer.set_result({"waited": 1.0})
            return answer.result()

    task = on_policy(learning="background")
    communicator = Slow(task)
    helper, _, clock = helper_of(task, communicator)
    play(helper, clock, 7)
    assert len(communicator.futures) == 1 and not communicator.futures[0].done()
    play(helper, clock, 1, start=7)
    assert len(communicator.futures) == 2 and communicator.futures[0].done() and not communicator.futures[1].done()
    communicator.futures[1].set_exception(RuntimeError("no"))
    with pytest.raises(RuntimeError, match="no"):
        helper.finish()


def test_an_unroll_is_what_was_stored_in_order():
    """PARL-05, PARL-06: inputs, actions, rewards, and `game_over` of the current step as a view."""
    helper, communicator, _ = helper_of(on_policy(unroll_length=5))
    choices = []
    for step, after in [
        (restart(seen(0)), transition(seen(1), 1.0)),
        (transition(seen(1), 1.0), termination(seen(2), 2.0)),
        (restart(seen(3)), truncation(seen(4), 4.0)),
        (restart(seen(5)), transition(seen(6), 6.0)),
    ]:
        choices.append(helper.predict(step))
        helper.store_data(after)
    helper.learn()
    unroll = communicator.sent[0]
    assert unroll.observation[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert unroll.reward[:, 0].tolist() == [0, 1, 2, 0, 4, 0, 6]
    assert unroll.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 1]
    assert game_over_of(unroll.step_type[:, 0]).tolist() == [0, 0, 1, 0, 1, 0, 0]
    assert unroll.valid[:, 0].tolist() == [1, 1, 0, 1, 0, 1]
    assert unroll.action[[0, 1, 3, 5], 0].tolist() == choices
    assert unroll.step_type[-1, 0] == StepType.MID


def test_an_unroll_is_a_copy():
    """The next rows are written while another thread learns."""
    helper, communicator, clock = helper_of(on_policy())
    play(helper, clock, 4)
    before = communicator.sent[0].observation.clone()
    play(helper, clock, 4, start=4)
    assert torch.equal(communicator.sent[0].observation, before)


def test_log_probabilities_are_those_of_the_choice():
    """They come with the answer, with the weights that acted, although learning happens in between."""
    task = ComputationTask(PPO(OBSERVATION, CHOICE, PPOConfig(unroll_length=3, mini_batch_size=3)), learning="agent")
    helper, communicator, _ = helper_of(task)
    step, expected = restart(seen(0)), []
    for i in range(3):
        helper.predict(step)
        with torch.no_grad():
            distribution = task.algorithm.policy.distribution(torch.as_tensor(step.observation)[None])
            expected.append(float(distribution.log_prob(helper.action)))
            next(task.algorithm.model.parameters()).add_(0.01)
        step = transition(seen(i + 1), 1.0)
        helper.store_data(step)
    helper.learn()
    assert communicator.sent[0].policy_info.log_prob[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_memory_of_a_recurrent_policy_is_the_helpers():
    config = PPOConfig(unroll_length=4, network=NetworkConfig(recurrent="gru", recurrent_size=5), mini_batch_length=2)
    task = ComputationTask(PPO(OBSERVATION, CHOICE, config), learning="agent")
    helper, communicator, clock = helper_of(task)
    play(helper, clock, 3)
    helper.predict(restart(seen(9)))
    helper.store_data(transition(seen(10), 1.0))
    helper.learn()
    states = next(iter(communicator.sent[0].state.values()))[:, 0]
    assert not states[0].any() and states[2].any() and not torch.equal(states[2], states[3])
    assert helper.metrics is not None


def test_a_memory_begins_in_its_initial_state_where_the_stream_begins_inside_an_episode():
    config = PPOConfig(unroll_length=4, network=NetworkConfig(recurrent="gru", recurrent_size=5), mini_batch_length=2)
    task = ComputationTask(PPO(OBSERVATION, CHOICE, config), learning="agent")
    policy = task.algorithm.policy
    zeros = policy.initial_state(1)
    policy.network.initial_state = lambda count: zeros.map(lambda leaf: leaf.expand(count, -1) + 1)
    helper, _, _ = helper_of(task)
    helper.predict(transition(seen(1), 1.0))
    expected = policy.act(TimeStep(0, observation=torch.tensor([[1.0, 1.0]])), policy.initial_state(1)).state
    assert all(map(torch.equal, helper._hidden.values(), expected.values()))


def test_rows_for_replay_lie_in_the_agents_own_lane():
    task = off_policy(learning="agent")
    task.make_buffer(3)
    helper, _, clock = helper_of(task, ToyCommunicator(task, agent_id=2))
    play(helper, clock, 5)
    lane = task.buffer.in_time_order(2)
    assert task.buffer.observation[lane][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(task.buffer.in_time_order(0)) == 0 and task.rows_stored == 5


def test_an_episode_that_begins_in_the_middle_joins_no_other():
    """The row that was open ends without an outcome, as when an environment breaks off."""
    helper, communicator, clock = helper_of(on_policy(learning="agent"))
    play(helper, clock, 2)
    helper.begin(transition(seen(7), 9.0))
    helper.predict(transition(seen(7), 9.0))
    helper.store_data(termination(seen(8), 1.0))
    helper.predict(transition(seen(9), 0.0))  # none is running: it begins one
    helper.store_data(transition(seen(10), 2.0))
    helper.predict(termination(seen(11), 0.0))  # where nothing is chosen any more
    helper.learn()
    unroll = communicator.sent[0]
    assert unroll.step_type[:, 0].tolist() == [0, 1, 0, 2, 0, 1]
    assert unroll.observation[:, 0, 0].tolist() == [0, 1, 7, 8, 9, 10]
    assert unroll.valid[:, 0].tolist() == [1, 0, 1, 0, 1]


def test_a_choice_on_another_observation_than_its_row_has_is_refused():
    """A slow task that is asked later than it has stored: the rows between would lead nowhere."""
    helper, _, clock = helper_of(off_policy(learning="agent"))
    play(helper, clock, 2)
    helper.predict(transition(seen(5), 0.0))
    with pytest.raises(ConfigError, match="the task 'act' was given another observation than its newest row"):
        helper.store_data(transition(seen(6), 1.0))
    helper.store_data(transition(seen(3), 1.0), action=torch.tensor([1]))  # that of another task is not its own
    helper.begin(transition(seen(5), 0.0))
    helper.predict(transition(seen(5), 0.0))
    helper.store_data(transition(seen(6), 1.0))


def test_a_task_that_only_watches_stores_the_actions_of_another():
    """PARL-07: an auxiliary task learns from what the other one did, without predicting."""
    watcher, _, _ = helper_of(off_policy(learning="agent"))
    actor, _, _ = helper_of(on_policy())
    step = restart(seen(0))
    watcher.begin(step)
    for i in range(6):
        actor.predict(step)
        step = transition(seen(i + 1), 1.0)
        watcher.store_data(step, action=actor.action)
    assert watcher.communicator.task.rows_stored == 6 and watcher.learn() is not None


def test_a_task_is_due_by_its_own_clock_and_when_an_episode_begins():
    """PARL-12: every third env step; `None` is once an episode, or on an event that the agent sees."""
    every, _, clock = helper_of(on_policy(period_steps=3))
    once, _, once_clock = helper_of(on_policy(period_steps=None))
    asked = []
    for episode in range(2):
        clock.episodes = once_clock.episodes = episode
        for i in range(7):
            if every.due:
                every.predict(restart(seen(i)))
                asked.append((episode, i))
            if once.due:
                once.predict(restart(seen(i)))
                asked.append(("once", episode, i))
            clock.env_steps += 1
            once_clock.env_steps += 1
    assert [a for a in asked if a[0] != "once"] == [(0, 0), (0, 3), (0, 6), (1, 0), (1, 3), (1, 6)]
    assert [a for a in asked if a[0] == "once"] == [("once", 0, 0), ("once", 1, 0)]


def test_storing_twice_without_a_choice_is_refused():
    helper, _, clock = helper_of(on_policy())
    play(helper, clock, 1)
    with pytest.raises(Exception, match="store_data of the task 'act' was called without a prediction"):
        helper.store_data(transition(seen(2), 1.0))


@pytest.mark.parametrize("make", [on_policy, off_policy])
def test_parl_20_another_thread_is_refused_and_the_agent_is_told(make):
    """Rows would be lost, doubled and mixed; an error in that thread alone would end nothing."""
    helper, communicator, clock = helper_of(make(learning="agent"))
    step = play(helper, clock, 2)
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        refused = pool.submit(helper.learn).exception()
    assert isinstance(refused, ConfigError) and "learn" not in communicator.asked
    needed = r"learn of the task 'act' was called in the thread 'mine_0', .* learning='background'.* learning='agent'"
    with pytest.raises(ConfigError, match=needed):
        helper.predict(step)


def test_a_task_that_stores_how_it_chose_refuses_the_choices_of_another():
    task = ComputationTask(PPO(OBSERVATION, CHOICE, PPOConfig(unroll_length=4)))
    helper, _, _ = helper_of(task)
    helper.begin(restart(seen(0)))
    with pytest.raises(
        ConfigError, match=r"learns from its own choices: it stores their log_prob.*watch by a ModelTask"
    ):
        helper.store_data(transition(seen(1), 1.0), action=torch.zeros(1, dtype=torch.int64))
