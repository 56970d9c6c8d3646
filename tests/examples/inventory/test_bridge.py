"""Ports as agents: what they see, do and earn in `examples/inventory`."""

import numpy as np
import pytest

from examples.inventory.bridge import COVER_TICKS, Ports, Reading
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS
from palaestra.multiagent import Worlds


def played(world: Ports, seed: int, choices: np.random.Generator):
    """Moments of an episode, with random choices."""
    moments = [world.begin_episode(seed)]
    while not moments[-1].over:
        moments.append(world.advance({agent: int(choices.integers(16)) for agent in moments[-1].time_steps}))
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
        moment = world.advance({agent: 5})


@pytest.mark.parametrize("choice", [0, 7, 15])
def test_a_choice_brings_the_stock_to_what_is_wanted_as_far_as_that_can_be_done(choice):
    """MARO-17: the bridge adds what the simulator needs to know besides."""
    simulator, reading = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 1)), Reading(FOUR_PORTS)
    rng = np.random.default_rng(0)
    while (call := simulator.call) is not None:
        before, wanted = simulator.stock[call.port], round(COVER_TICKS[choice] * reading.mean[call.port])
        ashore = reading.ashore(simulator, choice)
        after = before + ashore
        assert -call.most_aboard <= ashore <= call.most_ashore
        assert after == wanted or (after < wanted) == (ashore == call.most_ashore) or ashore == -call.most_aboard
        simulator.decide(int(rng.integers(-call.most_aboard, call.most_ashore + 1)))


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
        first.decide(reading.ashore(first, 7))
        second.decide(reading.ashore(second, 7))
    assert compared > 30


def test_worlds_of_ports_keep_the_rules_of_moments_and_resume_exactly():
    """Episodes are replayed from their seeds and actions, and checked by a digest."""
    with Worlds([Ports, Ports], lane_seeds=[1, 2]) as worlds, Worlds([Ports, Ports], lane_seeds=[3, 4]) as resumed:
        moments = worlds.reset()
        for _ in range(300):  # beyond the end of an episode
            moments = worlds.step(
                [dict.fromkeys(moment.time_steps, 8) if not moment.over else {} for moment in moments]
            )
        resumed.load_state_dict(worlds.state_dict())
        actions = [dict.fromkeys(moment.time_steps, 3) for moment in moments]
        for one, two in zip(worlds.step(actions), resumed.step(actions), strict=True):
            assert one.time_steps.keys() == two.time_steps.keys()
            for agent, time_step in one.time_steps.items():
                np.testing.assert_array_equal(time_step.observation, two.time_steps[agent].observation)
