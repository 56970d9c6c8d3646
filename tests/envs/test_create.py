"""Tests of `palaestra.envs.create`."""

import dataclasses
import functools
import os
import re

import gymnasium
import numpy as np
import pytest
import torch

import palaestra
from palaestra.core import (
    ConfigError,
    DiscreteSpec,
    EnvError,
    MissingExtraError,
    PalaestraError,
    RunSeeds,
    import_object,
)
from palaestra.envs import (
    EnvConfig,
    GymEnvironment,
    NativeVectorEnvironment,
    ProcessDriver,
    SerialDriver,
    TimeLimit,
    create_environment,
    load,
    probe_specs,
)
from palaestra.envs.tiny import Chain
from palaestra.envs.wrappers import ScaleReward
from tests.envs.worlds import Constant, Counter, Doubled, StepRecorder

SEEDS = [RunSeeds(1).integer("environments", lane) for lane in range(3)]


def test_layers_come_in_their_order():
    """ALF-44: gym wrappers in list order, converter, time limit, time step wrappers in list order."""
    notes = []

    def gym_wrapper(name):
        return lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: notes.append(name) or reward)

    env = load(
        "CartPole-v1",
        max_episode_steps=9,
        gym_wrappers=[gym_wrapper("inner"), gym_wrapper("outer")],
        wrappers=[lambda env: StepRecorder(env, "first", notes), Doubled],
    )
    assert isinstance(env, Doubled)
    assert isinstance(env.env, StepRecorder)
    assert isinstance(env.env.env, TimeLimit)
    assert isinstance(env.env.env.env, GymEnvironment)
    env.reset()
    assert env.step(0).reward == 2.0
    assert notes == ["first down", "inner", "outer", "first up"]


def test_gymnasiums_own_limit_and_checks_are_bypassed():
    """ALF-30."""
    env = load("CartPole-v1")
    assert type(env.env.gym_env).__name__ == "CartPoleEnv"


def test_standard_gymnasium_wrappers_work_unchanged():
    """ALF-35, ALF-36."""
    stacked = load("CartPole-v1", gym_wrappers=[lambda env: gymnasium.wrappers.FrameStackObservation(env, 3)])
    assert stacked.observation_spec.shape == (3, 4)
    assert stacked.reset().observation.shape == (3, 4)
    low, high = np.float32(-1), np.float32(1)

    def rescale(env):
        return gymnasium.wrappers.RescaleAction(env, low, high)

    scaled = load("Pendulum-v1", gym_wrappers=[rescale])
    assert scaled.action_spec.maximum.tolist() == [1]


def test_wrappers_can_be_named():
    """ALF-38: from a configuration file."""
    config = EnvConfig(
        gym_wrappers=("gymnasium.wrappers:FlattenObservation",), wrappers=("tests.envs.worlds:Doubled",), num_envs=2
    )
    env = create_environment(config, lane_seeds=SEEDS[:2])
    env.reset()
    assert env.step(torch.zeros(2, dtype=torch.int64)).reward.tolist() == [2, 2]


def test_arguments_reach_the_constructor():
    env = load("palaestra.envs.tiny:Chain", kwargs={"num_states": 3})
    assert env.observation_spec.shape == (3,)
    reward = create_environment(
        EnvConfig(kwargs={"sutton_barto_reward": True}, max_episode_steps=2), lane_seeds=SEEDS[:1]
    )
    reward.reset()
    assert reward.step(torch.zeros(1, dtype=torch.int64)).reward.tolist() == [0]


@pytest.mark.parametrize(
    ("vectorization", "kind"),
    [
        ("auto", SerialDriver),
        ("serial", SerialDriver),
        ("process", ProcessDriver),
        ("native", NativeVectorEnvironment),
    ],
)
def test_the_vectorization_is_what_was_asked_for(vectorization, kind):
    """ALF-45."""
    workers = 1 if vectorization == "process" else None
    config = EnvConfig(num_envs=3, vectorization=vectorization, num_workers=workers, max_episode_steps=4)
    with create_environment(config, lane_seeds=SEEDS) as env:
        assert type(getattr(env, "driver", env)) is kind
        zeros = torch.zeros(3, dtype=torch.int64)
        steps = [env.step(zeros) for _ in range(5)]
        assert steps[0].step_type.tolist() == [0, 0, 0]
        assert steps[4].step_type.tolist() == [2, 2, 2]
        assert steps[4].discount.tolist() == [1, 1, 1]


