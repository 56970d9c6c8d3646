"""Tests of `palaestra.config.config` and `palaestra.config.presets`."""

import dataclasses

import pytest

from palaestra import (
    DQN,
    DQNConfig,
    EnvConfig,
    ExperimentConfig,
    Linear,
    NetworkConfig,
    PPOConfig,
    RunConfig,
    TrainerConfig,
)
from palaestra.algorithms import ALGORITHMS
from palaestra.config.config import config_to_mapping, settings_of
from palaestra.config.presets import tuned
from palaestra.core import ConfigError, DiscreteSpec, Piecewise, Schedule, TensorSpec, scheduled_values
from palaestra.distributed import DistributedConfig
from palaestra.envs import EnvironmentWrapper, Wrap
from palaestra.envs.wrappers import TimeLimit
from palaestra.experiments import (
    PRESETS,
    Search,
    config_from_mapping,
    load_config,
    make_algorithm,
    preset,
    save_config,
)

FULL = ExperimentConfig(
    algorithm_name="dqn",
    algorithm=DQNConfig(
        learning_rate=Piecewise(((0.0, 1e-3), (0.5, 1e-4))),
        epsilon=Linear(1.0, 0.05, 0.25),
        network=NetworkConfig(hidden_sizes=(32, 16), dueling=True),
    ),
    env=EnvConfig(
        name="palaestra.envs.tiny:Chain", kwargs={"num_states": 3}, wrappers=("my_package:Wrapper",), num_envs=2
    ),
    trainer=TrainerConfig(total_env_steps=10, eval_every_steps=0),
    run=RunConfig(seed=3, name="a name", compile=True),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SlottedConfig(DQNConfig):
    """Keeps its own field elsewhere than those of its base."""

    temperature: Schedule = 1.0


class SlottedDQN(DQN):
    """An algorithm of a user's own."""

    config_class = SlottedConfig


def test_an_own_configuration_may_have_slots(tmp_path):
    """F2: such a run could not be resumed, and its schedule was none."""
    given = {"algorithm_name": f"{__name__}:SlottedDQN", "algorithm.temperature": "linear(1, 0)"}
    config = config_from_mapping(ExperimentConfig, given)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert "algorithm.temperature" in {setting.path for setting in settings_of(ExperimentConfig, vars(config))}
    own = SlottedDQN(TensorSpec((2,)), DiscreteSpec(num=2), config.algorithm)
    own.set_progress(0.5)
    assert own.value_of("temperature").item() == scheduled_values(config.algorithm, 0.5)["temperature"] == 0.5


@pytest.mark.parametrize("config", [ExperimentConfig(), FULL, *PRESETS.values()])
def test_a_file_reads_back_to_an_equal_configuration(config, tmp_path):
    """DESIGN.md section 9: config.yaml holds everything; schedules as they are typed."""
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_a_file_is_plain_yaml(tmp_path):
    save_config(FULL, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert "epsilon: linear(1, 0.05, 0.25)" in text
    assert "learning_rate: 'piecewise(0: 0.001, 0.5: 0.0001)'" in text
    assert "!!" not in text


def test_settings_that_are_left_out_come_from_the_base():
    base = preset("ppo", "CartPole-v1")
    config = config_from_mapping(ExperimentConfig, {"algorithm": {"gamma": 0.5}, "run": {"seed": 9}}, base=base)
    assert (config.algorithm.gamma, config.run.seed) == (0.5, 9)
    assert dataclasses.replace(config.algorithm, gamma=base.algorithm.gamma) == base.algorithm
    assert config.env == base.env


def test_another_algorithm_brings_its_own_settings():
    """Those of the base belong to another algorithm."""
    config = config_from_mapping(ExperimentConfig, {"algorithm_name": "dqn"}, base=preset("ppo", "CartPole-v1"))
    assert config.algorithm == DQNConfig()
    config = config_from_mapping(ExperimentConfig, {"algorithm_name": "dqn", "algorithm": {"capacity": 7}})
    assert config.algorithm == DQNConfig(capacity=7)


def test_settings_of_one_part_may_be_given_in_several_ways():
    parts = {"env": {"max_episode_steps": 10}, "env__num_envs": 4}
    for given in (parts, dict(reversed(parts.items()))):
        config = config_from_mapping(ExperimentConfig, given)
        assert (config.env.num_envs, config.env.max_episode_steps) == (4, 10)
    assert parts["env"] == {"max_episode_steps": 10}


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm__gamma": 0.9, "algorithm": PPOConfig()},
        {"algorithm": PPOConfig(), "algorithm__gamma": 0.9},
        {"env": {"num_envs": 2}, "env__num_envs": 4},
    ],
    ids=["path first", "object first", "leaf"],
)
def test_a_setting_that_is_given_twice_is_refused(given):
    with pytest.raises(ConfigError, match=r"is given twice, .*; leave one of them out"):
        config_from_mapping(ExperimentConfig, given)


