"""Tests of `palaestra.envs.suites.gym`."""

import importlib.util
import tomllib
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from palaestra.core import ConfigError, EnvError, MissingExtraError
from palaestra.envs import EnvConfig, check, create_environment, load
from palaestra.envs.suites import gym
from palaestra.envs.wrappers import TimeLimit
from tests.envs.worlds import Doubled

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("given", "limit"), [(None, 500), (7, 7), (0, 0)])
def test_environments_know_the_limit_of_their_id(given, limit):
    """A slow evaluation was told that nothing ends its episodes."""
    with create_environment(EnvConfig(name="CartPole-v1", max_episode_steps=given)) as env:
        assert env.step_limit == limit


def test_load_adds_the_registered_limit_and_the_wrappers():
    """ALF-44."""
    env = load("MountainCar-v0", env_id=2, wrappers=[Doubled])
    assert isinstance(env, Doubled)
    assert isinstance(env.env, TimeLimit)
    assert env.env.duration == 200
    assert env.reset().env_id == 2


@pytest.mark.parametrize("name", ["CartPole-v1", "tests.envs.worlds:Counter"])
def test_the_recipe_of_time_aware_ends_works(name):
    """ALF-29: Gymnasium's wrapper finds the limit that the library applies."""
    wrappers = {"gym_wrappers": ("TimeAwareObservation",), "wrappers": ("TimeAwareDiscount",)}
    env = load(name, max_episode_steps=4, **wrappers)
    env.seed(1)
    steps = [env.reset(), *(env.step(np.int64(step % 2)) for step in range(4))]
    assert [step.observation[-1] for step in steps] == [0, 1, 2, 3, 4]
    assert [step.discount for step in steps] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert load("CartPole-v1", **wrappers).env.env.gym_env.max_timesteps == 500


def test_a_gymnasium_wrapper_that_refuses_the_environment_is_named():
    message = (
        r"the wrapper gymnasium.wrappers:TimeAwareObservation cannot be put around the environment: ValueError: .*"
    )
    with pytest.raises(ConfigError, match=message):
        load("CartPole-v1", max_episode_steps=0, gym_wrappers=("TimeAwareObservation",))


def test_an_unknown_id_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="MountainCar"):
        load("MountianCar-v0")


def test_a_game_of_minatar_is_named_as_it_is_here_if_it_is_here():
    with pytest.raises(ConfigError, match=r"as 'palaestra.envs:MinAtarBreakout'") as refused:
        load("MinAtar/Breakout-v1")
    theirs = "mine:MinAtar/Breakout-v1, where mine.py calls minatar.gym.register_envs(). An environment"
    assert theirs in str(refused.value)
    with pytest.raises(ConfigError, match="Namespace MinAtar not found") as refused:
        load("MinAtar/Pong")
    assert "MinAtarPong" not in str(refused.value)


def test_arguments_that_the_environment_does_not_take_are_refused():
    with pytest.raises(ConfigError, match="colour"):
        load("CartPole-v1", kwargs={"colour": "red"})


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("dm_control/cartpole-balance-v0", "shimmy", "dm-control"),
        ("bsuite/catch-v0", "shimmy", "bsuite"),
        ("FetchReach-v4", "gymnasium_robotics", "robotics"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name, package, extra, monkeypatch):
    """F27."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda found: None if found == package else find(found))
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install 'palaestra\[{extra}\]'"):
        load(name)


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for _, extra in gym._REGISTERED_BY.values() if extra} | {extra for _, _, extra in gym._ENTRY_POINTS}
    assert named <= extras.keys()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("HalfCheetah-v5", "mujoco"),
        ("LunarLander-v3", "Box2D"),
        ("PointMaze_UMaze-v3", "gymnasium_robotics"),
        ("Blackjack-v1", "gymnasium"),
        (EnvConfig(name="Taxi-v4", wrappers=("ActionMask",)), "gymnasium"),
    ],
)
def test_a_suite_keeps_the_rules_of_environments(name, package):
    """ALF-44: classic control, toy text, Box2D, MuJoCo, goal environments."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    report = check(name, steps=60)
    assert report.ok, report


@pytest.mark.parametrize(
    ("installed", "misfits"),
    [
        ("3.3.0", {"dm_control", "mjlab"}),
        ("3.11.0", {"dm_control", "metaworld"}),
        ("3.12.0", {"gymnasium_robotics", "dm_control", "metaworld"}),
        ("3.17.0", {"gymnasium_robotics", "metaworld"}),
        ("4.0.0", {"gymnasium_robotics", "dm_control", "metaworld", "mjlab"}),
    ],
)
def test_packages_that_need_another_mujoco_are_named(installed, misfits, monkeypatch):
    """No version serves all; an environment that cannot be made says which, instead of an error without words."""
    monkeypatch.setattr("importlib.metadata.version", lambda package: installed if package == "mujoco" else "1.2")
    found = gym.mujoco_misfits()
    assert set(found) == misfits
    assert all(f"with {installed}, which is installed" in advice for advice in found.values())
    if "gymnasium_robotics" in misfits and importlib.util.find_spec("gymnasium_robotics"):
        with pytest.raises(
            ConfigError, match=r"'FetchReach-v4' cannot be made: gymnasium_robotics 1.2 needs MuJoCo.*<3.12"
        ):
            load("FetchReach-v4")


def test_a_goal_environment_observes_what_was_reached_and_what_is_wanted():
    pytest.importorskip("gymnasium_robotics")
    env = load("PointMaze_UMaze-v3")
    assert set(env.observation_spec) == {"observation", "achieved_goal", "desired_goal"}
    assert env.duration == 300


