"""What `palaestra.envs.check` finds only where it was seen: ends, masks, bounds, integers, lanes of batches."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.cli.main import main
from palaestra.core import BoundedSpec
from palaestra.envs import EnvConfig, check
from palaestra.envs.tiny import TensorCartPole
from tests.envs.test_check import broken
from tests.envs.worlds import Counter, Global


class Resets(Counter):
    """Resets itself at its end, and tells nobody."""

    def __init__(self, key=None):
        super().__init__(noisy=True)
        self.key = key

    def step(self, action):
        observation, reward, *_ = super().step(action)
        if self.steps < 6:
            return observation, reward, False, False, {}
        info = {self.key: observation} if self.key else {}
        return self.reset()[0], reward, False, True, info


OWN = "The last observation of an episode is its own, not the first of the next one"


class Fresh(Resets):
    """Draws from its generator where it is reset alone."""

    def _seen(self):
        if self.steps == 0:
            self.start = float(self.np_random.random())
        return np.array([self.steps, self.start], np.float32)


class Told(Fresh):
    """Says what its episode ended with."""

    def __init__(self):
        super().__init__("final_observation")


@pytest.mark.parametrize("key", [None, "final_observation"])
def test_an_environment_that_resets_itself_is_found_whether_it_says_so_or_not(key):
    finding = broken(check(lambda: Fresh(key), steps=60))[OWN]
    assert finding.level == "warning"
    assert ("at 3 of 3 ends" if key is None else "info['final_observation']") in finding.got
    assert OWN not in broken(check("CartPole-v1", steps=60))


def test_observations_that_are_drawn_alike_in_every_step_are_no_reset():
    """It was warned of: one step before an end, a reset shows what the step would."""

    class Drawn(Resets):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self._drawn(), {}

        def step(self, action):
            self.steps += 1
            return self._drawn(), 1.0, self.steps == 5, False, {}

        def _drawn(self):
            return self.np_random.random(2).astype(np.float32)

    assert OWN not in broken(check(lambda: Drawn(None), steps=60))


class Noisy(Counter):
    """Draws in every step, and begins anew at its end: by `reset`, by a function of its own, in a wrapper or never."""

    def __init__(self, how):
        super().__init__({5: "truncated"})
        self.how = how

    def _begin(self):
        self.steps, self.place = 0, self.np_random.random()
        return self._seen()

    def _seen(self):
        return np.array([0, self.place], np.float32)

    def reset(self, *, seed=None, options=None):
        super(Counter, self).reset(seed=seed)
        return self._begin(), {}

    def step(self, action):
        self.place += self.np_random.random()
        observation, *rest = super().step(action)
        if self.how in ("reset", "own") and self.steps == 5:
            observation = self.reset()[0] if self.how == "reset" else self._begin()
        return observation, *rest


class Again(gym.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.reset()[0] if truncated else observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("how", "line"), [("reset", "warning"), ("wrapper", "warning"), ("own", "not seen"), ("never", "ok")]
)
def test_an_observation_drawn_in_the_last_step_is_called_its_own_only_where_that_is_known(how, line):
    """Each was `ok`: a reset in the place of the step draws other numbers."""
    env = Again(Noisy(how)) if how == "wrapper" else Noisy(how)
    report = check(lambda: env, steps=60)
    (finding,) = (finding for finding in report.findings if finding.rule == OWN)
    assert str(finding).startswith(line)
    assert not {"step", "reset"} & vars(env).keys()


class Unseeded(Counter):
    """Draws from a generator of its own, which begins alike in every episode."""

    def reset(self, *, seed=None, options=None):
        self.steps, self.rng = 0, np.random.default_rng(42)
        return self._seen(), {}

    def step(self, action):
        observation, reward, *_ = super().step(action)
        observation[1] = self.rng.random() * action
        return observation, reward, self.steps == 9, False, {}


@pytest.mark.parametrize("env", [Unseeded, "palaestra.envs.tiny:Chain"])
def test_an_environment_that_ignores_its_seed_is_found_although_other_actions_give_other_streams(env):
    finding = broken(check(env, steps=40))["Another seed gives another stream"]
    assert finding.got == "two equal ones of 41 time steps, with the same actions"
    assert finding.fix.startswith("nothing, if the task is the same every time; else draw from self.np_random")


def test_a_reward_that_is_text_breaks_a_rule():
    class Text(Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, "1.0", *rest

    finding = broken(check(Text, steps=20))["A reward is a number"]
    assert (finding.level, finding.got) == ("error", "the reward is '1.0', which is no number")


def test_rules_of_ends_are_not_called_kept_where_no_episode_ended():
    report = check(lambda: Counter({}, noisy=True), steps=20)
    unseen = {finding.rule for finding in report.findings if not finding.seen}
    assert unseen == {
        OWN,
        "A time limit is reported as truncated, not as terminated",
        "An end that info calls a time limit is truncated",
        "The action after LAST is ignored",
    }
    assert str(report).endswith("1 warnings, 4 not seen: play more steps (--steps)")
    longer = check(lambda: Counter({30: "truncated"}, noisy=True), steps=100)
    assert all(finding.seen for finding in longer.findings)


def test_steps_can_be_given_on_the_command_line_and_are_counted(capsys, monkeypatch):
    monkeypatch.setattr("palaestra.cli.options._TELL_S", 0.0)
    with pytest.raises(SystemExit, match="0"):
        main(["check-env", "palaestra.envs.tiny:Endless", "--steps", "40"])
    shown = capsys.readouterr()
    assert "none in 82 time steps" in shown.out
    assert "40 of 120 steps" in shown.err
    assert "120 of 120 steps" in shown.err
    with pytest.raises(SystemExit, match="0"):  # of many agents, too
        main(["check-env", "palaestra.multiagent:Meeting", "--steps", "40"])
    assert capsys.readouterr().err.splitlines()[-1] == "120 of 120 steps"


def test_a_mask_that_nobody_reads_and_bounds_that_nobody_means_are_named():
    class Giant(Counter):
        def __init__(self):
            super().__init__({5: "terminated"}, noisy=True)
            self.action_space = spaces.Dict(a=spaces.Box(-3e38, 3e38, (1,), np.float32))

    finding = broken(check(Giant, steps=20))["Bounds of actions are meant"]
    assert (finding.level, finding.got) == ("warning", "-3e+38, which is taken for none")

    class Masked(Counter):
        def reset(self, **given):
            return super().reset(**given)[0], {"action_mask": np.ones(3, np.int8)}

    finding = broken(check(Masked, steps=20))["A mask of actions in info is read"]
    assert "--env.wrappers ActionMask" in finding.fix


def test_what_a_network_sees_of_integers_is_said():
    class Flags(Counter):
        def __init__(self):
            super().__init__({5: "terminated"})
            self.observation_space = spaces.Box(0, 9, (2,), np.uint8)

        def _seen(self):
            return np.array([self.steps, int(self.np_random.integers(9))], np.uint8)

    assert check(Flags, steps=20).sees == {"": "integers 0 to 9 as 0 to 1"}


class Leaky(TensorCartPole):
    """Whose second lane leaves the bounds that it promises."""

    batched = True

    @property
    def observation_spec(self):
        return BoundedSpec((4,), minimum=np.array(-1e-3), maximum=np.array(1e-3))


def test_batches_are_looked_into_as_single_environments_are():
    good = check(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=3), steps=300)
    assert good.ok, str(good)
    assert len(good.findings) > 10
    bad = check(EnvConfig(name=f"{__name__}:Leaky", num_envs=2), steps=100)
    finding = broken(bad)["Observations fit their spec and are finite"]
    assert finding.got.startswith("in lane 0: value ")
    pool = check(EnvConfig(name="CartPole-v1", num_envs=2, vectorization="native"), steps=100)
    assert pool.ok, str(pool)


class Interfering(Counter):
    """Deterministic alone: it seeds what all of its kind share."""

    state = np.zeros(2, np.float32)

    def __init__(self, what):
        super().__init__({7: "terminated"})
        self.what = what

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        np.random.seed(seed % 2**32 if seed is not None else 0)
        Interfering.state[:] = seed % 1000 if seed is not None else 0
        return self._seen(), {}

    def step(self, action):
        Interfering.state += 1
        return super().step(action)

    def _seen(self):
        noise = np.random.random() if self.what == "generator" else Interfering.state[0]
        return np.array([self.steps, noise], np.float32)


DISTURBED = "Two environments do not disturb each other"


@pytest.mark.parametrize("what", ["generator", "class"])
def test_environments_that_disturb_each_other_are_found(what):
    """Each gives its stream alone; several are stepped in turn."""
    (finding,) = (one for one in broken(check(lambda: Interfering(what), steps=60)).values() if one.level == "error")
    assert finding.rule == DISTURBED
    assert "self.np_random" in finding.fix and "--env.vectorization process" in finding.fix
    alone = check(Global, steps=60)  # gives another stream alone, too
    assert [finding.seen for finding in alone.findings if finding.rule == DISTURBED] == [False]
