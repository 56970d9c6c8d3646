"""Robots stop within two seconds whatever they are doing, and nobody hangs when something fails.

PARL-22: the loops of the founding document wait for ever once too few agents live.
"""

import dataclasses
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra import Trainer, TrainerConfig
from palaestra.core import EnvError
from palaestra.robots import Agent, AgentError, ComputationWrapper, RobotConfig, evaluate_robot
from palaestra.robots.agent import AgentGroup
from palaestra.rollout import RequestError
from tests.faults import broken
from tests.robots.parts import QUICK, OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

PATIENCE_S = 0.5  # in which what should wait would go on
STOP_S = 30.0  # promised are 7 s, on a machine that has nothing else to do
WORLD = "tests.robots.test_stops:World"
released = threading.Event()
arrived = threading.Event()


class World(gymnasium.Env[np.ndarray, np.int64]):
    """Pays 1; waits in step `wait_at` until it is released, and fails in step `fail_at`, or breaks there by `mode`."""

    def __init__(self, wait_at: int = -1, fail_at: int = -1, mode: str = "") -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
        self._wait_at, self._fail_at, self._steps = wait_at, fail_at, 0
        self._does = ({name: do for name, (do, _) in broken.RAISES.items()} | broken.ENDS).get(mode)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._wait_at:
            arrived.set()
            released.wait(60)
        if self._steps == self._fail_at:
            if self._does:
                self._does()
            raise ValueError("the arm is stuck")
        return np.zeros(1, np.float32), 1.0, False, self._steps % 7 == 0, {}


@pytest.fixture(autouse=True)
def closed_again():
    released.clear()
    arrived.clear()
    yield
    released.set()


def setup(world=None, num_agents=4, config=QUICK, worlds=None, **settings):
    make = env_maker(WORLD, **(world or {}))
    if worlds is not None:
        make = lambda number: env_maker(WORLD, **worlds.get(number, {}))(number)  # noqa: E731
    algorithm = OneTaskConfig(name="dqn", settings=(("learning_starts", 0), ("mini_batch_size", 4)))
    robot = robot_of(OneTaskRobot, make, algorithm)
    return robot, collector_of(robot, make, num_agents, config=config, **settings)


def unrolling(collector, steps=1000):
    """An unroll in a thread of its own; what it ended with comes back."""
    ended: list[BaseException | None] = []

    def run():
        try:
            collector.unroll(steps)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def threads_left():
    return [t.name for t in threading.enumerate() if t.name.startswith(("agent ", "prediction ", "learning "))]


def closes_in_time(collector):
    began = time.monotonic()
    collector.close()
    return time.monotonic() - began < STOP_S


def hold(collector, server):
    """Makes a task compute until it is released."""
    task = collector.robot.tasks["policy"]
    original = task.predict if server == "prediction" else task.learn

    def slow(given):
        arrived.set()
        released.wait(60)
        return original(given)

    setattr(task, "predict" if server == "prediction" else "learn", slow)


def test_a_robot_stops_while_agents_act(wait_until):
    robot, collector = setup()
    thread, _ = unrolling(collector, steps=100_000)
    wait_until(lambda: robot.tasks["policy"].predictions > 20)
    assert closes_in_time(collector)
    wait_until(lambda: not threads_left())
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("server", ["prediction", "learning"])
def test_a_robot_stops_while_agents_wait_for_a_task(server, wait_until, caplog):
    """The computation ends a moment after the stop: everybody is answered and goes home."""
    _, collector = setup()
    hold(collector, server)
    thread, _ = unrolling(collector)
    assert arrived.wait(60)
    threading.Timer(0.3, released.set).start()
    assert closes_in_time(collector)
    wait_until(lambda: not threads_left())
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("server", ["prediction", "learning"])
def test_a_robot_stops_although_a_task_never_answers(server, wait_until):
    """Agents are told; only the thread of the computation itself is left behind."""
    _, collector = setup()
    hold(collector, server)
    thread, _ = unrolling(collector)
    assert arrived.wait(60)
    assert closes_in_time(collector)
    wait_until(lambda: not [name for name in threads_left() if name.startswith("agent ")])
    thread.join(60)
    assert not thread.is_alive()


def test_a_robot_stops_while_an_environment_does_not_answer(caplog, wait_until):
    """The agent in it is named and left behind; the others go home."""
    _, collector = setup(worlds={2: {"wait_at": 3}})
    thread, _ = unrolling(collector)
    assert arrived.wait(60)
    assert closes_in_time(collector)
    assert "the agents [2] did not end within 7 s" in caplog.text
    wait_until(lambda: threads_left() == ["agent 2"])
    released.set()
    wait_until(lambda: not threads_left())
    thread.join(60)
    assert not thread.is_alive()


def test_a_robot_that_never_began_stops_too():
    assert closes_in_time(setup()[1])


