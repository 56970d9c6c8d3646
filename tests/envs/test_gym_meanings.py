"""Gymnasium environments that mean something else than they seem to say: ends, masks and bounds."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch

from palaestra import RunSeeds
from palaestra.algorithms import PPO, PPOConfig
from palaestra.core import BoundedSpec, EnvError, SpecError
from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver, TimeLimit, spec_from_space
from palaestra.envs.wrappers import ActionMask, CheckFinite


class SelfReset(gym.Env):
    """Counts to five, is cut off or terminates there, and resets itself; `info` has the last observation."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, key="final_observation", final=None, terminates=False):
        self.key, self.final, self.terminates = key, final, terminates

    def _seen(self):
        return np.array([self.t + self.start], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.start = 0, float(self.np_random.random())
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        info, over = {}, self.t == 5
        if over:
            info = {self.key: self._seen() if self.final is None else self.final}
            self.t, self.start = 0, float(self.np_random.random())
        return self._seen(), 1.0, over and self.terminates, over and not self.terminates, info


@pytest.mark.parametrize("key", ["final_observation", "final_obs"])
@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("layers", [(), (functools.partial(TimeLimit, duration=9), CheckFinite)])
def test_the_last_step_of_an_environment_that_resets_itself_shows_its_own_episode(key, terminates, layers):
    def make():
        return functools.reduce(lambda env, layer: layer(env), layers, GymEnvironment(SelfReset(key, None, terminates)))

    env = LaneEnvironment(SerialDriver([make(), make()]), lane_seeds=[1, 2])
    start = env.reset().observation
    steps = [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(6)]
    assert steps[4].step_type.tolist() == [2, 2]
    assert torch.equal(steps[4].observation, start + 5)
    assert steps[4].discount.tolist() == [0.0 if terminates else 1.0] * 2
    assert steps[5].step_type.tolist() == [0, 0]
    alone = make()
    alone.seed(1)
    first = alone.reset().observation
    assert [alone.step(0) for _ in range(5)][-1].observation == first + 5


class Doubled(gym.ObservationWrapper):
    """Changes what is seen, but not what `info` has."""

    def observation(self, observation):
        return observation * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SelfReset(final=np.zeros(3, np.float32)), r"final_observation, which has shape \(3,\)"),
        (lambda: Doubled(SelfReset()), "final_observation, which is from inside Doubled, which changes observations"),
    ],
)
@pytest.mark.parametrize("layers", [(), (CheckFinite,)])
def test_a_last_observation_that_cannot_be_the_one_of_the_episode_is_refused(make, words, layers):
    env = LaneEnvironment(
        SerialDriver([functools.reduce(lambda e, layer: layer(e), layers, GymEnvironment(make()))]), lane_seeds=[1]
    )
    env.reset()
    step = functools.partial(env.step, torch.zeros(1, dtype=torch.int64))
    for _ in range(4):
        step()
    with pytest.raises((SpecError, EnvError), match=f"resets itself where an episode ends: its info has {words}"):
        step()


class MaskInInfo(gym.Env):
    """Action 1 is never allowed, says info alone."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)

    def __init__(self, nvec=None):
        self.action_space = gym.spaces.Discrete(2) if nvec is None else gym.spaces.MultiDiscrete(nvec)
        self.mask = np.array([1, 0] if nvec is None else [1, 0] * len(nvec), np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"action_mask": self.mask}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {"action_mask": self.mask}


@pytest.mark.parametrize("layers", [(), (CheckFinite,)])
def test_a_mask_that_nobody_reads_is_refused_with_the_line_that_reads_it(layers):
    def make(*more):
        return functools.reduce(lambda env, layer: layer(env), (*layers, *more), GymEnvironment(MaskInInfo()))

    with pytest.raises(
        EnvError, match=r"info has an action_mask, which no policy reads there; give --env.wrappers Acti"
    ):
        LaneEnvironment(SerialDriver([make()]), lane_seeds=[1]).reset()
    with pytest.raises(EnvError, match="info has an action_mask"):
        make().reset()
    read = make(ActionMask)
    assert read.reset().observation["action_mask"].tolist() == [1, 0]
    free = make(functools.partial(ActionMask, ignored=True))
    assert "action_mask" not in free.reset().env_info
    assert free.step(1).reward == 1.0


def test_a_mask_of_several_choices_is_read_from_info():
    env = ActionMask(GymEnvironment(MaskInInfo([2, 2])))
    assert env.reset().observation["action_mask"].tolist() == [1, 0, 1, 0]
    env.step(np.array([0, 0]))
    with pytest.raises(EnvError, match=r"forbidden by the mask; allowed are \[\[0\], \[0\]\]"):
        env.step(np.array([0, 1]))


@pytest.mark.parametrize("bound", [np.finfo(np.float32).max, 1e7, np.inf])
def test_giant_bounds_of_floats_are_none_and_those_of_integers_stay(bound, caplog):
    spec = spec_from_space(gym.spaces.Box(-bound, bound, (2,), np.float32), "action_space of a test")
    assert not spec.bounded
    assert np.isinf(spec.minimum).all()
    assert ("taken for none; give the bounds" in caplog.text) == np.isfinite(bound)
    assert spec_from_space(gym.spaces.Box(-1e6, 1e6, (2,), np.float64)).bounded
    assert spec_from_space(gym.spaces.Box(0, 10**7, (2,), np.int64)).maximum.tolist() == [10**7] * 2


def test_first_actions_in_a_box_of_giant_bounds_are_of_ordinary_size():
    space = gym.spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,), np.float32)
    action = spec_from_space(space)
    policy = PPO(BoundedSpec((2,)), action, PPOConfig(), RunSeeds(0)).policy
    assert policy.env_action(torch.tensor([[-2.0], [3.0]])).tolist() == [[-2.0], [3.0]]
