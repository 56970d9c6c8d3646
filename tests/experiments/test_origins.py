"""Tests of where data say that they come from: another environment or task, rewards of another unit."""

import dataclasses
import re
import shlex

import gymnasium
import pytest

from palaestra import EnvConfig, preset
from palaestra.algorithms import BonusConfig
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError
from palaestra.core.files import told_once
from palaestra.experiments import DataConfig
from palaestra.rollout import origin_of
from palaestra.runs import data as data_module
from palaestra.runs.single import SingleLearner
from tests.cli.parts import exit_code
from tests.experiments.data import PENDULUM, saved


def loaded(algorithm, data, *, env=PENDULUM, **offline):
    config = dataclasses.replace(preset(algorithm, env.name), env=env, offline=DataConfig(data=data, **offline))
    return SingleLearner(config).load_data()


def test_data_of_another_environment_is_refused_though_its_shapes_fit(tmp_path):
    """Walker2d's data trained HalfCheetah: both have 17 observations and 6 actions in [-1, 1]."""
    twin = EnvConfig(name="tests.experiments.test_origins:Twin", max_episode_steps=10)
    folder = saved(tmp_path / "data", twin)
    message = r"the data .* has the environment 'Twin', this run 'Pendulum-v1'; .*ReplayBuffer.load\(FOLDER\)"
    with pytest.raises(ConfigError, match=message):
        loaded("cql", folder)
    assert loaded("cql", folder, env=twin)
    ReplayBuffer.load(folder).save(tmp_path / "plain")
    assert loaded("cql", str(tmp_path / "plain"))


class Twin(gymnasium.Wrapper):
    """Pendulum under another name, which takes a setting."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__(gymnasium.make("Pendulum-v1").unwrapped)
        self.gain = gain


def test_data_of_the_same_environment_with_other_settings_is_told(tmp_path, caplog):
    twin = EnvConfig(name="tests.experiments.test_origins:Twin", max_episode_steps=10, kwargs={"gain": 2.0})
    folder = saved(tmp_path / "data", twin)
    loaded("cql", folder, env=dataclasses.replace(twin, num_envs=2, timeout_s=9.0))
    assert not caplog.text
    with told_once():
        for _ in range(2):
            loaded("cql", folder, env=dataclasses.replace(twin, kwargs={}))
    name = "tests.experiments.test_origins:Twin"
    said = f"has the task '{name} env.max_episode_steps=10 gain=2.0', this run '{name} env.max_episode_steps=10'"
    assert caplog.text.count(said) == 1
    loaded("cql", folder, env=dataclasses.replace(twin, wrappers=("ScaleReward(scale=0.5)",)))
    assert (
        "this run 'tests.experiments.test_origins:Twin env.max_episode_steps=10 gain=2.0 ScaleReward(sc" in caplog.text
    )


SCALED = dataclasses.replace(PENDULUM, train_wrappers=("ScaleReward(scale=0.1)",))
MIXED = "has the rewards "


@pytest.mark.parametrize(
    ("algorithm", "env", "offline", "origin", "told"),
    [
        ("sac", SCALED, {}, None, True),
        ("sac", PENDULUM, {}, None, False),
        ("sac", dataclasses.replace(PENDULUM, train_kwargs={"g": 9.0}), {}, None, True),
        ("sac", SCALED, {}, SCALED, False),
        ("sac", PENDULUM, {}, SCALED, True),
        ("sac", SCALED, {}, {}, False),
        ("td3_bc", SCALED, {}, None, False),
        ("td3_bc", SCALED, {"fraction": 0.5}, None, True),
    ],
)
def test_two_units_of_reward_in_a_minibatch_are_told(algorithm, env, offline, origin, told, tmp_path, caplog):
    """Own rows passed `train_wrappers`, loaded ones have the task's; what a run exports has passed them, too."""
    folder = saved(tmp_path / "task", env)
    if origin is not None:  # what `data export` writes; or a folder that says nothing
        folder, before = str(tmp_path / "data"), ReplayBuffer.load(folder)
        before.save(folder, origin=origin and origin_of(origin))
    loaded(algorithm, folder, env=env, **offline)
    assert (caplog.text.count(MIXED) == 1) == told
    assert ("leave out env.train_wrappers" in caplog.text) == told


def test_imitation_looks_at_no_rewards(tmp_path, caplog):
    config = dataclasses.replace(preset("sac", "Pendulum-v1"), env=SCALED)
    bonus = dataclasses.replace(config.algorithm, bonus=BonusConfig(kind="gail"))
    data = DataConfig(data=saved(tmp_path / "data"))
    SingleLearner(dataclasses.replace(config, algorithm=bonus, offline=data)).load_data()
    assert not caplog.text


def test_minari_and_d4rl_have_the_rewards_of_the_task(tmp_path, caplog, monkeypatch):
    """And of which environment a dataset is, it says: told where it is another one."""
    folder = saved(tmp_path / "data")
    for library, environment in (("minari:", {"environment": "Acrobot-v1"}), ("d4rl:", {})):

        def read(name, *, environment=environment, **specs):
            buffer = ReplayBuffer.load(folder)
            buffer.origin = {"rewards": "of the task"} | environment
            return buffer

        monkeypatch.setitem(data_module.LIBRARIES, library, read)
        loaded("sac", f"{library}x", env=SCALED)
    assert caplog.text.count("the data minari:x has the environment 'Acrobot-v1', this run 'Pendulum-v1'") == 1
    assert caplog.text.count("the data minari:x has the rewards 'of the task', this run 'of training, with") == 1
    assert caplog.text.count("the data d4rl:x has the rewards") == 1


@pytest.mark.parametrize(
    ("env", "typed"),
    [
        (EnvConfig(name="Pendulum-v1"), "FOLDER --steps 10000`"),
        (preset("sac", "MountainCarContinuous-v0").env, "10000 --env.wrappers 'ActionRepeat(repeat=8)'`"),
        (
            EnvConfig(name="Pendulum-v1", kwargs={"g": 9.0}, variants=({"kwargs": {"g": 5.0}},), max_episode_steps=7),
            """--env.variants '{"kwargs": {"g": 5.0}}' --env.max-episode-steps 7 --env.kwargs '{"g": 9.0}'`""",
        ),
    ],
)
def test_the_command_for_data_has_the_settings_of_the_environment(env, typed, tmp_path):
    """Without `wrappers` of the preset it would make data of another task. The command is one that can be typed."""
    with pytest.raises(ConfigError) as caught:
        SingleLearner(dataclasses.replace(preset("cql", env.name), env=env)).load_data()
    assert typed in str(caught.value)
    command = re.findall("`palaestra (data collect [^`]*)`", str(caught.value))[0]
    words = shlex.split(command.replace("FOLDER", str(tmp_path / "data")).replace("10000", "5"))
    assert exit_code(*words) == 0
    assert ReplayBuffer.load(tmp_path / "data").origin == origin_of(env.for_evaluation(1))
