"""Self-play against earlier selves: who plays where, what is learned from, and what is put back."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from palaestra import PPO, PPOConfig, RunSeeds
from palaestra.core import ConfigError, StepType
from palaestra.multiagent import (
    Meeting,
    MultiAgentCollector,
    MultiAgentEnvs,
    SelfPlayConfig,
    assign_policies,
    match_score,
    saved_pool,
    snapshot_of,
    with_opponents,
)
from palaestra.multiagent.self_play import SelfPlay
from palaestra.runs.matches import RunningPool
from palaestra.testing.algorithms import different, parameters
from palaestra.training import CheckpointStore, SimplePolicyManager, Trainer, TrainerConfig
from tests.multiagent.parts import Shop

CONFIG = SelfPlayConfig(pool_size=2, snapshot_period=2, newest_probability=0.25)


def collector_of(config=CONFIG, num_envs=3, seed=5, make=Meeting):
    envs = MultiAgentEnvs([make] * num_envs, lane_seeds=[100 * seed + lane for lane in range(num_envs)])
    policy_specs = assign_policies(envs.agents, {"*": "all"})
    spec = policy_specs["all"]
    ppo = PPO(spec.observation_spec, spec.action_spec, PPOConfig(unroll_length=12, num_epochs=1), RunSeeds(seed))
    return MultiAgentCollector(envs, policy_specs, {"all": ppo}, self_play=config), ppo


def learn(collector, ppo):
    collector.unroll(12)
    ppo.update(collector.buffers["all"])
    collector.buffers["all"].clear()


def seats(collector):
    """Who plays which agent in the running episodes, as checkpoints have it; nobody where the policy plays all."""
    return collector.state()["self_play"]["seats"]


def test_one_agent_of_an_episode_is_learned_from_and_snapshots_play_the_rest():
    """Or all agents, where the newest policy plays them."""
    collector, ppo = collector_of()
    seated = []
    for _ in range(30):
        collector.unroll(1)
        ppo.policy.version += 1
        seated += [len(opponents) for opponents in seats(collector)]
    assert set(seated) == {0, 2}
    assert 0.5 < sum(count > 0 for count in seated) / len(seated) < 0.95
    assert len(collector.buffers["all"]) < 30 * 3 * 3 * 0.8  # rows of the snapshots' agents are not there


def test_opponents_are_what_the_policy_was_when_they_joined_the_pool():
    collector, ppo = collector_of(SelfPlayConfig(pool_size=2, snapshot_period=1))
    at_first = [value.clone() for value in ppo.policy.state_dict().values()]
    assert collector.opponents() == {}
    learn(collector, ppo)
    learn(collector, ppo)
    opponents = collector.opponents()
    assert list(opponents) == [0, 1]
    assert all(torch.equal(*pair) for pair in zip(opponents[0], at_first, strict=True))
    assert not all(torch.equal(*pair) for pair in zip(opponents[1], at_first, strict=True))
    old = snapshot_of(ppo.policy, opponents[0])
    assert all(torch.equal(*pair) for pair in zip(old.state_dict().values(), at_first, strict=True))
    learn(collector, ppo)
    assert list(collector.opponents()) == [1, 2]
    sent = pickle.loads(pickle.dumps(RunningPool(collector)))()
    assert sent.keys() == {1, 2}
    assert all(torch.equal(*pair) for pair in zip(sent[1], opponents[1], strict=True))


def test_rows_of_an_episode_are_whole_and_of_one_agent():
    """Every episode in a lane begins with FIRST, and each row was acted by the learning policy."""
    collector, ppo = collector_of(SelfPlayConfig(pool_size=2, newest_probability=0.0))
    collector.unroll(60)
    buffer = collector.buffers["all"]
    drawn = buffer.draw(ppo.plan, torch.Generator())
    kinds, valid = drawn.step_type, drawn.valid.bool()
    assert valid.sum() > 30
    after = kinds[1:][valid]
    assert (after != StepType.FIRST).all()  # a row that is learned from goes on in its own episode


def test_the_pool_holds_the_newest_snapshots_frozen_as_they_were():
    collector, ppo = collector_of()
    weights = {}
    for _ in range(9):
        collector.unroll(1)
        weights[ppo.policy.version] = [value.clone() for value in ppo.policy.state_dict().values()]
        learn(collector, ppo)
    opponents = collector.opponents()
    assert list(opponents) == [6, 8]
    for version, kept in opponents.items():
        assert all(torch.equal(*pair) for pair in zip(kept, weights[version], strict=True))
        assert not all(torch.equal(*pair) for pair in zip(kept, ppo.policy.state_dict().values(), strict=True))


def test_draws_follow_from_the_episode_alone():
    """The same seats in one process and in two shares of the environments."""
    whole, _ = collector_of(num_envs=4)
    whole.unroll(1)
    halves = []
    for first in (0, 2):
        envs = MultiAgentEnvs([Meeting] * 2, lane_seeds=[500 + first, 501 + first])
        spec = assign_policies(envs.agents, {"*": "all"})
        ppo = PPO(spec["all"].observation_spec, spec["all"].action_spec)
        half = MultiAgentCollector(envs, spec, {"all": ppo}, self_play=CONFIG)
        half.unroll(1)
        halves += seats(half)
    assert seats(whole) == halves and any(halves)


def test_scores_against_snapshots_are_reported():
    collector, ppo = collector_of()
    for _ in range(10):
        learn(collector, ppo)
    episodes = collector.drain()
    scored = [episode.info for episode in episodes if "self_play/score" in episode.info]
    assert 0 < len(scored) < len(episodes)
    assert all(0 <= info["self_play/score"] <= 1 and info["self_play/age"] >= 0 for info in scored)
    assert all(f"agent_{number}/return" in episode.info for episode in episodes for number in range(3))
    assert [match_score(1, 0), match_score(0, 0), match_score(0, 1)] == [1, 0.5, 0]


def test_every_snapshot_of_the_pool_is_met_as_often_as_the_others():
    """Not the newest alone, from which a policy forgets how the older ones were beaten."""
    _, ppo = collector_of()
    spec = assign_policies(MultiAgentEnvs([Meeting], lane_seeds=[1]).agents, {"*": "all"})["all"]
    config = SelfPlayConfig(pool_size=3, snapshot_period=2, newest_probability=0.0)
    play = SelfPlay(config, ppo.policy, spec, [7], delayed=False)
    for version in (0, 2, 4):
        ppo.policy.version = version
        play.grow()
    met = Counter[int]()
    for episode in range(600):
        play.seat(0, 7, episode)
        met.update(play.seats[0].values())
    assert met.total() == 1200  # two of three agents
    assert {version: count / 1200 for version, count in met.items()} == pytest.approx(
        dict.fromkeys((0, 2, 4), 1 / 3), abs=0.06
    )


class Winner(Meeting):
    """The first of two agents always wins: 1 for it and -1 for the other, in every episode."""

    def __init__(self):
        super().__init__(num_agents=2, num_cells=3, max_moves=3)

    def advance(self, actions):
        outcome = super().advance(actions)
        paid = {"agent_0": float(outcome.over), "agent_1": -float(outcome.over)}
        steps = {name: step._replace(reward=np.float32(paid[name])) for name, step in outcome.time_steps.items()}
        return outcome._replace(time_steps=steps)


def test_a_return_against_a_snapshot_is_that_of_the_seat_that_the_policy_plays():
    """Not the sum of both sides, which is 0 whoever wins; the score is of the same seat."""
    for never, expected in ((0.0, {(1.0, 1.0, 1.0), (-1.0, -1.0, 0.0)}), (1.0, {(0.0, 0.0, None)})):
        collector, _ = collector_of(SelfPlayConfig(pool_size=2, newest_probability=never), make=Winner)
        episodes = [*collector.unroll(40).episodes, *collector.drain()]
        seen = [(one.episode_return, one.info["all/return"], one.info.get("self_play/score")) for one in episodes]
        assert len(seen) > 30 and set(seen) == expected


class Advanced(Meeting):
    """Who has the higher number earns far more in the first step of an episode, and less in every other."""

    def begin_episode(self, seed):
        self._worth = 100
        return super().begin_episode(seed)

    def advance(self, actions):
        outcome, worth, self._worth = super().advance(actions), self._worth, -1
        paid = {name: np.float32(worth * number) for number, name in enumerate(self.agents)}
        steps = {name: step._replace(reward=paid[name]) for name, step in outcome.time_steps.items()}
        return outcome._replace(time_steps=steps)


def test_scores_of_episodes_that_a_checkpoint_cut_are_of_the_whole_episode():
    """F25."""
    config = SelfPlayConfig(pool_size=2, newest_probability=0.0)
    (whole, ours), (second, theirs) = (collector_of(config, make=Advanced) for _ in range(2))
    whole.unroll(2)
    assert any(whole.state()["self_play"]["returns"])
    theirs.load_state_tensors(ours.state_tensors())
    second.buffers["all"].load_state_tensors(whole.buffers["all"].state_tensors())
    second.load_state(whole.state())
    went_on, resumed = ([*one.unroll(30).episodes, *one.drain()] for one in (whole, second))
    assert len(went_on) > 3 and went_on == resumed


def test_late_rewards_reach_the_action_that_earned_them():
    """MARO-18: of the seat that is learned from, and of no other."""
    collector, _ = collector_of(SelfPlayConfig(pool_size=2, newest_probability=0.0), make=lambda: Shop(3, 6))
    collector.unroll(80)
    buffer, learned = collector.buffers["all"], 0
    for lane in range(buffer.num_lanes):
        rows = buffer[buffer.in_time_order(lane)]
        for row in torch.nonzero(rows.step_type[:-1] != StepType.LAST).flatten().tolist():
            assert float(rows.reward[row + 1]) == 1000.0 * rows.observation[row, 0] + 10 * int(rows.action[row])
            learned += 1
    assert learned > 30


def test_the_age_of_opponents_is_in_versions_of_the_policy_since_they_joined():
    collector, ppo = collector_of(SelfPlayConfig(pool_size=1, snapshot_period=100, newest_probability=0.0))
    collector.unroll(1)
    ppo.policy.version = 7
    episodes = [*collector.unroll(40).episodes, *collector.drain()]
    assert {one.info["self_play/age"] for one in episodes} == {7.0}


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """F25: pool, seats, snapshots' generators and running episodes are in the checkpoint."""

    def trainer(name, total=400):
        collector, ppo = collector_of()
        config = TrainerConfig(total_env_steps=total, eval_every_steps=0, checkpoint_every_steps=0, log_every_steps=0)
        store = CheckpointStore(tmp_path / name)
        return Trainer(collector, SimplePolicyManager({"all": ppo}), config, checkpoints=store), ppo

    (whole, ours), (first, _), (second, theirs) = trainer("a"), trainer("b"), trainer("c")
    whole.run()
    while first.collector.env_steps < 170:
        first.train_iter()
    first.save()
    second.load_state(CheckpointStore(tmp_path / "b").load_newest()[1])
    second.run()
    assert not different(parameters(ours), parameters(theirs))
    assert seats(whole.collector) == seats(second.collector)
    assert list(whole.collector.opponents()) == list(second.collector.opponents())


