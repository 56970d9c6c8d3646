"""Ports as agents: what they see, do and earn in `examples/inventory`."""

import dataclasses
import functools

import numpy as np
import pytest

from examples.inventory.bridge import Ports
from examples.inventory.forecast import RECENT_TICKS, Forecast
from examples.inventory.reading import MOST, SPREAD, Reading
from examples.inventory.rules import Shares, shortage
from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import FOUR_PORTS
from palaestra.multiagent import MultiAgentEnvs

RULE = Shares([1.5, 1.5, 0.75, 0.75])
READING = Reading(FOUR_PORTS, RULE)


def played(env: Ports, seed: int, choices: np.random.Generator):
    """Steps of an episode, with random choices."""
    outcomes = [env.begin_episode(seed)]
    while not outcomes[-1].over:
        outcomes.append(env.advance(dict.fromkeys(outcomes[-1].time_steps, choices.normal(size=1).astype(np.float32))))
    return outcomes


def test_rewards_of_a_port_add_up_to_what_the_rule_loses_more_since_its_first_call():
    """MARO-18: rewards come late, one for each action, and all of them by the end of the episode."""
    env = Ports(READING, reward_scale=1.0)
    outcomes = played(env, 3, np.random.default_rng(0))
    actions = dict.fromkeys(env.agents, 0)
    for outcome in outcomes[:-1]:
        actions[next(iter(outcome.time_steps))] += 1
    lost, _ = shortage(RULE, FOUR_PORTS, 3)
    for port, agent in enumerate(env.agents):
        earned = [reward for outcome in outcomes for reward in outcome.late_rewards.get(agent, ())]
        assert len(earned) == actions[agent]
        before = env._lost[port][0]  # at its first call, beside the rule: nobody's merit
        assert sum(earned) - before == lost - sum(env.simulator.shortage)


def test_whoever_does_what_the_rule_does_earns_nothing():
    env = Ports(READING)
    outcome = env.begin_episode(3)
    while not outcome.over:
        outcome = env.advance(dict.fromkeys(outcome.time_steps, np.zeros(1, np.float32)))
        assert all(reward == 0 for rewards in outcome.late_rewards.values() for reward in rewards)
    lost, ordered = shortage(RULE, FOUR_PORTS, 3)
    assert outcome.info["share_lost"] == lost / ordered


def test_a_reward_is_what_was_lost_until_the_next_call_at_the_port():
    env = Ports(READING, reward_scale=1.0)
    outcomes = played(env, 3, np.random.default_rng(0))
    agent = "Borel"
    lost, lost_before = env._lost[1], None
    earned = [reward for outcome in outcomes for reward in outcome.late_rewards.get(agent, ())]
    for number, reward in enumerate(earned[:-1]):
        lost_before = lost[number]
        assert reward == lost_before - lost[number + 1]


def test_who_acts_is_the_port_where_a_vessel_calls():
    env = Ports(READING)
    outcome = env.begin_episode(4)
    for _ in range(40):
        assert env.simulator.call is not None
        (agent,) = outcome.time_steps
        assert agent == FOUR_PORTS.ports[env.simulator.call.port].name
        outcome = env.advance({agent: np.zeros(1, np.float32)})


@pytest.mark.parametrize("choice", [-4.0, 0.0, 2.0, 50.0])
def test_a_choice_brings_the_stock_to_what_is_wanted_as_far_as_that_can_be_done(choice):
    """MARO-17: the bridge adds what the simulator needs to know besides."""
    simulator, rng = Simulator(FOUR_PORTS, Tape.draw(FOUR_PORTS, 1)), np.random.default_rng(0)
    while (call := simulator.call) is not None:
        wanted = round(float(RULE.wanted(simulator)[call.port]) * min(MOST, np.exp(SPREAD * choice)))
        lacking = wanted - simulator.stock[call.port]
        assert READING.ashore(simulator, choice) == np.clip(lacking, -call.most_aboard, call.most_ashore)
        simulator.decide(int(rng.integers(-call.most_aboard, call.most_ashore + 1)))


def test_the_season_and_a_part_of_what_is_beyond_it_is_expected():
    tape, forecast = Tape.draw(FOUR_PORTS, 1), Forecast(FOUR_PORTS)
    mean = np.array([[FOUR_PORTS.mean_orders(k, t) for k in range(8)] for t in range(400)])
    for factor in (1.0, 3.0):
        orders = (factor * mean[: FOUR_PORTS.num_ticks]).round().astype(int)
        simulator = Simulator(FOUR_PORTS, dataclasses.replace(tape, orders=orders))
        while simulator.tick < 50:
            simulator.decide(0)
        season = mean[simulator.tick : simulator.tick + 20, :2].sum() / 20  # trades 0 and 1 are those of Aster
        assert simulator.tick > RECENT_TICKS
        assert forecast.orders(simulator, 0.3)[0] == pytest.approx(season * (1 + 0.3 * (factor - 1)), rel=0.02)


def test_an_observation_shows_nothing_of_the_future():
    tape, other = Tape.draw(FOUR_PORTS, 1), Tape.draw(FOUR_PORTS, 2)
    changed = Tape(
        orders=np.concatenate([tape.orders[:60], other.orders[60:]]),
        delays=tape.delays,
        returns=np.concatenate([tape.returns[:, :60], other.returns[:, 60:]], axis=1),
    )
    reading = READING
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


def test_environments_of_ports_keep_the_rules_of_steps_and_resume_exactly():
    """Episodes are replayed from their seeds and actions, and checked by a digest."""
    make = functools.partial(Ports, READING)
    with (
        MultiAgentEnvs([make, make], lane_seeds=[1, 2]) as envs,
        MultiAgentEnvs([make, make], lane_seeds=[3, 4]) as resumed,
    ):
        outcomes = envs.reset()
        for _ in range(300):  # beyond the end of an episode
            outcomes = envs.step(
                [
                    dict.fromkeys(outcome.time_steps, np.ones(1, np.float32)) if not outcome.over else {}
                    for outcome in outcomes
                ]
            )
        resumed.load_state_dict(envs.state_dict())
        actions = [dict.fromkeys(outcome.time_steps, np.zeros(1, np.float32)) for outcome in outcomes]
        for one, two in zip(envs.step(actions), resumed.step(actions), strict=True):
            assert one.time_steps.keys() == two.time_steps.keys()
            for agent, time_step in one.time_steps.items():
                np.testing.assert_array_equal(time_step.observation, two.time_steps[agent].observation)
