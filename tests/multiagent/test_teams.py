"""Teams: agents that learn together, one lane per environment."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import NetworkConfig, RunSeeds
from palaestra.algorithms import COMA, MADDPG, MAPPO, MASAC, QMIX, MAPPOConfig, QMIXConfig
from palaestra.core import (
    Batch,
    BoundedSpec,
    ConfigError,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    StepType,
    TensorSpec,
    restart,
    spec_leaves,
    termination,
    transition,
    truncation,
)
from palaestra.multiagent import (
    AgentsConfig,
    AgentSpec,
    Meeting,
    MultiAgentCollector,
    MultiAgentEnv,
    MultiAgentEnvs,
    MultiAgentStep,
    aec_env,
    assign_policies,
    from_pettingzoo,
    team_specs,
)
from palaestra.multiagent.mapping import team_leaves
from palaestra.policies import ObservationNormalizer, TeamGreedyPolicy, load_policy, save_policy
from tests.multiagent.parts import RandomWorld, Shop
from tests.multiagent.test_collector import lanes_of

SMALL = NetworkConfig(hidden_sizes=(8,))


def team_of(make, num_envs=2, seed=0, kind=QMIX, mapping=None):
    envs = MultiAgentEnvs([make] * num_envs, lane_seeds=range(seed, seed + num_envs))
    mapping = mapping or {"*": "team"}
    policy_specs = assign_policies(envs.agents, mapping, teams=set(mapping.values()), state_spec=envs.state_spec)
    actors = {
        name: kind(spec.observation_spec, spec.action_spec, kind.config_class(network=SMALL), RunSeeds(seed))
        for name, spec in policy_specs.items()
    }
    return MultiAgentCollector(envs, policy_specs, actors), actors


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), revive=st.booleans(), outcomes=st.integers(5, 80))
def test_a_team_has_a_lane_per_environment_in_which_every_member_keeps_its_place(seed, revive, outcomes):
    """DESIGN.md section 7: fields [G, ...], `alive` says who acts, episodes end with the last member's."""
    mapping = {"even_*": "even", "odd_*": "odd"}
    collector, _ = team_of(lambda: RandomWorld(6, revive=revive), seed=seed, mapping=mapping)
    collector.unroll(outcomes)
    names = list(collector.envs.agents)
    for team, buffer in collector.buffers.items():
        members = [names.index(name) for name in collector.policy_specs[team].agents]
        assert buffer.num_lanes == 2
        for _, rows in lanes_of(buffer):
            kinds, alive = rows.step_type.numpy(), rows.observation["alive"].numpy()
            seen = rows.observation["observation"]
            seen = (seen if isinstance(seen, torch.Tensor) else seen["seen"]).numpy()  # [T, G, 4]
            steps, state = rows.observation["global_state"].numpy().T
            was_seen = seen[..., 3] > 0
            assert (seen[..., 0][was_seen] == np.broadcast_to(members, was_seen.shape)[was_seen]).all()
            assert (seen[..., 2][alive > 0] == np.broadcast_to(steps[:, None], alive.shape)[alive > 0]).all()
            cut_off = rows.discount.numpy() > 0
            assert (alive[kinds == StepType.LAST].any(-1) == cut_off[kinds == StepType.LAST]).all()
            for row in range(len(kinds) - 1):
                if kinds[row] == StepType.LAST:
                    assert kinds[row + 1] == StepType.FIRST
                    continue
                assert kinds[row + 1] != StepType.FIRST
                assert state[row] == state[row + 1], "a transition spans two episodes of the environment"
                for slot in range(len(members)):
                    reward = float(rows.reward[row + 1, slot])
                    if reward:  # a member may have acted several rows ago, and waited for the others
                        acted = next(r for r in range(row, -1, -1) if alive[r, slot])
                        assert reward == (1.0 if int(rows.action[acted, slot]) == 1 else 0.5)


@settings(max_examples=12, deadline=None)
@given(delay=st.integers(0, 9), length=st.integers(1, 10), outcomes=st.integers(3, 40))
def test_late_rewards_reach_the_member_and_the_row_that_follows_its_action(delay, length, outcomes):
    """MARO-18 for teams: a row waits for all of its members' rewards."""
    collector, _ = team_of(lambda: Shop(delay, length))
    collector.unroll(outcomes)
    (buffer,) = collector.buffers.values()
    for _, rows in lanes_of(buffer):
        alive, ticks = rows.observation["alive"].numpy(), rows.observation["observation"][:, 0, 0].numpy()
        for row in range(len(rows.step_type) - 1):
            if rows.step_type[row] == StepType.LAST:
                continue
            assert float(rows.reward[row + 1, 0]) == 1000 * ticks[row] + 10 * int(rows.action[row, 0])
            arrived = float(rows.reward[row + 1, 1])
            if arrived:
                acted = next(r for r in range(row, -1, -1) if alive[r, 1])
                assert arrived == 1000 * ticks[acted] + 10 * int(rows.action[acted, 1])


