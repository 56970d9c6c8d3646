"""Tests of `palaestra.robots.task`: what one computation task does, and that no gradient leaves it."""

import threading

import numpy as np
import pytest
import torch

from palaestra.algorithms import (
    A2C,
    DQN,
    PPO,
    SAC,
    A2CConfig,
    BehaviourCloning,
    DQNConfig,
    MuZero,
    MuZeroConfig,
    PPOConfig,
    SACConfig,
)
from palaestra.buffers import HindsightSampler, UniformSampler
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    NonFiniteError,
    RunSeeds,
    TensorSpec,
    restart,
    transition,
)
from palaestra.nn import NetworkConfig
from palaestra.robots import ComputationTask, Robot, TaskSpec, task_seeds
from palaestra.robots.helpers import helper_for, time_step_row
from tests.devices import pretend_device
from tests.robots.parts import OneTaskAgent, Ticks, ToyCommunicator

OBSERVATION, CHOICE = TensorSpec((3,)), DiscreteSpec(num=4)
BOX = BoundedSpec((2,), minimum=np.array(-1.0), maximum=np.array(1.0))


def inputs(rows=2, size=3):
    return Batch.of({"observation": torch.ones(rows, size), "step_type": torch.ones(rows, dtype=torch.int32)})


def dqn_task(**settings):
    config = DQNConfig(unroll_length=1, mini_batch_size=4, learning_starts=0, capacity=100)
    return ComputationTask(DQN(OBSERVATION, CHOICE, config), **settings)


def fill(task, rows=12, agent=0, size=3):
    task.make_buffer(1)
    spec = TensorSpec((size,))
    task.store(agent, None, time_step_row(restart(np.zeros(size)), spec))
    for i in range(rows):
        task.store(agent, torch.tensor([i % 4]), time_step_row(transition(np.full(size, i), 1.0), spec))


def parameters(task):
    return [parameter.detach().clone() for parameter in task.algorithm.model.parameters()]


def unchanged(task, before):
    return all(torch.equal(a, b) for a, b in zip(parameters(task), before, strict=True))


def test_what_a_task_predicts_carries_no_gradient():
    """PARL-10: also where the caller records one."""
    task = ComputationTask(PPO(OBSERVATION, CHOICE))
    with torch.enable_grad():
        answer = task.predict(inputs())
    tensors = [answer["action"], answer["env_action"], answer["info"].log_prob, answer["version"]]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert answer["info"].log_prob.shape == (2,)


def test_the_loss_of_one_task_leaves_the_other_without_gradient():
    """PARL-10: the second task sees what the first one chose; learning changes the second alone."""
    first = ComputationTask(SAC(OBSERVATION, BOX, SACConfig(learning_starts=0)))
    config = DQNConfig(unroll_length=1, mini_batch_size=4, learning_starts=0, capacity=100)
    second = ComputationTask(DQN(TensorSpec((2,)), CHOICE, config))
    second.make_buffer(1)
    before, own = parameters(first), parameters(second)
    with torch.enable_grad():
        for i in range(12):
            chosen = first.predict(inputs(rows=1))["env_action"]
            step = restart(chosen[0]) if i == 0 else transition(chosen[0], 1.0)
            second.store(0, None if i == 0 else torch.tensor([i % 4]), time_step_row(step, TensorSpec((2,))))
        second.predict(Batch.of({"observation": chosen, "step_type": torch.ones(1, dtype=torch.int32)}))
        metrics = second.learn([None])
    assert metrics is not None
    assert unchanged(first, before) and not unchanged(second, own)
    assert all(parameter.grad is None for parameter in first.algorithm.model.parameters())


def test_modules_that_need_a_common_gradient_are_one_task():
    """PARL-11: policy and value of one algorithm move together, by one loss."""
    task = ComputationTask(A2C(OBSERVATION, CHOICE, A2CConfig(unroll_length=4)), learning="agent")
    before = {name: p.detach().clone() for name, p in task.algorithm.model.named_parameters()}
    helper = helper_for(task.spec("a"), ToyCommunicator(task), Ticks())
    helper.predict(restart(np.zeros(3)))
    for i in range(4):
        helper.store_data(transition(np.full(3, i), 1.0))
        helper.predict(transition(np.full(3, i), 1.0))
    helper.learn()
    moved = [name for name, p in task.algorithm.model.named_parameters() if not torch.equal(p, before[name])]
    assert any("policy" in name for name in moved) and any("value" in name for name in moved)


