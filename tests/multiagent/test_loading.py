"""Environments by name, and those of other libraries: PettingZoo's, both ways, and tuples of Gymnasium."""

import sys
import warnings
from typing import ClassVar

import gymnasium
import numpy as np
import pettingzoo
import pytest

from palaestra.core import ConfigError, DiscreteSpec, EnvError, StepType, TensorSpec, restart, transition
from palaestra.envs import EnvConfig, load
from palaestra.multiagent import (
    AgentSpec,
    Meeting,
    MultiAgentEnv,
    MultiAgentEnvs,
    MultiAgentStep,
    TupleAdapter,
    aec_env,
    assign_policies,
    check_multi_agent_env,
    create_multi_agent_envs,
    evaluate_agents,
    from_pettingzoo,
    is_multi_agent,
    load_multi_agent_env,
    parallel_env,
)
from palaestra.multiagent.acting import MappedPolicy
from palaestra.policies import RandomPolicy
from tests.multiagent.parts import RandomWorld, Shop

with warnings.catch_warnings():  # its tests import environments in a way that it warns of
    warnings.simplefilter("ignore")
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test


def play(env: MultiAgentEnv, seed: int, steps: int = 200) -> list[dict[str, tuple]]:
    """What everybody is told while acting at random, through the checks of the contract."""
    rng = np.random.default_rng(seed)
    told = []
    with MultiAgentEnvs([lambda: env], lane_seeds=[seed]) as envs:
        (outcome,) = envs.reset()
        for _ in range(steps):
            told.append({name: (int(s.step_type), float(s.reward)) for name, s in outcome.time_steps.items()})
            actions = {}
            for name, step in outcome.time_steps.items():
                if step.step_type != StepType.LAST:
                    mask = step.observation["action_mask"] if isinstance(step.observation, dict) else None
                    count = env.agents[name].action.num
                    actions[name] = int(rng.choice(np.arange(count) if mask is None else np.flatnonzero(mask)))
            (outcome,) = envs.step([actions])
    return told


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_pettingzoo_accepts_an_environment_as_an_aec_env(make):
    """USERS need 5: PettingZoo's own test of environments whose agents act one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(aec_env(make()), num_cycles=100)


def test_pettingzoo_accepts_an_environment_as_a_parallel_env():
    """USERS need 5: its own test of environments whose agents act together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(parallel_env(Meeting()), num_cycles=100)


def test_pettingzoo_finds_that_a_seed_determines_an_episode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_test(lambda: aec_env(Meeting()), num_cycles=20)
        parallel_seed_test(lambda: parallel_env(Meeting()), num_cycles=20)


def test_a_parallel_env_becomes_a_environment():
    env = load_multi_agent_env("pettingzoo:classic/rps_v2", {"max_cycles": 3})
    told = play(env, seed=1, steps=8)
    assert [step["player_0"][0] for step in told] == [0, 1, 1, 2, 0, 1, 1, 2]
    assert all(step["player_0"][1] == -step["player_1"][1] for step in told)


def test_an_aec_env_becomes_a_environment_whose_agents_take_turns():
    """USERS need 5: masks are honoured, the loser gets the reward of the winner's move with its own LAST."""
    env = from_pettingzoo(pettingzoo.make("aec", "classic/tictactoe-v3"))
    told = play(env, seed=3)
    assert all(len(step) == 1 or all(kind == 2 for kind, _ in step.values()) for step in told)
    ends = [step for step in told if any(kind == 2 for kind, _ in step.values())]
    assert len(ends) > 10
    assert all(set(step) == {"player_1", "player_2"} for step in ends)
    assert {round(sum(reward for _, reward in step.values())) for step in ends} == {0}
    assert any(reward == -1 for step in ends for _, reward in step.values())


