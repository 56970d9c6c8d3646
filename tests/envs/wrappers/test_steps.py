"""Tests of the wrappers that change actions, step types and the beginning of episodes."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.core import ConfigError, EnvError, SpecError
from palaestra.envs import GymEnvironment, LaneEnvironment, SerialDriver, TimeLimit, load
from palaestra.envs.wrappers import (
    ActionMask,
    ActionRepeat,
    EpisodeStatistics,
    EpisodicLife,
    FireReset,
    NonEpisodic,
    NormalizeAction,
    RandomNoop,
    ScaleReward,
    TimeAwareDiscount,
)
from palaestra.rollout import EpisodeTracker
from tests.envs.worlds import counter
from tests.envs.wrappers.worlds import Camera, Game, Masked, Motor, Script, episode, gym_of, script


def kinds(env, count):
    return [(int(time_step.step_type), float(time_step.discount)) for time_step in episode(env, count)]


# -- ActionRepeat


class Switchboard(gymnasium.Env):
    """Two choices of two; in the second frame the first choice may not be 1."""

    action_space = gymnasium.spaces.Dict(
        {"lamps": gymnasium.spaces.MultiDiscrete([2, 2]), "door": gymnasium.spaces.Discrete(2, start=3)}
    )
    observation_space = gymnasium.spaces.Dict(
        {
            "frame": gymnasium.spaces.Box(0, 9, (1,)),
            "action_mask": gymnasium.spaces.Dict({"lamps": gymnasium.spaces.MultiBinary(4)}),
        }
    )

    def _seen(self):
        mask = np.array([1, self.frame != 1, 1, 1], np.int8)
        return {"frame": np.array([self.frame], np.float32), "action_mask": {"lamps": mask}}

    def reset(self, *, seed=None, options=None):
        self.frame = 0
        return self._seen(), {}

    def step(self, action):
        self.frame += 1
        return self._seen(), 1.0, False, False, {}


@pytest.mark.parametrize(("lamps", "frames"), [([1, 0], 1), ([0, 1], 3)])
def test_a_repeat_ends_where_any_choice_of_the_action_is_forbidden(lamps, frames):
    env = ActionRepeat(GymEnvironment(Switchboard()), repeat=3)
    env.reset()
    assert env.step({"lamps": np.array(lamps), "door": np.int64(3)}).env_info["frames"] == frames


def test_one_decision_is_executed_k_times_and_pays_the_sum():
    """ALF-36 (FrameSkip), PARL-02, PARL-03, PARL-04: K = 5, the first four observations are discarded."""
    env = ActionRepeat(script(*range(1, 13)), repeat=5)
    first, second, third = episode(env, 2, action=np.int64(2))
    assert first.observation.item() == 0
    assert (second.reward, second.observation.item()) == (1 + 2 + 3 + 4 + 5, 5)
    assert (third.reward, third.observation.item()) == (6 + 7 + 8 + 9 + 10, 10)
    assert gym_of(env).actions == [2] * 10
    assert [step.env_info["frames"] for step in (second, third)] == [5, 5]


class Halving(Camera):
    """Works on the very array that it is given."""

    def __init__(self):
        super().__init__()
        self.action_space, self.given = spaces.Box(-1, 1, (1,), np.float32), []

    def step(self, action):
        self.given.append(action.tolist())
        action += 0.5
        return self._seen(), 0.0, False, False, {}


@pytest.mark.parametrize(
    "layer",
    [functools.partial(ActionRepeat, repeat=3), functools.partial(RandomNoop, maximum=30)],
    ids=["repeat", "noop"],
)
def test_every_frame_gets_the_action_even_where_an_environment_changes_its_array(layer):
    env = layer(GymEnvironment(Halving()))
    env.seed(1)
    env.reset()
    env.step(np.zeros(1, np.float32))
    assert len(gym_of(env).given) > 1
    assert all(given == [0.0] for given in gym_of(env).given)


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("truncated", 1.0)])
def test_an_end_cuts_the_repeat_short(end, discount):
    """PARL-04."""
    env = ActionRepeat(script(*range(1, 8), end=end), repeat=5)
    last = episode(env, 2)[-1]
    assert (last.reward, last.observation.item(), last.env_info["frames"]) == (6 + 7, 7, 2)
    assert (last.step_type, last.discount) == (2, discount)
    assert len(gym_of(env).actions) == 7


def test_a_mask_that_forbids_the_action_cuts_the_repeat_short():
    """Here the action taken last is always forbidden next."""
    env = ActionRepeat(ActionMask(GymEnvironment(Masked()), key="allowed"), repeat=3)
    first, second, third = env.reset(), env.step(np.int64(2)), env.step(np.int64(3))
    assert [step.observation["action_mask"].tolist() for step in (first, second, third)] == [
        [1, 1, 1],
        [1, 0, 1],
        [1, 1, 0],
    ]
    assert [step.env_info["frames"] for step in (second, third)] == [1, 1]


def test_frames_and_env_steps_are_both_counted():
    """PARL-04: env steps are the tracker's, frames an info metric."""
    import torch

    batch = LaneEnvironment(SerialDriver([ActionRepeat(script(*range(1, 8)), repeat=5)]), lane_seeds=[1])
    tracker = EpisodeTracker(1)
    for time_step in (batch.reset(), *(batch.step(torch.zeros(1, dtype=torch.int64)) for _ in range(2))):
        tracker.add(time_step)
    (found,) = tracker.finished()
    assert (found.length, found.info["frames"], found.episode_return) == (2, 7.0, 28.0)


