"""Tests of `palaestra.envs.contract.gym_environment`."""

import enum
import functools
import os
import sys

import gymnasium
import numpy as np
import pytest
import torch

from palaestra.core import EnvError, SpecError, TensorSpec, errors
from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver
from palaestra.envs.wrappers import ScaleReward
from tests.envs.worlds import Counter, Drawing, Faulty, Reusing, Switches, counter


@pytest.mark.parametrize(
    ("end", "pair"),
    [("", (1, 1.0)), ("terminated", (2, 0.0)), ("truncated", (2, 1.0)), ("both", (2, 0.0))],
)
def test_the_two_flags_become_step_type_and_discount(end, pair):
    """ALF-28, ALF-31."""
    env = GymEnvironment(Counter({1: end}))
    env.reset()
    time_step = env.step(1)
    assert (time_step.step_type, time_step.discount) == pair


@pytest.mark.parametrize("layer", [lambda env: env, lambda env: ScaleReward(env, 2.0)], ids=["direct", "layered"])
def test_a_time_limit_that_terminates_is_warned_of_once(layer, caplog, monkeypatch):
    """As old Gym had it: `done`, and a note in info."""
    monkeypatch.setattr(errors, "said", set())
    made = Counter({2: "terminated"})
    made.step = lambda action: (*Counter.step(made, action)[:4], {"TimeLimit.truncated": made.steps == 2})
    lanes = LaneEnvironment(SerialDriver([layer(GymEnvironment(made))]), lane_seeds=[1])
    for _ in range(6):
        lanes.step(torch.zeros(1, dtype=torch.int64))
    assert [text.partition(":")[0] for text in caplog.messages] == [
        "Counter terminated where its info has TimeLimit.truncated"
    ]


class Learning(Counter):
    """Pays by a weight that it learns, from reset on."""

    def reset(self, *, seed=None, options=None):
        self.weight = torch.nn.Parameter(torch.ones(1))
        return super().reset(seed=seed)

    def step(self, action):
        (self.weight * 2).sum().backward()
        return super().step(action)[0], float(self.weight.grad), False, False, {}


def test_an_environment_may_learn_while_others_infer():
    """As in a worker process: a collector infers around all environments of its own process."""
    lanes = LaneEnvironment(SerialDriver([GymEnvironment(Learning())]), lane_seeds=[1])
    with torch.inference_mode():
        steps = [lanes.step(torch.zeros(1, dtype=torch.int64)) for _ in range(3)]
        assert torch.is_inference_mode_enabled()
    assert [step.reward.item() for step in steps] == [0, 2, 4]


DEEP = functools.reduce(lambda inside, _: {"a": inside}, range(5_000), {"x": 1.0})


@pytest.mark.parametrize("found", [np.zeros(2), {"a": 1, "b": 2}, (np.zeros(1), 3)])
@pytest.mark.parametrize("direct", [True, False])
def test_a_reset_of_old_versions_is_named(found, direct):
    """F27: it was unpacked, into whatever there was."""
    env = Counter({})
    env.reset = lambda **given: found
    layer = GymEnvironment(env)
    with pytest.raises(EnvError, match=r"it must return \(observation, info\), and info is a dict"):
        LaneEnvironment(SerialDriver([layer]), lane_seeds=[1]).reset() if direct else layer.reset()


@pytest.mark.parametrize(
    ("begins", "steps", "words"),
    [
        (None, {}, r"returned \(observation, None\); it must return \(observation, info\), and info is a dict$"),
        ({}, None, "info must be a dict, and is None"),
        (DEEP, {}, "info has the entry 'a', with dicts in dicts more than 100 deep"),
        ({}, DEEP, "info has the entry 'a', with dicts in dicts more than 100 deep"),
    ],
    ids=["None at reset", "None in a step", "deep at reset", "deep in a step"],
)
def test_a_first_look_at_info_that_is_none_says_so(begins, steps, words):
    """With `env.info=*`; it ended in a traceback of the library."""
    env = Counter({3: "terminated"})
    env.reset = lambda **given: (Counter.reset(env, **given)[0], begins)
    env.step = lambda action: (*Counter.step(env, action)[:4], steps)
    with pytest.raises(SpecError, match=words):
        _ = GymEnvironment(env).env_info_spec


def test_the_reward_belongs_to_the_action_just_executed():
    """ALF-15, ALF-17."""
    env = GymEnvironment(Counter(), env_id=3)
    first = env.reset()
    assert (first.step_type, first.reward, first.prev_action, first.env_id) == (0, 0.0, 0, 3)
    second = env.step(2)
    assert (second.step_type, second.reward, second.prev_action) == (1, 10.0, 2)
    assert isinstance(second.reward, float)


def test_a_discount_of_its_own_stays_at_a_truncation():
    """ALF-28."""
    env = GymEnvironment(Counter({2: "truncated", 3: "terminated"}), discount=0.5)
    env.reset()
    assert [env.step(0).discount for _ in range(2)] == [0.5, 0.5]


def test_discrete_actions_arrive_as_numpy_scalars():
    gym_env = Counter()
    env = GymEnvironment(gym_env)
    env.reset()
    env.step(1)
    assert type(gym_env.actions[0]) is np.int64


def test_specs_come_from_the_spaces():
    """ALF-42."""
    env = GymEnvironment(Switches())
    assert env.reward_spec == TensorSpec((2,))
    assert env.time_step_spec.observation is env.observation_spec
    assert env.time_step_spec.prev_action is env.action_spec
    env.reset()
    assert env.step(np.array([2, 1])).reward.tolist() == [3, 2]