def test_members_that_do_not_act_change_no_gradient():
    """Whoever is not `alive` has no part in surrogate, entropy or mixture."""
    collector, actors = team_of(lambda: RandomWorld(4), kind=MAPPO, mapping={"even_*": "even", "odd_*": "odd"})
    collector.unroll(30)
    mappo = actors["odd"]
    with torch.no_grad():  # away from the uniform start
        for parameter in mappo.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    drawn = collector.buffers["odd"].draw(mappo.plan, torch.Generator())
    batch = mappo.preprocess(drawn, collector.buffers["odd"])
    idle = batch.observation.alive == 0
    assert idle.any()
    other = batch.replace(action=torch.where(idle, (batch.action + 1) % 2, batch.action))
    ours, theirs = mappo.gradients(batch), mappo.gradients(other)
    assert all(torch.equal(ours.values[name], theirs.values[name]) for name in ours.values)


def test_entropy_lowers_the_loss_of_a_team_and_errors_of_its_values_raise_it():
    """Schulman et al. 2017, equation (9)."""
    collector, actors = team_of(lambda: RandomWorld(4), kind=MAPPO, mapping={"even_*": "even", "odd_*": "odd"})
    collector.unroll(10)
    mappo, buffer = actors["odd"], collector.buffers["odd"]
    batch = mappo.preprocess(buffer.draw(mappo.plan, torch.Generator()), buffer)
    mappo.config = dataclasses.replace(mappo.config, entropy_cost=0.3, value_cost=0.7)
    losses = mappo.losses(batch)
    seen = losses.metrics
    assert seen["entropy"] > 0.1
    total = seen["surrogate"] + 0.7 * seen["value_error"] - 0.3 * seen["entropy"]
    torch.testing.assert_close(losses.terms["mappo"], total)


def test_the_mixture_never_falls_where_a_member_is_worth_more():
    """Equation (5) of QMIX: what is best for a member is best for the team."""
    _, actors = team_of(Meeting)
    mixer = actors["team"].mixer
    generator = torch.Generator().manual_seed(0)
    view = Batch(global_state=torch.rand(64, 15, generator=generator), alive=torch.ones(64, 3))
    q = torch.randn(64, 3, generator=generator, requires_grad=True)
    (slope,) = torch.autograd.grad(mixer(q, view).sum(), q)
    assert (slope >= 0).all()
    assert (slope > 0).any()


def test_a_policy_is_not_called_as_an_agent_of_several():
    """Their returns would have one name in metrics."""
    agents = {name: AgentSpec(TensorSpec((2,)), DiscreteSpec(num=2)) for name in ("buyer", "seller")}
    with pytest.raises(ConfigError, match="the policy 'buyer' acts for buyer, seller, and an agent is called like it"):
        assign_policies(agents, {"*": "buyer"})
    assert list(assign_policies(agents, {"buyer": "buyer", "*": "others"})) == ["buyer", "others"]


@pytest.mark.parametrize(
    ("agents", "policies"),
    [
        ("0 1", "agent_0 agent_1"),
        ("a.1 a-1 a_1 b-1", "a_1_2 a_1_3 a_1 b_1"),
        ("keys training agent_0 0 x²", "agent_keys agent_training agent_0 agent_0_2 agent_x_"),
        ("नि_1 न.1", "न__1 न_1"),  # the first was called so before
    ],
)
def test_every_agent_has_a_separate_policy_with_a_name_of_its_own(agents, policies):
    """Agents of PettingZoo may be numbers; and `a-1` shared a policy with `a.1`."""
    member = AgentSpec(TensorSpec((2,)), DiscreteSpec(num=2))
    config = AgentsConfig(sharing="separate")
    specs = config.policy_specs(dict.fromkeys(agents.split(), member), teams=(), state_spec=None)
    assert {spec.agents: name for name, spec in specs.items()} == {
        (agent,): policy for agent, policy in zip(agents.split(), policies.split(), strict=True)
    }
    torch.nn.ModuleDict({name: torch.nn.Identity() for name in specs})


def test_a_policy_that_would_have_no_agent_is_refused_by_name():
    """The first pattern that fits counts; the later one was left out without a word."""
    agents = {name: AgentSpec(TensorSpec((2,)), DiscreteSpec(num=2)) for name in ("buyer_0", "buyer_1", "seller")}
    with pytest.raises(ConfigError, match=r"'buyer_1' after a pattern .* the policy 'second' would have no"):
        assign_policies(agents, {"buyer_*": "first", "buyer_1": "second", "*": "others"})
    specs = assign_policies(agents, {"buyer_1": "second", "buyer_*": "first", "*": "others"})
    assert {name: spec.agents for name, spec in specs.items()} == {
        "first": ("buyer_0",),
        "second": ("buyer_1",),
        "others": ("seller",),
    }
    assert list(assign_policies(agents, {"buyer_*": "first", "seller": "first", "*": "first"})) == ["first"]


