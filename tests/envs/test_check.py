"""Tests of `palaestra.envs.check`."""

import functools
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.envs import EnvironmentWrapper, GymEnvironment, check, load
from palaestra.envs.tiny import Bandit, Catch, Chain, Endless
from palaestra.envs.wrappers import StatefulWrapper
from tests.envs.worlds import Counter, Faulty, Global, Nested, Reusing, Shifty, Switches, counter


def broken(report):
    return {finding.rule: finding for finding in report.findings if not finding.ok}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Bandit, Catch, Chain, Nested, Switches])
def test_good_environments_pass(env):
    """ALF-27, ALF-43."""
    report = check(env, steps=300)
    assert report.ok, str(report)


def test_a_time_limit_reported_as_an_end_is_flagged_with_the_way_out():
    """ALF-32, ALF-58."""
    report = check(lambda: Counter({5: "terminated"}, noisy=True), steps=100)
    finding = broken(report)["A time limit is reported as truncated, not as terminated"]
    assert finding.level == "warning"
    assert "step 5" in finding.got
    assert "TimeLimit(env, 4)" in finding.fix
    assert not broken(check(lambda: Counter({5: "truncated"}, noisy=True), steps=100))


class OftenAtTheLimit(Counter):
    """Some episodes end early; the others are cut off after 20 steps, and that is called terminated."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        early = bool(self.np_random.random() < 0.03)
        return observation, reward, early or self.steps == 20, False, {}


class OldDone(Counter):
    """The way of old Gym: `done`, and a note in info that it is a time limit."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, self.steps == 20, False, {"TimeLimit.truncated": self.steps == 20}


def test_a_time_limit_hidden_among_true_ends_is_flagged():
    """ALF-58: episodes heap up at one length, and none is longer."""
    finding = broken(check(OftenAtTheLimit, steps=1000))["A time limit is reported as truncated, not as terminated"]
    assert "terminated at step 20 exactly, and none later" in finding.got
    assert "TimeLimit(env, 19)" in finding.fix


@pytest.mark.parametrize("env", ["CartPole-v1", Chain])
def test_ends_of_many_lengths_are_not_taken_for_a_limit(env):
    assert "A time limit is reported as truncated, not as terminated" not in broken(check(env, steps=2000))


class Remembers(EnvironmentWrapper):
    """Pays more in later episodes, and says so to nobody."""

    episodes = 0

    def begin_episode(self, seed):
        self.episodes += 1
        return self.env.begin_episode(seed)

    def advance(self, action):
        time_step = self.env.advance(action)
        return time_step._replace(reward=time_step.reward * self.episodes)


class RemembersInRuns(StatefulWrapper, Remembers):
    """The same, so that resumed runs know."""

    def snapshot(self):
        return {"episodes": self.episodes}

    def restore(self, snapshot):
        self.episodes = snapshot["episodes"]


@pytest.mark.parametrize("steps", [990, 1000])  # at a MID and at a FIRST step
def test_a_layer_that_remembers_earlier_episodes_is_flagged_unless_runs_know(steps):
    """ALF-43, F25: an interrupted run could never go on."""
    report = check(lambda: load("CartPole-v1", wrappers=(Remembers,)), steps=steps)
    (finding,) = broken(report).values()
    assert finding.rule == "A running episode can be replayed, so that a run is resumed exactly"
    assert "StatefulWrapper" in finding.fix
    assert check(lambda: load("CartPole-v1", wrappers=(RemembersInRuns,)), steps=steps).ok


def test_an_old_done_whose_info_says_time_limit_is_an_error():
    """ALF-58."""
    report = check(OldDone, steps=100)
    finding = broken(report)["An end that info calls a time limit is truncated"]
    assert (finding.level, report.ok) == ("error", False)
    assert "truncated=True" in finding.fix


class Licensed(Counter):
    """Allows so many instances at a time, and so many in all."""

    open, made, at_once, in_all = 0, 0, 2, 99

    def __init__(self):
        if Licensed.open == Licensed.at_once or Licensed.made == Licensed.in_all:
            raise RuntimeError("no licence left")
        Licensed.open, Licensed.made = Licensed.open + 1, Licensed.made + 1
        super().__init__({9: "truncated"}, noisy=True)

    def close(self):
        Licensed.open -= 1


