"""Tests of `palaestra.envs.wrappers.batched`: wrappers and time limits around environments that are stepped as one."""

import functools

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import DQN, Collector, DQNConfig, EnvConfig, create_environment
from palaestra.core import BoundedSpec, ConfigError, EnvError, SpecError, TensorSpec
from palaestra.envs import (
    BatchedWrapper,
    EnvironmentWrapper,
    GymEnvironment,
    NativeVectorEnvironment,
    TensorEnvironment,
    TimeLimit,
    probe_specs,
)
from palaestra.envs.tiny import TensorCartPole
from palaestra.envs.wrappers import (
    ClipObservation,
    FrameStack,
    NonEpisodic,
    NormalizeAction,
    RewardMap,
    ScaleReward,
    SparseReward,
    TimeAwareDiscount,
)
from palaestra.testing.environments import random_actions
from tests.envs.worlds import Counter


class Drifting(TensorEnvironment):
    """Moves by its action, in [-3, 5]; pays what it has moved by, and ends above 4."""

    num_random = 1
    observation_spec = TensorSpec((1,))
    action_spec = BoundedSpec((1,), minimum=np.array(-3.0), maximum=np.array(5.0))

    def fresh(self, uniform):
        return {"place": uniform[:, 0]}

    def transition(self, state, action):
        place = state["place"] + action[:, 0]
        return {"place": place}, action[:, 0] + 0.0, place > 4

    def observe(self, state):
        return state["place"][:, None].clone()


class Unlimited(TensorCartPole):
    """Takes no `max_episode_steps`, as most batched environments of others."""

    def __init__(self, batch_size, lane_seeds=None):
        super().__init__(batch_size, lane_seeds=lane_seeds)


class Stubborn(BatchedWrapper):
    """Decides itself where episodes end."""

    batched = True

    def __init__(self, batch_size):
        super().__init__(TensorCartPole(batch_size, lane_seeds=[7 + lane for lane in range(batch_size)]))
        self.end_episodes = None


class Signed(RewardMap):
    """A map of a user's own."""

    elementwise = True

    def map(self, reward):
        return (reward > 0) * 1.0 - (reward < 0) * 1.0


class Bounded(EnvironmentWrapper):
    """Says that it does the same to all rows, and has a method for one alone."""

    elementwise = True

    def advance(self, action):
        time_step = self.env.advance(action)
        return time_step._replace(reward=min(time_step.reward, 0.5))


class Raised(Signed):
    """As the one above."""

    def change(self, time_step):
        return time_step._replace(reward=time_step.reward + 1)


class Shifted(BatchedWrapper):
    """Changes the frames of a stack."""

    def change(self, time_step):
        return time_step._replace(observation=time_step.observation * torch.tensor([[[0.5], [1.0]]]))


def counters(num_envs=2, mode="NextStep"):
    """A pool of Gymnasium's in which lane 0 terminates after 2 steps and the others never."""
    makers = [functools.partial(Counter, {2: "terminated"} if lane == 0 else {}) for lane in range(num_envs)]
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)


def stream(env, steps=30, seed=3):
    actions = random_actions(env, seed)
    return [env.step(next(actions)) for _ in range(steps)]


def test_alf_30_a_time_limit_ends_lanes_of_a_tensor_environment_one_by_one():
    """ALF-30: `TimeLimit(tensor_env, 3)`; lanes that end before are counted anew, only ends discount."""
    env = TimeLimit(Drifting(2, lane_seeds=[1, 2]), 3)
    env.reset()
    steps = [env.step(torch.tensor([[5.0], [0.0]])) for _ in range(8)]
    assert [step.step_type.tolist() for step in steps] == [
        [2, 1],
        [0, 1],
        [2, 2],
        [0, 0],
        [2, 1],
        [0, 1],
        [2, 2],
        [0, 0],
    ]
    assert [step.discount.tolist() for step in steps[:4]] == [[0, 1], [1, 1], [0, 1], [1, 1]]
    assert [step.observation[1, 0].item() for step in steps[:3]] == [steps[0].observation[1, 0].item()] * 3
    assert steps[3].observation[1] != steps[2].observation[1]  # another episode