def test_a_reference_copy_acts_with_the_weights_of_the_last_sync():
    """PARL-14, PARL-29: it follows every second update; `sync` does it at once."""
    task = dqn_task(sync_every_updates=2)
    fill(task)
    acting, learned = task.acting_policy, task.algorithm.policy
    weights = lambda policy: torch.cat([p.flatten() for p in policy.parameters()])  # noqa: E731
    assert acting is not learned and torch.equal(weights(acting), weights(learned))
    task.learn([None])
    assert not torch.equal(weights(acting), weights(learned))
    assert task.predict(inputs())["version"].tolist() == [0, 0]
    task.learn([None])
    assert torch.equal(weights(acting), weights(learned)) and acting.version == 2
    task.learn([None])
    task.sync()
    assert torch.equal(weights(acting), weights(learned)) and acting.version == 3


def test_a_reference_copy_shares_no_storage_and_no_generator_and_is_part_of_the_state():
    task = dqn_task(sync_every_updates=5)
    fill(task)
    task.learn([None])
    mine = {p.data_ptr() for p in task.acting_policy.parameters()}
    assert mine.isdisjoint(p.data_ptr() for p in task.algorithm.policy.parameters())
    twin = dqn_task(sync_every_updates=5)
    twin.load_state(task.state())
    for a, b in zip(twin.acting_policy.parameters(), task.acting_policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert twin.rows_stored == 12


def test_a_reference_copy_explores_by_the_schedule_of_the_run():
    """PARL-14: else an epsilon that falls would stay at its first value."""
    task = dqn_task(sync_every_updates=1)
    task.algorithm.set_progress(1.0)
    assert task.acting_policy.exploration.strength == task.algorithm.policy.exploration.strength == 0.05


def test_a_reference_copy_predicts_while_the_algorithm_learns():
    task = dqn_task(sync_every_updates=1)
    answered = threading.Event()
    with task.lock:  # as an update holds it
        asking = threading.Thread(target=lambda: answered.set() if task.predict(inputs()) else None)
        asking.start()
        assert answered.wait(timeout=60)
    asking.join()


def test_an_algorithm_that_searches_takes_masks():
    spec = {"x": OBSERVATION, "action_mask": TensorSpec((4,), torch.bool)}
    config = MuZeroConfig(network=NetworkConfig(hidden_sizes=(8,)), num_simulations=4)
    task = ComputationTask(MuZero(spec, CHOICE, config))
    seen = Batch.of({"x": torch.ones(2, 3), "action_mask": torch.tensor([[False, True, False, False]] * 2)})
    given = Batch.of({"observation": seen, "step_type": torch.ones(2, dtype=torch.int32)})
    assert not task.acts_randomly
    assert task.predict(given)["env_action"].tolist() == [1, 1]


def test_chance_acts_before_anything_can_have_been_learned_and_nothing_learns_then():
    task = ComputationTask(DQN(OBSERVATION, CHOICE, DQNConfig(learning_starts=13, capacity=100)))
    fill(task)
    assert task.acts_randomly and task.learn([None]) is None
    actions = task.predict(inputs(rows=200))["action"]
    assert set(actions.tolist()) == {0, 1, 2, 3}
    fill(task, rows=2)
    assert not task.acts_randomly


def test_one_update_of_many_requests():
    """PARL-17: three agents ask, one update is made."""
    task = dqn_task()
    fill(task)
    task.learn([None, None, None])
    assert task.algorithm.policy_version == 1 and len(task.updates) == 1


def test_the_sampler_of_a_task_is_the_one_given():
    """PARL-16: hindsight, say."""
    sampler = HindsightSampler(lambda achieved, desired, info: np.zeros(achieved.shape[:-1]))
    task = dqn_task(sampler=sampler)
    task.make_buffer(2)
    assert task.buffer is not None and task.buffer.sampler is sampler and task.buffer.num_lanes == 2
    plain = dqn_task()
    plain.make_buffer(1)
    assert plain.buffer is not None and isinstance(plain.buffer.sampler, UniformSampler)


def test_a_spec_says_what_one_request_looks_like():
    """PARL-13: the model states its inputs."""
    memory = PPO(OBSERVATION, CHOICE, PPOConfig(network=NetworkConfig(recurrent="gru", recurrent_size=5)))
    spec = ComputationTask(memory, period_steps=3).spec("act")
    assert isinstance(spec, TaskSpec) and spec.period_steps == 3 and set(spec.info_spec) == {"log_prob"}
    assert set(spec.input_spec) == {"observation", "step_type", "state"}
    assert set(ComputationTask(DQN(OBSERVATION, CHOICE)).spec("act").input_spec) == {"observation", "step_type"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ComputationTask(BehaviourCloning(OBSERVATION, CHOICE)), "learns from loaded data"),
        (lambda: dqn_task(period_steps=0), r"period_steps=0\): give at least 1"),
        (lambda: dqn_task(sync_every_updates=0), "sync_every_updates=0"),
        (lambda: ComputationTask(DQN(OBSERVATION, CHOICE, DQNConfig(unroll_length=0.5))), "whole numbers of new rows"),
        (lambda: dqn_task().store(0, None, None), "keeps no replay buffer"),
    ],
)
def test_what_a_robot_cannot_run_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