@pytest.mark.parametrize(("at_once", "in_all"), [(2, 99), (1, 99), (99, 2)])
def test_an_environment_of_which_few_can_be_made_gets_a_report(at_once, in_all):
    Licensed.open, Licensed.made, Licensed.at_once, Licensed.in_all = 0, 0, at_once, in_all
    found = broken(check(Licensed, steps=40))
    if (at_once, in_all) == (2, 99):
        assert not found
    else:
        assert found
        assert all("no licence left" in finding.got for finding in found.values())
    assert Licensed.open == 0


class Deadlocked(Nested):
    """Allows no action in its third step, or only after the last."""

    def __init__(self, last=False):
        super().__init__()
        self.observation_space["action_mask"] = spaces.MultiBinary(3)
        self.action_space, self._last = spaces.Discrete(3), last

    def _seen(self):
        over = self.steps == 3
        return {**super()._seen(), "action_mask": np.full(3, not over, np.int8)}

    def step(self, action):
        self.steps += 1
        return self._seen(), 0.0, self.steps == (3 if self._last else 6), False, {}


def test_a_mask_that_allows_nothing_is_found_unless_the_episode_is_over():
    finding = broken(check(Deadlocked, steps=40))["An action_mask allows some action, unless the step is LAST"]
    assert "the first of them number 3" in finding.got
    assert not any("mask" in rule for rule in broken(check(functools.partial(Deadlocked, last=True), steps=40)))
    assert not any("mask" in finding.rule for finding in check("CartPole-v1", steps=40).findings)


class Terminal(EnvironmentWrapper):
    """Takes every end of the inner layers for the end of the task."""

    def advance(self, action):
        time_step = self.env.advance(action)
        return time_step._replace(discount=0.0 if time_step.step_type == 2 else 0.5)


def test_a_layer_that_spoils_the_discount_is_found():
    """ALF-28, ALF-58."""
    rules = broken(check(lambda: Terminal(GymEnvironment(Counter(noisy=True))), steps=50))
    assert "An episode that is cut off is LAST with discount 1" in rules


def test_an_endless_environment_without_a_limit_is_flagged():
    assert "Episodes end, or there is a time limit" in broken(check(Endless, steps=50))
    assert "Episodes end, or there is a time limit" not in broken(check(lambda: counter({}, limit=99), steps=50))


class FromOldTimes(Counter):
    def reset(self):
        return np.zeros(2, np.float32)


class Done(Counter):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class Flags(Counter):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, 0, 1, {}


class Bounds(Counter):
    def __init__(self):
        super().__init__({9: "terminated"})
        self.observation_space = spaces.Box(0, 3, (2,), np.float32)


class NotANumber(Counter):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class Double(Counter):
    def _seen(self):
        return super()._seen().astype(np.float64)


class Unknown(Counter):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Text(3)


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (FromOldTimes, "reset(seed=...) returns (observation, info)"),
        (Done, "step returns (observation, reward, terminated, truncated, info)"),
        (Flags, "terminated and truncated are booleans"),
        (Bounds, "Observations fit their spec and are finite"),
        (NotANumber, "Rewards fit their spec and are finite"),
        (Double, "Observations have the dtype of their space"),
        (Global, "The same seed and actions give the same stream"),
        (Counter, "Another seed gives another stream"),
        (Reusing, "Observations are not overwritten by later steps"),
        (Shifty, "Stepping with random actions raises nothing"),
        (functools.partial(Faulty, "raise"), "Stepping with random actions raises nothing"),
        (functools.partial(Faulty, "raise", 1), "Stepping with random actions raises nothing"),
        (functools.partial(Faulty, "raise", -1), "The environment can be made"),
        (Unknown, "The environment can be made"),
        ("no-such-thing", "The environment can be made"),
        (dict, "The environment can be made"),
    ],
)
def test_a_broken_rule_is_found_with_expected_got_and_fix(env, rule):
    """F5, F6, F7."""
    finding = broken(check(env, steps=60))[rule]
    assert all((finding.expected, finding.got, finding.fix))
    assert str(finding).startswith(finding.level)


@pytest.mark.parametrize("at", [1, 3, 8])
def test_what_is_raised_is_said_with_its_step_and_the_lines_of_the_environment(at):
    """It was a traceback of the library without both."""
    found = broken(check(functools.partial(Faulty, "raise", at), steps=60))
    got = found["Stepping with random actions raises nothing"].got
    assert got.startswith(f"KeyError: 'the wheel came off', at step {at} with action ")
    assert "worlds.py" in got
    assert "src/palaestra" not in got
    assert "site-packages" not in got


