"""The simulation of many workers and learners."""

import pytest

from benchmarks.speed.scale import UNROLL, Cluster, Costs, Simulation
from benchmarks.speed.sleepy import ENVS_EACH


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_simulation_of_scale_agrees_with_what_can_be_computed(asynchronous):
    """Without a spread, and with learning and messages that cost nothing, nobody waits; and one learner bounds all."""
    free = Costs(env_s=0.002, act_s=0.0, call_s=0.0, byte_s=0.0, row_s=0.0, update_s=0.0, exchange_s=0.0)
    cluster = Cluster(20, asynchronous=asynchronous, fragments=5, spread=0.0)
    assert Simulation(free, cluster).run(20).ideal == pytest.approx(1.0, rel=0.01)
    costly = Costs(env_s=0.002, act_s=0.0, call_s=0.0, byte_s=0.0, row_s=0.01, update_s=0.0, exchange_s=0.0)
    outcome = Simulation(costly, cluster).run(20)
    acting = 0.0 if asynchronous else UNROLL * ENVS_EACH * 0.002
    rows = 20 * UNROLL * ENVS_EACH
    assert outcome.env_steps_per_s == pytest.approx(rows / (acting + rows * 0.01), rel=0.01)
    assert outcome.bottleneck == "learning"
