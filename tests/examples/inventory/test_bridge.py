"""Ports as agents: what they see, do and earn in `examples/inventory`."""

import dataclasses

import numpy as np
import pytest

from examples.inventory.bridge import Ports
from examples.inventory.reading import MEDIAN_TICKS, RECENT_TICKS, SPREAD, TRUST, Reading
from examples.inventory.rules import Levels, shortage
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS
from palaestra.multiagent import Worlds


def played(world: Ports, seed: int, choices: np.random.Generator):
    """Moments of an episode, with random choices."""
    moments = [world.begin_episode(seed)]
    while not moments[-1].over:
        moments.append(world.advance(dict.fromkeys(moments[-1].time_steps, choices.normal(size=1).astype(np.float32))))
    return moments


def test_rewards_of_a_port_add_up_to_all_orders_lost_since_its_first_call():
    """MARO-18: rewards come late, one for each action, and all of them by the end of the episode."""
    world = Ports(reward_scale=1.0)
    moments = played(world, 3, np.random.default_rng(0))
    actions = dict.fromkeys(world.agents, 0)
    for moment in moments[:-1]:
        actions[next(iter(moment.time_steps))] += 1
    for port, agent in enumerate(world.agents):
        earned = [reward for moment in moments for reward in moment.late_rewards.get(agent, ())]
        assert len(earned) == actions[agent]
        before = world._lost[port][0]  # lost before its first call: nobody's fault
        assert sum(earned) == before - sum(world.simulator.shortage)
        assert min(earned) < 0 and max(earned) <= 0


def test_a_reward_is_what_was_lost_until_the_next_call_at_the_port():
    world = Ports(reward_scale=1.0)
    moments = played(world, 3, np.random.default_rng(0))
    agent = "Borel"
    lost, lost_before = world._lost[1], None
    earned = [reward for moment in moments for reward in moment.late_rewards.get(agent, ())]
    for number, reward in enumerate(earned[:-1]):
        lost_before = lost[number]
        assert reward == lost_before - lost[number + 1]


def test_who_acts_is_the_port_where_a_vessel_calls():
    world = Ports()
    moment = world.begin_episode(4)
    for _ in range(40):
        assert world.simulator.call is not None
        (agent,) = moment.time_steps
        assert agent == FOUR_PORTS.ports[world.simulator.call.port].name
        moment = world.advance({agent: np.zeros(1, np.float32)})


@pytest.mark.parametrize("choice", [-4.0, 0.0, 2.0])
def test_a_choice_brings_the_stock_to_what_is_wanted_as_far_as_that_can_be_done(choice):
    """MARO-17: the bridge adds what the simulator needs to know besides."""
    simulator, reading = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 1)), Reading(FOUR_PORTS)
    rng = np.random.default_rng(0)
    while (call := simulator.call) is not None:
        ticks = min(100, MEDIAN_TICKS * np.exp(SPREAD * choice))
        wanted = round(ticks * float(reading.expected(simulator)[call.port]))
        ashore = reading.ashore(simulator, choice)
        lacking = wanted - simulator.stock[call.port]
        assert ashore == np.clip(lacking, -call.most_aboard, call.most_ashore)
        simulator.decide(int(rng.integers(-call.most_aboard, call.most_ashore + 1)))


def test_a_port_expects_the_season_and_a_part_of_what_is_beyond_it():
    tape, reading = Tape.draw(FOUR_PORTS, 1), Reading(FOUR_PORTS)
    mean = np.array([[FOUR_PORTS.mean_orders(k, t) for k in range(8)] for t in range(400)])
    for factor in (1.0, 3.0):
        orders = (factor * mean[: FOUR_PORTS.num_ticks]).round().astype(int)
        simulator = Simulator(FOUR_PORTS, dataclasses.replace(tape, orders=orders))
        while simulator.tick < 50:
            simulator.decide(0)
        season = mean[simulator.tick : simulator.tick + 20, :2].sum() / 20  # trades 0 and 1 are those of Aster
        assert simulator.tick > RECENT_TICKS
        assert reading.expected(simulator)[0] == pytest.approx(season * (1 + TRUST * (factor - 1)), rel=0.02)


def test_what_is_earned_beside_a_rule_is_the_difference_of_what_is_lost():
    """The rule of the second simulator gains nothing beside itself, and its losses do not depend on ports' choices."""
    rule = Levels([900, 550, 170, 110], [950, 650, 170, 110])
    alone, beside = Ports(reward_scale=1.0), Ports(rule=rule, reward_scale=1.0)
    lost, ordered = shortage(rule, FOUR_PORTS, 3)
    for world in (alone, beside):
        moments = played(world, 3, np.random.default_rng(0))
        earned = sum(reward for moment in moments for reward in moment.late_rewards.get("Aster", ()))
        if world is alone:
            mine = earned
    assert world.simulator.ordered == alone.simulator.ordered and sum(world.simulator.ordered) == ordered
    before = alone._lost[0][0], beside._lost[0][0]  # at Aster's first call
    assert mine - before[0] == -sum(alone.simulator.shortage)
    assert earned - before[1] == lost - sum(beside.simulator.shortage)


def test_an_observation_shows_nothing_of_the_future():
    tape, other = Tape.draw(FOUR_PORTS, 1), Tape.draw(FOUR_PORTS, 2)
    changed = Tape(
        orders=np.concatenate([tape.orders[:60], other.orders[60:]]),
        delays=tape.delays,
        returns=np.concatenate([tape.returns[:, :60], other.returns[:, 60:]], axis=1),
    )
    reading = Reading(FOUR_PORTS)
    first, second = Simulator(FOUR_PORTS, tape), Simulator(FOUR_PORTS, changed)
    compared = 0
    while first.call is not None and second.call is not None and first.tick < 60:
        for port in range(4):
            seen = reading.observation(first, port)
            assert seen.shape == (reading.size,) and np.isfinite(seen).all()
            np.testing.assert_array_equal(seen, reading.observation(second, port))
        compared += 1
        first.decide(reading.ashore(first, 0.5))
        second.decide(reading.ashore(second, 0.5))
    assert compared > 30


def test_worlds_of_ports_keep_the_rules_of_moments_and_resume_exactly():
    """Episodes are replayed from their seeds and actions, and checked by a digest."""
    with Worlds([Ports, Ports], lane_seeds=[1, 2]) as worlds, Worlds([Ports, Ports], lane_seeds=[3, 4]) as resumed:
        moments = worlds.reset()
        for _ in range(300):  # beyond the end of an episode
            moments = worlds.step(
                [
                    dict.fromkeys(moment.time_steps, np.ones(1, np.float32)) if not moment.over else {}
                    for moment in moments
                ]
            )
        resumed.load_state_dict(worlds.state_dict())
        actions = [dict.fromkeys(moment.time_steps, np.zeros(1, np.float32)) for moment in moments]
        for one, two in zip(worlds.step(actions), resumed.step(actions), strict=True):
            assert one.time_steps.keys() == two.time_steps.keys()
            for agent, time_step in one.time_steps.items():
                np.testing.assert_array_equal(time_step.observation, two.time_steps[agent].observation)
