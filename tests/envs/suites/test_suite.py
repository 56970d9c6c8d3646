"""Tests of `palaestra.envs.suites.suite`: a suite is a file in the folder, found by its prefix."""

import sys
from types import ModuleType

import pytest

from palaestra import EnvConfig, create_environment
from palaestra.core import ConfigError
from palaestra.envs import load, suites
from palaestra.envs.suites.suite import Single, pools_only, suite_of

NEW = """
import gymnasium
from palaestra.envs.suites.suite import Single
PREFIX = "mine:"
def single(name, kwargs, limit):
    return Single(gymnasium.make(name.removeprefix(PREFIX), **kwargs).unwrapped, 7 if limit is None else limit)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file more in the folder."""
    (tmp_path / "mine.py").write_text(NEW)
    monkeypatch.setattr(suites, "__path__", [*suites.__path__, str(tmp_path)])
    module = sys.modules[suite_of.__module__]
    monkeypatch.setattr(module, "_suites", module._suites.__wrapped__)
    yield
    sys.modules.pop("palaestra.envs.suites.mine", None)


@pytest.mark.usefixtures("mine")
def test_a_new_suite_is_one_file():
    """Trial of CONTRIBUTING: one file, and everything finds its environments."""
    assert isinstance(suite_of("mine:CartPole-v1"), ModuleType)
    env = load("mine:CartPole-v1")
    env.seed(0)
    env.reset()
    assert sum(1 for _ in iter(lambda: env.step(env.action_spec.num - 1).step_type == 2, True)) < 7
    with create_environment(EnvConfig(name="mine:CartPole-v1", num_envs=2), seed=0) as batch:
        assert batch.reset().observation.shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "suite", "only"),
    [("ALE/Pong-v5", "atari", False), ("envpool:Pong-v5", "envpool", True), ("CartPole-v1", "gym", False)],
)
def test_the_longest_prefix_decides(name, suite, only):
    assert suite_of(name).__name__.endswith(suite)
    assert pools_only(name) is only


def test_what_exists_as_a_pool_only_is_not_made_alone():
    with pytest.raises(ConfigError, match="exists as a pool only"):
        load("envpool:Pong-v5")
    assert Single._fields == ("env", "duration", "layers")