def test_another_number_of_workers_goes_on_with_the_pool_of_the_checkpoint():
    """Of a worker whose own pool is not known, too."""
    collector, ppo = collector_of()
    for _ in range(6):
        learn(collector, ppo)
    pool = collector.opponents()
    assert len(pool) > 1
    saved = {"workers": {"0": {"lanes": {"episode": [1]}}, "1": {"collector": collector.state()}}}
    known = {"lanes": None, "collector": {}}
    positions = with_opponents([{"lanes": {"episode": [2]}}, None, known], saved)
    assert positions[2] is known
    other, learner = collector_of()
    for position in positions[:2]:
        other.adopt(position["opponents"])
        assert list(other.opponents()) == list(pool)
        for version, weights in other.opponents().items():
            assert all(torch.equal(one, two) for one, two in zip(weights, pool[version], strict=True))
    assert positions[0]["lanes"] == {"episode": [2]}
    for _ in range(3):
        learn(other, learner)
    assert with_opponents([None], {"workers": {}}) == [None]


def test_what_cannot_play_itself_is_refused():
    envs = MultiAgentEnvs([Meeting], lane_seeds=[1])
    apart = assign_policies(envs.agents, {"agent_0": "one", "*": "others"})
    team = assign_policies(envs.agents, {"*": "team"}, teams=["team"])
    with pytest.raises(ConfigError, match="needs one policy that acts for each of several agents"):
        CONFIG.require(apart)
    with pytest.raises(ConfigError, match="a team"):
        CONFIG.require(team)
    for wrong in ({"pool_size": -1}, {"snapshot_period": 0}, {"newest_probability": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SelfPlayConfig(**wrong)
    assert np.isclose(SelfPlayConfig().newest_probability, 0.5)


def test_the_pool_is_found_where_a_worker_was_busy_at_the_checkpoint():
    """Of it only its lanes are known."""
    pool = {"collector": {"self_play": {"pool": [3], "snapshots": {"3": {"weights": [torch.ones(1)]}}}}}
    assert saved_pool({"workers": {"0": {"lanes": {}}, "1": pool}}) == {3: [torch.ones(1)]}
    assert saved_pool({"workers": {"0": {"lanes": {}}, "1": None}}) == {}
