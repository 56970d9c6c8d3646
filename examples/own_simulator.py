"""A bridge to an event-driven simulator: two lifts are asked where to go at different times, and rewards come late."""

import numpy as np

from palaestra import PPO, PPOConfig, RunSeeds, multiagent
from palaestra.core import BoundedSpec, DiscreteSpec
from palaestra.multiagent import AgentSpec, EnvWrapper, MultiAgentCollector, MultiAgentEnvs
from palaestra.training import SimplePolicyManager, Trainer, TrainerConfig

SPEC = AgentSpec(BoundedSpec((4,), minimum=np.array(0), maximum=np.array(50)), DiscreteSpec(num=4))
CONFIG = PPOConfig(unroll_length=40, learning_rate=2e-3, mini_batch_size=64, num_epochs=8, entropy_cost=0.01)
LIFTS = {"slow": SPEC, "fast": SPEC}


class Lifts(EnvWrapper):
    """Goes to one of four floors, at one floor per tick; a person who waits there is fetched, which earns 1."""

    agents = LIFTS

    def start(self, seed):
        self.rng, self.tick = np.random.default_rng(seed), 0
        self.waiting, self.busy, self.fetched = np.zeros(4), {"slow": 0, "fast": 0}, {}
        return list(self.busy)

    def run(self, env_action):
        for lift, floor in env_action.items():
            arrives = self.tick + (floor + 1) * (2 if lift == "slow" else 1)
            self.busy[lift], self.fetched[self.tick, lift] = arrives, (arrives, floor, 0.0)
        while self.tick < 40:
            self.tick += 1
            self.waiting[self.rng.choice(4, p=[0.1, 0.1, 0.2, 0.6])] += 1
            for key, (arrives, floor, _) in self.fetched.items():
                if arrives == self.tick:
                    self.fetched[key] = (arrives, floor, float(self.waiting[floor]))
                    self.waiting[floor] -= self.fetched[key][2]
            if free := [lift for lift, until in self.busy.items() if until <= self.tick]:
                return free if self.tick < 40 else []
        return []

    def get_state(self, agent):
        return self.waiting.astype(np.float32)

    def to_env_action(self, actions):
        return {lift: int(floor) for lift, floor in actions.items()}

    def get_reward(self, actions, tick, info):
        return {lift: self.fetched[tick, lift][2] for lift in actions}


if __name__ == "__main__":
    envs = MultiAgentEnvs([lambda: Lifts(reward_eval_delay=8)] * 4, lane_seeds=range(4))
    policy_specs = multiagent.assign_policies(envs.agents, {"slow": "slow", "fast": "fast"})
    ppo = {name: PPO(SPEC.observation, SPEC.action, CONFIG, RunSeeds(7)) for name in policy_specs}
    collector = MultiAgentCollector(envs, policy_specs, ppo)
    test = MultiAgentEnvs([Lifts], lane_seeds=[99])
    for total in (0, 6_000):
        if total:
            Trainer(collector, SimplePolicyManager(ppo), TrainerConfig(total_env_steps=total)).run()
        policies = {name: algorithm.policy for name, algorithm in ppo.items()}
        print(f"{total:>6,} env steps:", multiagent.evaluate_agents(policies, test, policy_specs, deterministic=False))