@pytest.mark.parametrize("name", ["palaestra.envs.tiny:TensorCartPole", "tests.envs.test_batched:Unlimited"])
def test_alf_30_the_configuration_limits_batched_environments(name):
    """ALF-30, ALF-46: by their own argument, or by a layer."""
    with create_environment(EnvConfig(name=name, num_envs=2, max_episode_steps=5), seed=1) as env:
        found = stream(env, 7)
    assert [step.step_type.tolist() for step in found[:7]] == [[0, 0], *[[1, 1]] * 4, [2, 2], [0, 0]]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_alf_30_a_time_limit_ends_lanes_of_a_pool_one_by_one(mode):
    """ALF-30: in each of Gymnasium's ways to reset; an ended lane shows step 0 of the environment again."""
    env = TimeLimit(NativeVectorEnvironment(counters(mode=mode), lane_seeds=[1, 2]), 3)
    steps = [env.reset(), *(env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(8))]
    assert [step.step_type[1].item() for step in steps] == [0, 1, 1, 2, 0, 1, 1, 2, 0]
    assert [step.observation[1, 0].item() for step in steps] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [step.reward[1].item() for step in steps] == [0, 10, 20, 30, 0, 10, 20, 30, 0]
    period = [0, 1, 2] if mode == "NextStep" else [0, 1]
    assert [step.step_type[0].item() for step in steps] == (period * 5)[:9]
    assert all((step.discount == 1).all() for step in steps) or mode == "NextStep"
    env.close()


def test_what_cannot_be_limited_is_refused():
    with pytest.raises(ConfigError, match=r"around a Stubborn, which resets .* end_episodes\(lanes\), or "):
        create_environment(EnvConfig(name="tests.envs.test_batched:Stubborn", num_envs=2, max_episode_steps=3))
    with pytest.raises(ConfigError, match="no time limit that could be taken off"):
        create_environment(EnvConfig(name="tests.envs.test_batched:Stubborn", num_envs=2, max_episode_steps=0))
    with pytest.raises(ConfigError, match=r"TimeLimit\(duration=0\)"):
        TimeLimit(TensorCartPole(1, lane_seeds=[1]), 0)


def test_alf_46_wrappers_do_to_a_batch_what_they_do_to_one():
    """ALF-46: rewards, observations, actions and discounts, in the order of the list; FIRST rewards stay 0."""
    seeds = [1, 2, 3]
    bare = TimeLimit(Drifting(3, lane_seeds=seeds), 4)
    env = TimeLimit(Drifting(3, lane_seeds=seeds), 4)
    env = TimeAwareDiscount(SparseReward(ScaleReward(ClipObservation(NormalizeAction(env), 0.0, 0.5), scale=0.5)))
    assert (env.action_spec.minimum.item(), env.action_spec.maximum.item()) == (-1, 1)
    assert env.observation_spec.maximum.item() == 0.5
    assert env.reward_spec.maximum == 1
    assert torch.equal(env.reset().observation, bare.reset().observation.clamp(0, 0.5))
    for number in range(12):
        action = torch.linspace(-1, 1, 3)[:, None].roll(number, 0)
        step, raw = env.step(action), bare.step(-3 + (action + 1) * 4)
        assert torch.equal(step.observation, raw.observation.clamp(0, 0.5))
        assert torch.equal(step.reward, (raw.reward > 0).float() * ~raw.first)
        assert torch.equal(step.discount == 0, step.step_type == 2)
        assert torch.equal(step.prev_action, action.masked_fill(step.first[:, None], 0))
    with pytest.raises(SpecError, match=r"action for environment 1 has value 1\.5"):
        env.step(torch.tensor([[0.0], [1.5], [0.0]]))


