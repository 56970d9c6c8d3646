"""`MultiAgentCollector`: what reaches which buffer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import DQN, PPO, DQNConfig, NetworkConfig, PPOConfig, RunSeeds
from palaestra.core import (
    ConfigError,
    DiscreteSpec,
    NonFiniteError,
    StepType,
    TensorSpec,
    restart,
    termination,
    transition,
)
from palaestra.distributed import AgentsFactory, AsynchronousConfig, DistributedConfig, RolloutManager, worker_streams
from palaestra.envs import EnvConfig
from palaestra.multiagent import (
    AgentSpec,
    Meeting,
    MultiAgentCollector,
    MultiAgentEnv,
    MultiAgentEnvs,
    MultiAgentStep,
    assign_policies,
    create_multi_agent_envs,
)
from palaestra.policies import RandomPolicy, RulePolicy
from palaestra.runtime import LocalRuntime
from palaestra.training import SimplePolicyManager, Trainer, TrainerConfig
from tests.multiagent.parts import RandomWorld, Shop

SMALL = NetworkConfig(hidden_sizes=(8,))


def collector_of(make, num_envs=3, mapping=None, algorithm="ppo", seed=0, lane_seeds=None, **actors):
    envs = MultiAgentEnvs([make] * num_envs, lane_seeds=lane_seeds or range(seed, seed + num_envs))
    policy_specs = assign_policies(envs.agents, mapping or {"*": "all"})
    for number, (name, spec) in enumerate(policy_specs.items()):
        if name in actors:
            continue
        kind, config = {
            "ppo": (PPO, PPOConfig(network=SMALL, unroll_length=10)),
            "dqn": (DQN, DQNConfig(network=SMALL, capacity=600, learning_starts=0)),
        }[algorithm]
        actors[name] = kind(spec.observation_spec, spec.action_spec, config, RunSeeds(seed + number))
    return MultiAgentCollector(envs, policy_specs, actors), actors


def lanes_of(buffer):
    """For each lane its rows in time order, the open one last."""
    for lane in range(buffer.num_lanes):
        order = buffer.in_time_order(lane)
        if len(order):
            yield lane, buffer[order]


def seen_of(rows):
    seen = rows.observation
    return (seen if isinstance(seen, torch.Tensor) else seen["seen"]).numpy()


TWO_KINDS = {"even_*": "even", "odd_*": "odd"}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), revive=st.booleans(), outcomes=st.integers(5, 90))
def test_no_transition_mixes_agents_lives_or_environments(seed, revive, outcomes):
    """MARO-15, TS-22: whoever appears, waits, dies or comes back, a lane is one agent's stream and nothing is lost."""
    collector, _ = collector_of(lambda: RandomWorld(revive=revive), mapping=TWO_KINDS, algorithm="dqn", seed=seed)
    collector.unroll(outcomes)
    for name, buffer in collector.buffers.items():
        agents = collector.policy_specs[name].agents
        for lane, rows in lanes_of(buffer):
            kinds, seen = rows.step_type.numpy(), seen_of(rows)
            number = list(collector.envs.agents).index(agents[lane % len(agents)])
            assert (seen[:, 0] == number).all(), "a lane shows another agent"
            for row in range(len(kinds) - 1):
                if kinds[row] == StepType.LAST:
                    assert kinds[row + 1] == StepType.FIRST
                    continue
                assert kinds[row + 1] != StepType.FIRST
                assert seen[row + 1, 1] == seen[row, 1] + 1, "a time step of a life is missing"
                assert seen[row + 1, 3] == seen[row, 3], "a transition spans two episodes of the environment"
                assert seen[row + 1, 2] > seen[row, 2]
                earned = 1.0 if int(rows.action[row]) == 1 else 0.5
                assert float(rows.reward[row + 1]) == earned, "a reward is not that of the action before it"
            ends = kinds == StepType.LAST
            assert (rows.discount.numpy()[~ends] == 1).all()
            assert (rows.discount.numpy()[ends & (seen[:, 2] < 25)] == 0).all(), "who dies early is terminated"


