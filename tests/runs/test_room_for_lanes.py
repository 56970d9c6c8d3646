"""What a pool or batch will take is measured with a few lanes, and refused where it does not fit."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import palaestra
from palaestra.core import ConfigError
from palaestra.envs import BatchEnvironment, EnvConfig
from palaestra.runs import making
from tests.cli.parts import exit_code

HERE = f"{__name__}:Heavy"
MIB = 2**20


class Heavy(BatchEnvironment):
    """Each lane takes 8 MiB, and all together 40."""

    def __init__(self, batch_size, *, lane_seeds=None, max_episode_steps=None):
        limit = max_episode_steps or 5
        spaces = Box(-1, 1, (2,), np.float32), Discrete(2)
        super().__init__(batch_size, *spaces, lane_seeds=lane_seeds, max_episode_steps=limit)
        self.ballast, self.shared = np.ones((batch_size, MIB)), np.ones((5, MIB))

    def fresh(self, lanes, seeds):
        self.ballast[lanes, 0] = 0

    def transition(self, lanes, action):
        return np.ones(len(lanes)), np.zeros(len(lanes), np.bool_)

    def observe(self):
        return np.zeros((self.batch_size, 2), np.float32)

    def rows(self):
        return {}

    def set_rows(self, rows):
        pass


def test_the_memory_of_a_lane_is_measured():
    shared, each = making.lane_bytes(EnvConfig(name=HERE))
    assert each == pytest.approx(8 * MIB, rel=0.2)
    assert shared == pytest.approx(40 * MIB, rel=0.2), "what all lanes share is counted once"
    assert making.lane_bytes(EnvConfig(name="CartPole-v1")) == (0, 0)
    assert making.require_memory(EnvConfig(name=HERE, num_envs=2)) == 0, "a few are not worth a measurement"


@pytest.fixture
def measured(monkeypatch):
    """What a measurement found, which takes seconds in a process as large as that of the tests."""
    monkeypatch.setattr(making, "lane_bytes", lambda env: (40 * MIB, 8 * MIB))


@pytest.mark.usefixtures("measured")
def test_lanes_that_do_not_fit_are_refused_before_they_are_made(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(making, "available_bytes", lambda: 200 * MIB)
    told = (
        r"64 environments of .*:Heavy would take about 5\d\d\.\d MB, 8\.\d MB each .*; give --env.num-envs (19|20) or"
    )
    with pytest.raises(ConfigError, match=told):
        palaestra.train("ppo", HERE, env__num_envs=64, run__directory=str(tmp_path))
    assert exit_code("train", "ppo", HERE, "--env.num-envs", "64", "--dry-run") == 2
    assert "give --env.num-envs" in " ".join(capsys.readouterr().err.split())


def test_so_few_that_they_fit_anyway_are_not_measured(monkeypatch):
    """A measurement takes a third of a second at the start of a run."""
    monkeypatch.setattr(making, "available_bytes", lambda: 16 * 2**30)
    monkeypatch.setattr(making, "lane_bytes", lambda env: pytest.fail("it was measured"))
    making.require_room(EnvConfig(name=HERE, num_envs=64))


@pytest.mark.usefixtures("measured")
def test_a_dry_run_says_what_they_take(capsys):
    sizes = ("--env.num-envs", "16", "--algorithm.unroll-length", "8")
    assert exit_code("train", "ppo", HERE, *sizes, "--dry-run") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("environments"))
    assert float(line.split()[1]) == pytest.approx((16 * 8 + 40) * MIB / 1e6, rel=0.2)