def test_a_environment_survives_the_way_to_pettingzoo_and_back():
    """The same seed and actions give the same time steps, whichever way they go."""
    there = Meeting()
    back = from_pettingzoo(parallel_env(Meeting()))
    assert dict(back.agents) == dict(there.agents)
    first = back.begin_episode(7)
    seed = int(np.random.default_rng(7).integers(2**31))
    expected = there.begin_episode(seed)
    for _ in range(5):
        for name in there.agents:
            assert first.time_steps[name].step_type == expected.time_steps[name].step_type
            assert np.array_equal(
                first.time_steps[name].observation["own"], expected.time_steps[name].observation["own"]
            )
        first, expected = (env.advance(dict.fromkeys(there.agents, 1)) for env in (back, there))


class Pair(pettingzoo.ParallelEnv):
    """Two agents that see how far they are, in one array that every step overwrites."""

    metadata: ClassVar = {"name": "pair"}
    possible_agents: ClassVar = ["a", "b"]
    ends: ClassVar = {"a": 2, "b": 4}

    def __init__(self, ghost=False, masks=False):
        self.ghost, self.masks, self.seen = ghost, masks, np.zeros(1, np.float32)

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        self.seen[:] = 0
        return dict.fromkeys(self.agents, self.seen), {name: {} for name in self.agents}

    def step(self, actions):
        self.steps += 1
        self.seen[:] = self.steps
        over = {name: self.steps >= self.ends[name] for name in actions}
        self.agents = [name for name in actions if not over[name]]
        infos = {name: {"action_mask": np.ones(3, np.int8)} if self.masks else {} for name in actions}
        cuts = dict.fromkeys(actions, False)
        return dict.fromkeys(actions, self.seen), dict.fromkeys(actions, 0.0), cuts if self.ghost else over, cuts, infos


@pytest.mark.parametrize(
    ("kind", "steps", "message"),
    [
        ("ghost", 2, r"'a' has left `agents` and has not ended, .* sets terminations\['a'\] in that step"),
        ("masks", 1, r"info has an action_mask, which no policy reads there; .* for every agent from reset on"),
    ],
)
def test_what_a_parallel_env_leaves_unsaid_is_refused(kind, steps, message):
    """An agent played on as a ghost, and a mask that only steps report was ignored."""
    env = from_pettingzoo(Pair(**{kind: True}))
    env.begin_episode(1)
    for _ in range(steps - 1):
        env.advance({"a": 0, "b": 0})
    with pytest.raises(EnvError, match=message):
        env.advance({"a": 0, "b": 0})


class Waiting(MultiAgentEnv):
    """Of two agents only `b` acts after the first step; what both see is written into one array."""

    agents: ClassVar = {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in "ab"}

    def begin_episode(self, seed):
        self.steps, self.seen = 0, np.zeros(1, np.float32)
        return MultiAgentStep({name: restart(self.seen) for name in "ab"})

    def advance(self, actions):
        self.steps += 1
        self.seen[:] = self.steps
        return MultiAgentStep({"b": transition(self.seen, 0.0)})


def test_what_an_agent_saw_stays_where_an_environment_writes_it_into_one_array():
    env = Waiting()
    spec = assign_policies(env.agents, {"*": "all"}, teams=("all",))["all"]
    mapped = MappedPolicy(spec.random_policy(), spec, 1, delayed=False)
    mapped.take(0, env.begin_episode(1))
    (row,) = mapped.take(0, env.advance({"a": 0, "b": 0}))
    assert row.observation[0].tolist() == [[0.0], [1.0]]


class Turns(pettingzoo.AECEnv):
    """`a` moves, and both die; each sees the step in which it is asked, in one array."""

    metadata: ClassVar = {"name": "turns"}
    possible_agents: ClassVar = ["a", "b"]
    observation_space, action_space = Pair.observation_space, Pair.action_space

    def __init__(self):
        self.seen = np.zeros(1, np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.seen[:] = list(self.possible_agents), "a", 0
        for name in ("rewards", "_cumulative_rewards"):
            setattr(self, name, dict.fromkeys(self.agents, 0.0))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {name: {} for name in self.agents}

    def observe(self, agent):
        return self.seen

    def step(self, action):
        self.seen += 1
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.agent_selection = "b" if self.agent_selection == "a" else "a"
        if self.seen[0] == 2:
            self.terminations = dict.fromkeys(self.agents, True)
            self._deads_step_first()


def test_agents_that_die_together_keep_what_each_saw_last():
    env = from_pettingzoo(Turns())
    env.begin_episode(1)
    env.advance({"a": 0})
    last = env.advance({"b": 0}).time_steps
    assert sorted(float(one.observation[0]) for one in last.values()) == [2.0, 3.0]


def test_agents_that_wait_are_refused_where_all_must_act():
    env = parallel_env(Shop())
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"'painter'.* wait while others act, .* use aec_env"):
        env.step(dict.fromkeys(env.agents, 0))


