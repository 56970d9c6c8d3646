"""`EnvWrapper`: from an event-driven simulator to transitions with the right rewards."""

import numpy as np
import pytest

from palaestra.core import EnvError, StepType
from palaestra.multiagent import MultiAgentEnvs
from tests.multiagent.parts import Shop


def test_the_hooks_are_called_in_the_order_of_an_event():
    """MARO-15..18: states of those who decide, actions for the simulator, post_step, rewards after their delay."""
    calls: list[str] = []

    class Spy(Shop):
        def get_state(self, agent):
            calls.append(f"get_state({agent})")
            return super().get_state(agent)

        def get_transition_info(self):
            calls.append(f"get_transition_info at {self.tick}")
            return self.tick

        def to_env_action(self, actions):
            calls.append("to_env_action")
            return super().to_env_action(actions)

        def post_step(self):
            calls.append("post_step")

        def get_reward(self, actions, tick, info):
            assert info == tick
            calls.append(f"get_reward({sorted(actions)}, {tick})")
            return super().get_reward(actions, tick, info)

    shop = Spy(delay=2, length=4)
    shop.begin_episode(0)
    assert calls == ["get_state(buyer)", "get_state(painter)"]
    calls.clear()
    shop.advance({"buyer": 0, "painter": 1})
    assert calls == ["get_transition_info at 0", "to_env_action", "post_step", "get_state(buyer)"]
    calls.clear()
    outcome = shop.advance({"buyer": 2})
    assert calls[-2:] == ["get_reward(['buyer', 'painter'], 0)", "get_state(buyer)"]
    assert outcome.late_rewards == {"buyer": [0.0], "painter": [10.0]}
    shop.advance({"buyer": 0})
    last = shop.advance({"buyer": 1, "painter": 1})
    assert last.over
    assert last.late_rewards == {"buyer": [2000.0, 3010.0], "painter": [3010.0]}
    assert all(step.truncated for step in last.time_steps.values())


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


def test_mistakes_are_named():
    with pytest.raises(EnvError, match="reward_eval_delay is -1"):
        Shop(delay=-1)

    class Generous(Shop):
        def get_reward(self, actions, tick, info):
            return {"painter": 1.0}

    shop = Generous(delay=0)
    shop.begin_episode(0)
    shop.advance({"buyer": 0, "painter": 0})
    with pytest.raises(EnvError, match=r"rewards to \['painter'\] for tick 1, when only \['buyer'\] acted"):
        shop.advance({"buyer": 0})

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