def test_a_native_pool_can_be_without_a_time_limit():
    config = EnvConfig(num_envs=1, vectorization="native", max_episode_steps=0)
    with create_environment(config, lane_seeds=SEEDS[:1]) as env:
        assert isinstance(env, NativeVectorEnvironment)
        assert env.vector_env.max_episode_steps > 10**9


def test_an_environment_that_is_batched_itself_is_called_with_the_batch_size():
    """ALF-46."""
    env = create_environment(EnvConfig(name="tests.envs.worlds:Constant", num_envs=3), lane_seeds=SEEDS)
    assert isinstance(env, Constant)
    assert (env.batch_size, env.lane_seeds) == (3, SEEDS)
    with pytest.raises(ConfigError, match="Doubled cannot go around a Constant"):
        create_environment(EnvConfig(name="tests.envs.worlds:Constant", wrappers=(Doubled,)), lane_seeds=SEEDS[:1])
    with pytest.raises(ConfigError, match="exists as a pool only"):
        create_environment(EnvConfig(name="tests.envs.worlds:Constant", vectorization="process"), lane_seeds=SEEDS[:1])


def test_a_batched_environment_gets_the_time_limit_of_the_configuration():
    """ALF-30, ALF-46: on tensors the limit sets the step type and keeps the discount; one that takes none says so."""
    tensors = EnvConfig(name="palaestra.envs.tiny:TensorCartPole", num_envs=2, max_episode_steps=3)
    with create_environment(tensors, seed=1) as env:
        steps = [env.reset(), *(env.step(torch.tensor([0, 1])) for _ in range(4))]
    assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [1, 1], [2, 2], [0, 0]]
    assert all(step.discount.tolist() == [1, 1] for step in steps)
    with pytest.raises(ConfigError, match="or its constructor a max_episode_steps"):
        create_environment(EnvConfig(name="tests.envs.worlds:Constant", max_episode_steps=5), lane_seeds=SEEDS[:1])


def test_alf_44_the_converter_takes_the_discount_and_the_automatic_reset():
    """ALF-44: converter(env_id, discount, auto_reset), under a limit and a wrapper."""
    converter = GymEnvironment(Counter(), env_id=3, discount=0.5, auto_reset=False)
    env = ScaleReward(TimeLimit(converter, 2), scale=2.0)
    for _ in range(2):
        with pytest.raises(EnvError, match=r"auto_reset is False; call reset\(\)"):
            env.step(0)
        steps = [env.reset(), env.step(0), env.step(0)]
        assert [(step.env_id, step.step_type, step.discount) for step in steps] == [(3, 0, 1), (3, 1, 0.5), (3, 2, 0.5)]
    env.auto_reset = True
    assert env.step(0).step_type == 0


@pytest.mark.parametrize("vectorization", ["serial", "process"])
def test_the_discount_and_the_automatic_reset_can_be_chosen(vectorization):
    """ALF-44: converter(discount, auto_reset)."""
    options = {"name": "tests.envs.worlds:Counter", "vectorization": vectorization, "num_envs": 2}
    ends = {"kwargs": {"script": {2: "terminated"}}}
    action = torch.zeros(2, dtype=torch.int64)
    config = EnvConfig(**options, **ends, discount=0.5, auto_reset=False)
    with create_environment(config, seed=1) as env:
        with pytest.raises(EnvError, match=r"auto_reset is False; call reset\(\)"):
            env.step(action)
        for _ in range(2):
            steps = [env.reset(), env.step(action), env.step(action)]
            assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [2, 2]]
            assert [step.discount.tolist() for step in steps] == [[1, 1], [0.5, 0.5], [0, 0]]
            with pytest.raises(EnvError, match=r"environments \[0, 1\] are at the end of an episode"):
                env.step(action)
        with pytest.raises(ConfigError, match=r"leave out env.auto_reset=False"):
            palaestra.Collector.of(env, palaestra.DQN(env.observation_spec, env.action_spec))
    with create_environment(EnvConfig(**options, discount=0.5), seed=1) as env:
        env.reset()
        assert env.step(action).discount.tolist() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="stepped as one; leave it out"):
        create_environment(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", discount=0.5))
    with pytest.raises(ConfigError, match=r"env.discount is 2; it must lie in \[0, 1\]"):
        EnvConfig(discount=2)


def test_a_class_may_stand_for_its_name():
    """ALF-44: as in `train`; what cannot be found again is refused with words."""
    assert EnvConfig(name=Doubled).name == "tests.envs.worlds:Doubled"  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="an environment, or a class or function that makes one"):
        EnvConfig(name=3)  # pyright: ignore[reportArgumentType]


