"""The container-repositioning simulator of `examples/inventory`."""

import dataclasses
import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Port, Topology, Trade, Vessel

# One vessel goes to and fro between two ports, 3 ticks each way; chance decides nothing.
PAIR = Topology(
    ports=(Port("East", 10, (2, 2)), Port("West", 4, (2, 2))),
    trades=(Trade(0, 1, 1.0),),
    vessels=(Vessel("Ferry", (0, 1), (3, 3), capacity=6, first_call=1),),
    num_ticks=20,
    delays=(0,),
)


def pair(orders: dict[int, int]) -> Simulator:
    """The pair of ports, with orders by tick."""
    tape = Tape.draw(PAIR, 0)
    quantities = np.zeros_like(tape.orders)
    for tick, quantity in orders.items():
        quantities[tick] = quantity
    return Simulator(PAIR, dataclasses.replace(tape, orders=quantities))


def play(simulator: Simulator, decisions: np.random.Generator | None = None) -> list[tuple[int, ...]]:
    """All calls of an episode, with random decisions or none."""
    calls = []
    while (call := simulator.call) is not None:
        calls.append(call)
        ashore = 0 if decisions is None else int(decisions.integers(-call.most_aboard, call.most_ashore + 1))
        simulator.decide(ashore)
    return calls


@given(seed=st.integers(0, 1000), decisions=st.integers(0, 1000))
def test_no_container_is_made_or_lost_and_nothing_is_negative(seed, decisions):
    simulator, rng = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, seed)), np.random.default_rng(decisions)
    while (call := simulator.call) is not None:
        assert simulator.num_containers() == FOUR_PORTS.num_containers
        holdings = [simulator.stock, simulator.inland, simulator.waiting, simulator.empties, *simulator.goods]
        assert min(map(min, holdings)) >= 0
        for vessel, ship in enumerate(FOUR_PORTS.vessels):
            assert simulator.empties[vessel] + sum(simulator.goods[vessel]) <= ship.capacity
        simulator.decide(int(rng.integers(-call.most_aboard, call.most_ashore + 1)))
    assert simulator.num_containers() == FOUR_PORTS.num_containers


def test_equal_seeds_and_decisions_give_equal_episodes_and_other_seeds_others():
    first, second, third = (Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, seed)) for seed in (5, 5, 6))
    assert play(first, np.random.default_rng(1)) == play(second, np.random.default_rng(1))
    assert first.shortage == second.shortage
    assert first.ordered != (play(third), third.ordered)[1]


def test_what_chance_decides_does_not_depend_on_decisions():
    still, busy = (Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 5)) for _ in range(2))
    calls, others = play(still), play(busy, np.random.default_rng(1))
    assert [call[:3] for call in calls] == [call[:3] for call in others]  # when, which vessel, where
    assert still.ordered == busy.ordered
    assert still.shortage != busy.shortage


def test_calls_come_in_the_order_of_time_and_at_the_ports_of_the_route_in_turn():
    calls = play(Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 2)))
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    for number, vessel in enumerate(FOUR_PORTS.vessels):
        mine = [call for call in calls if call[1] == number]
        assert [call[2] for call in mine] == [vessel.route[i % len(vessel.route)] for i in range(len(mine))]
        legs = [after[0] - before[0] for before, after in itertools.pairwise(mine)]
        late = [leg - vessel.leg_ticks[i % len(vessel.route)] for i, leg in enumerate(legs)]
        assert set(late) <= set(FOUR_PORTS.delays)


def test_an_order_takes_what_is_in_stock_and_the_rest_is_lost():
    simulator = pair({0: 7, 2: 5})
    play(simulator)
    assert (simulator.ordered, simulator.shortage) == ([12], [2])


def test_goods_travel_are_emptied_and_come_back_to_stock_where_they_went():
    # Ordered at tick 0, loaded at tick 1, unloaded at tick 4, back at tick 6: seen at the call of tick 10.
    simulator = pair({0: 5})
    seen = []
    while simulator.call is not None:
        seen.append((simulator.tick, simulator.call.port, list(simulator.stock), simulator.inland[1]))
        simulator.decide(0)
    assert seen[:4] == [(1, 0, [5, 4], 0), (4, 1, [5, 4], 5), (7, 0, [5, 9], 0), (10, 1, [5, 9], 0)]