class Pair(Robot):
    """Two tasks on one algorithm, and a third on its own."""

    agent_class = OneTaskAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        shared = DQN(self.observation_spec, self.action_spec, seeds=task_seeds(seeds, 0))
        other = DQN(self.observation_spec, self.action_spec, seeds=task_seeds(seeds, 1))
        return {"a": ComputationTask(shared), "b": ComputationTask(other), "c": ComputationTask(shared)}


def test_passing_the_same_algorithm_shares_it_and_tasks_that_share_are_never_computed_at_once():
    """PARL-30, PARL-31: an update through one task is visible in the other; the third has its own."""
    robot = Pair(OBSERVATION, CHOICE)
    a, b, c = (robot.tasks[name] for name in "abc")
    assert list(robot.tasks) == ["a", "b", "c"]
    assert a.lock is c.lock and a.lock is not b.lock
    assert not unchanged(b, parameters(a)), "each task has seeds of its own"
    fill(a)
    before = parameters(b)
    with torch.no_grad():
        next(a.algorithm.model.parameters()).add_(1)
    assert unchanged(c, parameters(a)) and unchanged(b, before)
    held = threading.Event()
    with c.lock:
        thread = threading.Thread(target=lambda: (a.predict(inputs()), held.set()))
        thread.start()
        assert not held.wait(0.1)
    thread.join(60)
    assert held.is_set()


def test_a_task_and_its_reference_copy_move_together():
    """Predictions come back to the CPU, rows are stored there, and what the copy draws from goes on or begins anew."""
    with pretend_device() as device:
        task = dqn_task(sync_every_updates=2)
        task.to(device)
        assert task.acting_policy.device.type == task.algorithm.device.type == device
        answer = task.predict(inputs())
        assert (type(answer["action"]), type(answer["env_action"])) == (torch.Tensor, torch.Tensor)
        fill(task)
        for _ in range(2):
            task.learn([None])
        assert answer["action"].tolist() == dqn_task(sync_every_updates=2).predict(inputs())["action"].tolist()
        assert {p.device.type for p in task.acting_policy.parameters()} == {device}
        state = task.state()
    twin = dqn_task(sync_every_updates=2)
    twin.load_state({**state, "generator": torch.zeros(16, dtype=torch.uint8)})  # as CUDA has it
    assert twin.acting_policy.version == 2


def test_an_update_that_is_not_finite_keeps_the_state_of_then(monkeypatch):
    """F23: the task learns on before the run keeps what was wrong; only what the run keeps is copied."""
    task = dqn_task()
    name, weight = next(iter(task.algorithm.model.named_parameters()))

    def failing(source):
        raise NonFiniteError("the gradient is not finite")

    monkeypatch.setattr(task.algorithm, "update", failing)
    before = weight.detach().clone()
    for _ in range(4):
        task._update(None)
        with torch.no_grad():
            weight.add_(1.0)
    states = [error.state for error in task.updates]
    assert torch.equal(states[0]["model." + name], before) and states[3] is None
    torch.testing.assert_close(states[2]["model." + name], before + 2)


def test_the_state_of_a_robot_waits_for_an_update():
    class OneTask(Robot):
        agent_class = OneTaskAgent

        def build(self, seeds):
            return {"policy": dqn_task()}

    robot, states = OneTask(OBSERVATION, CHOICE), []
    thread = threading.Thread(target=lambda: states.append(robot.state()), daemon=True)
    with robot.tasks["policy"].lock:
        thread.start()
        thread.join(0.2)
        assert not states
    thread.join(20)
    assert states
