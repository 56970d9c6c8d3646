"""Actions that an environment's mask forbids."""

import numpy as np
import pytest
import torch

from palaestra.core import EnvError, SpecError
from palaestra.envs import EnvConfig, GymEnvironment, LaneEnvironment, SerialDriver, check, create_environment, load
from tests.envs.test_check import broken
from tests.envs.worlds import Counter, Nested


class Masked(Nested):
    """Allows action 1 and 2 only."""

    def __init__(self):
        from gymnasium import spaces

        super().__init__()
        parts = {"body": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.Discrete(3)

    def _seen(self):
        return {"body": np.zeros(2, np.float32), "action_mask": np.array([0, 1, 1], np.int8)}

    def step(self, action):
        assert action != 0
        return self._seen(), 0.0, False, False, {}


def test_a_masked_action_is_refused_before_any_environment_sees_it():
    """F8."""
    env = LaneEnvironment(SerialDriver([GymEnvironment(Masked()), GymEnvironment(Masked())]))
    env.reset()
    with pytest.raises(
        SpecError, match=r"environment 1 has value 0, which its action_mask forbids; it allows \[1, 2\]"
    ):
        env.step(torch.tensor([1, 0]))
    assert env.step(torch.tensor([1, 2])).step_type.tolist() == [1, 1]


class LateMask(Counter):
    """Reports its mask in steps alone, from the second on."""

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, ({} if self.steps == 1 else {"action_mask": np.ones(3, np.int8)})


@pytest.mark.parametrize("layered", [False, True])
def test_a_mask_that_only_steps_report_is_refused_as_one_of_a_reset_is(layered):
    """It was asked for at FIRST alone, and played on without."""
    name = f"{__name__}:LateMask"
    wrappers = ("ScaleReward(scale=2.0)",) if layered else ()
    with create_environment(EnvConfig(name=name, num_envs=2, wrappers=wrappers), seed=1) as env:
        env.reset()
        env.step(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(EnvError, match=r"info has an action_mask, .* give --env\.wrappers"):
            env.step(torch.zeros(2, dtype=torch.int64))
    alone = load(name)
    alone.step(0)
    alone.step(0)
    with pytest.raises(EnvError, match="info has an action_mask"):
        alone.step(0)
    found = broken(check(name, steps=20))["Stepping with random actions raises nothing"]
    assert "info has an action_mask" in found.got
    ignoring = load(name, wrappers=("ActionMask(ignored=True)",))
    assert [int(ignoring.step(0).step_type) for _ in range(3)] == [0, 1, 1]


def test_a_mask_that_is_read_may_stand_beside_untransformed_observations():
    """It was refused."""
    config = EnvConfig(name="Taxi-v4", wrappers=("ActionMask",), untransformed=True)
    with create_environment(config, seed=1) as env:
        time_step = env.reset()
        assert env.step(time_step.observation.action_mask.argmax(-1)).step_type.tolist() == [1]
