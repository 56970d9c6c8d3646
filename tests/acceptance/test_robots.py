"""Scenario 9: a robot of two tasks, eight agents at once, batched inference, rates, isolation, a clean stop."""

import itertools
import threading
import time

import pytest
import torch

from examples.robots.auxiliary import SeeingRobot, backdrop
from examples.robots.hierarchical import DIRECTIONS, FourRoomsConfig, FourRoomsRobot, four_rooms
from examples.robots.parl_document import TRAINING_INTERVAL, DocumentRobot
from palaestra import RunSeeds, Trainer, TrainerConfig
from palaestra.core import StepType
from palaestra.envs import load
from palaestra.robots import OffPolicyHelper, OnPolicyHelper, RobotCollector, RobotConfig
from tests.robots.watchful import WatchfulRobot

QUICK = RobotConfig(max_wait_s=2.0, learn_max_wait_s=2.0, steps_per_iteration=25, timeout_s=20.0)


def weights(task):
    return [parameter.detach().clone() for parameter in task.algorithm.model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


STEPS = 400


@pytest.fixture(scope="module")
def played():
    """Eight agents through so few env steps that nothing is learned yet."""
    return stopped_after(STEPS)


@pytest.fixture(scope="module")
def trained():
    return stopped_after(1_600)


def stopped_after(env_steps):
    """A robot and what is known of its run; the collector is stopped, and how long that took is the last of it."""
    env = four_rooms(0)
    robot = FourRoomsRobot(env.observation_spec, env.action_spec, FourRoomsConfig(), RunSeeds(1))
    before = {name: weights(task) for name, task in robot.tasks.items()}
    collector = RobotCollector(robot, four_rooms, 8, seed=1, config=QUICK)
    result = Trainer(collector, robot, TrainerConfig(total_env_steps=env_steps)).run()
    statistics = {name: wrapper.prediction.statistics for name, wrapper in collector.wrappers.items()}
    began = time.monotonic()
    collector.close()
    return robot, collector, before, statistics, result, time.monotonic() - began


@pytest.mark.slow
def test_both_tasks_act_and_learn_in_their_order(trained):
    """Scenario 9, PARL-07, PARL-09, PARL-15: two algorithms with data of their own, driven by one control flow."""
    robot, _, before, _, result, _ = trained
    assert result.env_steps == 1_600 and list(robot.tasks) == ["goal", "control"]
    assert all(task.algorithm.num_gradient_steps > 0 for task in robot.tasks.values())
    assert not any(same(before[name], weights(task)) for name, task in robot.tasks.items())
    goal, control = (robot.tasks[name].buffer for name in ("goal", "control"))
    assert goal.options["action_spec"] != control.options["action_spec"]


def test_the_control_task_is_given_each_goal_that_the_goal_task_chose_before(monkeypatch):
    """PARL-09, PARL-15: in each row that it stores, too, and asked for only where a way begins."""
    env = four_rooms(0)
    robot, calls = FourRoomsRobot(env.observation_spec, env.action_spec, FourRoomsConfig(goal_steps=4)), []
    for name, task in robot.tasks.items():

        def predict(inputs, name=name, predict=task.predict):
            calls.append((name, inputs, answer := predict(inputs)))
            return answer

        monkeypatch.setattr(task, "predict", predict)
    with RobotCollector(robot, four_rooms, config=QUICK) as collector:
        collector.unroll(30)
    goals, begins = [], []
    for name, inputs, answer in calls:
        if name == "goal":
            way = 0.4 * torch.as_tensor(DIRECTIONS[int(answer["env_action"])])
            goal = (inputs.observation.observation[0] + way).clamp(-0.95, 0.95).float()
        else:
            goals.append(goal)
            torch.testing.assert_close(inputs.observation.desired_goal[0], goal)
            begins.append(int(inputs.step_type) == StepType.FIRST)
    names = [name for name, _, _ in calls]
    asked = [before == "goal" for before, name in itertools.pairwise(names) if name == "control"]
    assert asked == begins and len(goals) == 30 and names.count("goal") >= 30 / 4
    assert len({tuple(goal.tolist()) for goal in goals}) > 3
    buffer = robot.tasks["control"].buffer
    rows = buffer.in_time_order(0)
    stored = buffer.observation.desired_goal[rows][buffer.step_type[rows] != StepType.LAST]
    torch.testing.assert_close(stored[:29], torch.stack(goals[:29]))


def test_the_requests_of_eight_agents_are_computed_in_fewer_calls(played):
    """Scenario 9, PARL-17, PARL-23: never more than eight rows, and far fewer calls than requests."""
    _, _, _, statistics, _, _ = played
    assert statistics["control"].requests == STEPS and statistics["control"].largest_batch <= 8
    assert statistics["control"].batches < STEPS / 3
    assert statistics["goal"].batches < statistics["goal"].requests


def test_the_tasks_run_at_different_rates(played):
    """Scenario 9, PARL-12: the control task in every step, the goal task every tenth or on an event."""
    robot = played[0]
    goal, control = (robot.tasks[name].predictions for name in ("goal", "control"))
    assert control == STEPS and STEPS / 10 <= goal < STEPS / 5


def test_the_stream_of_the_control_task_ends_with_each_subgoal(played):
    """Scenario 9, PARL-16, PARL-21: LAST with discount 0 where it was reached, 1 where the time was over."""
    robot = played[0]
    buffer = robot.tasks["control"].buffer
    rows = buffer.in_time_order(3)
    kinds, discount = buffer.step_type[rows], buffer.discount[rows]
    last = kinds == StepType.LAST
    assert int(last.sum()) >= 3 and set(discount[last].tolist()) <= {0.0, 1.0} and bool((discount[~last] == 1).all())
    ends = last.nonzero().flatten().tolist()
    assert max(b - a for a, b in zip([-1, *ends], ends, strict=False)) <= 11  # ten steps and the one it began with


@pytest.mark.slow
def test_no_gradient_passes_between_the_tasks(trained):
    """Scenario 9, PARL-10: what one learns leaves the other bit by bit as it was, without a gradient."""
    robot = trained[0]
    goal, control = robot.tasks["goal"], robot.tasks["control"]
    for learner, other in ((goal, control), (control, goal)):
        before, mine = weights(other), weights(learner)
        assert learner.learn([None]) is not None
        assert same(before, weights(other)) and not same(mine, weights(learner))
        assert all(parameter.grad is None for parameter in other.algorithm.model.parameters())


def test_the_robot_stopped_in_time_and_left_no_thread(played):
    """Scenario 9, PARL-22, PARL-26: it waits for nobody until a time is over, and every place is freed."""
    _, collector, _, _, _, stopped_s = played
    assert stopped_s < QUICK.timeout_s / 2 and not collector.clients.connected
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("agent ", "prediction of", "learning of"))]


