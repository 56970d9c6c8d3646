"""What belongs to no action of an agent: antes, resignations, ends before a first turn. A referee adds it all up."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv

from palaestra.core import DiscreteSpec, EnvError, NonFiniteError, TensorSpec, restart, termination, transition
from palaestra.envs import EnvConfig
from palaestra.multiagent import (
    AgentSpec,
    EnvWrapper,
    MultiAgentCollector,
    MultiAgentEnv,
    MultiAgentEnvs,
    MultiAgentStep,
    SelfPlayConfig,
    aec_env,
    assign_policies,
    create_multi_agent_envs,
    evaluate_agents,
    from_pettingzoo,
    parallel_env,
)
from palaestra.policies import Policy, PolicyStep, RandomPolicy
from palaestra.runs.matches import Player, play_match


class Fold(AECEnv):
    """p0 folds (action 1), and pays p1 so much; or plays on, and after p1's move is paid 2 by it."""

    def __init__(self, folded: tuple[float, float] = (-1.0, 1.0)) -> None:
        self.metadata, self.render_mode, self.folded = {"name": "fold"}, None, folded
        self.possible_agents = ["p0", "p1"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.zeros(1, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection = list(self.possible_agents), self.possible_agents[0]
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {name: {} for name in self.agents}

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[mover], self.rewards = 0.0, dict.fromkeys(self.agents, 0.0)
        self.move(mover, action)
        self._accumulate_rewards()
        self._deads_step_first()

    def move(self, mover: str, action: Any) -> None:
        paid = self.folded if mover == "p0" and action == 1 else (2.0, -2.0) if mover == "p1" else None
        self.agent_selection = "p1" if mover == "p0" else "p0"
        if paid:
            self.rewards = dict(zip(self.agents, paid, strict=True))
            self.terminations = dict.fromkeys(self.agents, True)


class Drawn(Fold):
    """A game drawn by its seed: antes, who moves, what each move pays to whom, who is out after it, and how."""

    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.possible_agents = [f"p{slot}" for slot in range(number)]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.rng = np.random.default_rng(seed)
        self._cumulative_rewards = {name: float(self.rng.integers(-3, 4)) for name in self.agents}
        self.agent_selection = str(self.rng.choice(self.agents))
        self.paid = [dict(self._cumulative_rewards)]  # what the referee reads

    def move(self, mover: str, action: Any) -> None:
        self.rewards = {name: float(self.rng.integers(-3, 4)) for name in self.agents}
        self.paid.append(dict(self.rewards))
        over = self.rng.random() < 0.2
        for name in self.agents:
            if over or self.rng.random() < 0.1:
                (self.terminations if self.rng.random() < 0.5 else self.truncations)[name] = True
        alive = [name for name in self.agents if not (self.terminations[name] or self.truncations[name])]
        if alive:
            self.agent_selection = str(self.rng.choice(alive))


def referee(paid: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for payment in paid:
        for name, reward in payment.items():
            total[name] = total.get(name, 0.0) + reward
    return total


class Always(Policy):
    move = 0

    def choose(self, observation: Any, state: Any, explore: bool, deterministic: bool) -> PolicyStep:
        return PolicyStep(torch.full((len(observation),), self.move), ())


class Resigns(Always):
    move = 1


def resignation() -> MultiAgentEnv:
    return from_pettingzoo(Fold(folded=(0.0, 1.0)))


def random_play(make: Any, policy_of: dict[str, str], episodes: int) -> Any:
    with MultiAgentEnvs([make], lane_seeds=[9]) as envs:
        specs = assign_policies(envs.agents, policy_of)
        policies = {name: RandomPolicy(one.observation_spec, one.action_spec) for name, one in specs.items()}
        return evaluate_agents(policies, envs, specs, episodes=episodes)


def test_returns_count_what_an_agent_got_before_it_acted():
    """p0 folds half of the time: it has 0.5 on average, p1 has -0.5, and together they have nothing."""
    result = random_play(lambda: from_pettingzoo(Fold()), {"p0": "a", "p1": "b"}, 400)
    assert result.parts["p1/return"] == -result.parts["p0/return"] == result.parts["b/return"]
    assert result.parts["p0/return"] == pytest.approx(0.5, abs=0.2)
    assert result.return_mean == 0.0


def test_an_agent_whose_game_ends_before_its_turn_took_part_in_it():
    """Nothing was paid to it, which counts in its mean as any other game does."""
    result = random_play(lambda: from_pettingzoo(Fold(folded=(-1.0, 0.0))), {"p0": "a", "p1": "b"}, 400)
    assert result.parts["p1/return"] == pytest.approx(-1.0, abs=0.3)


@pytest.mark.parametrize("there_and_back", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), number=st.integers(2, 4))
def test_every_reward_of_a_drawn_game_is_in_the_returns(there_and_back: bool, seed: int, number: int):
    games = Drawn(number)
    env = from_pettingzoo(games)
    if there_and_back:
        env = from_pettingzoo(aec_env(env))
    expected: list[dict[str, float]] = []
    with MultiAgentEnvs([lambda: env], lane_seeds=[seed]) as envs:
        specs = assign_policies(envs.agents, {"*": "all"})
        policy = RandomPolicy(specs["all"].observation_spec, specs["all"].action_spec)
        collector = MultiAgentCollector(envs, specs, {"all": policy})
        while len(expected) < 5:
            collector.unroll(1)
            found = collector.drain()
            expected += [referee(games.paid)] * len(found)
            for episode in found:
                told = {name: episode.info.get(f"{name}/return", 0.0) for name in games.possible_agents}
                assert told == {name: expected[-1][name] for name in told}
                assert episode.episode_return == sum(expected[-1].values())


def player(kind: type[Policy], specs: Any) -> Player:
    return Player(specs, {"all": kind(specs["all"].observation_spec, specs["all"].action_spec)})


def test_who_resigns_at_once_loses_every_match():
    """Only the winner is paid, and it has not acted yet: 0 of 40, not 10."""
    config = EnvConfig(name="tests.multiagent.test_unearned:resignation")
    with create_multi_agent_envs(config) as envs:
        specs = assign_policies(envs.agents, {"*": "all"})
    resigns, plays = player(Resigns, specs), player(Always, specs)
    # where it plays on it is paid 2 as p0, and its opponent, which moves as p1, loses 2
    assert play_match(resigns, plays, config, games=40, seed=1).won == 0
    assert play_match(plays, resigns, config, games=40, seed=1).won == 40


def test_the_score_of_self_play_counts_a_resignation():
    """The newest resigns as p0 whatever the opponent: it scores 0 in half of the games, and wins none by p1's move."""
    config = SelfPlayConfig(pool_size=2, newest_probability=0.0)
    with MultiAgentEnvs([resignation] * 4, lane_seeds=[1, 2, 3, 4]) as envs:
        specs = assign_policies(envs.agents, {"*": "all"})
        policy = Resigns(specs["all"].observation_spec, specs["all"].action_spec)
        collector = MultiAgentCollector(envs, specs, {"all": policy}, self_play=config)
        finished = [*collector.unroll(40).episodes, *collector.drain()]
        scores = [episode.info["self_play/score"] for episode in finished]
    assert set(scores) == {0.0, 1.0}  # p0 resigned, and it was one of the two; never a draw


class Late(EnvWrapper):
    """`second` is asked after three ticks, and every tick pays it 1, before that too."""

    agents: ClassVar[Any] = dict.fromkeys(("first", "second"), AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)))

    def __init__(self, ends_at: int = 5) -> None:
        super().__init__()
        self.ends_at = ends_at

    def start(self, seed: int) -> list[str]:
        self.tick = 0
        return ["first"]

    def run(self, env_action: Any) -> list[str]:
        self.tick += 1
        return [] if self.tick == self.ends_at else ["first"] + ["second"] * (self.tick == 3)

    def get_state(self, agent: str) -> Any:
        return np.zeros(1, np.float32)

    def to_env_action(self, actions: Any) -> Any:
        return None

    def get_reward(self, actions: Any, tick: int, info: Any) -> dict[str, float]:
        return {"first": 1.0, "second": 1.0}


