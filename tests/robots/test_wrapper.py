"""Tests of `palaestra.robots.serving`: the loops that serve a task to many agents."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from palaestra.algorithms import A2C, DQN, A2CConfig, DQNConfig
from palaestra.core import DiscreteSpec, TensorSpec, restart, transition
from palaestra.robots import Communicator, ComputationTask, ComputationWrapper, RobotConfig
from palaestra.robots.helpers import helper_for
from palaestra.robots.task import PackedUnrolls
from palaestra.rollout import RequestError, pack
from tests.robots.parts import Ticks

OBSERVATION, CHOICE = TensorSpec((2,)), DiscreteSpec(num=3)
SLOW = RobotConfig(max_wait_s=20.0, learn_max_wait_s=20.0, timeout_s=20.0)


def wrapper_of(config=SLOW, task=None):
    return ComputationWrapper(
        "act", task or ComputationTask(DQN(OBSERVATION, CHOICE, DQNConfig(learning_starts=0))), config
    )


def row(value):
    return {"observation": np.full((1, 2), value, np.float32), "step_type": np.ones(1, np.int32)}


def test_eight_blocked_agents_are_answered_by_fewer_predictions_each_with_its_own_row():
    """PARL-17, PARL-18, PARL-23: what comes back is what a forward pass of that agent's row alone gives."""
    task = ComputationTask(DQN(OBSERVATION, CHOICE, DQNConfig(learning_starts=0, epsilon=0.0)))
    with wrapper_of(task=task) as wrapper, ThreadPoolExecutor(8) as pool:
        communicators = [wrapper.create_communicator(i) for i in range(8)]
        answers = list(pool.map(lambda i: communicators[i].predict(row(i - 4.0)), range(8)))
    assert wrapper.prediction.statistics.batches == 1 and task.predictions == 8
    alone = [int(task.algorithm.policy(np.full(2, i - 4.0, np.float32))) for i in range(8)]
    assert [int(answer["action"]) for answer in answers] == alone


def test_a_wrapper_runs_two_loops_until_it_is_told_to_stop():
    """PARL-22."""
    wrapper = wrapper_of()
    names = lambda: {thread.name for thread in threading.enumerate()}  # noqa: E731
    mine = {"prediction of the task 'act'", "learning of the task 'act'"}
    assert not mine & names()
    wrapper.run()
    assert mine <= names()
    began = time.monotonic()
    wrapper.stop()
    assert time.monotonic() - began < 60.0 and not mine & names()


def test_a_communicator_registers_its_agent():
    """PARL-26: without one, nobody is listened to."""
    with wrapper_of() as wrapper:
        with pytest.raises(RequestError, match="client 3 is not connected"):
            wrapper.submit("predict", 3, row(0))
        assert wrapper.create_communicator(3).predict(row(0))["action"].shape == (1,)


def test_many_requests_to_learn_are_one_update_and_all_get_its_metrics():
    """PARL-24: one answer for each, from one update on all their rows side by side."""
    task = ComputationTask(A2C(OBSERVATION, CHOICE, A2CConfig(unroll_length=4)), learning="agent")
    quick = RobotConfig(max_wait_s=0.005, learn_max_wait_s=20.0)
    with wrapper_of(quick, task) as wrapper, ThreadPoolExecutor(3) as pool:
        communicators = [wrapper.create_communicator(i) for i in range(3)]
        helpers = [helper_for(task.spec("act"), communicator, Ticks()) for communicator in communicators]
        together = threading.Barrier(3)

        def episode(i):
            helpers[i].predict(restart(np.zeros(2)))
            for k in range(i + 2):  # unequal lengths
                helpers[i].store_data(transition(np.full(2, k), 1.0))
                if k < i + 1:
                    helpers[i].predict(transition(np.full(2, k), 1.0))
            together.wait(20)
            return helpers[i].learn()

        metrics = list(pool.map(episode, range(3)))
    assert task.algorithm.policy_version == 1 and task.updates[0].rows_trained == 2 + 3 + 4
    assert metrics[0] == metrics[1] == metrics[2] and metrics[0]


def test_rows_behind_shorter_unrolls_are_not_valid():
    """PARL-25: packed side by side, the valid rows are those of each agent, at the beginning."""
    task = ComputationTask(A2C(OBSERVATION, CHOICE, A2CConfig(unroll_length=4)), learning="agent")
    sent = []

    class Keep:
        def predict(self, inputs):
            return task.predict(pack([inputs], task.spec("a").input_spec))

        def learn(self, data):
            sent.append(data)

    for rows in (1, 3):
        helper = helper_for(task.spec("a"), Keep(), Ticks())
        step = restart(np.zeros(2))
        for k in range(rows):
            helper.predict(step)
            step = transition(np.full(2, 10 * rows + k), 1.0 + k)
            helper.store_data(step)
        helper.learn()
    packed = PackedUnrolls(sent).draw(task.plan, torch.Generator())
    assert packed.valid.tolist() == [[1, 1], [0, 1], [0, 1]]
    assert packed.observation[:, 0, 0].tolist() == [0, 10, 10, 10] and packed.reward[:, 1].tolist() == [0, 1, 2, 3]
    apart = [task.algorithm.preprocess(unroll, PackedUnrolls([unroll])).advantage for unroll in sent]
    together = task.algorithm.preprocess(packed, PackedUnrolls(sent)).advantage
    assert torch.allclose(together[:1, :1], apart[0]) and torch.allclose(together[:, 1:], apart[1])


def test_an_agent_that_waits_too_long_is_told_what_for():
    wrapper = wrapper_of(RobotConfig(max_wait_s=60.0, timeout_s=0.1))
    communicator, _ = wrapper.create_communicator(0), wrapper.create_communicator(1)
    with pytest.raises(RequestError, match=r"agent 0 waited 0\.1 s for a prediction of the task 'act' in vain"):
        communicator.predict(row(0))


def test_time_in_which_the_whole_process_was_stopped_is_no_waiting():
    """A deadline of a minute must not be over because a process was suspended for one."""

    class Suspended(Future):
        waits = 0

        def result(self, timeout=None):
            self.waits += 1
            if self.waits == 1:
                raise TimeoutError  # the process goes on long after, and the answer is on its way
            return 7

    answer = Suspended()
    communicator = Communicator(0, "act", lambda *_: answer, timeout_s=60.0)
    assert communicator.predict(None) == 7


def test_an_error_in_predict_and_in_learn_names_the_task_and_keeps_its_cause():
    wrapper = wrapper_of()

    def broken(*given):
        raise ValueError("a NaN, say")

    wrapper.task.predict = broken
    wrapper.task.learn = broken
    with wrapper:
        communicator = wrapper.create_communicator(0)
        with pytest.raises(
            RequestError, match=r"prediction of the task 'act' failed .* ValueError: a NaN, say"
        ) as told:
            communicator.predict(row(0))
        assert isinstance(told.value.__cause__, ValueError)
        with pytest.raises(RequestError, match="learning of the task 'act' failed"):
            communicator.learn(None)


def test_metrics_say_how_large_batches_were_and_how_long_they_waited():
    with wrapper_of() as wrapper:
        wrapper.create_communicator(0).predict(row(0))
    metrics = wrapper.metrics()
    assert metrics["predict/requests"] == 1 and metrics["predict/batch_size"] == 1 and metrics["learn/requests"] == 0
