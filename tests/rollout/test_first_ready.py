"""Tests of `palaestra.rollout.collector` with worker processes that are not waited for."""

import dataclasses

import pytest

from palaestra import Collector, EnvConfig, create_environment
from palaestra.core import ConfigError
from tests.algorithms.parts import make

CATCH = EnvConfig(
    name="palaestra.envs.tiny:Catch",
    kwargs={"num_rows": 6, "num_columns": 3},
    num_envs=4,
    vectorization="process",
    num_workers=4,
    num_ready=2,
)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_environments_in_processes_that_answer_first_ready_first_are_collected_lane_by_lane(name):
    """TS-24: two of four at a time; every lane is a stream of whole episodes, and both algorithms learn from them."""
    with create_environment(CATCH, seed=0) as env:
        assert env.num_ready == 2
        algorithm = make(name, env, capacity=400)
        collector = Collector.of(env, algorithm)
        info = collector.unroll(30)
        assert 0 < info.env_s < info.total_s
        algorithm.update(collector.buffer)
        info = collector.unroll(30)
        algorithm.update(collector.buffer)
        ended = info.episodes + collector.drain()
        assert ended
        assert {episode.length for episode in ended} == {5}
        counts = collector.buffer.positions.counts
        assert counts.sum() >= 4 * 30
        for lane in range(4):
            kinds = collector.buffer.take("step_type", collector.buffer.in_time_order(lane)).tolist()
            begin = kinds.index(0) if 0 in kinds else len(kinds)  # a slow one may have few rows
            assert all(kind == (0, 1, 1, 1, 1, 2)[row % 6] for row, kind in enumerate(kinds[begin:]))


def test_the_number_that_is_ready_at_a_time_divides_that_of_all():
    """All are waited for at the end of an unroll, so the last answers have to be whole as well."""
    with (
        create_environment(dataclasses.replace(CATCH, num_ready=3), seed=0) as env,
        pytest.raises(ConfigError, match=r"3 of 4 environments are ready at a time.* has to divide"),
    ):
        Collector.of(env, make("dqn", env))