@pytest.mark.slow
def test_an_environment_that_hangs_is_an_error_that_names_its_agent():
    config = RobotConfig(max_wait_s=0.01, learn_max_wait_s=0.01, timeout_s=0.5)
    _, collector = setup(worlds={1: {"wait_at": 2}}, config=config)
    with collector, pytest.raises(AgentError, match=r"the agents \[1\] have not moved for 0\.5 s \(robot\.timeout_s\)"):
        collector.unroll(50)


def test_an_exception_in_the_environment_names_agent_episode_step_and_cause():
    _, collector = setup(worlds={3: {"fail_at": 9}})
    with (
        collector,
        pytest.raises(AgentError, match=r"(?s)agent 3 failed in its episode 2, env step 9: .*arm is stuck") as told,
    ):
        collector.unroll(50)
    assert isinstance(told.value.__cause__, EnvError)


@pytest.mark.parametrize("mode", ["base_exception", "generator_exit", "keyboard_interrupt", "os_exit_0"])
def test_what_would_end_the_process_is_a_fault_of_the_environment(mode, no_ctrl_c):
    """D2, D12: in training and in an evaluation, as of an environment without a robot."""
    what = "raised EnvironmentExit" if mode == "os_exit_0" else broken.RAISES[mode][1]
    robot, collector = setup({"fail_at": 3, "mode": mode}, num_agents=1)
    place = rf"environment 0 {what} in episode 0 \(seed \d+\), at step 3 with action \d"
    with collector, pytest.raises(AgentError, match=f"agent 0 failed in its episode 1, env step 3: {place}"):
        collector.unroll(50)
    policies = {name: task.algorithm.policy for name, task in robot.tasks.items()}
    with pytest.raises(EnvError, match=place):
        evaluate_robot(collector.evaluated_by, policies, episodes=1)


@pytest.mark.parametrize("what", ["predict", "learn"])
def test_an_exception_in_a_task_reaches_the_trainer_by_name(what):
    """Every agent was waiting for the batch that failed: each is told why, and the run ends with it."""
    robot, collector = setup()
    task = robot.tasks["policy"]

    def broken(given):
        raise ArithmeticError("singular")

    setattr(task, what, broken)
    named = {"predict": "prediction", "learn": "learning"}[what]
    began = time.monotonic()
    with collector, pytest.raises(AgentError, match=f"{named} of the task 'policy' failed .*ArithmeticError: singular"):
        Trainer(collector, robot, TrainerConfig(total_env_steps=1000)).run()
    assert time.monotonic() - began < 60 and not threads_left()


def test_an_exception_in_the_agents_own_code_is_named():
    class Lost(Agent):
        def run_one_episode(self) -> None:
            self.env.reset()
            raise KeyError("which way")

    _, collector = setup()
    collector.factory = dataclasses.replace(collector.factory, agent_class=Lost)
    with (
        collector,
        pytest.raises(AgentError, match=r"agent \d failed in its episode 1, env step 0: KeyError: 'which way'"),
    ):
        collector.unroll(5)


def test_an_agent_that_does_nothing_is_an_error():
    class Idle(Agent):
        def run_one_episode(self) -> None:
            pass

    _, collector = setup()
    collector.factory = dataclasses.replace(collector.factory, agent_class=Idle)
    with collector, pytest.raises(AgentError, match=r"returned without calling self\.env\.reset\(\)"):
        collector.unroll(5)


def test_a_dead_agent_frees_its_place_and_the_others_go_on(caplog):
    """`on_fault=drop`: with batches that close only when everybody waits, three of four finish their unroll."""
    _, collector = setup(worlds={1: {"fail_at": 5}}, on_fault="drop")
    with collector:
        info = collector.unroll(20)
        assert info.env_steps == 20 * 3 + 5
        assert collector.unroll(10).env_steps == 30
        saved = collector.state()
    _, again = setup(on_fault="drop")
    again.load_state(saved)
    with again:
        assert again.unroll(10).env_steps == 40  # a resumed run begins all four
        assert again.state()["incarnations"] == {"0": 1, "1": 1, "2": 1, "3": 1}
    _, older = setup()
    older.load_state({"env_steps": 5, "incarnations": {"0": 2, "2": 2, "3": 2}})  # which left out those dropped
    assert older.state()["incarnations"] == dict.fromkeys("0123", 3)
    assert "agent 1 failed" in caplog.text and "the others continue without it" in caplog.text


def test_a_dead_agent_begins_anew_with_episodes_of_its_own(caplog):
    """`on_fault=restart`: it gets the actions that are left of the next unroll."""
    _, collector = setup(worlds={1: {"fail_at": 5}}, on_fault="restart", max_restarts=3)
    with collector:
        collector.unroll(12)
        incarnations = collector.state()["incarnations"]
    assert "it is restarted" in caplog.text and incarnations.pop("1") >= 1
    assert incarnations == {"0": 0, "2": 0, "3": 0}


