"""NaN and infinity that an agent's environment emits: a fault by name, and no row of it anywhere."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra import Trainer, TrainerConfig
from palaestra.core import NonFiniteError
from palaestra.robots import evaluate_robot
from palaestra.runtime import LocalRuntime, ProcessRuntime
from tests.robots.parts import OneTaskConfig, OneTaskRobot, collector_of, env_maker, robot_of

WORLD = "tests.robots.test_not_finite:Sensors"
PLACE = r"in episode 1 \(seed \d+\), at {}: look at the environment"
BROKEN = {
    "observation": ("emitted observation.where[1] = nan", "step 3 with action [01]"),
    "reward": ("emitted reward = inf", "step 3 with action [01]"),
    "reset": ("emitted observation.where[1] = nan", "its reset"),
}


class Sensors(gymnasium.Env[dict[str, np.ndarray], np.int64]):
    """Episodes of four steps; in the second one, `broken` is not finite: in its third step, or in its reset."""

    def __init__(self, broken: str) -> None:
        where, what = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 255, (1,), np.uint8)
        self.observation_space, self.action_space = spaces.Dict(what=what, where=where), spaces.Discrete(2)
        self._broken, self._episodes, self._steps = broken, 0, 0

    def _seen(self, broken: bool) -> dict[str, np.ndarray]:
        return {"what": np.zeros(1, np.uint8), "where": np.array([0.5, np.nan if broken else 0.5], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._episodes, self._steps = self._episodes + 1, 0
        return self._seen(self._broken == "reset" and self._episodes == 2), {}

    def step(self, action: np.int64) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        now = self._broken if (self._episodes, self._steps) == (2, 3) else ""
        return self._seen(now == "observation"), np.inf if now == "reward" else 1.0, False, self._steps == 4, {}


def setup(broken="observation", num_agents=1, **settings):
    make = env_maker(WORLD, broken=broken)
    algorithm = OneTaskConfig(name="dqn", settings=(("learning_starts", 0), ("mini_batch_size", 4)))
    robot = robot_of(OneTaskRobot, make, algorithm)
    return robot, collector_of(robot, make, num_agents, **settings)


def require_finite_rows(robot):
    buffer = robot.tasks["policy"].buffer
    for lane in range(buffer.num_lanes):
        rows = buffer.in_time_order(lane)
        assert len(rows) >= 5
        assert buffer.observation.where[rows].isfinite().all() and buffer.reward[rows].isfinite().all()


@pytest.mark.parametrize("broken", BROKEN)
def test_the_run_ends_with_an_error_that_names_entry_episode_seed_and_step(broken):
    what, place = BROKEN[broken]
    robot, collector = setup(broken)
    with collector, pytest.raises(NonFiniteError) as told:
        Trainer(collector, robot, TrainerConfig(total_env_steps=100)).run()
    assert told.match(r"agent 0 failed in its episode 2, env step \d: environment 0 ") and what in str(told.value)
    assert told.match(PLACE.format(place)) and told.value.exit_code == 4
    require_finite_rows(robot)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_restarted_agent_leaves_no_such_row_and_its_fault_is_kept(broken, caplog):
    """Its broken episode counts nowhere; every restarted one breaks again in its second episode."""
    robot, collector = setup(broken, num_agents=2, on_fault="restart")
    with collector:
        episodes = collector.unroll(16).episodes
        assert [(e.length, e.episode_return) for e in episodes] == [(4, 4.0)] * len(episodes)
        faults = list(collector.faults)
        assert len(faults) == sum(collector.state()["incarnations"].values()) >= 4
    assert {(fault.env_id, fault.kind, fault.handled) for fault in faults} == {
        (number, "non-finite", "restart") for number in (0, 1)
    }
    assert all(BROKEN[broken][0] in str(fault) for fault in faults)
    assert faults[0].incarnation == 0 and isinstance(faults[0].error(), NonFiniteError)
    require_finite_rows(robot)


def test_a_dropped_agent_is_a_fault_that_is_kept(caplog):
    _, collector = setup(num_agents=2, on_fault="drop")
    with collector, pytest.raises(NonFiniteError):  # of the other one, which is the last
        collector.unroll(30)
    assert [(fault.kind, fault.handled) for fault in collector.faults] == [("non-finite", "drop")]


@pytest.mark.parametrize("kind", [LocalRuntime, ProcessRuntime])
def test_an_agent_elsewhere_fails_with_the_same_error(kind):
    with kind() as runtime:
        _, collector = setup(runtime=runtime)
        with collector, pytest.raises(NonFiniteError, match=PLACE.format(BROKEN["observation"][1])):
            collector.unroll(30)


def test_an_evaluation_refuses_it_too():
    robot, collector = setup()
    policies = {"policy": robot.tasks["policy"].algorithm.policy}
    with collector, pytest.raises(NonFiniteError, match=PLACE.format(BROKEN["observation"][1])):
        evaluate_robot(collector.evaluated_by, policies, episodes=2)
