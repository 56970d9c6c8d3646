"""Tests of whole robots: what their agents see and count, what a trainer sees, and what is saved."""

import dataclasses
import functools
import threading
from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra import Trainer, TrainerConfig
from palaestra.algorithms import PPO, PPOConfig, UpdateInfo
from palaestra.core import ConfigError, NonFiniteError, RunSeeds
from palaestra.envs import EnvironmentWrapper, GymEnvironment, load
from palaestra.envs.wrappers import ActionRepeat, EpisodeStatistics, NormalizeObservation
from palaestra.robots import Agent, AgentFactory, ComputationTask, Robot, evaluate_robot
from palaestra.runtime import ProcessRuntime
from palaestra.training import CheckpointStore, LearningRecord
from tests.robots.parts import QUICK, OneTaskAgent, OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

CHAIN, NESTED = "palaestra.envs.tiny:Chain", "tests.envs.worlds:Nested"


class Plain(Robot):
    """PPO on whatever there is to see and do."""

    agent_class = OneTaskAgent

    def build(self, seeds: RunSeeds) -> dict[str, ComputationTask]:
        config = PPOConfig(unroll_length=8, mini_batch_size=8)
        return {"policy": ComputationTask(PPO(self.observation_spec, self.action_spec, config, seeds))}


class Breaking(EnvironmentWrapper):
    """Fails in its so many-th step."""

    def __init__(self, env, fails_at) -> None:
        super().__init__(env)
        self.left = fails_at

    def advance(self, action):
        self.left -= 1
        if not self.left:
            raise ValueError("broken")
        return self.env.advance(action)


def normalizing(make, number, fails_at=0):
    return NormalizeObservation(Breaking(make(number), fails_at))


def chain_robot(name="dqn", **settings):
    make = env_maker(CHAIN, limit=6, num_states=4)
    given = tuple({"learning_starts": 0, "mini_batch_size": 4, **settings}.items()) if name == "dqn" else ()
    return robot_of(OneTaskRobot, make, OneTaskConfig(name=name, settings=given)), make


def test_any_task_with_several_kinds_of_inputs_and_actions():
    """PARL-01, PARL-13: nested observations and actions of several parts go through predict, store and learn."""
    make = env_maker(NESTED, limit=7)
    robot = robot_of(Plain, make)
    with collector_of(robot, make, 2) as collector:
        assert collector.unroll(20).env_steps == 40
    assert robot.tasks["policy"].algorithm.policy_version >= 2


def test_under_action_repeat_an_agent_counts_actions_and_its_info_frames():
    """PARL-02, PARL-03, PARL-04: one env step is up to K frames, an end cuts it short; both are reported."""

    def make(number):
        return ActionRepeat(load("CartPole-v1", env_id=number, max_episode_steps=13), repeat=5)

    env = make(0)
    robot = Plain(env.observation_spec, env.action_spec)
    with collector_of(robot, make, 1) as collector:
        episodes = collector.unroll(30).episodes
    assert collector.env_steps == 30 and len(episodes) >= 5
    for episode in episodes:
        assert episode.info["frames"] == episode.episode_return  # CartPole pays 1 a frame
        assert 5 * (episode.length - 1) < episode.info["frames"] <= 5 * episode.length


def test_an_unroll_lets_every_agent_act_so_often_and_keeps_it_there():
    robot, make = chain_robot()
    with collector_of(robot, make, 3) as collector:
        for unroll in (1, 7, 2):
            before = collector.env_steps
            info = collector.unroll(unroll)
            assert info.env_steps == 3 * unroll == collector.env_steps - before
        assert len({len(robot.tasks["policy"].buffer.in_time_order(lane)) for lane in range(3)}) == 1
        predictions = robot.tasks["policy"].predictions
        assert predictions == 30, "nobody asks anything after its last action"


def test_a_pause_ends_an_unroll_before_it_has_all_its_steps(wait_until):
    robot, make = chain_robot()
    with collector_of(robot, make, 2) as collector:
        thread = threading.Thread(target=lambda: collector.unroll(1_000_000), daemon=True)
        thread.start()
        wait_until(lambda: robot.tasks["policy"].predictions > 12)
        collector.pause()
        thread.join(60)
        assert not thread.is_alive() and 10 < collector.env_steps < 1_000_000
        assert collector.unroll(3).env_steps == 6


