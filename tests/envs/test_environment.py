"""Tests of `palaestra.envs.contract.environment`: one bare environment and its wrappers."""

import dataclasses
import signal

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import DQN, Collector, DQNConfig, EnvConfig, create_environment
from palaestra.core import BoundedSpec, ConfigError, EnvError, RunSeeds, SpecError, StepType, episode_seed
from palaestra.envs import (
    EnvironmentWrapper,
    GymEnvironment,
    LaneEnvironment,
    SerialDriver,
    Wrap,
    load,
    space_from_spec,
)
from palaestra.envs.create import decided
from tests.envs.worlds import Counter, Doubled, Global, Nested, Reusing, counter
from tests.faults import broken


class Remembering(Counter):
    """Reports how often it was reset."""

    def step(self, action):
        return *super().step(action)[:4], {"resets": len(self.seeds)}


def test_the_step_after_the_last_ignores_its_action_and_starts_the_next_episode():
    """ALF-33."""
    gym_env = Counter({2: "terminated"})
    env = GymEnvironment(gym_env)
    env.seed(7)
    kinds = [int(env.step(1).step_type) for _ in range(7)]
    assert kinds == [0, 1, 2, 0, 1, 2, 0]
    assert len(gym_env.actions) == 4


def test_every_episode_gets_its_seed_from_lane_and_number():
    """ALF-55, ALF-56."""
    gym_env = Counter({1: "terminated"})
    env = GymEnvironment(gym_env)
    env.seed(RunSeeds(3).integer("environments", 0))
    for _ in range(5):
        env.step(0)
    lane = RunSeeds(3).integer("environments", 0)
    assert gym_env.seeds == [episode_seed(lane, number) for number in range(3)]


@pytest.mark.parametrize("mode", ["generator_exit", "keyboard_interrupt", "base_exception"])
def test_whatever_one_environment_raises_is_named_but_not_ctrl_c(mode, no_ctrl_c):
    """D12: as in a batch."""
    env = GymEnvironment(broken.Broken(mode))
    env.seed(1)
    for _ in range(broken.STEP):
        env.step(0)
    with pytest.raises(EnvError, match=rf"environment 0 {broken.RAISES[mode][1]} in episode 0 .*, at step 3"):
        env.step(0)
    assert env.step(0).first
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted = GymEnvironment(broken.Broken("keyboard_interrupt"))
    for _ in range(broken.STEP):
        interrupted.step(0)
    with pytest.raises(KeyboardInterrupt):
        interrupted.step(0)
    assert interrupted.step(0).first  # nobody knows whether it was executed


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "num_workers": 2}])
def test_a_first_look_at_info_leaves_every_lane_as_it_was(settings):
    """Lane 0 was stepped at random, and its wrappers remembered."""
    name = f"{__name__}:Remembering"
    with create_environment(EnvConfig(name=name, num_envs=2, info=("resets",), **settings), seed=1) as env:
        assert env.info == ("resets",)
        env.reset()
        assert env.step(torch.zeros(2, dtype=torch.int64)).env_info.resets.tolist() == [1, 1]


def test_seeding_again_starts_the_stream_again():
    env = counter({3: "terminated"}, noisy=True)
    streams = []
    for _ in range(2):
        env.seed(11)
        streams.append([env.reset().observation[1], *(env.step(0).observation[1] for _ in range(9))])
    assert streams[0] == streams[1]


def test_a_wrapper_passes_everything_through():
    """ALF-43."""
    inner = GymEnvironment(Counter({2: "truncated"}))
    env = EnvironmentWrapper(inner)
    assert env.observation_spec is inner.observation_spec
    assert env.action_spec is inner.action_spec
    assert env.reward_spec == inner.reward_spec
    assert env.env_info_spec == {}
    env.reset()
    assert [env.step(0).reward for _ in range(2)] == [10.0, 20.0]


def test_wrappers_change_time_steps_and_stack():
    """ALF-43."""
    env = Doubled(Doubled(GymEnvironment(Counter())))
    env.reset()
    assert env.step(0).reward == 40.0


def test_only_the_outermost_layer_resets_and_records():
    inner = GymEnvironment(Counter({1: "terminated"}))
    env = Doubled(inner)
    env.seed(1)
    assert [int(env.step(0).step_type) for _ in range(4)] == [0, 2, 0, 2]
    assert env.state_dict()["episode"].tolist() == [1]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "tests.envs.worlds:Nested"])
@pytest.mark.parametrize("steps", [0, 1, 13])
def test_a_saved_environment_goes_on_as_if_nothing_had_happened(name, steps):
    """F25: the episode's seed and actions are replayed through all layers."""
    one, two = load(name, wrappers=(Doubled,)), load(name, wrappers=(Doubled,))
    space = space_from_spec(one.action_spec)
    space.seed(0)
    actions = [space.sample() for _ in range(steps + 20)]
    one.seed(4)
    one.reset()
    for action in actions[:steps]:
        one.step(action)
    two.load_state_dict(one.state_dict())
    for action in actions[steps:]:
        expected, found = one.step(action), two.step(action)
        np.testing.assert_equal(found.observation, expected.observation)
        assert found[:3] == expected[:3]


