"""Policies without learning, and the linear programs of `examples/inventory`."""

import dataclasses

import numpy as np
import pytest

from examples.inventory.planning import RollingPlan, bound
from examples.inventory.rules import Greedy, Levels, Random, Shares, none, shortage
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS, Port, Topology, Trade, Vessel
from examples.inventory.tuning import share_lost

SHORT = dataclasses.replace(FOUR_PORTS, num_ticks=60)
RULES = {
    "none": none,
    "random": Random(3),
    "greedy": Greedy(20),
    "levels": Levels([800, 500, 100, 100], [900, 600, 150, 110]),
    "shares": Shares([1.5, 1.5, 0.75, 0.75]),
    "plan": RollingPlan(horizon=20, cover_ticks=5.0, trust=0.5),
}


@pytest.mark.parametrize("name", RULES)
def test_no_rule_does_better_than_the_bound(name):
    for seed in (1, 2):
        tape = Tape.draw(SHORT, seed)
        least = bound(SHORT, tape)
        lost, ordered = shortage(RULES[name], SHORT, seed)
        assert ordered == tape.orders.sum()
        assert least <= lost + 1e-6
        assert least < 0.9 * lost  # or the task would have nothing left to learn


@pytest.mark.parametrize("name", RULES)
def test_no_rule_sees_the_future(name):
    """Orders, delays and returns after tick 30 are exchanged; decisions up to then stay what they were."""
    tape, other = Tape.draw(SHORT, 1), Tape.draw(SHORT, 2)
    changed = Tape(
        orders=np.concatenate([tape.orders[:30], other.orders[30:]]),
        delays=tape.delays,
        returns=np.concatenate([tape.returns[:, :30], other.returns[:, 30:]], axis=1),
    )
    first, second = decisions(RULES[name], tape), decisions(RULES[name], changed)
    until = [pair for pair in first if pair[0] <= 30]
    assert until == [pair for pair in second if pair[0] <= 30]
    assert until
    assert name in ("none", "random") or first != second  # or nothing was shown


def test_a_plan_does_not_know_how_late_a_vessel_at_sea_will_be():
    tape = Tape.draw(SHORT, 1)
    late = dataclasses.replace(tape, delays=tape.delays + 6)
    first, second = decisions(RULES["plan"], tape), decisions(RULES["plan"], late)
    # Up to the first call that is late, the environment looks the same.
    common = min(len(SHORT.vessels), len(first), len(second))
    assert first[:common] == second[:common]


def decisions(rule, tape: Tape) -> list[tuple[int, int]]:
    if isinstance(rule, Random):
        rule = Random(rule.seed)
    simulator, taken = Simulator(SHORT, tape), []
    while simulator.call is not None:
        taken.append((simulator.tick, rule(simulator)))
        simulator.decide(taken[-1][1])
    return taken


def test_the_bound_of_a_case_that_can_be_counted_by_hand():
    # East has 10 containers and 4 are in the West. The ferry fetches them at tick 4 and is back at tick 7. So of orders
    # for 20 at tick 8, 14 can be filled, and of orders for 20 at tick 6, ten.
    env = Topology(
        ports=(Port("East", 10, (2, 2)), Port("West", 4, (2, 2))),
        trades=(Trade(0, 1, 1.0),),
        vessels=(Vessel("Ferry", (0, 1), (3, 3), capacity=6, first_call=1),),
        num_ticks=12,
        delays=(0,),
    )
    tape = Tape.draw(env, 0)
    for tick, least in ((8, 6.0), (6, 10.0)):
        orders = np.zeros_like(tape.orders)
        orders[tick] = 20
        assert bound(env, dataclasses.replace(tape, orders=orders)) == pytest.approx(least)


def test_levels_fill_up_to_low_and_give_what_is_above_high():
    simulator = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 0))
    assert simulator.call is not None and simulator.call.port == 0 and simulator.call.most_ashore == 0
    stock = simulator.stock[0]
    assert Levels([stock + 5] * 4, [stock + 9] * 4)(simulator) == 0  # would fill up, but the vessel brings nothing
    assert Levels([0] * 4, [stock + 1] * 4)(simulator) == 0
    assert Levels([0] * 4, [stock - 7] * 4)(simulator) == -7
    simulator.empties[0], simulator.call = 50, simulator.call._replace(most_ashore=50)
    assert Levels([stock + 5] * 4, [stock + 9] * 4)(simulator) == 5
    assert Levels([stock + 90] * 4, [stock + 90] * 4)(simulator) == 50


def test_the_order_of_the_rules_is_that_of_what_they_know():
    """None, random, levels, shares: each loses fewer orders than the one before, on episodes of no other use."""
    seeds = range(20_000, 20_004)
    lost = [np.mean(share_lost(RULES[name], FOUR_PORTS, seeds)) for name in ("none", "random", "levels", "shares")]
    assert lost == sorted(lost, reverse=True)