@pytest.mark.parametrize("ends_at", [2, 5])
def test_a_simulator_pays_an_agent_that_it_has_not_asked_yet(ends_at: int):
    result = random_play(lambda: Late(ends_at), {"first": "a", "second": "b"}, 3)
    assert result.parts["first/return"] == result.parts["second/return"] == ends_at


@dataclasses.dataclass
class Paying(MultiAgentEnv):
    """One agent; its first step has the reward, or says it as unearned."""

    first_reward: float = 0.0
    unearned: dict[str, float] = dataclasses.field(default_factory=dict)
    reward: Any = 1.0
    agents: ClassVar[Any] = {"only": AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2))}

    def begin_episode(self, seed: int) -> MultiAgentStep:
        begun = restart(np.zeros(1, np.float32))._replace(reward=self.first_reward)
        return MultiAgentStep({"only": begun}, unearned_rewards=self.unearned)

    def advance(self, actions: Any) -> MultiAgentStep:
        return MultiAgentStep({"only": termination(np.zeros(1, np.float32), self.reward)}, True)


def test_an_ante_is_said_beside_the_first_step():
    assert random_play(lambda: Paying(unearned={"only": -3.0}), {"*": "a"}, 2).return_mean == -2.0
    with pytest.raises(EnvError, match=r"reward -3.0 with FIRST, before it has acted; give it in `unearned_rewards`"):
        random_play(lambda: Paying(first_reward=-3.0), {"*": "a"}, 2)


