"""`evaluate_agents`: episodes in which nobody learns."""

import pytest
import torch

from palaestra.core import ConfigError
from palaestra.multiagent import Meeting, MultiAgentEnvs, assign_policies, evaluate_agents
from palaestra.policies import RandomPolicy, RulePolicy
from tests.multiagent.parts import Shop
from tests.multiagent.test_collector import collector_of


def walkers():
    """A rule that meets in the middle of the agents, as far as an agent can see."""

    def towards_the_middle(seen):
        cells = torch.arange(5.0)
        there = seen["all"] > 0
        low = torch.where(there, cells, 9).amin(-1)
        high = torch.where(there, cells, -1).amax(-1)
        return 1 + torch.sign(((low + high) / 2).floor() - seen["own"].argmax(-1)).long()

    spec = Meeting().agents["agent_0"]
    return RulePolicy(towards_the_middle, spec.observation, spec.action)


def test_a_rule_that_walks_to_the_middle_earns_the_best_return():
    """TS-26: exactly so many episodes, shared out over the environments; parts by agent and policy."""
    envs = MultiAgentEnvs([Meeting, Meeting], lane_seeds=[1, 2])
    policy_specs = assign_policies(envs.agents, {"*": "walkers"})
    result = evaluate_agents({"walkers": walkers()}, envs, policy_specs, episodes=9)
    assert len(result.returns) == 9
    best = [round(3 * (1 - 0.1 * moves), 4) for moves in (1, 2)]
    assert {round(value, 4) for value in result.returns} == set(best)
    assert result.parts["agent_1/return"] == pytest.approx(result.return_mean / 3)
    assert result.parts["walkers/return"] == pytest.approx(result.return_mean / 3)
    assert result.to_json()["parts"] == result.parts


def test_late_rewards_count_in_full():
    envs = MultiAgentEnvs([lambda: Shop(delay=7, length=5)], lane_seeds=[1])
    policy_specs = assign_policies(envs.agents, {"*": "both"})
    spec = envs.agents["buyer"]
    rule = RulePolicy(lambda seen: torch.ones(len(seen)).long(), spec.observation, spec.action)
    result = evaluate_agents({"both": rule}, envs, policy_specs, episodes=2)
    assert result.parts["buyer/return"] == sum(1000 * tick + 10 for tick in range(5))
    assert result.parts["painter/return"] == 3000 + 20
    assert result.parts["ticks"] == 5


@pytest.mark.parametrize(("epsilon", "deterministic"), [(0.0, True), (0.1, False)])
def test_an_evaluation_in_which_any_policy_explores_is_not_called_deterministic(epsilon, deterministic):
    collector, actors = collector_of(Shop, num_envs=1, mapping={"buyer": "one", "*": "other"}, algorithm="dqn")
    policies = {name: actor.policy for name, actor in actors.items()}
    policies["other"].eval_epsilon = epsilon
    result = evaluate_agents(policies, collector.envs, collector.policy_specs, episodes=1)
    assert result.deterministic is deterministic


def test_an_evaluation_leaves_training_as_if_nothing_had_happened():
    """Acting noise of its own; the collector's environments are not those of the evaluation."""
    results = []
    for evaluates in (False, True):
        collector, actors = collector_of(Shop, mapping={"*": "both"}, seed=4)
        collector.unroll(10)
        if evaluates:
            envs = MultiAgentEnvs([Shop], lane_seeds=[9])
            evaluate_agents(
                {"both": actors["both"].policy}, envs, collector.policy_specs, episodes=2, deterministic=False
            )
            assert actors["both"].policy.training
        collector.unroll(10)
        results.append(collector.buffers["both"].recent("action", 15).clone())
    assert torch.equal(*results)


def test_environments_that_were_evaluated_in_begin_new_episodes_for_their_collector():
    collector, actors = collector_of(Shop, mapping={"*": "both"}, algorithm="dqn", seed=4)
    collector.unroll(6)
    evaluate_agents({"both": actors["both"].policy}, collector.envs, collector.policy_specs, episodes=3)
    collector.unroll(6)
    (buffer,) = collector.buffers.values()
    lane = buffer[buffer.in_time_order(0)]
    breaks = [row for row in range(1, len(lane)) if lane.step_type[row] == 0 and lane.step_type[row - 1] != 2]
    # ticks 0 to 5 were seen; the open row of tick 4 gives way, and nobody will ever tell the rewards after it
    assert breaks == [4]


def test_an_evaluation_that_cannot_end_says_so():
    envs = MultiAgentEnvs([lambda: Meeting(max_moves=10**9)], lane_seeds=[1])
    spec = envs.agents["agent_0"]
    stay = RulePolicy(lambda seen: torch.ones(len(seen["own"])).long(), spec.observation, spec.action)
    policy_specs = assign_policies(envs.agents, {"*": "stay"})
    with pytest.raises(ConfigError, match=r"only 0 of 2 evaluation episodes ended within 0.05 s"):
        evaluate_agents({"stay": stay}, envs, policy_specs, episodes=2, time_limit_s=0.05)
    with pytest.raises(ConfigError, match="there are policies"):
        evaluate_agents({"other": RandomPolicy(spec.observation, spec.action)}, envs, policy_specs)