@settings(max_examples=12, deadline=None)
@given(delay=st.integers(0, 15), length=st.integers(1, 14), outcomes=st.integers(2, 60), parts=st.integers(1, 4))
def test_delayed_rewards_reach_the_action_that_earned_them(delay, length, outcomes, parts):
    """MARO-18: `reward_eval_delay` ticks later, and all of them at the end of an episode."""
    collector, _ = collector_of(lambda: Shop(delay, length), mapping={"*": "both"}, algorithm="dqn")
    for _ in range(parts):
        collector.unroll(outcomes / parts)
    (buffer,) = collector.buffers.values()
    for lane, rows in lanes_of(buffer):
        kinds, ticks = rows.step_type.numpy(), rows.observation.numpy()[:, 0]
        period = 1 if lane % 2 == 0 else 3
        for row in range(len(kinds) - 1):
            if kinds[row] != StepType.LAST:
                earned = 1000.0 * ticks[row] + 10 * int(rows.action[row])
                assert float(rows.reward[row + 1]) == earned
                assert ticks[row + 1] == min(ticks[row] + period, length)
        assert (ticks[kinds == StepType.LAST] == length).all()
    episodes = collector.drain()
    assert all(episode.info["ticks"] == length for episode in episodes)


def test_rows_wait_for_their_rewards_and_are_not_lost():
    collector, _ = collector_of(lambda: Shop(delay=5, length=30), num_envs=1, mapping={"*": "both"})
    collector.unroll(4)  # reset, and ticks 1 to 3: no reward can be told before tick 5
    (buffer,) = collector.buffers.values()
    assert len(buffer) == 0
    collector.unroll(4)  # up to tick 7: those of ticks 0, 1 and 2 are known
    buyer = dict(lanes_of(buffer))[0]
    assert buyer.observation[:, 0].tolist() == [0, 1, 2, 3]


def test_behaviour_is_that_of_the_weights_that_chose_even_where_rewards_come_after_an_update():
    """Log-probabilities are computed before new weights are taken, for rows that come later too."""
    collector, actors = collector_of(lambda: Shop(delay=4, length=40), num_envs=2, mapping={"*": "both"}, seed=3)
    ppo = actors["both"]
    stored: dict[tuple, tuple] = {}
    (buffer,) = collector.buffers.values()
    for _ in range(3):
        policies = {}
        weights = {key: value.clone() for key, value in ppo.policy.state_dict().items()}
        policies[ppo.policy_version] = weights
        stored[ppo.policy_version] = weights
        collector.unroll(10)
        for _, rows in lanes_of(buffer):
            for row in range(len(rows) - 1):
                if rows.step_type[row] == StepType.LAST:
                    continue
                now = ppo.policy.state_dict()
                kept = {key: value.clone() for key, value in now.items()}
                ppo.policy.load_state_dict(stored[int(rows.policy_version[row])])
                with torch.no_grad():
                    expected = ppo.policy.behaviour(rows.observation[row : row + 1], rows.action[row : row + 1])
                ppo.policy.load_state_dict(kept)
                assert torch.allclose(rows.policy_info.log_prob[row], expected.log_prob[0], atol=1e-6)
        versions = {int(v) for _, rows in lanes_of(buffer) for v in rows.policy_version[:-1]}
        assert ppo.policy_version == 0 or len(versions) == 2, "no row had to wait for an update"
        with torch.no_grad():
            for parameter in ppo.policy.parameters():
                parameter.add_(0.1)
        ppo.policy.version += 1
        buffer.draw(ppo.plan, torch.Generator())


def test_rules_act_beside_policies_that_learn():
    """MARO-19: a policy that only acts has no buffer."""
    spec = Shop().agents["painter"]
    rule = RulePolicy(lambda seen: seen[:, 0].long() % 3, spec.observation, spec.action)
    collector, _ = collector_of(Shop, mapping={"buyer": "learns", "painter": "rule"}, rule=rule)
    collector.unroll(12)
    assert list(collector.buffers) == ["learns"]
    (episode, *_) = collector.drain()
    assert episode.info["painter/return"] == sum(1000 * tick + 10 * (tick % 3) for tick in range(0, 11, 3))


def test_episodes_say_what_every_agent_and_policy_earned():
    """MARO-18, TS-26: the return is the sum over agents; a policy's is the mean over its agents."""
    collector, _ = collector_of(Shop, num_envs=1, mapping={"*": "both"})
    collector.unroll(12)
    (episode,) = collector.drain()
    buyer, painter = episode.info["buyer/return"], episode.info["painter/return"]
    assert episode.episode_return == buyer + painter
    assert episode.info["both/return"] == (buyer + painter) / 2
    assert (episode.length, episode.info["buyer/length"], episode.info["painter/length"]) == (11, 11, 4)


