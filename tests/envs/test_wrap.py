"""Tests of `palaestra.envs.wrappers.wrap`: wrappers as values."""

import dataclasses
import multiprocessing
import pickle
import re

import gymnasium
import pytest

from palaestra.core import ConfigError
from palaestra.envs import EnvConfig, Wrap, create_environment, load
from palaestra.envs.wrappers import ClipReward, FrameStack
from tests.envs.worlds import Doubled


def test_text_class_and_value_mean_the_same():
    """ALF-38."""
    value = Wrap(FrameStack, num_frames=2)
    assert value == Wrap("FrameStack", num_frames=2) == Wrap.parse(" FrameStack( num_frames = 2 )")
    assert value == Wrap("palaestra.envs.wrappers.observations:FrameStack", num_frames=2)
    assert value != Wrap(FrameStack, num_frames=3)
    assert value != Wrap(ClipReward)
    assert (value.text, hash(value)) == ("FrameStack(num_frames=2)", hash(Wrap(FrameStack)))
    assert EnvConfig(wrappers=("FrameStack(num_frames=2)", Doubled)).wrappers == (value, Wrap(Doubled))


class OwnGymWrapper(gymnasium.Wrapper):
    """Of Gymnasium."""


def test_a_wrapper_of_the_other_kind_says_where_it_belongs():
    name = f"{__name__}:OwnGymWrapper"
    with pytest.raises(ConfigError, match=r"is a wrapper of Gymnasium; put it into env\.gym_wrappers"):
        create_environment(EnvConfig(wrappers=(name,)))
    with pytest.raises(ConfigError, match=r"ClipReward is no wrapper of Gymnasium; put it into env\.wrappers"):
        create_environment(EnvConfig(gym_wrappers=(Wrap(ClipReward),)))


def test_a_gymnasium_wrapper_is_named_without_its_module_too():
    """ALF-35."""
    one = EnvConfig(gym_wrappers=("RescaleAction(min_action=-1.0, max_action=1.0)",)).gym_wrappers
    two = EnvConfig(
        gym_wrappers=(Wrap(gymnasium.wrappers.RescaleAction, min_action=-1.0, max_action=1.0),)
    ).gym_wrappers
    assert one == two
    assert one[0].text == "gymnasium.wrappers:RescaleAction(min_action=-1.0, max_action=1.0)"
    assert EnvConfig(gym_wrappers=(one[0].text,)).gym_wrappers == one


def test_a_value_is_put_around_an_environment_with_its_arguments():
    env = load("CartPole-v1", wrappers=("FrameStack(num_frames=2)", "FrameStack(num_frames=5)"))
    assert env.observation_spec.shape == (5, 2, 4)


@pytest.mark.slow
def test_a_spawned_process_gets_the_wrappers_with_the_configuration():
    """ALF-38, ALF-50: there is no registry that it could lack."""
    config = EnvConfig(wrappers=(Wrap(FrameStack, num_frames=2), Doubled), max_episode_steps=5)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_shape, (config,)) == (2, 2, 4)


def _shape(config):
    with create_environment(EnvConfig(**{**vars(config), "num_envs": 2}), seed=0) as env:
        return tuple(env.reset().observation.shape)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FrameStac", "unknown wrapper 'FrameStac' of palaestra.envs.wrappers — did you mean 'FrameStack'"),
        ("FrameStack(frames=3)", "unexpected keyword argument 'frames'; its arguments are: num_frames, keys"),
        ("FrameStack(num_frame=3)", "did you mean 'num_frames'"),
        ("TimeLimit", "missing a required argument: 'duration'"),
        ("FrameStack(3)", "cannot be read: arguments need names"),
        ("FrameStack(num_frames=x)", "cannot be read"),
        ("FrameStack(num_frames=3", "cannot be read"),
        ("FrameStack(num_frames=3).env", "cannot be read: arguments need names"),
        ("FrameStack(**{})", "arguments need names"),
    ],
)
def test_a_text_that_means_no_wrapper_is_refused(text, words):
    """F27: when the configuration is read, not in a worker process."""
    with pytest.raises(ConfigError) as caught:
        EnvConfig(wrappers=(text,))
    assert words in str(caught.value)


