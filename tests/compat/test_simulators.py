"""`EnvWrapper`: from an event-driven simulator to transitions with the right rewards."""

import numpy as np
import pytest

from palaestra import DQN, DQNConfig
from palaestra.core import EnvError, StepType
from palaestra.multiagent import MultiAgentCollector, MultiAgentEnvs, assign_policies, evaluate_agents
from palaestra.policies import RandomPolicy
from tests.multiagent.parts import Shop


class Spy(Shop):
    """Notes which hook is called, and with what."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = []

    def get_state(self, agent):
        self.calls.append(f"state of {agent}")
        return super().get_state(agent)

    def get_transition_info(self):
        self.calls.append("info")
        return self.tick

    def to_env_action(self, actions):
        self.calls.append("action")
        return super().to_env_action(actions)

    def post_step(self):
        self.calls.append("post_step")

    def get_reward(self, actions, tick, info):
        self.calls.append(f"reward of {'+'.join(sorted(actions))} at {tick}, info {info}")
        return super().get_reward(actions, tick, info)


def test_the_hooks_are_called_in_the_order_of_an_event():
    """MARO-15..18: states of those who decide, actions for the simulator, post_step, rewards after their delay."""
    shop = Spy(delay=2, length=4)
    shop.begin_episode(0)
    assert shop.calls == ["state of buyer", "state of painter"]
    shop.calls.clear()
    shop.advance({"buyer": 0, "painter": 1})
    assert shop.calls == ["info", "action", "post_step", "state of buyer"]
    shop.calls.clear()
    shop.advance({"buyer": 2})
    assert shop.calls[2:] == ["post_step", "reward of buyer+painter at 0, info 0", "state of buyer"]


def test_a_reward_is_told_after_its_delay_once_its_agent_acted_again_or_the_episode_is_over():
    shop = Shop(delay=2, length=4)
    shop.begin_episode(0)
    actions = [{"buyer": 0, "painter": 1}, {"buyer": 2}, {"buyer": 0}, {"buyer": 1, "painter": 1}]
    told = [shop.advance(one).late_rewards for one in actions]
    assert told[:2] == [{}, {"buyer": [0.0]}], "the painter may still earn by its first action"
    assert told[3] == {"buyer": [2000.0, 3010.0], "painter": [10.0, 3010.0]}


@pytest.mark.parametrize("ends", [True, False])
def test_the_end_of_a_simulation_is_a_termination_only_where_it_says_so(ends):
    """ALF-25: a simulator that runs out of ticks cuts its agents off."""

    class Ending(Shop):
        def run(self, env_action):
            deciding = super().run(env_action)
            self.terminated = ends
            return deciding

    shop = Ending(length=1)
    shop.begin_episode(0)
    outcome = shop.advance({"buyer": 0, "painter": 0})
    assert {float(step.discount) for step in outcome.time_steps.values()} == {0.0 if ends else 1.0}


def test_an_agent_that_was_never_asked_has_no_episode():
    class Alone(Shop):
        def start(self, seed):
            super().start(seed)
            return ["buyer"]

    shop = Alone(length=2)
    assert list(shop.begin_episode(0).time_steps) == ["buyer"]
    shop.advance({"buyer": 0})
    assert list(shop.advance({"buyer": 0}).time_steps) == ["buyer"]


class Joint(Shop):
    """Both agents earn 10 to the power of the tick, whoever acts; the painter is asked at ticks 3, 6, ... only."""

    def start(self, seed):
        super().start(seed)
        return ["buyer"]

    def get_reward(self, actions, tick, info):
        return {"buyer": 10.0**tick, "painter": 10.0**tick}


@pytest.mark.parametrize("delay", [0, 1, 2, 30])
def test_joint_rewards_count_with_the_last_action_before(delay):
    """MARO-18: a reward counts once, with the action that was its agent's last; before the first in returns alone."""
    envs = MultiAgentEnvs([lambda: Joint(delay=delay, length=8)], lane_seeds=[1])
    policy_specs = assign_policies(envs.agents, {"*": "both"})
    dqn = DQN(policy_specs["both"].observation_spec, policy_specs["both"].action_spec, DQNConfig(learning_starts=0))
    collector = MultiAgentCollector(envs, policy_specs, {"both": dqn})
    (episode,) = [one for _ in range(2) for one in (*collector.unroll(9).episodes, *collector.drain())][:1]
    assert (episode.info["buyer/return"], episode.info["painter/return"]) == (11111111.0, 11111111.0)
    for lane, told in enumerate([[10.0**tick for tick in range(8)], [111000.0, 11000000.0]]):
        rows = collector.buffers["both"].in_time_order(lane)
        rewards = collector.buffers["both"].take("reward", rows).tolist()
        assert rewards[1 : 1 + len(told)] == told