@pytest.mark.slow
def test_the_document_s_own_robot_learns_at_its_interval():
    """PARL-21, PARL-20: `RL` every TRAINING_INTERVAL steps, `goal` at each goal's end, with the summed reward."""
    env = four_rooms(0)
    robot = DocumentRobot(env.observation_spec, env.action_spec)
    with RobotCollector(robot, lambda i: load("palaestra.envs.tiny:FourRooms", max_episode_steps=100), 1) as collector:
        collector.unroll(400)
        helpers = collector._group.agents[0].helpers
        assert type(helpers["RL"]) is OnPolicyHelper and type(helpers["goal"]) is OffPolicyHelper
        assert robot.tasks["RL"].algorithm.policy_version in (400 // TRAINING_INTERVAL - 1, 400 // TRAINING_INTERVAL)
        rows = robot.tasks["goal"].rows_stored
        assert rows >= 400 / 25 - 1 and robot.tasks["goal"].predictions in (rows, rows + 1)


@pytest.mark.slow
def test_an_auxiliary_task_trains_the_perception_of_the_task_that_acts():
    """PARL-07, PARL-31: it never predicts; with it alone learning, the acting network's features move."""
    env = load("tests.robots.watchful:NoisyCatch")
    robot = WatchfulRobot(env.observation_spec, env.action_spec)
    play, watch = robot.tasks["play"], robot.tasks["watch"]
    assert play.lock is watch.lock
    with RobotCollector(robot, lambda number: load("tests.robots.watchful:NoisyCatch")) as collector:
        collector.unroll(250)
        before = play.algorithm.network.mlp.layers[0].weight.clone()
        actions = play.algorithm.network.mlp.layers[-1].weight.clone()
        watch.learn([None])
        assert watch.predictions == 0 and watch.rows_stored == play.rows_stored > 200
        assert not torch.equal(play.algorithm.network.mlp.layers[0].weight, before)
        assert torch.equal(play.algorithm.network.mlp.layers[-1].weight, actions), "its values are the other task's"


def test_a_task_for_perception_learns_to_see_and_the_task_that_acts_sends_it_no_gradient():
    """PARL-07, PARL-10: it soon knows which action it was; what it sees is all that the other has."""
    env = backdrop(0)
    robot = SeeingRobot(env.observation_spec, env.action_spec, seeds=RunSeeds(0))
    see, play = robot.tasks["see"].algorithm, robot.tasks["play"].algorithm
    with RobotCollector(robot, backdrop, 8) as collector:
        collector.unroll(200)
    guessed = [info.metrics["right"] for info in robot.tasks["see"].updates[-5:]]
    assert sum(guessed) / 5 > 0.8, "chance is 0.25"
    assert play.policy.observation_spec == see.policy.action_spec
    seeing = {id(parameter) for parameter in see.model.parameters()}
    assert not seeing & {id(parameter) for parameter in play.model.parameters()}