def test_within_a_tick_vessels_come_before_orders():
    # The order of tick 1 cannot be filled, because the vessel that calls at tick 1 takes all there is aboard.
    simulator = pair({1: 3})
    simulator.decide(-6)
    assert simulator.shortage == [0] and simulator.stock == [1, 4]
    simulator = pair({1: 9})
    simulator.decide(-6)
    assert simulator.shortage == [5]


def test_goods_go_first_and_put_empty_containers_ashore_where_they_are_in_the_way():
    simulator = pair({2: 4, 7: 0})
    simulator.decide(-6)  # six empty containers aboard, four left for the order of tick 2
    simulator.decide(0)  # in the West: nothing is wanted
    assert simulator.call is not None and simulator.call[2:] == (0, 2, 0)  # four goods, two empties, no room
    assert simulator.stock == [4, 4]
    assert simulator.goods[0] == [4]


def test_scarce_room_is_shared_among_goods_in_proportion():
    env = dataclasses.replace(
        PAIR,
        ports=(*PAIR.ports, Port("South", 0, (2, 2))),
        trades=(Trade(0, 1, 1.0), Trade(0, 2, 1.0)),
        vessels=(Vessel("Ferry", (0, 1, 2), (3, 3, 3), capacity=3, first_call=1),),
    )
    tape = Tape.draw(env, 0)
    orders = np.zeros_like(tape.orders)
    orders[0] = (6, 3)
    simulator = Simulator(env, dataclasses.replace(tape, orders=orders))
    assert simulator.goods[0] == [2, 1] and simulator.waiting == [4, 2]


@pytest.mark.parametrize("ashore", [1, -7])
def test_an_impossible_decision_is_refused_with_what_is_possible(ashore):
    with pytest.raises(ValueError, match=f"{ashore} empty containers cannot go ashore at tick 1: between -6 and 0 can"):
        pair({}).decide(ashore)


def test_a_decision_after_the_end_is_refused():
    simulator = pair({})
    play(simulator)
    with pytest.raises(ValueError, match="the episode is over"):
        simulator.decide(0)


def test_orders_have_the_mean_and_the_bursts_that_the_topology_says():
    orders = np.stack([Tape.draw(FOUR_PORTS, seed).orders for seed in range(300)])  # [episode, tick, trade]
    mean = np.array([[FOUR_PORTS.mean_orders(k, t) for k in range(8)] for t in range(FOUR_PORTS.num_ticks)])
    np.testing.assert_allclose(orders.mean(axis=(0, 1)), mean.mean(axis=0), rtol=0.05)
    # Without booms, containers ordered in 10 ticks would vary as Poisson numbers do: a variance of the mean.
    tens = orders[:, :10].sum(axis=1)
    assert (tens.var(axis=0) > 5 * tens.mean(axis=0)).all()
    # Trades of one port boom together, those of two ports do not.
    correlation = np.corrcoef((orders[:, 200:210] / mean[200:210]).sum(axis=1).T)
    assert correlation[0, 1] > 0.8 and abs(correlation[0, 2]) < 0.2


def test_recent_orders_are_those_of_ticks_gone_by():
    simulator = pair({0: 2, 3: 3, 4: 1})
    assert simulator.tick == 1 and simulator.recent_orders(8).tolist() == [2]
    simulator.decide(0)
    assert simulator.tick == 4 and simulator.recent_orders(3).tolist() == [3]


def test_an_episode_is_simulated_at_a_speed_that_learning_can_use():
    """A guard against slips, in additions of the same machine; results/speed.json has what the benchmark measured."""
    began, numbers = time.process_time(), np.arange(8.0)
    for _ in range(20_000):
        numbers = numbers + 1
    addition_s = (time.process_time() - began) / 20_000
    ticks, began = 0, time.process_time()
    while ticks < 15_000:
        simulator = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, ticks))
        play(simulator)
        ticks += simulator.tick
    assert (time.process_time() - began) / ticks < 100 * addition_s  # of which a tick takes 13