@pytest.mark.parametrize("given", [{"distributed": 3}, {"env": [1], "distributed": {"episodes": 2}}, {"trainer": None}])
def test_parts_that_are_none_are_named(given):
    with pytest.raises(ConfigError):
        config_from_mapping(ExperimentConfig, given)


def test_whole_parts_may_be_given_as_they_are():
    config = config_from_mapping(
        ExperimentConfig, {"algorithm": {"network": NetworkConfig(hidden_sizes=(3,))}, "env": EnvConfig(name="X")}
    )
    assert config.algorithm.network.hidden_sizes == (3,)
    assert config.env == EnvConfig(name="X")


def test_wrappers_are_written_as_text_and_read_back_equal(tmp_path):
    """ALF-38, ALF-50: a wrapper in a configuration is a value, whichever way it was given."""
    env = EnvConfig(
        wrappers=(Wrap(TimeLimit, duration=7), EnvironmentWrapper), gym_wrappers=("ClipReward(min_reward=-1)",)
    )
    config = ExperimentConfig(env=env)
    mapping = config_to_mapping(config)
    assert mapping["env"]["wrappers"] == [
        "TimeLimit(duration=7)",
        "palaestra.envs.contract.environment:EnvironmentWrapper",
    ]
    assert mapping["env"]["gym_wrappers"] == ["gymnasium.wrappers:ClipReward(min_reward=-1)"]
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_code_without_a_name_cannot_be_written():
    """F27: the message says what to do instead."""
    config = ExperimentConfig(env=EnvConfig(wrappers=(lambda env: env,)))
    with pytest.raises(ConfigError, match=r"wrappers holds .*no importable name; name it as 'my_package:MyName'"):
        config_to_mapping(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: RunConfig(seed=-1), "run.seed is -1; it must be at least 0"),
        (lambda: RunConfig(num_threads=0), r"run.num_threads is 0; it must lie in \[1, 4096\]"),
        (lambda: RunConfig(num_threads=1.5), "run.num_threads is 1.5; it must be a whole number"),
        (lambda: DistributedConfig(num_workers=1.5), "distributed.num_workers is 1.5; it must be a whole number"),
        (lambda: Search(trials=1.5), "search.trials is 1.5; it must be a whole number"),
        (lambda: RunConfig(eval_num_envs=0), "run.eval_num_envs is 0; it must be at least 1"),
        (lambda: ExperimentConfig(env=EnvConfig(num_envs=0)), "env.num_envs is 0; it must be at least 1"),
        (lambda: PPOConfig(gamma=1.1), r"algorithm.gamma is 1.1; it must lie in \[0, 1\]"),
        (lambda: PPOConfig(gae_lambda=float("nan")), r"algorithm.gae_lambda is nan; it must lie in \[0, 1\]"),
        (lambda: DQNConfig(target_period=0), "algorithm.target_period is 0; it must be greater than 0"),
    ],
)
def test_a_value_out_of_range_is_refused(config, message):
    """F27: what was given and what is needed."""
    with pytest.raises(ConfigError, match=message):
        config()


# -- presets


@pytest.mark.parametrize("key", PRESETS)
def test_every_preset_makes_its_algorithm(key):
    name, env = key
    config = preset(name, env)
    assert (config.algorithm_name, config.env.name) == key
    assert type(config.algorithm) is ALGORITHMS[name].config_class
    assert isinstance(make_algorithm(config), ALGORITHMS[name])


def test_the_promised_presets_exist():
    """Issue 2: CartPole, Acrobot, MountainCar (DQN), Pendulum (PPO)."""
    assert {
        ("ppo", "CartPole-v1"),
        ("dqn", "CartPole-v1"),
        ("dqn", "Acrobot-v1"),
        ("dqn", "MountainCar-v0"),
        ("ppo", "Pendulum-v1"),
    } <= set(PRESETS)


def test_a_pattern_of_environments_is_no_preset():
    patterns = [key for key in tuned() if "*" in key[1]]
    assert patterns
    assert not [key for key in patterns if key in PRESETS]
    assert all(PRESETS[key].env.name == key[1] for key in list(PRESETS)[:3])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_environment_without_a_preset_gets_the_defaults_of_the_algorithm(name):
    config = preset(name, "Elsewhere-v0")
    own = {"simulator": "Elsewhere-v0"} if name == "alphazero" else {}  # what it plans with is the environment itself
    assert config.algorithm == ALGORITHMS[name].config_class(**own)
    assert config.env.name == "Elsewhere-v0"


def test_an_algorithm_needs_its_own_settings():
    """F27: an impossible pair."""
    with pytest.raises(
        ConfigError, match="algorithm_name is 'dqn' and algorithm is a PPOConfig; it must be a DQNConfig"
    ):
        ExperimentConfig(algorithm_name="dqn", algorithm=PPOConfig())
