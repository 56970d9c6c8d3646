"""Tests of `palaestra.envs.stepping.native_vector`."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from palaestra.core import ConfigError, EnvError, NonFiniteError, RunSeeds, SpecError
from palaestra.envs import NativeVectorEnvironment, TimeLimit
from tests.envs.worlds import Counter, Faulty, Nested, Pid

SEEDS = [RunSeeds(0).integer("environments", lane) for lane in range(3)]
SCRIPTS = [{2: "terminated"}, {3: "truncated"}, {}]
ONES = torch.ones(3, dtype=torch.int64)


def pool(mode=AutoresetMode.NEXT_STEP, kind=Counter, arguments=SCRIPTS):
    makers = [functools.partial(kind, *([argument] if argument is not None else [])) for argument in arguments]
    return NativeVectorEnvironment(SyncVectorEnv(makers, autoreset_mode=mode), lane_seeds=SEEDS)


def repeat(env, count):
    for _ in range(count):
        env.step(ONES)


def rows(steps, name):
    return torch.stack([getattr(step, name) for step in steps]).tolist()


def test_next_step_pools_are_taken_as_they_are():
    """ALF-33."""
    env = pool()
    steps = [env.reset(), *(env.step(ONES) for _ in range(4))]
    assert rows(steps, "step_type") == [[0, 0, 0], [1, 1, 1], [2, 1, 1], [0, 2, 1], [1, 0, 1]]
    assert rows(steps, "discount") == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert rows(steps, "reward") == [[0, 0, 0], [10, 10, 10], [20, 20, 20], [0, 30, 30], [10, 0, 40]]
    assert rows(steps, "prev_action") == [[0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 1]]
    assert [step.observation[0, 0].item() for step in steps] == [0, 1, 2, 0, 1]
    assert env.ended is None


@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_a_wrapper_of_the_pool_reports_of_ended_episodes_is_of_their_last_rows_alone(mode):
    """One mask covers a group of entries: the zeros of other lanes counted as reported, and of FIRST rows."""
    makers = [functools.partial(Counter, script) for script in SCRIPTS]
    statistics = RecordEpisodeStatistics(SyncVectorEnv(makers, autoreset_mode=mode))
    env = NativeVectorEnvironment(statistics, lane_seeds=SEEDS)
    env.reset()
    env.step(ONES)
    step = env.step(ONES)
    if mode is AutoresetMode.NEXT_STEP:
        assert step.env_info["episode/r"][0] == 30 and step.env_info["episode/r"][1:].isnan().all()
    else:
        assert step.env_info == () or step.env_info["episode/r"].isnan().all()
        assert env.ended.env_info["episode/r"].tolist() == [30]


class LateMask(Counter):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": np.ones(3, np.int8)}


def test_a_mask_that_only_steps_of_a_pool_report_is_refused():
    env = pool(kind=LateMask)
    env.reset()
    with pytest.raises(EnvError, match=r"info has an action_mask, .* --env\.vectorization serial"):
        env.step(ONES)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_pools_that_reset_within_the_step_report_the_last_rows_apart(mode):
    env = pool(mode)
    env.reset()
    assert env.step(ONES).step_type.tolist() == [1, 1, 1]
    assert env.ended is None
    step = env.step(ONES)
    assert step.step_type.tolist() == [0, 1, 1]
    assert step.reward.tolist() == [0, 20, 20]
    assert step.discount.tolist() == [1, 1, 1]
    assert step.prev_action.tolist() == [0, 1, 1]
    assert step.observation[:, 0].tolist() == [0, 2, 2]
    assert env.ended is not None
    last = env.ended
    assert (last.step_type.tolist(), last.discount.tolist(), last.reward.tolist()) == ([2], [0], [20])
    assert (last.env_id.tolist(), last.prev_action.tolist(), last.observation[0, 0].item()) == ([0], [1], 2)
    env.step(ONES)
    assert env.ended.env_id.tolist() == [1]
    assert env.ended.discount.tolist() == [1]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_info_is_nan_where_nobody_reported_it(mode):
    env = pool(mode, Pid, [None] * 3)
    assert env.reset().env_info == ()
    assert not torch.isnan(env.step(ONES).env_info.pid).any()


def test_nested_observations_and_actions():
    env = pool(kind=Nested, arguments=[None] * 3)
    first = env.reset()
    assert first.observation.body.shape == (3, 2, 3)
    assert first.observation.pair["1"].dtype == torch.int8
    assert first.env_info.fresh.tolist() == [1, 1, 1]
    second = env.step({"move": torch.ones(3, 2), "gear": torch.tensor([0, 1, 2])})
    assert second.reward.tolist() == [2, 3, 4]
    assert sorted(second.env_info.keys()) == ["deep/x", "speed"]


def test_the_same_seeds_give_the_same_stream_and_every_reset_has_its_own():
    """ALF-55, ALF-56."""
    make = functools.partial(gymnasium.make_vec, "CartPole-v1", 3, vectorization_mode="vector_entry_point")
    one, two = (NativeVectorEnvironment(make(), lane_seeds=SEEDS) for _ in range(2))
    first = one.reset().observation
    assert torch.equal(first, two.reset().observation)
    for _ in range(60):
        assert torch.equal(one.step(ONES).observation, two.step(ONES).observation)
    assert not torch.equal(one.reset().observation, first)
    assert one.seeding == "per_batch"


def test_a_restored_pool_starts_new_episodes_with_a_seed_not_used_before():
    one, two = pool(), pool()
    first = one.reset().observation
    one.step(ONES)
    two.load_state_dict(one.state_dict())
    step = two.step(ONES)
    assert step.step_type.tolist() == [0, 0, 0]
    assert two.resume == "statistical"
    assert two.vector_env.envs[0].seeds != one.vector_env.envs[0].seeds
    assert first.shape == step.observation.shape
    with pytest.raises(EnvError, match="of 2 environments"):
        one.load_state_dict({"lane_seed": [1, 2], "resets": 0})


def test_a_step_before_any_reset_resets():
    assert pool().step(ONES).step_type.tolist() == [0, 0, 0]


def test_a_failure_says_where():
    env = pool(kind=Faulty, arguments=["raise"] * 3)
    env.reset()
    with pytest.raises(EnvError, match="raised KeyError at step 3 after reset 0"):
        repeat(env, 3)


def test_a_pool_that_does_not_say_how_it_resets_is_refused():
    vector_env = SyncVectorEnv([Counter])
    vector_env.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        NativeVectorEnvironment(vector_env)


def test_wrong_use_is_refused():
    env = pool()
    with pytest.raises(EnvError, match="without send"):
        env.recv()
    with pytest.raises(SpecError, match="environment 1 has value 5"):
        env.send(torch.tensor([0, 5, 0]))
    env.send(ONES)
    with pytest.raises(EnvError, match="twice"):
        env.send(ONES)
    with pytest.raises(EnvError, match="cannot be drawn: it has no method render"):
        env.render()
    env.close()
    env.close()


@pytest.mark.parametrize(("mode", "end"), [("rgb_array", "'rgb_array'$"), (None, '; make it with render_mode="rgb_')])
def test_a_pool_that_draws_nothing_is_told_of_the_render_mode_that_it_lacks(mode, end):
    class Blank(Counter):
        render_mode = mode

        def render(self):
            return None

    with pytest.raises(EnvError, match=f"drew nothing with render_mode .*{end}"):
        pool(kind=Blank).render()


def stored_rows(mode, make, steps):
    """The rows of every lane as a collector stores them: what is in `ended` first, then the time step."""
    vector_env = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    env = NativeVectorEnvironment(vector_env, lane_seeds=SEEDS)
    lanes: list[list[tuple]] = [[], [], []]

    def store(time_step):
        for row, lane in enumerate(time_step.env_id.tolist()):
            fields = time_step.step_type, time_step.discount, time_step.reward, time_step.prev_action
            lanes[lane].append((*[field[row].item() for field in fields], *time_step.observation[row].tolist()))

    time_step = env.reset()
    store(time_step)
    for _ in range(steps):
        # a policy of the observation alone, so that the same streams get the same actions
        time_step = env.step((time_step.observation[:, 2] > 0).long())
        if env.ended is not None:
            store(env.ended)
        store(time_step)
    env.close()
    return lanes


def cut_cartpole():
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 23)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_data_learned_from_are_the_same_however_a_pool_resets(mode):
    """ALF-23 to ALF-26, ALF-33: with terminated and with truncated episodes, bit for bit."""
    expected, found = stored_rows(AutoresetMode.NEXT_STEP, cut_cartpole, 150), stored_rows(mode, cut_cartpole, 150)
    for ours, theirs in zip(found, expected, strict=True):
        length = min(len(ours), len(theirs))
        assert length > 140
        assert ours[:length] == theirs[:length]
    ends = {(row[0], row[1]) for lane in expected for row in lane if row[0] == 2}
    assert (2, 1.0) in ends


class Broken(Counter):
    """Emits infinity in its third step."""

    def step(self, action):
        observation, *rest = super().step(action)
        return observation + (np.inf if self.steps == 3 else 0), *rest


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infinity_from_a_pool_is_named(mode):
    """F5."""
    env = pool(mode, Broken, [None] * 3)
    env.reset()
    repeat(env, 2)
    with pytest.raises(NonFiniteError, match=r"environment 0 emitted observation\[0\] = inf \(step"):
        env.step(ONES)
    assert env.step(ONES).step_type.tolist() == [0, 0, 0]


def test_what_a_pool_writes_into_the_same_memory_again_is_copied():
    vector_env = SyncVectorEnv([functools.partial(Counter, script) for script in SCRIPTS], copy=False)
    env = NativeVectorEnvironment(vector_env, lane_seeds=SEEDS)
    first, second = env.reset(), env.step(ONES)
    repeat(env, 2)
    assert first.observation[:, 0].tolist() == [0, 0, 0]
    assert second.observation[:, 0].tolist() == [1, 1, 1]


def test_observations_are_contiguous_whatever_the_order_of_the_pools():
    vector_env = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    assert not vector_env.reset(seed=0)[0].flags.c_contiguous
    env = NativeVectorEnvironment(vector_env, lane_seeds=SEEDS)
    assert env.reset().observation.is_contiguous() and env.step(ONES).observation.is_contiguous()


class Odd(SyncVectorEnv):
    """Emits something else than its spaces say, from the first step on."""

    def __init__(self, odd: str) -> None:
        super().__init__([functools.partial(Counter, script) for script in SCRIPTS])
        self.odd = odd
        low, high = {"cast": (np.uint8(0), np.uint8(255)), "bounds": (np.float32(0), np.float32(5))}.get(
            odd, (np.float32(-np.inf), np.float32(np.inf))
        )
        self.single_observation_space = gymnasium.spaces.Box(low, high, (2,), high.dtype)

    def step(self, actions):
        observation, reward, *rest = super().step(actions)
        observation = {"cast": observation + 0.7, "shape": observation[:, :1], "bounds": observation * 0 + 9}.get(
            self.odd, observation
        )
        reward = {"reward": reward[:, None], "text": reward.astype(str)}.get(self.odd, reward)
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("cast", r"step 1 after reset 0: the observations have shape \(3, 2\) and dtype float32, .* values of uint8"),
        ("shape", r"the observations have shape \(3, 1\) and dtype float32, expected \(3, 2\)"),
        ("reward", r"the rewards have shape \(3, 1\), expected \(3,\)"),
        ("text", r"the reward is array\(\['10.0', .* which is no number"),
        ("bounds", r"environment 0 emitted observation\[0\] = 9.0 outside \[0.0, 5.0\]"),
    ],
)
def test_what_a_pool_emits_must_fit_its_spaces(odd, words):
    """F7."""
    env = NativeVectorEnvironment(Odd(odd), lane_seeds=SEEDS, strict=True)
    env.reset()
    with pytest.raises(EnvError, match=words):
        env.step(ONES)


def test_a_value_outside_its_bounds_is_told_once(caplog):
    """F6."""
    env = NativeVectorEnvironment(Odd("bounds"), lane_seeds=SEEDS)
    env.reset()
    repeat(env, 40)
    assert caplog.text.count("outside") == 2  # the value, and how many of them


def test_an_attribute_that_differs_between_environments_has_no_one_value():
    env = pool()
    with pytest.raises(ConfigError, match=r"_script differs between the environments of this pool"):
        env.get_attr("_script")


class Draws(gymnasium.Env):
    """Terminates after three steps; what an episode shows is drawn as it begins. Action 0 is never allowed."""

    observation_space = spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.x = 0, self.np_random.random(1, np.float32)
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), 0.0, self.steps == 3, False, {}

    def _seen(self):
        return {"x": self.x, "action_mask": np.array([0, 1], np.int8)}


def test_a_lane_that_a_time_limit_cuts_off_begins_one_episode_whatever_the_step_beyond_it_ends():
    streams = []
    for mode in AutoresetMode:
        env = TimeLimit(NativeVectorEnvironment(SyncVectorEnv([Draws], autoreset_mode=mode), lane_seeds=[1]), 2)
        # the action after LAST is ignored, so that it may be a forbidden one
        rows = [env.reset(), *(env.step(torch.tensor([action])) for action in (1, 1, 0, 1, 1, 0))]
        assert [int(row.step_type) for row in rows] == [0, 1, 2, 0, 1, 2, 0]
        streams.append([row.observation.x.item() for row in rows])

    assert streams[0] == streams[1] == streams[2]
    assert len(set(streams[0])) == 3