def test_a_limit_inside_counts_frames_and_one_outside_env_steps():
    endless = "palaestra.envs.tiny:Endless"
    inside = load(endless, max_episode_steps=6, wrappers=("ActionRepeat(repeat=4)",))
    assert [int(step.step_type) for step in episode(inside, 2)] == [0, 1, 2]
    outside = TimeLimit(ActionRepeat(load(endless), repeat=4), 3)
    assert [int(step.step_type) for step in episode(outside, 3)] == [0, 1, 1, 2]


def test_the_newest_frames_are_pooled():
    rows = ([0, 0], [9, 9], [5, 1], [2, 3], [7, 7])
    inner = script(0, 0, 0, 0, observations=[np.array(row, np.float32) for row in rows])
    pairs = load("palaestra.envs.tiny:Endless", kwargs={"size": 2}).observation_spec
    inner.specs = inner.specs._replace(observation=pairs)
    first, second, third = episode(ActionRepeat(inner, repeat=3, pool=2), 2)
    assert first.observation.tolist() == [0, 0]
    assert second.observation.tolist() == [5, 3]  # of frames 2 and 3; frame 1 has 9
    assert third.observation.tolist() == [7, 7]  # of frame 4 alone, where the episode ended


# -- TimeAwareDiscount, NonEpisodic


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_time_aware_discount_is_0_at_every_end(end):
    """ALF-29."""
    assert kinds(TimeAwareDiscount(script(1, 1, end=end)), 3) == [(0, 1.0), (1, 1.0), (2, 0.0), (0, 1.0)]


def test_a_termination_is_hidden_and_a_truncation_is_not():
    """ALF-39."""
    going_on = NonEpisodic(load("palaestra.envs.tiny:Bandit"))
    assert kinds(going_on, 3) == [(0, 1.0), (1, 1.0), (1, 1.0), (1, 1.0)]
    limited = NonEpisodic(load("palaestra.envs.tiny:Endless", max_episode_steps=2))
    assert kinds(limited, 3) == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 1.0)]


@pytest.mark.parametrize("wrappers", [("NonEpisodic",), ("ActionRepeat(repeat=2)", "NonEpisodic")])
def test_a_time_limit_cuts_a_task_that_terminates_at_every_step(wrappers):
    """ALF-39."""
    env = load("palaestra.envs.tiny:Bandit", max_episode_steps=20, wrappers=wrappers)
    env.reset()
    steps = [env.step(0) for _ in range(100)]
    lengths = np.diff([-1, *(number for number, step in enumerate(steps) if step.last)])
    assert lengths.tolist() == [20, 21, 21, 21]  # with the FIRST steps between
    assert {step.discount for step in steps} == {1.0}


