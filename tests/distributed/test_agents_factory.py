"""Many agents on roll-out workers: the same streams, policies by name."""

import functools

import numpy as np
import pytest

from palaestra import DQN, DQNConfig, EnvConfig, NetworkConfig, RunSeeds
from palaestra.core import ConfigError, StepType
from palaestra.distributed import AgentsFactory, DistributedConfig, RolloutManager
from palaestra.multiagent import AgentsConfig, create_multi_agent_envs
from palaestra.policies import RandomPolicy
from palaestra.rollout import buffer_for
from palaestra.runtime import LocalRuntime
from tests.multiagent.test_collector import TWO_KINDS, lanes_of, seen_of

SHOP = EnvConfig(name="tests.multiagent.parts:Shop", num_envs=4, kwargs={"delay": 3})
RANDOM = EnvConfig(name="tests.multiagent.parts:RandomWorld", num_envs=4, kwargs={"revive": True})


def actors(env, mapping, rule=""):
    """Roles, an algorithm for each policy, and perhaps one that acts at random."""
    with create_multi_agent_envs(env) as envs:
        policy_specs = AgentsConfig(mapping=mapping).policy_specs(envs.agents, teams=(), state_spec=None)
    config = DQNConfig(network=NetworkConfig(hidden_sizes=(8,)), capacity=4_000, learning_starts=0)
    made = {
        name: RandomPolicy(spec.observation_spec, spec.action_spec)
        if name == rule
        else DQN(spec.observation_spec, spec.action_spec, config, RunSeeds(number))
        for number, (name, spec) in enumerate(policy_specs.items())
    }
    return policy_specs, made


def manager_of(runtime, env, mapping, rule=""):
    make = functools.partial(actors, env, mapping, rule)
    policy_specs, made = make()
    learn = {name: one for name, one in made.items() if name != rule}
    buffers = {
        name: buffer_for(
            one,
            env.num_envs * policy_specs[name].lanes_per_env,
            observation_spec=policy_specs[name].observation_spec,
            reward_spec=policy_specs[name].reward_spec,
        )
        for name, one in learn.items()
    }
    policies = {name: one.policy for name, one in learn.items()}
    config = DistributedConfig(runtime="local", num_workers=2)
    factory = AgentsFactory(env=env, actors=make, num_workers=2, seed=3)
    return RolloutManager(runtime, factory, policies, buffers, config), policy_specs


def test_fragments_of_workers_become_whole_streams_of_every_agent():
    """MARO-03, MARO-15: agents that wait, die and come back, in several unrolls; nothing is mixed and nothing lost."""
    with LocalRuntime() as runtime:
        manager, policy_specs = manager_of(runtime, RANDOM, TWO_KINDS)
        for _ in range(5):
            info = manager.unroll(13)
        assert set(info.rows_of) == {"even", "odd"}
        names = ["even_0", "odd_0", "even_1", "odd_1"]
        envs_seen = set()
        for policy, buffer in manager.buffers.items():
            agents = policy_specs[policy].agents
            assert buffer.num_lanes == 4 * len(agents)
            for lane, rows in lanes_of(buffer):
                kinds, seen = rows.step_type.numpy(), seen_of(rows)
                assert (seen[:, 0] == names.index(agents[lane % len(agents)])).all()
                envs_seen.add((lane // len(agents), int(seen[0, 3])))
                for row in range(len(kinds) - 1):
                    if kinds[row] != StepType.LAST:
                        assert seen[row + 1, 1] == seen[row, 1] + 1
                        assert float(rows.reward[row + 1]) == (1.0 if int(rows.action[row]) == 1 else 0.5)
        assert len({env for env, _ in envs_seen}) == 4


def test_late_rewards_and_rules_work_on_workers_as_in_one_process():
    """MARO-18, MARO-19: rows wait on the worker until their rewards are known; a rule has no buffer."""
    with LocalRuntime() as runtime:
        manager, _ = manager_of(runtime, SHOP, {"buyer": "learns", "painter": "chance"}, rule="chance")
        episodes = [episode for _ in range(6) for episode in manager.unroll(7).episodes]
        assert list(manager.buffers) == ["learns"]
        for _, rows in lanes_of(manager.buffers["learns"]):
            ticks = rows.observation.numpy()[:, 0]
            for row in range(len(ticks) - 1):
                if rows.step_type[row] != StepType.LAST:
                    assert float(rows.reward[row + 1]) == 1000 * ticks[row] + 10 * int(rows.action[row])
        assert {episode.env_id for episode in episodes} <= set(range(4))
        assert all({"learns/return", "chance/return", "ticks"} <= set(episode.info) for episode in episodes)


def test_workers_have_the_seeds_of_one_process():
    """DESIGN.md section 4: episode k of environment w is the same, wherever w lives."""
    with LocalRuntime() as runtime:
        manager, _ = manager_of(runtime, SHOP, {"*": "both"})
        manager.unroll(12)
        told = [int(rows.observation[0, 1]) for lane, rows in lanes_of(manager.buffers["both"]) if lane % 2 == 0]
    envs = create_multi_agent_envs(SHOP, seed=3)
    assert told == [int(outcome.time_steps["buyer"].observation[1]) for outcome in envs.reset()]


def test_a_worker_that_takes_another_ones_place_goes_on_with_its_next_episodes():
    """F1: no episode is played twice."""
    envs = create_multi_agent_envs(SHOP, seed=3)
    envs.reset()
    envs.reset()
    seen = [outcome.time_steps["buyer"].observation for outcome in envs.reset()]
    other = create_multi_agent_envs(SHOP, seed=4)
    before = envs.lane_state()
    other.load_lane_state({**before, "episode": before["episode"] - 1})
    assert all(
        np.array_equal(one, outcome.time_steps["buyer"].observation)
        for one, outcome in zip(seen, other.reset(), strict=True)
    )


def test_environments_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(
        ConfigError, match="num_envs is 4, which cannot be shared out evenly over 3 workers; give 3 or 6"
    ):
        AgentsFactory(env=SHOP, actors=functools.partial(actors, SHOP, {"*": "both"}), num_workers=3)


def test_late_rows_are_dropped_for_the_policy_alone_for_which_they_are_too_old():
    """MARO-05, MARO-12: its transitions never lead over the gap, and others learn from the same fragment."""
    with LocalRuntime() as runtime:
        manager, _ = manager_of(runtime, RANDOM, TWO_KINDS)
        manager.unroll(9)
        before = {name: len(buffer) for name, buffer in manager.buffers.items()}
        manager.lags_of = lambda fragment: {"even": 0, "odd": 1}  # pyright: ignore[reportAttributeAccessIssue]
        info = manager.unroll(9)
        assert info.rows_of["odd"] == 0 < info.rows_of["even"]
        assert len(manager.buffers["even"]) > before["even"]
        assert len(manager.buffers["odd"]) <= before["odd"] + 8  # the open rows became ends
        assert [one.policies for one in manager.dropped] == [("odd",)] * 2
        assert {one.reason for one in manager.dropped} == {"of odd it is 1 policy versions old, and max_lag is 0"}
        del manager.lags_of
        manager.unroll(9)
        for name, buffer in manager.buffers.items():
            for _, rows in lanes_of(buffer):
                kinds, seen = rows.step_type.numpy(), seen_of(rows)
                joined = (kinds[:-1] != StepType.LAST) & (kinds[1:] != StepType.FIRST)
                assert (seen[1:, 1] == seen[:-1, 1] + 1)[joined].all(), name
