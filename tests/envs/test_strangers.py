"""Environments that others wrote otherwise: for old Gym, with a text in the observation, one in each process."""

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import palaestra
from palaestra import EnvConfig
from palaestra.core import ConfigError, EnvError, PalaestraError, SpecError
from palaestra.envs import LaneEnvironment, SerialDriver, check, load, spec_from_space

PAGE = r"old Gym.*'Environments of old Gym' in docs/concepts/environments.md"


class Old:
    """Of old Gym through and through."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, {}


class Seedless(Old, gymnasium.Env):
    """Takes no seed."""


class Bare(Old, gymnasium.Env):
    """Returns the observation alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()


class Four(Bare):
    """Returns four values from a step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(), {}


@pytest.mark.parametrize("kind", ["Old", "Seedless", "Bare", "Four"])
def test_old_gym_is_named_with_the_page_that_converts_it(kind):
    """It was `made a Old`, or a traceback of an unpacking that failed."""
    for play in (_in_a_batch, _in_layers, _alone):
        with pytest.raises(PalaestraError, match=PAGE):
            play(f"{__name__}:{kind}")


def _in_a_batch(name: str, *wrappers: str) -> None:
    with LaneEnvironment(SerialDriver([load(name, wrappers=wrappers)]), lane_seeds=[1]) as env:
        env.reset()
        env.step([0])


def _in_layers(name: str) -> None:
    _in_a_batch(name, "ClipReward")


def _alone(name: str) -> None:
    env = load(name)
    env.reset()
    env.step(np.int64(0))


def test_a_space_of_old_gym_is_named():
    class Box(spaces.Space[Any]):
        pass

    Box.__module__ = "gym.spaces.box"
    with pytest.raises(SpecError, match=f"'observation_space' = .* is of the package gym. That is {PAGE}"):
        spec_from_space(Box(), "observation_space")


MINIGRID = """
import gymnasium, numpy as np
from gymnasium import spaces

class MissionSpace(spaces.Space):
    def sample(self, mask=None, probability=None): return "go"
    def contains(self, x): return isinstance(x, str)

class Empty(gymnasium.Env):
    def __init__(self):
        self.action_space = spaces.Discrete(3)
        image = spaces.Box(0, 255, (7, 7, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "mission": MissionSpace()})
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"image": np.zeros((7, 7, 3), np.uint8), "mission": "go"}, {}

gymnasium.register("MiniGrid-Empty-5x5-v0", Empty, max_episode_steps=9)
"""
WRAPPERS = """
import gymnasium

class ImgObsWrapper(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = env.observation_space["image"]
    def observation(self, observation): return observation["image"]
"""


def test_minigrid_is_found_without_its_prefix_and_its_wrapper_is_named(tmp_path, monkeypatch):
    name, wrapper = "MiniGrid-Empty-5x5-v0", "minigrid.wrappers:ImgObsWrapper"
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    with pytest.raises(ConfigError, match=f"pip install minigrid, and name it minigrid:{name} with .*{wrapper}"):
        load(name)
    (tmp_path / "minigrid").mkdir()
    (tmp_path / "minigrid" / "__init__.py").write_text(MINIGRID)
    (tmp_path / "minigrid" / "wrappers.py").write_text(WRAPPERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpecError, match=f"observation_space.mission.*--env.gym-wrappers {wrapper} drops the text"):
        load(name)
    assert load(name, gym_wrappers=(wrapper,)).observation_spec.shape == (7, 7, 3)


def test_meta_world_is_found_without_its_prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    with pytest.raises(
        ConfigError, match=r"metaworld, which is not installed: `palaestra venv create metaworld`.*reach-v3"
    ):
        load("Meta-World/goal_observable")
    text = MINIGRID.replace("MiniGrid-Empty-5x5-v0", "Meta-World/goal_observable").replace('"go"', "1")
    text = text.replace('"mission": MissionSpace()', '"mission": spaces.Discrete(2)')
    (tmp_path / "metaworld.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("Meta-World/goal_observable").observation_spec["image"].shape == (7, 7, 3)


class Emulator(Four):
    """Lives once in a process, as emulators do."""

    alive: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        if os.getpid() in self.alive:
            raise RuntimeError("another emulator runs in this process")
        self.alive.add(os.getpid())

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def close(self) -> None:
        self.alive.discard(os.getpid())


ADVICE = r"as emulators do, give --env.vectorization process, and as many --env.num-workers as environments"


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "num_workers": 1}], ids=["serial", "process"])
def test_an_emulator_that_lives_once_in_a_process_is_told_of_processes(settings):
    config = EnvConfig(name=f"{__name__}:Emulator", num_envs=2, **settings)
    with pytest.raises(EnvError, match=f"(?s)environment 1 could not be made.*{ADVICE}"):
        palaestra.create_environment(config)
    Emulator.alive.clear()
    one = EnvConfig(name=config.name)
    error = pytest.raises(EnvError, match=f"(?s)environment 0 could not be made.*{ADVICE}")
    with palaestra.create_environment(one), error:
        palaestra.create_environment(one)  # such as evaluation's
    report = check(f"{__name__}:Emulator", steps=5)
    assert "--env.vectorization process, as many --env.num-workers" in str(report)
    several = EnvConfig(name=config.name, num_envs=2, vectorization="process", num_workers=2)
    with palaestra.create_environment(several) as env:
        assert env.reset().first.all()