@pytest.mark.parametrize("name", ["palaestra.envs.tiny:Bandit", "palaestra.envs.tiny:Chain"])
def test_a_hidden_end_has_the_discount_of_the_task(name):
    """ALF-39: also where the first step of an episode is the end."""
    env = load(name, discount=0.9, wrappers=("NonEpisodic",))
    assert {step.discount for step in episode(env, 30)[1:]} == {0.9}


@pytest.mark.parametrize("end", ["truncated", "both"])
def test_a_truncation_of_the_environment_itself_cuts_together_with_a_termination(end):
    """ALF-39."""
    env = NonEpisodic(counter({2: "terminated", 4: end}))
    assert [kind for kind, _ in kinds(env, 6)] == [0, 1, 1, 1, 2, 0, 1]


# -- NormalizeAction


def test_the_interval_is_mapped_onto_the_bounds_of_each_component():
    """ALF-36: power is in [0, 10] x [-4, 4]; the gear stays."""
    env = NormalizeAction(GymEnvironment(Motor()))
    env.begin_episode(0)
    for power in ([-1.0, 1.0], [0.0, 0.5], [0.2, -0.75], [7.0, -7.0]):
        env.advance({"gear": np.int64(2), "power": np.array(power, np.float32)})
    taken = gym_of(env).actions
    assert [action["gear"] for action in taken] == [2] * 4
    expected = np.array([[0, 4], [5, 2], [6, -3], [10, -4]], np.float32)
    np.testing.assert_allclose(np.array([action["power"] for action in taken]), expected, rtol=1e-6)
    assert taken[0]["power"].dtype == np.float32
    assert env.action_spec["power"].minimum.tolist() == [-1, -1]
    assert env.action_spec["power"].maximum.tolist() == [1, 1]
    assert env.action_spec["gear"].num == 3


# -- EpisodeStatistics


def test_an_action_outside_of_the_interval_is_clipped_alone_and_refused_in_a_batch():
    env = NormalizeAction(load("Pendulum-v1"))
    env.seed(1)
    env.reset()
    raw, clipped = load("Pendulum-v1"), env.step(np.array([1.5], np.float32))
    raw.seed(1)
    raw.reset()
    assert raw.step(np.array([2.0], np.float32)).observation.tolist() == clipped.observation.tolist()
    with LaneEnvironment(SerialDriver([env])) as batch:
        batch.reset()
        with pytest.raises(SpecError, match=r"value 1.5 at index \[0\], expected a number in \[-1"):
            batch.step([[1.5]])


def test_statistics_are_those_of_the_layer_below_and_come_with_the_last_step():
    env = ScaleReward(EpisodeStatistics(script(3.0, -1.0, 5.0)), scale=100.0)
    for _ in range(2):  # the second episode starts from 0
        steps = episode(env, 3)
        assert [bool(step.env_info) for step in steps] == [False, False, False, True]
        assert steps[-1].env_info["episode"] == {"return": 7.0, "length": 3}


# -- RandomNoop, FireReset, EpisodicLife


def test_the_number_of_noops_comes_from_the_seed_and_covers_its_range():
    counts = set()
    for seed in range(40):
        env = RandomNoop(script(*[1.0] * 9), maximum=3)
        first = env.begin_episode(seed)
        taken = gym_of(env).actions
        assert taken == [0] * len(taken)
        assert first.observation.item() == len(taken)
        assert (first.step_type, first.reward, first.discount) == (0, 0.0, 1.0)
        again = RandomNoop(script(*[1.0] * 9), maximum=3)
        again.begin_episode(seed)
        assert len(gym_of(again).actions) == len(taken)
        counts.add(len(taken))
    assert counts == {1, 2, 3}


