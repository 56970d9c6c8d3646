"""Actions that an environment's mask forbids."""

import numpy as np
import pytest
import torch

from palaestra.core import SpecError
from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver
from tests.envs.worlds import Nested


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