def test_the_state_of_an_earlier_tick_is_what_a_simulator_can_still_tell():
    """MARO-18: `get_state` may take a tick of its own; what an action has led to is compared with what it saw."""

    class Remembering(Shop):
        def get_state(self, agent, tick=None):
            return np.array([self.tick if tick is None else tick, self.seed], np.float32)

        def get_reward(self, actions, tick, info):
            return {agent: float(self.get_state(agent)[0] - self.get_state(agent, tick)[0]) for agent in actions}

    shop = Remembering(delay=3, length=20)
    shop.begin_episode(0)
    outcomes = [shop.advance({"buyer": 0} | ({"painter": 0} if tick % 3 == 0 else {})) for tick in range(6)]
    assert [outcome.late_rewards.get("buyer") for outcome in outcomes] == [None, None, [3.0], [3.0], [3.0], [3.0]]


@pytest.mark.parametrize("empty", [3, 1000])
def test_a_start_that_asks_nobody_ends_the_episode(empty):
    """MARO-18: the next one begins; a simulator that never asks anybody is an error."""

    class Late(Shop):
        begun = 0

        def start(self, seed):
            self.begun += 1
            return super().start(seed) if self.begun > empty else []

        def run(self, env_action):
            assert env_action, "run was called without decisions"
            return super().run(env_action)

    envs = MultiAgentEnvs([Late], lane_seeds=[1])
    policies = {"both": RandomPolicy(envs.agents["buyer"].observation, envs.agents["buyer"].action)}
    policy_specs = assign_policies(envs.agents, {"*": "both"})
    if empty < 100:
        assert evaluate_agents(policies, envs, policy_specs, episodes=empty + 1).length_mean == 11 / (empty + 1)
    else:
        with pytest.raises(EnvError, match="100 episodes in a row were over before an agent had acted"):
            evaluate_agents(policies, envs, policy_specs, episodes=empty)


def test_mistakes_are_named():
    with pytest.raises(EnvError, match="reward_eval_delay is -1"):
        Shop(delay=-1)

    class Generous(Shop):
        def get_reward(self, actions, tick, info):
            return {"seller": 1.0}

    shop = Generous(delay=0)
    shop.begin_episode(0)
    with pytest.raises(EnvError, match=r"rewards to \['seller'\] for tick 0; the agents are \['buyer', 'painter'\]"):
        shop.advance({"buyer": 0, "painter": 0})

    class Stranger(Shop):
        def start(self, seed):
            return ["seller"]

    with pytest.raises(EnvError, match="asks agent 'seller'; the agents are"):
        Stranger().begin_episode(0)


def test_what_the_tracker_notes_is_reported_with_the_episode():
    """MARO-18: `post_step` and `tracker`."""
    envs = MultiAgentEnvs([lambda: Shop(length=3)], lane_seeds=[1])
    (outcome,) = envs.reset()
    while not outcome.over:
        due = [name for name, step in outcome.time_steps.items() if step.step_type != StepType.LAST]
        (outcome,) = envs.step([dict.fromkeys(due, np.int64(0))])
    assert outcome.info == {"ticks": 3}