def test_an_episode_that_ends_during_the_noops_is_begun_again():
    env = RandomNoop(script(1.0, 1.0), maximum=30)
    long = next(seed for seed in range(99) if np.random.default_rng(seed).integers(1, 31) == 3)
    first = env.begin_episode(long)
    inner = gym_of(env)
    assert (first.step_type, first.reward, first.observation.item()) == (0, 0.0, 1.0)  # one noop into the second
    assert len(inner.seeds) == 2
    assert inner.seeds[0] != inner.seeds[1]


def test_fire_is_pressed_once_at_the_start():
    plain, env = GymEnvironment(Game()), FireReset(GymEnvironment(Game()))
    plain.begin_episode(7)
    after_fire = plain.advance(np.int64(1))
    first = env.begin_episode(7)
    assert np.array_equal(first.observation, after_fire.observation)
    assert (first.step_type, first.reward, first.discount) == (0, 0.0, 1.0)


def test_a_lost_life_is_an_end_and_the_game_goes_on():
    env = EpisodicLife(GymEnvironment(Game()))
    game = gym_of(env)
    env.seed(3)
    stream = [env.step(np.int64(action)) for action in (0, 0, 2, 0, 2, 0, 2, 0)]
    pairs = [(int(step.step_type), float(step.discount), int(step.observation[1])) for step in stream]
    assert pairs == [(0, 1, 3), (1, 1, 3), (2, 0, 2), (0, 1, 2), (2, 0, 1), (0, 1, 1), (2, 0, 0), (0, 1, 3)]
    assert game.begun == 2  # one real reset for three lives
    assert all(step.reward == 0 for step in stream if step.step_type == 0)


class FromFive(Game):
    """A game whose actions begin with 5; it keeps them."""

    def __init__(self):
        super().__init__()
        self.action_space, self.actions = gymnasium.spaces.Discrete(3, start=5), []

    def step(self, action):
        self.actions.append(int(action))
        return super().step(action - 5)


def test_the_next_life_begins_with_an_action_that_exists():
    env = EpisodicLife(GymEnvironment(FromFive()))
    for action in (5, 7, 5, 6):
        env.step(np.int64(action))
    assert gym_of(env).actions == [7, 5, 6]


def test_losing_a_life_is_no_end_without_the_wrapper():
    assert [kind for kind, _ in kinds(GymEnvironment(Game()), 0)] == [0]
    env = GymEnvironment(Game())
    env.begin_episode(0)
    assert [int(env.advance(np.int64(2)).step_type) for _ in range(3)] == [1, 1, 2]


# -- what they refuse


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ActionRepeat(script(1.0), repeat=0), "1 <= pool <= repeat"),
        (lambda: ActionRepeat(script(1.0), repeat=2, pool=3), "pool=3"),
        (lambda: NormalizeAction(script(1.0)), "no action component with two finite bounds"),
        (lambda: RandomNoop(script(1.0), maximum=0), "at least 1"),
        (lambda: FireReset(script(1.0)), r"action named FIRE; the actions are \[\]"),
        (lambda: EpisodicLife(GymEnvironment(Motor())), "one array as the action"),
    ],
)
def test_impossible_settings_are_refused(make, words):
    """F27."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_game_without_lives_is_refused():
    with pytest.raises(EnvError, match=r"info\['lives'\]"):
        EpisodicLife(script(1.0)).begin_episode(0)


def test_a_noop_is_an_action_that_exists():
    class Strict(Script):
        def __init__(self):
            super().__init__((1.0,) * 9)
            self.action_space = gymnasium.spaces.Discrete(3, start=1)

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action)

    env = RandomNoop(GymEnvironment(Strict()), maximum=3)
    assert env.reset().first


def test_the_frames_of_a_step_are_an_entry_that_can_be_named():
    assert set(ActionRepeat(load("CartPole-v1"), repeat=2).env_info_spec) == {"frames"}


class Shifted(Game):
    """Its actions count from 5."""

    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3, start=5)

    def step(self, action):
        assert self.action_space.contains(action)
        self.pressed = action
        return super().step(action - 5)


def test_fire_is_counted_from_the_first_action():
    game = Shifted()
    FireReset(GymEnvironment(game)).reset()
    assert game.pressed == 6