def test_a_reward_that_is_text_is_refused():
    with pytest.raises(EnvError, match=r"agent 'only' got no reward: the reward is '1.0', which is no number"):
        random_play(lambda: Paying(reward="1.0"), {"*": "a"}, 2)


def test_unearned_rewards_are_checked_as_others_are():
    with pytest.raises(EnvError, match=r"unearned_rewards name 'other', which is none of the agents, \['only'\]"):
        random_play(lambda: Paying(unearned={"other": 1.0}), {"*": "a"}, 2)
    with pytest.raises(NonFiniteError, match="the unearned reward nan for agent 'only'"):
        random_play(lambda: Paying(unearned={"only": float("nan")}), {"*": "a"}, 2)


def test_a_parallel_env_tells_an_ante_with_the_first_reward():
    env = parallel_env(Paying(unearned={"only": -3.0}))
    env.reset(seed=0)
    assert env.step({"only": 0})[1] == {"only": -2.0}


class Inheriting(MultiAgentEnv):
    """One agent ends in the first step, and is paid in the second, the last one."""

    agents: ClassVar[Any] = {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in ("early", "late")}

    def begin_episode(self, seed: int) -> MultiAgentStep:
        self.over = False
        return MultiAgentStep({name: restart(np.zeros(1, np.float32)) for name in self.agents})

    def advance(self, actions: Any) -> MultiAgentStep:
        end = termination(np.zeros(1, np.float32), 1.0)
        if not self.over:
            self.over = True
            return MultiAgentStep({"early": end, "late": transition(np.zeros(1, np.float32), 0.0)})
        return MultiAgentStep({"late": end}, True, unearned_rewards={"early": 5.0})


def test_what_pettingzoo_cannot_say_is_refused():
    env = parallel_env(Inheriting())
    env.reset(seed=0)
    env.step({"early": 0, "late": 0})
    with pytest.raises(EnvError, match=r"rewards \{'early': 5.0\} of agents that had ended before"):
        env.step({"late": 0})