def test_a_single_environment_gets_its_limit_and_wrappers():
    env = load("tests.envs.worlds:counter", max_episode_steps=2, wrappers=[Doubled], env_id=4)
    assert isinstance(env, Doubled)
    assert isinstance(env.env, TimeLimit)
    assert env.reset().env_id == 4
    with pytest.raises(ConfigError, match="use wrappers"):
        load("tests.envs.worlds:counter", gym_wrappers=[Doubled])


def test_specs_can_be_had_without_keeping_an_environment():
    observation, action, reward = probe_specs(EnvConfig(num_envs=64, vectorization="process"))
    assert observation.shape == (4,)
    assert action == DiscreteSpec(num=2)
    assert reward.shape == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPol-v1", "CartPole"),
        ("CartPole-v9", "did you mean 'CartPole-v1'"),
        ("palaestra.envs.tiny:Chian", "did you mean 'Chain'"),
        ("no_such_package:Thing", "cannot be imported"),
        ("palaestra.envs.wrappers.wrap:STEP_WRAPPERS", "an environment is needed"),
        ("tests.envs.worlds:Constant", "create_environment"),
        ("os:getcwd", "an environment is needed"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_a_suggestion(name, words):
    """F27."""
    with pytest.raises(ConfigError, match=words):
        load(name, kwargs={"batch_size": 1, "lane_seeds": [1]} if "Constant" in name else None)


@pytest.mark.parametrize(
    ("name", "extra"), [("LunarLander-v3", "box2d"), ("HalfCheetah-v5", "mujoco"), ("ALE/Pong-v5", "atari")]
)
def test_a_missing_extra_is_named(name, extra):
    try:
        load(name).close()
    except MissingExtraError as error:
        assert f"palaestra[{extra}]" in str(error)  # noqa: PT017 - where the extra is installed nothing is raised


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": 2}, "there are 1 lane seeds"),
        ({"max_episode_steps": -1}, "at least 0"),
        ({"kwargs": {"colour": "red"}}, "colour"),
        ({"name": "palaestra.envs.tiny:Chain", "kwargs": {"colour": "red"}}, "cannot be called with"),
        ({"name": "palaestra.envs:MinAtarBreakout", "kwargs": {"sticky": 1.0}}, "cannot be called with .*'sticky'"),
        ({"wrappers": ("palaestra.envs.tiny",)}, "my_package.module:attribute"),
        ({"wrappers": (3,)}, "cannot be called"),
        ({"vectorization": "native", "wrappers": (Doubled,)}, "Doubled cannot go around"),
        ({"vectorization": "native", "name": "Acrobot-v1"}, "has no vectorised version"),
        ({"vectorization": "native", "kwargs": {"colour": "red"}}, "colour"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, words):
    """F27."""
    with pytest.raises(ConfigError, match=words):
        create_environment(EnvConfig(**settings), lane_seeds=SEEDS[:1])


def test_a_class_can_carry_its_registered_limit():
    gymnasium.register("palaestra-test/Chain-v0", entry_point=Chain, max_episode_steps=6)
    try:
        assert load("palaestra-test/Chain-v0").duration == 6
    finally:
        del gymnasium.registry["palaestra-test/Chain-v0"]


def test_objects_are_imported_by_name():
    assert import_object("palaestra.envs.tiny:Chain") is Chain
    assert import_object("palaestra.envs.tiny:Chain.step") is Chain.step


def test_the_config_is_a_value():
    config = EnvConfig()
    assert dataclasses.replace(config, num_envs=2) != config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_envs = 3


def test_what_is_for_training_alone_is_not_there_in_evaluation():
    """A policy is judged by the rewards of the task, with the wrappers that its observations need."""
    config = EnvConfig(
        name="palaestra.envs.tiny:Chain",
        num_envs=3,
        vectorization="process",
        kwargs={"num_states": 4},
        train_kwargs={"num_states": 6},
        wrappers=("FrameStack(num_frames=2)",),
        train_wrappers=("ScaleReward(scale=7.0)",),
    )
    with create_environment(config, seed=1) as training:
        assert training.observation_spec.shape == (2, 6)
    judged = config.for_evaluation(2)
    assert (judged.vectorization, judged.num_envs, judged.train_wrappers) == ("serial", 2, ())
    with create_environment(judged, seed=1) as evaluation:
        assert evaluation.observation_spec.shape == (2, 4)
        assert isinstance(evaluation.driver, SerialDriver)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vectorization": "proces"}, "must be auto, serial, thread, process, native or batch"),
        ({"num_envs": 4, "num_workers": 4}, "env.num_workers is 4; only vectorization=process has workers"),
        ({"max_episode_steps": 2.5}, "env.max_episode_steps is 2.5; it must be a whole number of at least 0"),
        ({"max_episode_steps": -1, "vectorization": "native"}, "env.max_episode_steps is -1"),
        ({"vectorization": "native", "on_fault": "restart"}, "environments that are stepped as one fail as one"),
        ({"vectorization": "native", "chaos": "nan"}, "env.chaos strikes single environments"),
    ],
)
def test_settings_that_nothing_would_follow_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        EnvConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeout_s": float("inf")}, "timeout_s is inf; it must be above 0 and at most 1000000 seconds"),
        ({"reset_timeout_s": float("nan")}, "reset_timeout_s is nan; it must be above 0 and at most"),
        ({"num_envs": True}, "env.num_envs is True; it must be a whole number of at least 1"),
        ({"chaos": "kill:."}, "chaos 'kill:.' has the probability '.', which is no number"),
        ({"chaos": "nan:1e"}, "chaos 'nan:1e' has the probability '1e', which is no number"),
        (
            {"chaos": "nan#2", "num_envs": 2},
            "env.chaos is 'nan#2' and names environment 2; there are 2, counted from 0",
        ),
    ],
)
def test_values_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        EnvConfig(**settings)