@pytest.mark.parametrize(
    ("make", "mapping"), [(lambda: RandomWorld(revive=True), TWO_KINDS), (lambda: Shop(5, 14), {"*": "both"})]
)
def test_discounted_returns_are_those_of_the_rows_that_are_learned_from(make, mapping):
    """F24: from the first step of each life of an agent, by its own actions; late rewards belong to their actions."""
    collector, _ = collector_of(make, num_envs=1, mapping=mapping, algorithm="dqn", seed=3)
    while not (episodes := collector.drain()):
        collector.unroll(1)
        collector.load_state(collector.state())
    for name, buffer in collector.buffers.items():
        worths = []
        for _, rows in lanes_of(buffer):
            begins = np.flatnonzero(rows.step_type.numpy() == StepType.FIRST)
            lives = np.split(rows.reward.numpy().astype(float), begins[1:])
            worths.append(np.mean([sum(0.99**k * reward for k, reward in enumerate(life[1:])) for life in lives]))
        assert episodes[0].info[f"{name}/discounted_return"] == pytest.approx(np.mean(worths))


@pytest.mark.parametrize("mapping", [{"*": "all"}, {"agent_0": "first", "*": "others"}])
def test_replay_learns_after_each_of_several_unrolls_for_one_step(mapping):
    """With an `unroll_length` of 1/4, four times for every row, as a policy of one agent does."""
    envs = MultiAgentEnvs([Meeting], lane_seeds=[0])
    policy_specs = assign_policies(envs.agents, mapping)
    config = DQNConfig(network=SMALL, capacity=600, learning_starts=10, unroll_length=0.25)
    learners = {name: DQN(spec.observation_spec, spec.action_spec, config) for name, spec in policy_specs.items()}
    collector = MultiAgentCollector(envs, policy_specs, learners)
    trainer = Trainer(collector, SimplePolicyManager(learners), TrainerConfig(total_env_steps=100))
    while collector.env_steps <= 10:
        trainer.train_iter()
    before = {name: one.num_gradient_steps for name, one in learners.items()}
    for _ in range(13):
        trainer.train_iter()
    assert {one.num_gradient_steps - before[name] for name, one in learners.items()} == {13}


def test_a_policy_that_acts_at_random_obeys_the_masks():
    collector, _ = collector_of(lambda: RandomWorld(6), mapping=TWO_KINDS, algorithm="dqn")
    collector.unroll(60, random=["odd"])
    for _, rows in lanes_of(collector.buffers["odd"]):
        taken = rows.action[:-1][rows.step_type[:-1] != StepType.LAST]
        allowed = rows.observation["action_mask"][:-1][rows.step_type[:-1] != StepType.LAST]
        assert allowed.gather(1, taken[:, None]).all()


def test_mistakes_in_the_mapping_are_named():
    """MARO-18: every agent has one policy, and agents that share one are alike."""
    agents = RandomWorld().agents
    with pytest.raises(ConfigError, match="see or do different things"):
        assign_policies(agents, {"*": "all"})
    with pytest.raises(ConfigError, match="gives no policy to odd_0, odd_1"):
        assign_policies(agents, {"even_*": "even"})
    with pytest.raises(ConfigError, match="did you mean 'even_0'"):
        assign_policies(agents, {"evn_0": "even", "*": "rest"})
    with pytest.raises(ConfigError, match="give it another name"):
        assign_policies(agents, {"*": "not/a/name"})
    envs = MultiAgentEnvs([Shop], lane_seeds=[1])
    policy_specs = assign_policies(envs.agents, {"*": "all"})
    policy = RandomPolicy(TensorSpec((3,)), DiscreteSpec(num=2))
    with pytest.raises(ConfigError, match=r"but there are policies \['other'\]"):
        MultiAgentCollector(envs, policy_specs, {"other": policy})
    with pytest.raises(ConfigError, match="make it with its policy spec"):
        MultiAgentCollector(envs, policy_specs, {"all": policy})