def test_one_text_is_no_list_of_wrappers():
    """Its first letter was an unknown wrapper."""
    with pytest.raises(ConfigError, match=r"wrappers are 'FrameStack', and a list is needed, such as \['FrameStack'\]"):
        EnvConfig(wrappers="FrameStack")  # pyright: ignore[reportArgumentType]


def test_a_wrapper_of_ones_own_is_looked_up_when_the_environment_is_made():
    """A configuration can be read where that code is not installed."""
    config = EnvConfig(wrappers=("nowhere:Wrapper(gain=2)",))
    assert config.wrappers[0].kwargs == {"gain": 2}
    with pytest.raises(ConfigError, match="module 'nowhere', which cannot be imported"):
        create_environment(config)
    with pytest.raises(ConfigError, match=r"'gain'; its arguments are: none$"):
        create_environment(EnvConfig(wrappers=("tests.envs.test_wrap:plain(gain=2)",)))
    with pytest.raises(ConfigError, match="is 3; a wrapper is needed"):
        create_environment(EnvConfig(wrappers=("tests.envs.test_wrap:NUMBER",)))


def test_wrappers_that_concern_a_policy_are_known_without_importing_those_of_others():
    """What is of rewards, films and time limits alone has nothing to be applied elsewhere, nor has what only trains."""
    silent = ("ClipReward", "NormalizeReward", "TimeLimit(duration=9)", "RecordVideo(directory='x')", "CheckFinite")
    told = ("ActionRepeat", "NormalizeAction", "FrameStack(num_frames=2)", "ActionMask", "nowhere:Wrapper(gain=2)")
    config = EnvConfig(wrappers=(*silent, *told), train_wrappers=("ClipObservation",))
    assert config.policy_wrappers() == told
    gym = EnvConfig(gym_wrappers=("ClipReward", "ClipAction"), wrappers=(lambda env: env,))
    assert gym.policy_wrappers() == ("gymnasium.wrappers:ClipAction", "a function")


def test_wrappers_of_what_a_policy_reads_besides_observations_concern_it():
    """Rewards that are a tenth at training came whole, to who followed what an export said."""
    rewards = ("ClipReward", "NormalizeReward", "ScaleReward(scale=0.1)")
    layers = (*rewards, "EpisodeStatistics", "CheckFinite", "TimeLimit(duration=9)")
    own = tuple(f"gymnasium.wrappers:{name}" for name in ("ClipReward", "NormalizeReward"))
    told = EnvConfig(gym_wrappers=own, wrappers=layers)
    assert told.policy_wrappers() == ()
    assert told.policy_wrappers(reads_reward=True) == (*own, *rewards)
    assert dataclasses.replace(told, inputs=("reward",)).policy_wrappers() == (*own, *rewards)
    info = dataclasses.replace(told, inputs=("prev_action", "env_info"), info=("episode",))
    assert info.policy_wrappers() == ("EpisodeStatistics",)


NUMBER = 3


def plain(env):
    return env


def test_a_callable_without_a_name_works_here_and_is_refused_as_a_value():
    assert load("CartPole-v1", wrappers=(lambda env: ClipReward(env),)).reward_spec.maximum == 1
    with pytest.raises(ConfigError, match="no importable name"):
        Wrap(lambda env: env)


@pytest.mark.parametrize(
    "text", ["ClipReward(minimum='a')", "ScaleReward(scale='a')", "NormalizeReward(gamma='a')", "FrameStack(keys=3)"]
)
def test_arguments_of_another_type_are_refused_with_the_name_of_the_wrapper(text):
    with pytest.raises(ConfigError, match=f"the wrapper {re.escape(text)} cannot be put around .*TypeError"):
        load("CartPole-v1", wrappers=(text,))


def test_arguments_that_no_file_can_hold_are_refused_when_it_is_written():
    wrap = Wrap(plain, thing=object())
    with pytest.raises(ConfigError, match="cannot be written to a file"):
        wrap.text  # noqa: B018 - it raises
    assert pickle.loads(pickle.dumps(Wrap(FrameStack, keys=("a", "b")))).text == "FrameStack(keys=('a', 'b'))"