def test_dm_control_goes_through_shimmy():
    """Where its version and MuJoCo's agree; else the error is the environment's own."""
    suite = pytest.importorskip("dm_control.suite")
    try:
        suite.load("cartpole", "balance")
    except AttributeError as error:
        pytest.skip(f"dm_control does not run with the MuJoCo installed: {error}")
    report = check("dm_control/cartpole-balance-v0", steps=60)
    assert report.ok, report
    assert set(load("dm_control/cartpole-balance-v0").observation_spec) == {"position", "velocity"}


def test_films_of_shimmys_tasks_have_the_pictures_of_a_second():
    """Shimmy says a step's milliseconds, in the dictionary of the class: findings/shimmy_frames_per_second_*."""

    class Wrapped(CartPoleEnv):
        __module__ = "shimmy.dm_control_compatibility"
        metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10.0}
        dt = 0.01

    gymnasium.register("toys/Wrapped-v0", lambda **kwargs: Wrapped(**kwargs))
    try:
        assert load("toys/Wrapped-v0").gym_env.metadata["render_fps"] == 100
    finally:
        del gymnasium.registry["toys/Wrapped-v0"]
    assert Wrapped.metadata["render_fps"] == 10.0


@pytest.mark.parametrize(("limit", "reports"), [(None, True), (3, False)])
def test_wrappers_that_an_id_is_registered_with_see_its_limit(limit, reports):
    """Gymnasium puts them around it; a limit of the run's own lies around all."""
    added = gymnasium.envs.registration.WrapperSpec(
        "RecordEpisodeStatistics", "gymnasium.wrappers:RecordEpisodeStatistics", {}
    )
    gymnasium.register("toys/Added-v0", CartPoleEnv, max_episode_steps=3, additional_wrappers=(added,))
    try:
        env = load("toys/Added-v0", max_episode_steps=limit)
        env.seed(1)
        last = [env.reset(), *(env.step(np.int64(step % 2)) for step in range(3))][-1]
    finally:
        del gymnasium.registry["toys/Added-v0"]
    assert (last.step_type, last.discount, "episode" in last.env_info) == (2, 1.0, reports)


def test_a_task_has_its_registered_limit_before_its_package_was_imported(tmp_path, monkeypatch):
    (tmp_path / "toys_package.py").write_text(
        "import gymnasium\ngymnasium.register('toys/Late-v0', 'toys:Late', max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(gym._REGISTERED_BY, "toys/Late", ("toys_package", ""))
    try:
        tasks = [EnvConfig(name="toys/Late-v0", max_episode_steps=limit).task for limit in (0, None, 7)]
    finally:
        gymnasium.registry.pop("toys/Late-v0", None)
    assert tasks == ["toys/Late-v0", *["toys/Late-v0 env.max_episode_steps=7"] * 2]
    assert EnvConfig(name="toys/Gone-v0").task == "toys/Gone-v0"


def test_an_id_is_named_with_the_module_that_registers_it(tmp_path, monkeypatch):
    """What was meant was named without it, so that the next try knew the id no more."""
    ids = ("late_toys/Late-v0", "Soon-v1")
    (tmp_path / "late_toys.py").write_text(f"import gymnasium\nfor name in {ids}:\n    gymnasium.register(name, 'a:B')")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        for name, advice in {
            "late_toys/Late-v0": "It is installed and was not imported; write late_toys:late_toys/Late-v0$",
            "late_toys:late_toy/Late-v0": "did you mean 'late_toys:late_toys/Late-v0'",
            "late_toys:Soon-v0": "did you mean 'late_toys:Soon-v1'",
            "late_toys:Zebra/Quagga-v0": "was imported and did not register it; .* write mine:Zebra/Quagga-v0$",
        }.items():
            with pytest.raises(ConfigError, match=advice):
                load(name)
    finally:
        for name in ids:
            gymnasium.registry.pop(name, None)


def test_mujoco_warns_once_through_logging_and_writes_no_file(tmp_path, monkeypatch, caplog, capfd):
    """What Gymnasium's models use of the past is of no concern to users; an unstable simulation is, once."""
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("palaestra.envs.suites.gym._WARNED", set())
    mujoco.set_mju_user_warning(None)  # dm_control has its own, which is left alone where it came first
    for _ in range(2):
        load("HalfCheetah-v5").close()
    falling = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    for time_s in (0.5, 7.25):
        data = mujoco.MjData(falling)
        data.time, data.qvel[0] = time_s, 1e12
        mujoco.mj_step(falling, data)
    assert caplog.text.count("Inf") == 1
    assert "0.5" in caplog.text
    assert "deprecated" not in caplog.text + "".join(capfd.readouterr())
    assert not list(tmp_path.iterdir())


class DrawsAtOnce(CartPoleEnv):
    """Draws when it is made, as tasks whose observations are pictures do."""

    def __init__(self) -> None:
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")


def test_an_environment_that_draws_when_it_is_made_needs_a_screen():
    """`gym_hil` said only that a library is not loaded."""
    gymnasium.register("toys/Draws-v0", DrawsAtOnce)
    try:
        with pytest.raises(EnvError, match=r"no screen to draw on .*; set .* MUJOCO_GL=egl, .* starts\n\nTraceback"):
            load("toys/Draws-v0")
    finally:
        del gymnasium.registry["toys/Draws-v0"]
    with pytest.raises(EnvError, match=r"no screen to draw on .*; set .* MUJOCO_GL=egl, .* starts"):
        load(f"{__name__}:DrawsAtOnce").reset()