def test_names_that_mean_nothing_are_refused_with_an_example():
    with pytest.raises(ConfigError, match=r"did you mean 'classic/rps-v2'\?$"):
        load_multi_agent_env("pettingzoo:classic/rpss-v2")
    with pytest.raises(ConfigError, match="a ParallelEnv or an AECEnv is needed"):
        from_pettingzoo(object())


def test_a_missing_package_of_a_family_is_named(monkeypatch):
    """The advice was the id in PettingZoo's own spelling, which does not help."""
    monkeypatch.setitem(sys.modules, "rlcard", None)
    for module in [one for one in sys.modules if one.startswith("pettingzoo.classic.rlcard_envs")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"rlcard.*: pip install 'pettingzoo\[classic\]'$"):
        load_multi_agent_env("pettingzoo:classic/leduc_holdem_v4")


def rock_paper(**kwargs):
    """As packages of PettingZoo environments have it: nothing says what it returns."""
    return pettingzoo.make("parallel", "classic/rps-v2", **kwargs)


def needs_arguments(size):
    raise AssertionError("not called to see")


@pytest.mark.parametrize(
    ("name", "many"),
    [("rock_paper", True), ("in_turns", True), ("a_pole", False), ("needs_arguments", False), ("Foragers", False)],
)
def test_a_function_without_annotations_is_asked_what_it_makes(name, many):
    """The public `parallel_env` and `env` of third-party packages have none."""
    assert is_multi_agent(f"{__name__}:{name}") is many


def in_turns():
    return pettingzoo.make("aec", "classic/tictactoe-v3")


def a_pole():
    return gymnasium.make("CartPole-v1")


def test_such_a_function_is_trained_and_checked_by_its_name():
    assert check_multi_agent_env(f"{__name__}:rock_paper", steps=20).ok
    with create_multi_agent_envs(EnvConfig(name=f"{__name__}:rock_paper", kwargs={"max_cycles": 2})) as envs:
        assert list(envs.agents) == ["player_0", "player_1"]


class Foragers(gymnasium.Env):
    """The interface of rware and lbforaging; agent i earns i a step. It ends for all, or each after i + 1 steps."""

    def __init__(self, agents=3, apart=False):
        self.apart, self.count = apart, agents
        self.observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 9, (2,), np.float32)] * agents)
        self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(4)] * agents)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(tuple(action))
        self.steps += 1
        ends = [self.steps > slot for slot in range(self.count)] if self.apart else self.steps == 4
        return self._seen(), [float(slot) for slot in range(self.count)], ends, False, {}

    def _seen(self):
        return tuple(np.array([slot, self.steps], np.float32) for slot in range(self.count))


gymnasium.register("tests/Foragers-v0", Foragers, max_episode_steps=3)


@pytest.mark.parametrize(("apart", "returns"), [(False, [0, 4, 8]), (True, [0, 3, 6])])
def test_tuples_and_a_list_of_rewards_are_several_agents(apart, returns):
    """An agent that has ended earns on, without acting; the others go on."""
    with MultiAgentEnvs([lambda: TupleAdapter(Foragers(apart=apart))], lane_seeds=[1]) as envs:
        policy_specs = assign_policies(envs.agents, {"*": "all"})
        policy = RandomPolicy(policy_specs["all"].observation_spec, policy_specs["all"].action_spec)
        parts = evaluate_agents({"all": policy}, envs, policy_specs, episodes=2).parts
    assert [parts[f"agent_{slot}/return"] for slot in range(3)] == returns
    assert [parts[f"agent_{slot}/length"] for slot in range(3)] == ([1, 2, 3] if apart else [4, 4, 4])


