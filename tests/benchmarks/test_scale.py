"""The simulation of many workers and learners."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.speed import losses, scale
from benchmarks.speed.simulation import UNROLL, Cluster, Costs, Simulation
from benchmarks.speed.sleepy import ENVS_EACH

RESULTS = Path(losses.__file__).parent / "results"


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


def timed(simulation, *events):
    """Seconds that something takes in a simulation."""
    began = simulation.env.now
    for event in events:
        simulation.env.run(simulation.env.process(event))
    return simulation.env.now - began


def test_the_simulation_of_a_lost_learner_agrees_with_what_can_be_computed():
    """The first computes the rest of the update alone, all go on without it, and wait once for the one in its place."""
    rows = UNROLL * ENVS_EACH
    costs = Costs(0.0, 0.0, 0.0, 0.0, row_s=4.0 / rows, update_s=1.0, exchange_s=0.5, steps=1, lost_s=7.0, back_s=9.0)
    simulation = Simulation(costs, Cluster(1, learners=2))
    whole = 1.0 + 4.0 / 2 + 0.5
    assert timed(simulation, simulation.learn(1)) == pytest.approx(whole)
    simulation.next_learner = simulation.env.now + 1.0 + 2.5 / 2  # in the middle of the gradient steps
    assert timed(simulation, simulation.learn(1)) == pytest.approx(1.0 + 2.5 / 2 + 4.0 / 2)
    assert timed(simulation, simulation.learn(1), simulation.learn(1)) == pytest.approx(2 * (1.0 + 4.0))
    assert timed(simulation, simulation.learn(1)) == pytest.approx(whole + 7.0)
    assert timed(simulation, simulation.learn(1)) == pytest.approx(whole)
    assert simulation.lost_learners == 1


@pytest.mark.parametrize("copies", [False, True])
def test_the_simulation_of_lost_shards_agrees_with_what_can_be_computed(copies):
    """A copy is told all rows too, and fills the one in a lost shard's place; without it the rows are gone."""
    costs = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, steps=2, draw_s=3.0, told_s=1.0, noticed_s=5.0, filled_byte_s=0.1)
    simulation = Simulation(costs, Cluster(1, shards=4, copies=copies, held_rows=8 * UNROLL * ENVS_EACH, row_bytes=2))
    assert timed(simulation, simulation.message()) == 1 + copies
    assert timed(simulation, simulation.learn(1)) == 2 * 3.0
    simulation.next_shard, held = simulation.env.now, simulation.cluster.held_rows / 4
    assert timed(simulation, simulation.learn(1)) == pytest.approx(2 * 3.0 + 5.0 + copies * held * 2 * 0.1)
    assert (simulation.lost_rows, min(simulation.held)) == ((0.0, held) if copies else (held, 0.0))


def test_learners_and_shards_that_live_long_cost_little_and_short_lives_cost_more():
    """As many are lost as lives say, and the work that is done falls."""
    costs = Costs(0.002, 0.0, 0.0, 0.0, row_s=1e-5, update_s=0.0, exchange_s=0.0, lost_s=0.2, back_s=0.3, draw_s=0.001)
    speeds = []
    for life_s in (math.inf, 1000.0, 100.0, 10.0):
        outcome = Simulation(costs, Cluster(20, learners=4, learner_life_s=life_s)).run(100)
        speeds.append(outcome.env_steps_per_s)
        expected = 3 * outcome.seconds / life_s
        assert abs(outcome.lost_learners - expected) <= 4 * max(1.0, expected) ** 0.5
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[1] > 0.98 * speeds[0] > speeds[3]


def test_the_simulation_says_which_measurement_it_misses_before_it_measures(tmp_path):
    """Rows of `distributed.json` had been named anew, and the benchmark ended with nothing but StopIteration."""
    known = scale.told()
    assert known.call_s.keys() == known.byte_s.keys() == {"process", "ray"}
    assert 0 < known.call_s["process"] < known.exchange_s < 0.01
    record = json.loads((RESULTS / "distributed.json").read_text())
    record["rows"] = [row for row in record["rows"] if row["task"] != "learners"]
    (tmp_path / "distributed.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit, match=r"no row '2 ranks with 2 shards .*run `python -m .*distributed learners`"):
        scale.told(tmp_path / "distributed.json")


@pytest.mark.parametrize("name", ["scale", "losses"])
def test_the_simulation_agrees_with_what_was_measured(name):
    """With the costs that were measured it still says what the same machine did with more workers, and with losses."""
    record = json.loads((RESULTS / f"{name}.json").read_text())
    if name == "losses":
        compared = [(row["simulated"], row["measured"]) for row in losses.held(record["shards"])]
    else:
        costs, rows = Costs(**record["costs"]), record["measured"]
        clusters = [Cluster(row["workers"], cores=record["hardware"]["cores"], spread=0.0) for row in rows]
        simulated = [Simulation(costs, cluster).run(5).env_steps_per_s for cluster in clusters]
        compared = [(one, row["measured"]["median"]) for one, row in zip(simulated, rows, strict=True)]
    for simulated, measured in compared:
        assert simulated == pytest.approx(measured, rel=0.15)