def test_a_checkpoint_brings_weights_buffers_and_counters_back(tmp_path):
    robot, make = chain_robot(unroll_length=1)
    with collector_of(robot, make, 2) as collector:
        store = CheckpointStore(tmp_path / "checkpoints")
        Trainer(collector, robot, TrainerConfig(total_env_steps=60), checkpoints=store).run()
    again, _ = chain_robot(unroll_length=1)
    with collector_of(again, make, 2) as more:
        trainer = Trainer(more, again, TrainerConfig(total_env_steps=120))
        trainer.load_state(store.load_newest()[1])
        task, old = again.tasks["policy"], robot.tasks["policy"]
        mine, theirs = task.algorithm.model.state_dict(), old.algorithm.model.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        assert (
            more.env_steps == 60 and task.rows_stored == old.rows_stored == 60 and len(task.buffer) == len(old.buffer)
        )
        assert more.state()["incarnations"] == {"0": 1, "1": 1}
        trainer.run()
        assert more.env_steps == 120 and task.rows_stored == 120


def test_episodes_of_a_resumed_robot_are_none_of_those_before():
    factory = AgentFactory(
        agent_class=OneTaskAgent, config=None, specs={}, make_env=env_maker(CHAIN), num_agents=3, seed=5
    )
    seeds = [factory.lane_seed(agent, life) for agent in range(3) for life in range(4)]
    assert len(set(seeds)) == 12
    assert factory.lane_seed(2, 0) == RunSeeds(5).integer("environments", 2)


def counted(collector):
    """By agent, the observations in the statistics that its environment began the running episode with."""
    carried = collector.state()["carried"]
    return {number: one["0:NormalizeObservation"][""][0] for number, one in carried.items()}


@pytest.mark.parametrize("kind", [None, ProcessRuntime])
def test_statistics_of_wrappers_go_on_after_a_resume_and_a_restart(kind, caplog):
    make = functools.partial(normalizing, env_maker(CHAIN, limit=6, num_states=4))
    config = OneTaskConfig(settings=(("learning_starts", 0), ("mini_batch_size", 4)))
    with nullcontext() if kind is None else kind() as runtime:
        settings = {"runtime": runtime, "on_fault": "restart"}
        with collector_of(robot_of(OneTaskRobot, make, config), make, 2, **settings) as collector:
            collector.unroll(20)
            saved, before = collector.state(), counted(collector)
        assert set(before) == {"0", "1"} and min(before.values()) > 15
        broken = functools.partial(normalizing, env_maker(CHAIN, limit=6, num_states=4), fails_at=3)
        with collector_of(robot_of(OneTaskRobot, broken, config), broken, 2, **settings) as again:
            again.load_state(saved)
            again.unroll(1)
            assert counted(again) == before
            again.unroll(4)
            assert counted(again) == before and len(again.faults) >= 2


def test_schedules_follow_the_run():
    robot, make = chain_robot("a2c")
    robot.set_progress(0.25)
    assert robot.tasks["policy"].algorithm.model is not None
    with collector_of(robot, make, 1) as collector:
        trainer = Trainer(collector, robot, TrainerConfig(total_env_steps=40))
        trainer.run()
        assert trainer.progress == 1.0


def test_an_evaluation_neither_explores_nor_learns_nor_stores():
    robot, make = chain_robot()
    with collector_of(robot, make, 2) as collector:
        collector.unroll(20)
        task = robot.tasks["policy"]
        before = task.rows_stored, task.algorithm.policy_version, task.predictions
        generator = task.algorithm.policy.generator.get_state()
        policies = {"policy": task.algorithm.policy}
        found = evaluate_robot(collector.evaluated_by, policies, episodes=5)
        again = evaluate_robot(collector.evaluated_by, policies, episodes=5)
        assert found.returns == again.returns and found.episodes == 5
        assert (task.rows_stored, task.algorithm.policy_version, task.predictions) == before
        assert torch.equal(task.algorithm.policy.generator.get_state(), generator)