def test_what_a_team_cannot_be_is_said():
    box = BoundedSpec((2,), minimum=np.array(-1.0), maximum=np.array(1.0))
    nested = AgentSpec(TensorSpec((2,)), {"a": box})
    with pytest.raises(ConfigError, match="one discrete action, or a box of numbers"):
        team_specs(nested, 2)
    with pytest.raises(ConfigError, match="For boxes use MADDPG"):
        MAPPO(*team_specs(AgentSpec(TensorSpec((2,)), box), 2))
    with pytest.raises(ConfigError, match="needs a continuous action space"):
        MADDPG(*team_specs(AgentSpec(TensorSpec((2,)), DiscreteSpec(num=2)), 2))
    with pytest.raises(ConfigError, match="needs an observation with `observation` and `alive`"):
        QMIX(TensorSpec((3,)), DiscreteSpec(num=2))


@pytest.mark.parametrize("kind", [MAPPO, QMIX])
def test_a_team_policy_can_be_saved_and_loaded(kind, tmp_path):
    """The artefact of a run acts as the policy did."""
    spec = next(iter(Meeting().agents.values()))
    observation, action = team_specs(spec, 3, Meeting().state_spec)
    policy = kind(observation, action, (MAPPOConfig if kind is MAPPO else QMIXConfig)(network=SMALL)).policy
    save_policy(policy, tmp_path / "team")
    loaded = load_policy(tmp_path / "team")
    seen = {
        "observation": {"own": np.eye(5, dtype=np.float32)[:3], "all": np.full((3, 5), 0.2, np.float32)},
        "alive": np.ones(3, np.float32),
        "action_mask": np.ones(9, np.int8),
        "global_state": np.zeros(15, np.float32),
    }
    assert (policy(seen) == loaded(seen)).all()
    assert isinstance(loaded, TeamGreedyPolicy) == (kind is QMIX)


class CutOff(MultiAgentEnv):
    """Two agents that see one number and are paid 1 in each of 3 steps, after which a time limit cuts them off."""

    agents: ClassVar = {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in "ab"}

    def begin_episode(self, seed):
        self.steps = 0
        return MultiAgentStep({name: restart(np.ones(1, np.float32)) for name in self.agents})

    def advance(self, actions):
        self.steps += 1
        kind = truncation if self.steps == 3 else transition
        return MultiAgentStep({name: kind(np.ones(1, np.float32), 1.0) for name in self.agents}, self.steps == 3)


def test_a_team_that_was_cut_off_is_worth_what_it_would_have_gained():
    """ALF-26: a time limit is no end; members that were cut off count in the value that follows."""
    envs = MultiAgentEnvs([CutOff], lane_seeds=[0])
    (spec,) = assign_policies(envs.agents, {"*": "team"}, teams={"team"}).values()
    qmix = QMIX(spec.observation_spec, spec.action_spec, QMIXConfig(mixing="sum", network=SMALL), RunSeeds(0))
    collector = MultiAgentCollector(envs, {"team": spec}, {"team": qmix})
    collector.unroll(9)
    drawn = collector.buffers["team"].draw(qmix.plan, torch.Generator())
    batch = qmix.preprocess(drawn, collector.buffers["team"])
    best = qmix.policy.q_values(Batch(observation=torch.ones(1, 2, 1), alive=torch.ones(1, 2))).max(-1).values.sum()
    taken = qmix.policy.q_values(batch.observation).gather(-1, batch.action.unsqueeze(-1)).sum((-1, -2))
    error = taken - (1 + qmix.config.gamma * best)
    torch.testing.assert_close(qmix.losses(batch).terms["qmix"], error.square().mean())


class Turns(MultiAgentEnv):
    """Two agents act in turns, each of which pays its mover 1, until a time limit cuts them off after 4."""

    agents: ClassVar = {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in "ab"}

    def begin_episode(self, seed):
        self.turn = 0
        return MultiAgentStep({"a": restart(np.ones(1, np.float32))})

    def advance(self, actions):
        self.turn += 1
        seen, mover = np.ones(1, np.float32), "ab"[self.turn % 2]
        if self.turn < 4:
            first = self.turn == 1
            return MultiAgentStep({mover: restart(seen) if first else transition(seen, 1.0)})
        return MultiAgentStep({"a": truncation(seen, 1.0), "b": truncation(seen, 0.0)}, True, next_agents=[mover])