def test_what_is_returned_is_never_overwritten():
    env = GymEnvironment(Reusing())
    steps = [env.reset(), *(env.step(np.ones(1, np.float32)) for _ in range(3))]
    assert [step.observation.item() for step in steps] == [0, 1, 2, 3]


def test_a_failure_names_environment_seed_episode_step_action_and_cause():
    """F1."""
    env = GymEnvironment(Faulty("raise", at=2), env_id=5)
    env.seed(9)
    env.reset()
    env.reset()
    env.step(0)
    seed = env.gym_env.seeds[-1]
    with pytest.raises(EnvError) as caught:
        env.step(2)
    words = ("environment 5", "KeyError", "the wheel came off", "worlds.py", "episode 1", f"seed {seed}", "step 2")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "action 2" in str(caught.value).replace("np.int64(2)", "2")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failing_reset_is_named_as_one():
    env = GymEnvironment(Faulty("raise", at=0))
    with pytest.raises(EnvError, match=r"in episode 0 .* at its reset"):
        env.reset()


def test_an_observation_that_does_not_fit_its_space_is_refused_at_the_reset():
    class Wrong(Counter):
        def _seen(self):
            return np.zeros((2, 2), np.float32)

    with pytest.raises(EnvError, match=r"shape \(2, 2\), expected \(2,\)"):
        GymEnvironment(Wrong()).reset()


def test_rendering_gives_a_picture_or_says_how_to_get_one():
    env = GymEnvironment(Drawing())
    env.reset()
    env.step(0)
    assert env.render().shape == (2, 3, 3)

    class Blank(Drawing):
        def render(self):
            return None

    with pytest.raises(EnvError, match=r"drew NoneType with render_mode 'rgb_array'$"):
        GymEnvironment(Blank()).render()
    Blank.render_mode = "ansi"
    with pytest.raises(EnvError, match='make it with render_mode="rgb_array"'):
        GymEnvironment(Blank()).render()
    with pytest.raises(EnvError, match="cannot be drawn: it has no method render"):
        GymEnvironment(Counter()).render()


def test_the_converter_is_not_for_subclasses():
    """ALF-41: what is special about an environment goes into a wrapper; type checkers refuse a subclass, too."""
    assert GymEnvironment.__final__
    with pytest.raises(TypeError, match="Mine extends GymEnvironment, which is fixed: change the task in a Gymnasium"):
        type("Mine", (GymEnvironment,), {})


class Paid(Counter):
    def __init__(self, reward):
        super().__init__()
        self._reward = reward

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self._reward, *rest


def beside(reward):
    """The same environment as another one of a batch."""
    env = LaneEnvironment(SerialDriver([counter(), GymEnvironment(Paid(reward), env_id=1)]))
    env.reset()
    return env.step(torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("reward", [np.array([2.0]), np.float64(2), 2])
def test_rewards_of_several_kinds_stand_side_by_side(reward):
    assert beside(reward).reward.tolist()[1] == 2


@pytest.mark.parametrize("reward", [None, "1.0", b"1", np.str_("2"), "abc", 1j])
def test_a_reward_that_is_no_number_is_malformed(reward):
    """F7: of the `None` that a step without `return` gives, numpy makes NaN; of text, a number."""
    with pytest.raises(EnvError, match=r"environment 1 .*(\n.*)*the reward is .*, which is no number"):
        beside(reward)
    alone = GymEnvironment(Paid(reward))
    alone.reset()
    with pytest.raises((EnvError, SpecError), match=r"the reward is .*, which is no number"):
        alone.step(0)


@pytest.mark.parametrize("given", [{}, {"DISPLAY": ":1"}, {"MUJOCO_GL": "osmesa"}], ids=["none", "screen", "chosen"])
def test_mujoco_draws_without_a_screen_unless_somebody_has_chosen(given, monkeypatch):
    """It asked for a window that nobody can open; what a process that starts later inherits stays what it was."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    seen = []

    class Draws(gymnasium.Env[np.ndarray, np.int64]):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def render(self):
            seen.append(os.environ.get("MUJOCO_GL"))
            return np.zeros((2, 2, 3), np.uint8)

    GymEnvironment(Draws()).render()
    assert seen == [given.get("MUJOCO_GL", None if given else "egl")]
    assert os.environ.get("MUJOCO_GL") == given.get("MUJOCO_GL")


def test_numbers_of_any_class_are_numbers_in_info():
    """Those of subclasses were found, named, and then 0."""

    class Metres(float):
        """A unit."""

    made = Counter()
    info = {"phase": enum.IntEnum("Phase", ["START", "END"]).END, "height": Metres(1.5), "up": True}
    made.step = lambda action: (*Counter.step(made, action)[:4], info)
    lanes = LaneEnvironment(SerialDriver([GymEnvironment(made)]), lane_seeds=[1])
    lanes.reset()
    found = lanes.step(torch.zeros(1, dtype=torch.int64)).env_info
    assert {name: value.item() for name, value in found.items()} == {"phase": 2, "height": 1.5, "up": 1}


def test_a_machine_without_a_screen_is_told_how_to_draw():
    """F27: MuJoCo says only that a library is not loaded."""

    class Blind(gymnasium.Env[np.ndarray, np.int64]):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def render(self):
            raise RuntimeError("an OpenGL platform library has not been loaded into this process")

    with pytest.raises(EnvError, match=r"no screen to draw on .*; set the environment variable MUJOCO_GL=egl"):
        GymEnvironment(Blind()).render()
