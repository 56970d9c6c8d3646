"""Policies of different kinds in one environment: a team that learns, and one agent that follows a rule."""

import torch

from palaestra import Linear, RunSeeds
from palaestra.algorithms import MAPPO, MAPPOConfig
from palaestra.multiagent import Meeting, MultiAgentCollector, MultiAgentEnvs, assign_policies, evaluate_agents
from palaestra.policies import RulePolicy
from palaestra.training import SimplePolicyManager, Trainer, TrainerConfig


def go_left(seen):
    """One agent always walks to the left end: the others have to find out."""
    return (seen["own"][:, 0] > 0).long()  # 0 goes left, 1 stays


def main() -> None:
    torch.set_num_threads(1)
    envs = MultiAgentEnvs([Meeting] * 8, lane_seeds=range(8))
    policy_specs = assign_policies(
        envs.agents, {"agent_0": "stubborn", "*": "team"}, teams=["team"], state_spec=envs.state_spec
    )
    rule = RulePolicy(go_left, policy_specs["stubborn"].observation_spec, policy_specs["stubborn"].action_spec)
    config = MAPPOConfig(unroll_length=32, learning_rate=1e-3, entropy_cost=Linear(0.1, 0.0), mini_batch_size=128)
    mappo = MAPPO(policy_specs["team"].observation_spec, policy_specs["team"].action_spec, config, RunSeeds(0))

    collector = MultiAgentCollector(envs, policy_specs, {"stubborn": rule, "team": mappo})
    trainer = Trainer(collector, SimplePolicyManager({"team": mappo}), TrainerConfig(total_env_steps=6_000))
    with MultiAgentEnvs([Meeting], lane_seeds=[99]) as test:
        for when in ("before", "after"):
            if when == "after":
                trainer.run()
            result = evaluate_agents({"stubborn": rule, "team": mappo.policy}, test, policy_specs, episodes=50)
            print(f"{when} training: {result}; the rule earned {result.parts['stubborn/return']:.2f}")


if __name__ == "__main__":
    main()