def test_an_observation_that_is_not_finite_names_environment_agent_seed_and_step():
    """F5: caught where it enters."""

    class Broken(Shop):
        def get_state(self, agent):
            return super().get_state(agent) / (0.0 if self.tick == 3 else 1.0)

    collector, _ = collector_of(Broken, num_envs=1, mapping={"*": "both"}, lane_seeds=[100])
    with (
        np.errstate(all="ignore"),
        pytest.raises(NonFiniteError, match=r"environment 0 .*seed \d+.* step 3, .*'buyer'"),
    ):
        collector.unroll(12)


def test_an_environment_may_learn_while_policies_infer():
    class Learning(Shop):
        def get_state(self, agent):
            weight = torch.nn.Parameter(torch.ones(2))
            (weight * self.tick).sum().backward()
            return weight.grad.numpy()

    collector, _ = collector_of(Learning, num_envs=1, mapping={"*": "both"}, lane_seeds=[100])
    assert collector.unroll(4).env_steps == 4 - 1  # of four time steps, one began the episode


class Seldom(MultiAgentEnv):
    """`often` acts in every step, `seldom` in one of 12; the first simulator that comes to step 15 crashes there."""

    crashed = True

    @property
    def agents(self):
        return {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in ("often", "seldom")}

    def begin_episode(self, seed):
        self.steps = 0
        return MultiAgentStep({name: restart(np.ones(1, np.float32)) for name in self.agents})

    def advance(self, actions):
        self.steps += 1
        if self.steps == 15 and not Seldom.crashed:
            Seldom.crashed = True
            raise RuntimeError("crashed")
        over = self.steps == 90
        names = ["often", *(["seldom"] if over or self.steps % 12 == 0 else [])]
        kind = termination if over else transition
        return MultiAgentStep({name: kind(np.ones(1, np.float32), 1.0) for name in names}, over)


@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize(("workers", "shards"), [(0, None), (2, None), (2, 2)])
def test_an_agent_that_acts_seldom_learns_as_soon_as_it_can(workers, shards, n_step):
    """F1: until a window lies in a lane, or all that lies there was broken off, its policy waits."""
    config = EnvConfig(name=f"{__name__}:Seldom", num_envs=2, on_fault="restart")

    def made():
        envs = create_multi_agent_envs(config)
        specs = assign_policies(envs.agents, {"often": "often", "seldom": "seldom"})
        settings = DQNConfig(n_step=n_step, learning_starts=10, unroll_length=6, network=SMALL)
        return specs, {n: DQN(s.observation_spec, s.action_spec, settings) for n, s in specs.items()}

    specs, algorithms = made()
    Seldom.crashed = False
    collector = MultiAgentCollector(create_multi_agent_envs(config), specs, algorithms)
    manager = SimplePolicyManager(algorithms)
    with LocalRuntime() as runtime:
        if workers:
            factory = AgentsFactory(env=config, num_workers=workers, actors=made)
            settings = DistributedConfig(runtime="local", num_workers=workers, replay_shards=shards)
            given = (runtime, factory, algorithms, collector.buffers, settings, AsynchronousConfig(), 2)
            collector = worker_streams(*given)
        Trainer(collector, manager, TrainerConfig(total_env_steps=240)).run()
    assert 0 < algorithms["seldom"].policy_version < algorithms["often"].policy_version


def test_workers_of_many_agents_play_no_whole_episodes():
    """Said before a worker begins, in the words of the command line."""
    envs = MultiAgentEnvs([Meeting, Meeting], lane_seeds=[0, 1])
    specs = assign_policies(envs.agents, {"*": "all"})
    learners = {"all": PPO(specs["all"].observation_spec, specs["all"].action_spec, PPOConfig(network=SMALL))}
    buffers = MultiAgentCollector(envs, specs, learners).buffers
    config = EnvConfig(name="palaestra.multiagent:Meeting", num_envs=2)
    factory = AgentsFactory(env=config, num_workers=1, actors=lambda: (specs, learners))
    with LocalRuntime() as runtime:
        settings = DistributedConfig(runtime="local", num_workers=1)
        manager = RolloutManager(runtime, factory, {"all": learners["all"].policy}, buffers, settings, num_envs=2)
        config = TrainerConfig(total_env_steps=100, episodes_per_iteration=4)
        with pytest.raises(ConfigError, match=r"episodes_per_iteration sets, is 2, but .*:Meeting has many agents"):
            Trainer(manager, SimplePolicyManager(learners), config).run()
        assert not manager.group.workers