def test_workers_of_num_ready_are_as_many_as_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    with create_environment(EnvConfig(num_envs=4, vectorization="process", num_ready=2)) as env:
        assert len(env.groups) == 2


def test_specs_are_probed_without_the_faults_of_the_other_environments():
    assert probe_specs(EnvConfig(num_envs=2, chaos="reset#1"))[0].shape == (4,)


@pytest.mark.parametrize("settings", [{"chaos": "nan"}, {"on_fault": "drop"}, {"info": ("x",)}])
def test_a_batched_environment_does_not_take_what_is_for_single_ones(settings):
    with pytest.raises(ConfigError, match=r"env\.(chaos|on_fault)|not \('x',\)"):
        create_environment(EnvConfig(name="palaestra.envs.tiny:TensorCartPole", **settings))


def vector_counters(num_envs: int, limit: int = 0) -> gymnasium.vector.VectorEnv:
    makers = [functools.partial(Counter, {limit: "truncated"})] * num_envs
    return gymnasium.vector.SyncVectorEnv(makers)


def test_a_vector_environment_of_ones_own_is_stepped_natively():
    """ALF-45."""
    config = EnvConfig(
        name="tests.envs.test_create:vector_counters", num_envs=3, vectorization="native", kwargs={"limit": 2}
    )
    with create_environment(config, lane_seeds=SEEDS) as env:
        assert isinstance(env, NativeVectorEnvironment)
        steps = [env.step(torch.zeros(3, dtype=torch.int64)) for _ in range(3)]
    assert [step.step_type.tolist() for step in steps] == [[0] * 3, [1] * 3, [2] * 3]
    with pytest.raises(ConfigError, match=r"needs a gymnasium.vector.VectorEnv, made with the argument num_envs"):
        create_environment(dataclasses.replace(config, name="tests.envs.test_create:no_pool", kwargs={}))


def no_pool(num_envs: int) -> gymnasium.Env:
    return Counter()


class Unlicensed(Counter):
    def __init__(self):
        raise RuntimeError("no licence")


class Spaceless(gymnasium.Env):
    """Says nothing of its spaces."""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Unlicensed", "raised RuntimeError when it was made: no licence"),
        ("Spaceless", "has no observation_space; set"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named(kind, words):
    """F1."""
    with pytest.raises(PalaestraError, match=words):
        create_environment(EnvConfig(name=f"tests.envs.test_create:{kind}"))