def test_an_agent_that_fails_again_and_again_ends_the_run():
    _, collector = setup(worlds={1: {"fail_at": 1}}, on_fault="restart", max_restarts=2)
    with (
        collector,
        pytest.raises(AgentError, match=r"failed 3 times .* The first time agent 1 .* stuck") as found,
    ):
        collector.unroll(50)
    assert [fault.handled for fault in collector.faults] == ["restart"] * 2
    assert "the arm is stuck" in str(found.value.__cause__)


class Exclusive(World):
    """Holds the one arm there is; making it fails where another one holds it, and the second time."""

    made = held = refused = 0

    def __init__(self) -> None:
        super().__init__(fail_at=3 if Exclusive.made < 2 else -1)
        Exclusive.made += 1
        Exclusive.refused += Exclusive.held
        if Exclusive.held or Exclusive.made == 2:
            raise OSError("the arm is held by another connection")
        Exclusive.held = 1

    def close(self) -> None:
        Exclusive.held = 0


def test_what_failed_is_closed_before_it_is_made_again_and_a_failed_making_is_one_more_fault(caplog):
    algorithm = OneTaskConfig(name="dqn", settings=(("learning_starts", 0), ("mini_batch_size", 4)))
    robot, make = robot_of(OneTaskRobot, env_maker(WORLD), algorithm), env_maker("tests.robots.test_stops:Exclusive")
    with collector_of(robot, make, 1, on_fault="restart") as collector:
        assert collector.unroll(20).env_steps == 20
        assert (Exclusive.made, Exclusive.refused) == (3, 0)
        assert [fault.handled for fault in collector.faults] == ["restart"] * 2
    assert "agent 0 cannot be made again" in caplog.text


def test_an_unroll_is_not_over_while_a_task_learns_for_an_agent_that_has_failed(caplog):
    """Else a checkpoint had a half-made update, and an evaluation weights that change."""
    begun, unrolled, order = threading.Event(), threading.Event(), []

    class Failing(Agent):
        def run_one_episode(self) -> None:
            act, step = self.helpers["policy"], self.env.reset()
            while not step.last:
                step = self.env.step(act.predict(step))
                if act.communicator.agent_id == 0:
                    act.store_data(step)
                    assert begun.wait(STOP_S)
                    raise ValueError("broken")

    class Background(OneTaskRobot):
        agent_class = Failing
        task_settings = {"learning": "background"}  # noqa: RUF012

    def learn(requests):
        begun.set()
        unrolled.wait(PATIENCE_S)
        order.append("learned")

    make = env_maker(WORLD)
    settings = (("learning_starts", 0), ("mini_batch_size", 4), ("unroll_length", 1))
    robot = robot_of(Background, make, OneTaskConfig(settings=settings))
    robot.tasks["policy"].learn = learn
    config = dataclasses.replace(QUICK, learn_min_batch_size=1)
    with collector_of(robot, make, 2, on_fault="drop", config=config) as collector:
        collector.unroll(3)
        order.append("unrolled")
        unrolled.set()
    assert order == ["learned", "unrolled"] and len(collector.faults) == 1


def test_a_task_that_goes_on_learning_for_too_long_is_an_error():
    released.clear()
    robot = robot_of(OneTaskRobot, env_maker(WORLD), OneTaskConfig())
    robot.tasks["policy"].learn = lambda requests: released.wait(STOP_S)
    wrapper = ComputationWrapper("policy", robot.tasks["policy"], RobotConfig(timeout_s=0.1, learn_max_wait_s=0.0))
    with wrapper:
        wrapper.create_communicator(0).learn_later(None)
        with pytest.raises(
            RequestError, match=r"learning of the task 'policy' has not ended 0\.1 s \(robot.timeout_s\)"
        ):
            wrapper.settle()
        released.set()
        wrapper.settle()


def test_an_agent_whose_allowance_is_taken_back_finishes_what_it_learns_before_it_pauses(wait_until):
    looked, order = threading.Event(), []

    class Allowance(dict):
        def get(self, *place):
            looked.set()
            return super().get(*place)

    group = AgentGroup(lambda *_: None, on_pause=lambda change: order.append("paused"))
    group.allowance = Allowance({0: 1})
    arguments = 0, True, lambda: order.append("finished")
    thread = threading.Thread(target=group.wait_for_permission, args=arguments, daemon=True)
    with group.changed:
        thread.start()
        looked.wait(PATIENCE_S)
        group.allowance[0] = 0
    wait_until(lambda: group.paused)
    group.allow({0: 1})
    thread.join(STOP_S)
    assert order[:2] == ["finished", "paused"] and group.steps == 1