class Told(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of two steps; keeps the seeds of all resets, and reports numbers in an array and in a nested dict."""

    seeds: list[int | None] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        Told.seeds.append(seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        info = {"plain": 3, "force": np.array([1.0, 2.0]), "arm": {"joint": 0.5}, "map": np.zeros(99), "name": "x"}
        return np.zeros(1, np.float32), 1.0, self._steps == 2, False, info


def told_robot():
    def make(number):
        return EpisodeStatistics(GymEnvironment(Told(), number))

    settings = (("learning_starts", 0), ("mini_batch_size", 4))
    return robot_of(OneTaskRobot, make, OneTaskConfig(name="dqn", settings=settings)), make


def test_an_evaluation_has_seeds_that_never_occur_in_training():
    robot, make = told_robot()
    with collector_of(robot, make, 2) as collector:
        Told.seeds.clear()
        collector.unroll(20)
        training = set(Told.seeds)
        Told.seeds.clear()
        found = evaluate_robot(collector.evaluated_by, {"policy": robot.tasks["policy"].algorithm.policy}, episodes=20)
    assert len(training) >= 20 and len(set(Told.seeds)) == 20 and training.isdisjoint(Told.seeds)
    assert found.seeds == [RunSeeds(0).integer("evaluation", number) for number in (0, 1)]
    assert dataclasses.replace(collector.factory, stream="evaluation") == collector.evaluated_by


def test_numbers_of_info_are_reported_from_nested_entries_and_small_arrays_too():
    """In training and in evaluations, under the names that batches of environments have them by."""
    robot, make = told_robot()
    with collector_of(robot, make, 1) as collector:
        info = collector.unroll(4).episodes[0].info
        found = evaluate_robot(collector.evaluated_by, {"policy": robot.tasks["policy"].algorithm.policy}, episodes=2)
    expected = {"plain": 6, "force/0": 2, "force/1": 4, "arm/joint": 1, "episode/return": 2, "episode/length": 2}
    assert {name: value for name, value in info.items() if "@" not in name} == expected
    assert expected.keys() <= found.parts.keys()


def test_an_evaluation_needs_a_policy_for_every_task():
    robot, make = chain_robot()
    with (
        collector_of(robot, make) as collector,
        pytest.raises(ConfigError, match=r"the tasks \['policy'\] have no policy"),
    ):
        evaluate_robot(collector.evaluated_by, {}, episodes=1)


def test_background_learning_is_over_when_an_unroll_is(wait_until):
    """PARL-20: nothing is computed while a run is saved or evaluated."""

    class Background(OneTaskRobot):
        task_settings = {"learning": "background"}  # noqa: RUF012

    make = env_maker(CHAIN, limit=6)
    settings = (("learning_starts", 0), ("mini_batch_size", 4), ("unroll_length", 1))
    robot = robot_of(Background, make, OneTaskConfig(name="dqn", settings=settings))
    with collector_of(robot, make, 2) as collector:
        for _ in range(3):
            collector.unroll(11)
            statistics = collector.wrappers["policy"].training.statistics
            assert statistics.requests == collector.env_steps
    assert robot.tasks["policy"].algorithm.num_gradient_steps > 5


def test_a_robot_without_tasks_is_refused():
    class Empty(Robot):
        agent_class = OneTaskAgent

        def build(self, seeds: RunSeeds) -> dict[str, Any]:
            return {}

    env = load(CHAIN)
    with pytest.raises(ConfigError, match="a robot needs at least one"):
        Empty(env.observation_spec, env.action_spec)
    robot, make = chain_robot()
    with pytest.raises(ConfigError, match="num_agents is 0"):
        collector_of(robot, make, 0)


def test_parts_of_a_robot_can_be_replaced():
    """PARL-08: the agent's control flow, here by one that stops early and begins anew."""

    begun = []

    class Hasty(Agent):
        def run_one_episode(self) -> None:
            begun.append(self)
            step = self.env.reset()
            for _ in range(2):
                step = self.env.step(self.helpers["policy"].predict(step))
                self.helpers["policy"].store_data(step)

    class HastyRobot(OneTaskRobot):
        agent_class = Hasty

    make = env_maker(CHAIN, limit=6)
    robot = robot_of(HastyRobot, make, OneTaskConfig(name="a2c"))
    with collector_of(robot, make, 1, config=QUICK) as collector:
        assert collector.unroll(9).episodes == []
        assert len(begun) == 5


def test_updates_of_an_iteration_are_counted_one_by_one(tmp_path, caplog):
    """Those that are not finite hide no good ones, nor good ones them."""
    robot, _ = chain_robot()
    record = LearningRecord(robot, 2, tmp_path)

    def learned(*updates):
        robot.tasks["policy"].updates = list(updates)
        return record.add(robot.update({}), env_steps=7).get("policy")

    good, bad = UpdateInfo(1, 1, 64, []), NonFiniteError("the gradient is not finite")
    found = learned(good, bad, good, good)
    assert isinstance(found, UpdateInfo) and (found.gradient_steps, found.rows_trained) == (3, 192)
    assert record.metrics(0.0)["updates_skipped"] == 1 and record.metrics(0.0)["rows_trained"] == 192
    assert learned(good, bad, bad) is good and learned() is None
    assert len(list(tmp_path.glob("non_finite_*/fault.json"))) == 3
    with pytest.raises(NonFiniteError, match=r"3 update\(s\) in a row were not finite"):
        learned(bad, good)


def test_gradient_steps_of_an_algorithm_that_two_tasks_share_count_once():
    robot, _ = chain_robot()
    robot.tasks["again"] = ComputationTask(robot.tasks["policy"].algorithm)
    robot.tasks["policy"].algorithm.num_gradient_steps = 5
    assert LearningRecord(robot, 0, None).metrics(0.0)["gradient_steps"] == 5