def test_a_map_of_ones_own_is_a_layer_of_a_batch_if_it_says_so():
    env = Signed(Drifting(2, lane_seeds=[1, 2]))
    env.reset()
    assert env.step(torch.tensor([[0.5], [-2.0]])).reward.tolist() == [1, -1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_alf_46_stacks_of_a_batch_hold_the_frames_of_one_episode(mode):
    """ALF-46: no frame of another episode, also where lanes reset within the step, and in what a buffer gives back."""
    env = FrameStack(TimeLimit(NativeVectorEnvironment(counters(mode=mode), lane_seeds=[1, 2]), 3), num_frames=3)
    algorithm = DQN(env.observation_spec, env.action_spec, DQNConfig(capacity=100, learning_starts=10))
    collector = Collector.of(env, algorithm)
    collector.collect(n_step=30)
    rows = collector.buffer.sample(64, generator=torch.Generator().manual_seed(0))[0]
    for stack in rows.observation[..., 0].tolist():
        newest = int(stack[-1])
        assert stack == [max(0, newest - 2), max(0, newest - 1), newest]
    env.close()


def test_alf_46_layers_of_a_batch_are_resumed_exactly():
    """ALF-46: steps until the limit and stacked frames go with the environment's state."""
    wrappers = ("FrameStack(num_frames=3)", "TimeLimit(duration=4)", "ScaleReward(scale=0.5)")
    config = EnvConfig(name="tests.envs.test_batched:Unlimited", num_envs=3, wrappers=wrappers)
    with create_environment(config, seed=1) as env, create_environment(config, seed=2) as other:
        env.reset()
        stream(env, 7)
        state = env.state_dict()
        expected = stream(env, 20, seed=5)
        stream(other, 2)
        other.load_state_dict(state)
        assert other.resume == "exact"
        for one, two in zip(expected, stream(other, 20, seed=5), strict=True):
            assert all(torch.equal(one[field], two[field]) for field in range(6))
        del state["layer.1:TimeLimitLayer.steps"]
        with pytest.raises(EnvError, match="resume with the wrappers of the saved run"):
            other.load_state_dict(state)


def test_alf_46_wrappers_that_are_for_one_environment_are_refused_by_name():
    """ALF-46: those of Gymnasium, those that keep something, and what is no layer of a batch."""
    name = "palaestra.envs.tiny:TensorCartPole"
    with pytest.raises(ConfigError, match=r"NonEpisodic cannot go around a TensorCartPole, .* write a BatchedWrapper"):
        NonEpisodic(TensorCartPole(1, lane_seeds=[1]))
    with pytest.raises(ConfigError, match=r"Gymnasium's wrappers, such as .*ClipReward.*; use time step wrappers"):
        create_environment(EnvConfig(name=name, gym_wrappers=("ClipReward",)))
    with pytest.raises(ConfigError, match="made a int of a batched environment"):
        create_environment(EnvConfig(name=name, wrappers=(lambda env: 3,)))
    with pytest.raises(SpecError, match="BatchedWrapper was given a GymEnvironment"):
        BatchedWrapper(GymEnvironment(Counter()))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("kind", "method"), [(Bounded, "advance"), (Raised, "change")])
def test_alf_46_a_layer_that_would_do_nothing_to_rows_is_refused(kind, method):
    """ALF-46: it says `elementwise`; what it does is in a method that a batch does not call."""
    needed = f"{kind.__name__} cannot go around .*, and do in change_rows or action_rows to rows what {method} does"
    with pytest.raises(ConfigError, match=needed):
        kind(TensorCartPole(1, lane_seeds=[1]))

    class Mended(kind):
        def change_rows(self, time_step):
            return time_step._replace(reward=time_step.reward - 3)

    env = Mended(TensorCartPole(1, lane_seeds=[1]))
    env.reset()
    assert env.step(torch.tensor([0])).reward.tolist() == [-2.0]


def test_a_layer_of_a_batch_says_itself_that_it_keeps_frames():
    """Else rows of a buffer, which keep each frame once, would be others than those that were seen."""
    env = Shifted(FrameStack(TensorCartPole(2, lane_seeds=[1, 2]), num_frames=2))
    algorithm = DQN(env.observation_spec, env.action_spec, DQNConfig(capacity=100, learning_starts=10))
    collector = Collector.of(env, algorithm)
    collector.collect(n_step=4)
    buffer = collector.buffer
    one, two = (buffer[buffer.in_time_order(0)[place]].observation for place in (0, 1))
    assert torch.equal(two[0], one[1] / 2)
    config = EnvConfig(
        name="palaestra.envs.tiny:TensorCartPole", wrappers=("FrameStack(num_frames=2)",), untransformed=True
    )
    with create_environment(config) as env:
        assert env.observation_spec.stacked == 2


def test_bounds_that_nobody_looks_at_cannot_be_strict():
    """F6, F27: of a batch that is stepped as one; its own tests have to look."""
    config = EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=2, strict=True)
    with pytest.raises(ConfigError, match=r"is a batched environment, .* not checked in a run; leave out env\.strict"):
        create_environment(config)


@pytest.mark.parametrize(
    ("settings", "said"), [({"discount": 0.9}, "discount 0.9 is"), ({"auto_reset": False}, "auto_reset False is")]
)
def test_what_single_environments_alone_have_is_refused_by_its_name(settings, said):
    """And by no other, which nobody has given."""
    with pytest.raises(ConfigError, match=f"^env.{said} for single environments"):
        EnvConfig(vectorization="native", **settings)


def test_a_pool_is_not_looked_at_where_it_could_not_be_stepped():
    """A run asks for specs first, so that nothing has been written when it is refused."""
    with pytest.raises(ConfigError, match=r"exists as a pool only, .* leave env\.vectorization out"):
        probe_specs(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", vectorization="process"))
