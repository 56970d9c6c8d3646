"""Tests of attributes of environments that roll-out workers step."""

import functools

import pytest

from palaestra.algorithms import A2C, A2CConfig
from palaestra.core import ConfigError
from palaestra.envs import EnvConfig, probe_specs
from palaestra.runtime import LocalRuntime
from tests.distributed.runs import QUICK, copied, kill, make_manager, unrolls, worker_of


@pytest.fixture
def runtime():
    with LocalRuntime(QUICK) as runtime:
        yield runtime


def made_for(env):
    return A2C(*probe_specs(env)[:2], A2CConfig(unroll_length=3))


def shown(manager, lane):
    buffer = manager.buffers["policy"]
    return set(buffer[buffer.in_time_order(lane)].observation[:, 0].tolist())


def test_workers_have_the_attributes_that_were_set(runtime):
    """Lanes are counted over all workers; the next incarnation of a worker, and a resumed run, have them as well."""
    env = EnvConfig(name="tests.envs.test_attributes:Leveled", num_envs=2)
    manager = make_manager(runtime, made_for(env), env, functools.partial(made_for, env), num_workers=2)
    manager.set_env_attr("level", 4, [1])
    assert manager.get_env_attr("level") == [None, 4]
    with pytest.raises(ConfigError, match="there is no environment 2"):
        manager.set_env_attr("level", 4, [2])
    manager.unroll(5)
    assert [shown(manager, lane) for lane in (0, 1)] == [{2}, {4}]
    state = copied(manager.state())
    manager.load_state(state)
    assert manager.get_env_attr("level") == [None, 4]
    kill(runtime, worker_of(manager, 1))
    unrolls(manager, 2)
    assert [shown(manager, lane) for lane in (0, 1)] == [{2}, {4}]
    with LocalRuntime() as second:
        other = make_manager(second, made_for(env), env, functools.partial(made_for, env), num_workers=1)
        other.load_state(state)
        unrolls(other, 1)
        assert [shown(other, lane) for lane in (0, 1)] == [{2}, {4}]