class Late(EnvironmentWrapper):
    """Wrong above the Gymnasium layer."""

    def begin_episode(self, seed):
        return self.env.begin_episode(seed)._replace(reward=1.0, step_type=1)

    def advance(self, action):
        return self.env.advance(action)._replace(discount=0.0)


def test_wrappers_are_held_to_the_same_rules():
    """ALF-27, ALF-43."""
    rules = broken(check(lambda: Late(GymEnvironment(Counter({3: "truncated"}))), steps=20))
    assert "discount is 0 or 1, and 0 only with LAST" in rules
    assert any(rule.startswith("An episode is FIRST") for rule in rules)


def test_a_report_reads_as_a_table_of_rules():
    report = check(Endless, steps=20)
    text = str(report)
    assert text.startswith("Endless\nok       The environment can be made")
    assert text.endswith("0 broken, 2 warnings, 4 not seen: play more steps (--steps)")
    assert report.ok


class Choosy(Counter):
    """Forbids the action taken last, and raises where it is taken all the same."""

    def __init__(self):
        super().__init__(noisy=True)
        self.observation_space = spaces.Dict({"x": self.observation_space, "action_mask": spaces.MultiBinary(3)})
        self.last = None

    def _seen(self):
        return {"x": super()._seen(), "action_mask": np.array([number != self.last for number in range(3)], np.int8)}

    def reset(self, *, seed=None, options=None):
        self.last = None
        return super().reset(seed=seed)

    def step(self, action):
        if action == self.last:
            raise ValueError(f"action {action} is forbidden")
        self.last = int(action)
        return super().step(action)


class Only(Counter):
    """There can be one at a time."""

    alive = 0

    def __init__(self):
        if Only.alive:
            raise OSError("port 7000 is in use")
        Only.alive += 1
        super().__init__(noisy=True)

    def close(self):
        Only.alive -= 1


class Stuck(Counter):
    def close(self):
        raise RuntimeError("the simulator does not answer")


class Column(Counter):
    """Its reward is an array of one number."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward], np.float32), *rest


def test_random_actions_follow_the_mask():
    report = check(Choosy, steps=200)
    assert report.ok, str(report)


class ManyParts(gym.Env):
    """Actions of several parts, of which masks allow some; others are an error."""

    observation_space = spaces.Dict({"x": spaces.Box(0, 1, (1,)), "action_mask": spaces.MultiBinary(5)})
    action_space = spaces.MultiDiscrete([2, 3])
    allowed: ClassVar[Any] = np.array([0, 1, 1, 0, 0], np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 5
        return {"x": np.zeros(1, np.float32), "action_mask": self.allowed}, {}

    def step(self, action):
        self.require(action)
        self._left -= 1
        return {"x": np.zeros(1, np.float32), "action_mask": self.allowed}, 1.0, not self._left, False, {}

    def require(self, action):
        assert list(action) == [1, 0]


class Parts(ManyParts):
    action_space = spaces.Dict({"gear": spaces.Discrete(2), "pair": spaces.Tuple([spaces.Discrete(2)] * 2)})
    allowed: ClassVar[Any] = {"gear": np.array([0, 1], np.int8), "pair": {"1": np.array([1, 0], np.int8)}}
    observation_space = spaces.Dict(
        {
            "x": spaces.Box(0, 1, (1,)),
            "action_mask": spaces.Dict(
                {"gear": spaces.MultiBinary(2), "pair": spaces.Dict({"1": spaces.MultiBinary(2)})}
            ),
        }
    )

    def require(self, action):
        assert (action["gear"], action["pair"][1]) == (1, 0)


@pytest.mark.parametrize("env", [ManyParts, Parts])
def test_random_actions_follow_masks_of_several_parts(env):
    report = check(env, steps=30)
    assert report.ok, str(report)


def test_an_environment_that_can_exist_only_once_is_named():
    finding = broken(check(Only, steps=50))["A second one can be made beside the first"]
    assert finding.got == "OSError: port 7000 is in use"
    assert Only.alive == 0


def test_an_error_of_close_is_a_finding():
    assert "the simulator does not answer" in broken(check(Stuck, steps=50))["close raises nothing"].got


def test_a_reward_in_an_array_of_one_is_taken_as_in_a_batch():
    report = check(functools.partial(Column, {7: "truncated"}, noisy=True), steps=50)
    assert report.ok, str(report)
    assert list(broken(report)) == ["A reward is a number"]  # a warning