class MovesInTurns(Turns):
    """The same with actions of a box."""

    agents: ClassVar = {
        name: AgentSpec(TensorSpec((1,)), BoundedSpec((1,), minimum=np.full(1, -1.0), maximum=np.ones(1)))
        for name in "ab"
    }


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize(
    ("world", "kind", "counted"),
    [
        (Turns, QMIX, [1, 0]),
        (Turns, MAPPO, [1, 0]),
        (Turns, COMA, [1, 0]),
        (MovesInTurns, MADDPG, [1, 1]),
        (MovesInTurns, MASAC, [1, 1]),
    ],
)
def test_where_a_team_that_takes_turns_is_cut_off_one_value_is_that_of_the_next(world, kind, counted, adapted):
    """ALF-26: as in every other row one of them is to act; values of their own all go on."""
    collector, _ = team_of((lambda: from_pettingzoo(aec_env(world()))) if adapted else world, kind=kind)
    collector.unroll(5)
    _, rows = next(lanes_of(collector.buffers["team"]))
    assert rows.step_type[:5].tolist() == [0, 1, 1, 1, 2]
    assert rows.observation.alive[:5].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], counted]
    assert rows.discount[4] == 1


def test_choices_that_members_see_count_from_0_and_several_are_one_hot_codes():
    seen = {"one": DiscreteSpec(num=3, start=5), "many": MultiDiscreteSpec(nvec=(2, 3))}
    member = AgentSpec(seen, DiscreteSpec(num=2))
    observation, _ = team_specs(member, 2)
    choices = [{"one": 5, "many": np.array([0, 2])}, {"one": 7, "many": np.array([1, 0])}]

    leaves = dict(
        zip(
            spec_leaves(observation["observation"]),
            team_leaves(member, choices, observation["observation"]),
            strict=True,
        )
    )

    assert leaves["one"].tolist() == [0, 2]
    assert leaves["many"].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]


class Parting(MultiAgentEnv):
    """Episodes of one step, in which both earn 1; a has ended then, and b is cut off."""

    agents: ClassVar = {
        name: AgentSpec(TensorSpec((1,)), BoundedSpec((1,), minimum=np.full(1, -1.0), maximum=np.ones(1)))
        for name in "ab"
    }

    def begin_episode(self, seed):
        return MultiAgentStep({name: restart(np.ones(1, np.float32)) for name in "ab"})

    def advance(self, actions):
        seen = np.ones(1, np.float32)
        return MultiAgentStep({"a": termination(seen, 1.0), "b": truncation(seen, 1.0)}, True)


@pytest.mark.parametrize("kind", [MADDPG, MASAC])
def test_a_member_that_ended_in_the_last_step_is_not_bootstrapped_from_where_another_was_cut_off(kind):
    collector, actors = team_of(Parting, kind=kind)
    collector.unroll(20)
    algorithm, buffer = actors["team"], collector.buffers["team"]
    batch = algorithm.preprocess(buffer.draw(algorithm.plan, torch.Generator().manual_seed(0)), buffer)
    assert batch.bootstrap[:, 0].eq(0).all()
    assert batch.bootstrap[:, 1].gt(0.9).all()


class Barred(MultiAgentEnv):
    """Action 0 is never allowed, not even where the whole team is cut off after three steps."""

    agents: ClassVar = {
        name: AgentSpec({"x": TensorSpec((1,)), "action_mask": MultiBinarySpec((3,))}, DiscreteSpec(num=3))
        for name in "ab"
    }
    seen: ClassVar = {"x": np.ones(1, np.float32), "action_mask": np.array([0, 1, 1], np.int8)}

    def begin_episode(self, seed):
        self.steps = 0
        return MultiAgentStep({name: restart(self.seen) for name in "ab"})

    def advance(self, actions):
        self.steps += 1
        outcome = truncation if self.steps == 3 else transition
        return MultiAgentStep({name: outcome(self.seen, 1.0) for name in "ab"}, self.steps == 3)


@pytest.mark.parametrize("kind", [MAPPO, COMA])
def test_metrics_do_not_read_what_a_mask_forbids_where_a_team_was_cut_off(kind):
    collector, actors = team_of(Barred, kind=kind)
    collector.unroll(16)
    found = actors["team"].update(collector.buffers["team"]).metrics
    assert all(np.isfinite(value) for value in found.values()), found


def test_who_is_alive_stays_0_or_1_behind_a_normaliser():
    """As long as all are alive, the first death would be 10 standard deviations away."""
    collector, _ = team_of(lambda: Meeting(num_agents=3))
    spec = collector.buffers["team"].options["observation_spec"]
    normalizer = ObservationNormalizer(spec)
    collector.unroll(8)
    rows = collector.buffers["team"].newest(6).observation
    normalizer.merge(normalizer.increment(rows))
    died = rows.replace(alive=torch.zeros_like(rows.alive))
    assert normalizer(died).alive.eq(0).all()
    assert not torch.equal(normalizer(rows).global_state, rows.global_state)