def reporting(kind):
    """Each reports a cost in every step: its agents 1 and 2, or one number for all."""
    if kind == "tuple":
        made = Foragers(agents=2)
        made.step = lambda action: (*Foragers.step(made, action)[:4], {"cost": 2.0})
        return TupleAdapter(made)
    if kind == "aec":
        made = Turns()
        made.reset = lambda **how: (Turns.reset(made), made.infos.update(b={"cost": 2.0, "return": 9.0}))
        return from_pettingzoo(made)
    made = pettingzoo.make("parallel", "classic/rps-v2", max_cycles=3)
    step, infos = made.step, {"player_0": {"cost": 1, "won": np.bool_(True), "return": 9.0}, "player_1": {"cost": 2}}
    made.step = lambda actions: (*step(actions)[:4], infos)
    return from_pettingzoo(made)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tuple", {"cost": 8.0, "cost@mean": 2.0, "cost@max": 2.0}),
        ("aec", {"b/cost": 2.0, "b/cost@mean": 2.0, "b/return": 0.0}),
        ("parallel", {"player_0/cost": 3.0, "player_1/cost": 6.0, "player_1/cost@max": 2.0, "player_0/won@mean": 1.0}),
    ],
)
def test_numbers_that_agents_report_are_summed_up(kind, expected):
    """ALF-20, ALF-57: as those of one agent; the library's own names, such as `<agent>/return`, stay."""
    with MultiAgentEnvs([lambda: reporting(kind)], lane_seeds=[1]) as envs:
        policy_specs = assign_policies(envs.agents, {"*": "all"})
        policy = RandomPolicy(policy_specs["all"].observation_spec, policy_specs["all"].action_spec)
        parts = evaluate_agents({"all": policy}, envs, policy_specs, episodes=2).parts
    assert {name: parts[name] for name in expected} == expected
    if kind == "parallel":
        assert -3 <= parts["player_0/return"] <= 3


def test_an_id_of_the_registry_is_one_of_several_agents_where_its_name_says_so():
    """The registered time limit cuts them off."""
    assert is_multi_agent("agents/tests/Foragers-v0")
    assert check_multi_agent_env("agents/tests/Foragers-v0", steps=20).ok
    env = load_multi_agent_env("agents/tests/Foragers-v0", {"agents": 2})
    env.begin_episode(0)
    steps = [env.advance({"agent_0": 0, "agent_1": 3}) for _ in range(3)]
    assert [step.over for step in steps] == [False, False, True]
    assert all(one.truncated for one in steps[-1].time_steps.values())


def test_a_mask_for_several_agents_in_info_is_refused():
    made = Foragers()
    made.step = lambda action: (*Foragers.step(made, action)[:4], {"action_mask": [np.ones(4)] * 3})
    env = TupleAdapter(made)
    env.begin_episode(1)
    with pytest.raises(EnvError, match="put each agent's into its observation, a Dict with the key action_mask"):
        env.advance(dict.fromkeys(env.agents, 0))


def test_what_is_not_of_several_agents_is_told_what_to_be():
    with pytest.raises(ConfigError, match="with a Tuple of their observations and one of their actions"):
        load_multi_agent_env("agents/CartPole-v1")
    single = load("tests/Foragers-v0")
    single.seed(0)
    single.reset()
    with pytest.raises(EnvError, match=r"shape \(3,\), expected \(\); .* name the environment `agents/<its id>`"):
        single.step((0, 0, 0))


def test_a_curriculum_reaches_the_environment_inside():
    config = EnvConfig(name="agents/tests/Foragers-v0")
    with create_multi_agent_envs(config) as envs:
        envs.set_attr("apart", True)
        envs.reset()
        assert envs.get_attr("apart") == [True]
