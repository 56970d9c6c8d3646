"""What agents may do and environments may show: F6 and F8 hold for robots as they do for all other stepping."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.core import ShapeError, SpecError
from palaestra.envs import GymEnvironment
from palaestra.robots import AgentEnvironment, AgentError, evaluate_robot
from tests.robots.parts import OneTaskAgent, OneTaskConfig, OneTaskRobot, collector_of, robot_of


class Shown(gymnasium.Env[Any, Any]):
    """Allows only the second of three choices at first, and only the third after that; or pushes in two directions."""

    def __init__(self, choices: bool, shown: float = 0.0) -> None:
        parts = {"x": spaces.Box(-1, 1, (2,), np.float32)}
        parts |= {"action_mask": spaces.MultiBinary(3)} if choices else {}
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(3) if choices else spaces.Box(-2, 2, (2,), np.float32)
        self.done: list[Any] = []
        self._shown = shown

    def _seen(self) -> dict[str, np.ndarray]:
        seen = {"x": np.array([0, self._shown], np.float32)}
        if isinstance(self.action_space, spaces.Discrete):
            seen["action_mask"] = np.eye(3, dtype=np.int8)[1 + bool(self.done)]
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.done.append(action)
        return self._seen(), 1.0, False, len(self.done) % 40 == 0, {}


@pytest.mark.parametrize(
    ("good", "bad", "wrong"),
    [
        (np.zeros(2), np.array([0, np.nan]), r"value nan at index \[1\], expected a number in \[-2"),
        (np.full(2, 2), np.array([2.5, 0]), r"value 2.5 at index \[0\]"),
        (1, 0, r"value 0, which its action_mask forbids; it allows \[2\]"),
        (np.int64(1), 3, r"value 3, expected an integer in \[0, 2\]"),
    ],
)
def test_an_action_that_no_environment_may_see_is_refused_and_not_counted(good, bad, wrong):
    """F8."""
    world = Shown(choices=np.ndim(good) == 0)
    env = AgentEnvironment(GymEnvironment(world), agent_id=4)
    env.reset()
    env.step(good)
    with pytest.raises(SpecError, match=f"the action of agent 4 in step 2 of its episode 1 has {wrong}"):
        env.step(bad)
    assert env.env_steps == len(world.done) == 1
    with pytest.raises(ShapeError, match=r"the action has shape \(1, 1\)"):
        env.step([0])


class Careless(OneTaskAgent):
    """Gives NaN."""

    def run_one_episode(self) -> None:
        self.env.reset()
        self.env.step(np.full(2, np.nan))


class CarelessRobot(OneTaskRobot):
    agent_class = Careless


def test_such_an_agent_ends_its_run_and_its_evaluation():
    def make(number):
        return GymEnvironment(Shown(choices=False), number)

    robot = robot_of(CarelessRobot, make, OneTaskConfig(name="a2c"))
    with collector_of(robot, make) as collector:
        with pytest.raises(AgentError, match="agent 0 failed in its episode 1, env step 0: the action of agent 0 "):
            collector.unroll(2)
        with pytest.raises(SpecError, match="the action of agent 0 in step 1"):
            evaluate_robot(collector.evaluated_by, {"policy": robot.tasks["policy"].algorithm.policy}, episodes=1)


def test_an_observation_outside_its_space_is_warned_of_once(caplog):
    """F6."""
    env = AgentEnvironment(GymEnvironment(Shown(choices=False, shown=7.0)), agent_id=4)
    env.reset()
    for _ in range(20):
        env.step(np.zeros(2))
    assert [record.getMessage()[:52] for record in caplog.records] == [
        "environment 4 emitted observation.x[1] = 7.0 outside"
    ]
