"""Actions that an environment's mask forbids."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from palaestra.core import EnvError, SpecError
from palaestra.envs import EnvConfig, GymEnvironment, LaneEnvironment, SerialDriver, check, create_environment, load
from palaestra.testing import EnvironmentContract
from tests.envs.test_check import broken
from tests.envs.worlds import Counter, Nested


class Masked(Nested):
    """Allows action 1 and 2 only."""

    def __init__(self):
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


class Strict(Counter):
    """Takes one action, that of its number of steps modulo 3, which its info says, and raises for others."""

    key = "action_mask"

    def __init__(self):
        super().__init__({9: "terminated"})
        self.action_space = spaces.Discrete(3)

    def _info(self):
        return {self.key: np.arange(3) == self.steps % 3, "steps": self.steps}

    def reset(self, **options):
        return super().reset(**options)[0], self._info()

    def step(self, action):
        if action != self.steps % 3:
            raise ValueError(f"{action} is forbidden")
        return *super().step(action)[:-1], self._info()


class Renamed(Strict):
    """The same, whose mask has another name."""

    key = "legal"


class Paired(Strict):
    """Two choices, with a mask for each."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 2])

    def _info(self):
        return {"action_mask": ([number == self.steps % 3 for number in range(3)], [False, True]), "steps": self.steps}

    def step(self, action):
        if action[1] != 1:
            raise ValueError("the second is forbidden")
        return super().step(action[0])


@pytest.mark.parametrize(
    ("name", "layer"), [("Strict", "ActionMask"), ("Renamed", "ActionMask(key='legal')"), ("Paired", "ActionMask")]
)
def test_who_looks_at_an_environment_takes_actions_that_its_info_allows(name, layer):
    """A first look and `check` drew forbidden ones, at which the environment raises."""
    config = EnvConfig(name=f"{__name__}:{name}", wrappers=(layer,), info=("steps",))
    report = check(config, steps=40)
    assert report.ok, str(report)
    with create_environment(config, seed=1) as env:
        assert env.info == ("steps",)
        assert "steps" in env.find_info()
    assert "steps" in load(config.name, wrappers=config.wrappers).env_info_spec


class TestMasked(EnvironmentContract):
    """The suite for environments draws so, too."""

    steps = 20

    def make(self, env_id=0):
        return load(f"{__name__}:Strict", env_id=env_id, wrappers=("ActionMask",))


def test_a_mask_that_is_read_may_stand_beside_untransformed_observations():
    """It was refused."""
    config = EnvConfig(name="Taxi-v4", wrappers=("ActionMask",), untransformed=True)
    with create_environment(config, seed=1) as env:
        time_step = env.reset()
        assert env.step(time_step.observation.action_mask.argmax(-1)).step_type.tolist() == [1]