def test_an_environment_saved_before_its_first_reset_starts_at_the_beginning():
    one, two = counter(noisy=True), counter(noisy=True)
    one.seed(5)
    two.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(two.reset().observation, one.reset().observation)


def test_an_environment_that_does_not_replay_says_why():
    """The digest of the observation is compared."""
    one, two = GymEnvironment(Global()), GymEnvironment(Global())
    one.reset()
    with pytest.raises(EnvError, match=r"does not replay.*global generator"):
        two.load_state_dict(one.state_dict())


class Louder(EnvironmentWrapper):
    """Its rewards grow with the steps of its life, which it does not say."""

    steps = 0

    def advance(self, action):
        self.steps += 1
        time_step = self.env.advance(action)
        return time_step._replace(reward=time_step.reward * self.steps)


@pytest.mark.parametrize("batched", [False, True])
def test_a_layer_whose_memory_shows_in_rewards_alone_does_not_replay(batched):
    """F25: the digest has the reward; those of older checkpoints have none."""

    def made():
        env = Louder(GymEnvironment(gymnasium.make("CartPole-v1")))
        return LaneEnvironment(SerialDriver([env]), lane_seeds=[3]) if batched else env

    one, action = made(), np.zeros(1, np.int64) if batched else 0
    if not batched:
        one.seed(3)
    one.reset()
    for _ in range(4):
        one.step(action)
    made().load_state_dict(one.state_dict())  # in its first episode it replays
    while np.any(np.asarray(one.step(action).step_type) != 0):
        pass
    one.step(action)
    state = one.state_dict()
    with pytest.raises(EnvError, match="does not replay: after 1 actions observation and reward hash to"):
        made().load_state_dict(state)
    made().load_state_dict(state | {"digest": state["digest"].partition("-")[0]})


def test_the_state_consists_of_arrays_and_text():
    env = GymEnvironment(Nested())
    env.reset()
    env.step({"move": np.ones(2, np.float32), "gear": np.int64(1)})
    state = env.state_dict()
    assert set(state) == {"lane_seed", "episode", "steps", "digest", "action.move", "action.gear"}
    assert all(isinstance(value, np.ndarray | str) for value in state.values())


def test_a_layer_around_a_bare_gymnasium_environment_is_refused():
    with pytest.raises(SpecError, match=r"GymEnvironment\(Counter\(\)\)"):
        EnvironmentWrapper(Counter())
    with pytest.raises(SpecError, match=r"GymEnvironment\(Counter\(\)\)"):
        LaneEnvironment(SerialDriver([Counter()]))


def test_specs_of_a_wrapper_are_those_of_what_it_emits():
    """ALF-43."""

    class Scaled(EnvironmentWrapper):
        @property
        def observation_spec(self):
            return BoundedSpec((2,), minimum=np.zeros(2), maximum=np.ones(2))

    assert Scaled(counter()).time_step_spec.observation.bounded


def test_changing_an_action_that_was_given_changes_no_time_step_and_the_environment_changes_none_of_ours():
    env = GymEnvironment(Reusing())  # sets the action that it is given to 0
    env.reset()
    action = np.ones(1, np.float32)
    time_step = env.step(action)
    assert action.tolist() == [1.0]
    action[:] = 7
    assert time_step.prev_action.tolist() == [1.0]


class Ends(EnvironmentWrapper):
    """Above the converter: ends each episode at its second step, for good or by the clock."""

    def __init__(self, env, discount):
        super().__init__(env)
        self.end = discount

    def begin_episode(self, seed):
        self.steps = 0
        return self.env.begin_episode(seed)

    def advance(self, action):
        self.steps += 1
        step = self.env.advance(action)
        return step._replace(step_type=StepType.LAST, discount=self.end) if self.steps == 2 else step


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_alf_40_a_wrapper_above_the_converter_says_what_kind_of_end_it_is(discount):
    """ALF-40: what is learned from tells the two apart, as it does where Gymnasium says it."""
    config = EnvConfig(name="CartPole-v1", num_envs=2, wrappers=(Wrap(Ends, discount=discount),))
    with create_environment(config, seed=1) as env:
        dqn = DQN(env.observation_spec, env.action_spec, DQNConfig(learning_starts=0))
        collector = Collector.of(env, dqn)
        collector.collect(n_step=12)
        batch = dqn.preprocess(dqn.draw(collector.buffer), collector.buffer)
    gamma = dqn.config.gamma
    assert batch.bootstrap.unique().tolist() == pytest.approx([gamma] if discount else [0.0, gamma])


class Scanning(Counter):
    """Reports more numbers than a metric each could be."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"sensors": {"lidar": np.ones(1080), "hit": 0}}


@pytest.mark.parametrize("name", ["sensors/lidar", "sensors/lidar/7"])
def test_a_large_array_that_info_names_is_refused_where_a_run_is_new(name, caplog):
    config = EnvConfig(name=f"{__name__}:Scanning", info=(name,))
    with pytest.raises(ConfigError, match=r"names 'sensors/lidar', an array of 1,080 numbers; only .* at most 16 are"):
        decided(config)
    with create_environment(config) as env:  # of an old run, which goes on with zeros
        assert env.info == (name,)
    assert "did not find as a number, or an array of at most 16" in caplog.text
    decided(dataclasses.replace(config, info=("sensors", "*")))
