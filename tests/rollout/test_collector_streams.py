"""Tests of `palaestra.rollout.collector` with environments that do not answer together."""

import copy
import itertools

import numpy as np
import pytest
import torch

from palaestra import Collector
from palaestra.core import ConfigError, join_state, split_state, tree_leaves
from palaestra.nn import NetworkConfig
from tests.algorithms.parts import environment, make
from tests.rollout.worlds import FIRST, LAST, MID, Numbered


def lanes_of(collector: Collector, rows: int = 200) -> list[list[tuple[int, int]]]:
    """The (observation, step type) rows of each lane, each once, the open row included."""
    buffer = collector.buffer
    positions = buffer.positions
    streams = []
    for lane in range(buffer.num_lanes):
        count = int(positions.counts[lane])
        places = (
            int(positions.cursors[lane]) - np.arange(count, -1, -1)
        ) % positions.ring_size * buffer.num_lanes + lane
        kinds, seen = buffer.take("step_type", places), buffer.take("observation", places)
        streams.append(list(zip(seen[:, 0].int().tolist(), kinds.tolist(), strict=True)))
    return streams


def expected(lane: int, length: int, rows: int) -> list[tuple[int, int]]:
    kinds = [FIRST, *[MID] * (length - 1), LAST]
    return [(1000 * lane + t, kinds[t % (length + 1)]) for t in range(rows)]


LENGTHS = [3, 1, 5, 2]


@pytest.mark.parametrize("name", ["ppo", "dqn"])
@pytest.mark.parametrize("num_ready", [1, 2, 4])
@pytest.mark.parametrize("same_step", [False, True])
def test_every_lane_is_one_stream_in_time_order_however_environments_answer(name, num_ready, same_step):
    """TS-24, DESIGN.md section 4: LAST rows of `ended` come before the FIRST rows of the same step; none is lost."""
    env = Numbered(LENGTHS, same_step=same_step, num_ready=num_ready)
    collector = Collector.of(env, make(name, env, capacity=400))
    first, second = collector.unroll(5), collector.unroll(6)
    streams = lanes_of(collector)
    for lane, stream in enumerate(streams):
        assert stream == expected(lane, LENGTHS[lane], len(stream))
        assert len(stream) >= 12 if same_step or num_ready == 4 else len(stream) > 1
    assert sum(map(len, streams)) >= 4 * 12
    executed = sum(map(len, env.actions))
    assert first.env_steps + second.env_steps == collector.env_steps == executed
    ended = first.episodes + second.episodes + collector.drain()
    assert all(episode.length == LENGTHS[episode.env_id] == episode.episode_return for episode in ended)
    assert len(ended) == sum(kind == LAST for stream in streams for _, kind in stream)


@pytest.mark.parametrize("same_step", [False, True])
def test_half_of_the_environments_simulate_while_the_other_half_is_acted_for(same_step):
    """Double buffering: at most all are on their way, more than half at some time, and none at the end of an unroll."""
    env = Numbered(LENGTHS, same_step=same_step, num_ready=2)
    collector = Collector.of(env, make("dqn", env))
    collector.unroll(4)
    assert env.most_on_the_way == 4
    assert env.sent == []


def test_the_actions_stored_are_those_executed():
    """Each row's action is the one that its own lane executed, also where answers come out of order."""
    env = Numbered(LENGTHS, num_ready=1)
    collector = Collector.of(env, make("ppo", env))
    collector.unroll(9)
    positions, buffer = collector.buffer.positions, collector.buffer
    for lane in range(4):
        count = int(positions.counts[lane])
        places = np.arange(count) * 4 + lane
        kinds = buffer.take("step_type", places)
        stored = buffer.take("action", places)[kinds != LAST].tolist()
        assert stored == env.actions[lane]


@pytest.mark.parametrize("num_ready", [2, 4])
def test_one_pass_gives_the_new_rows_their_log_probabilities_and_no_others(num_ready, monkeypatch):
    env = Numbered(LENGTHS, num_ready=num_ready)
    algorithm = make("ppo", env, unroll_length=5)
    collector, rows, behaviour = Collector.of(env, algorithm), [], algorithm.policy.behaviour
    monkeypatch.setattr(algorithm.policy, "behaviour", lambda *given: rows.append(len(given[0])) or behaviour(*given))
    for length in (5, 3):
        before = collector.buffer.positions.written
        collector.unroll(length)
        assert rows.pop() == (collector.buffer.positions.written - before).max()
        assert rows == []


@pytest.mark.parametrize("num_ready", [1, 3])
def test_every_row_has_the_log_probability_of_the_weights_that_acted(num_ready):
    """Lanes that begin an episode within a step have more new rows than others, and older rows keep what they have."""
    env = Numbered([3, 9, 5], same_step=True, num_ready=num_ready)
    algorithm = make("ppo", env, unroll_length=5)
    collector = Collector.of(env, algorithm, complete_episodes_only=True)
    acted, older = {}, 0
    for _ in range(6):
        acted[algorithm.policy_version] = copy.deepcopy(algorithm.policy)
        collector.unroll(5)
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
        rows = drawn.valid.bool()
        for version, policy in acted.items():
            with torch.no_grad():
                given = policy.behaviour(drawn.observation[:-1], drawn.action).log_prob
            its = rows & (drawn.policy_version == version)
            assert torch.equal(drawn.policy_info.log_prob[its], given[its])
            older += int(its.sum()) if version < algorithm.policy_version else 0
        algorithm.update(collector.buffer)
    assert older


@pytest.mark.parametrize("same_step", [False, True])
def test_a_number_of_episodes_for_each_environment_is_met_exactly(same_step):
    """TS-23: a list gives exactly so many of each; a lane that has them stores nothing more."""
    env = Numbered(LENGTHS, same_step=same_step)
    collector = Collector.of(env, make("dqn", env, capacity=400))
    info = collector.collect(n_episode=[1, 4, 0, 2])
    counts = [sum(episode.env_id == lane for episode in info.episodes) for lane in range(4)]
    assert counts == [1, 4, 0, 2]
    assert info.env_steps == 1 * 3 + 4 * 1 + 2 * 2
    assert {episode.length for episode in info.episodes if episode.env_id == 3} == {2}
    again = collector.collect(n_episode=[1, 1, 1, 1])
    assert sorted(episode.env_id for episode in again.episodes) == [0, 1, 2, 3]
    kinds = [[kind for _, kind in stream] for stream in lanes_of(collector)]
    assert kinds[1].count(LAST) == 5
    assert all(after == FIRST for lane in kinds for before, after in itertools.pairwise(lane) if before == LAST)


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_an_unroll_joins_nothing_to_lanes_that_had_their_episodes_and_were_stepped_on_unseen(same_step, moved):
    """TS-23: it begins new episodes, also where a checkpoint was between."""
    collector, twin = (
        Collector.of(env, make("dqn", env, capacity=400))
        for env in (Numbered(LENGTHS, same_step=same_step), Numbered(LENGTHS, same_step=same_step))
    )
    collector.collect(n_episode=[1, 4, 1, 2])
    if moved:
        twin.buffer.load_state_tensors(collector.buffer.state_tensors())
        twin.load_state(join_state(*split_state(collector.state())))
        collector = twin
    collector.unroll(6)
    for lane, stream in enumerate(lanes_of(collector)):
        rows = collector.buffer.in_time_order(lane)
        joined = collector.buffer.is_start(rows[:-1])
        pairs = list(itertools.pairwise(stream))
        assert all(after[0] == before[0] + 1 for (before, after), one in zip(pairs, joined, strict=True) if one)
        assert all(after[1] == FIRST for before, after in pairs if before[1] == LAST)


def test_observation_statistics_are_of_what_was_collected_alone():
    """Lanes of unequal length are filled up; what stands there is counted with the next unroll, or was counted."""
    env = Numbered(LENGTHS)
    algorithm = make("ppo", env, normalize_observation=True)
    collector = Collector.of(env, algorithm)
    collector.collect(n_episode=[1, 4, 1, 2])
    collected = len(collector.buffer)
    assert collected < 4 * collector.buffer.positions.counts.max()
    algorithm.update(collector.buffer)
    assert algorithm.policy.normalizer is not None
    (count,) = {float(one) for name, one in algorithm.policy.normalizer.named_buffers() if name.endswith("count")}
    assert count == collected


@pytest.mark.parametrize("kind", ["lstm", "gru", "attention"])
def test_memories_of_shorter_lanes_begin_as_when_they_acted(kind):
    """What fills a shorter lane up never goes through its memory: log-probabilities are those of acting."""
    env = Numbered([7, 2, 12, 5], same_step=True)
    network = NetworkConfig(hidden_sizes=(8,), recurrent=kind, recurrent_size=8)
    algorithm = make("ppo", env, network=network)
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.mul_(4)  # so that a wrong memory is far off
    collector = Collector.of(env, algorithm)
    collector.unroll(3)
    collector.buffer.draw(algorithm.plan, torch.Generator())  # lanes then begin in the middle of episodes
    collector.unroll(6)
    drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
    counts = collector.buffer.positions.counts
    shorter = counts < counts.max()
    assert (shorter & (drawn.step_type[0] != FIRST).numpy()).any()
    kinds = drawn.step_type
    distribution = algorithm.policy.distribution(drawn.observation[:-1], drawn.state[0], kinds[:-1] == FIRST)
    log_prob = distribution.log_prob(drawn.action)
    off = (log_prob - drawn.policy_info.log_prob).abs() * drawn.valid
    assert drawn.valid.any(0).all()
    assert off.max() < 1e-4


@pytest.mark.parametrize("request_", [[1, 2], [1, 1, 1, -1]])
def test_a_list_needs_a_number_for_each_environment(request_):
    env = Numbered(LENGTHS)
    with pytest.raises(ConfigError, match="for each of the 4 environments"):
        Collector.of(env, make("dqn", env)).collect(n_episode=request_)


# -- pausing


def begun(name, num_ready, seed=3):
    """A collector after three rows of each lane, and its algorithm."""
    env = Numbered(LENGTHS, num_ready=num_ready)
    algorithm = make(name, env, seed=seed, capacity=400)
    collector = Collector.of(env, algorithm)
    collector.unroll(3)
    return collector, algorithm


def paused_and_moved(name, num_ready):
    """One that was paused in an unroll of nine rows, saved, and loaded where another had begun."""
    (old, saved), (new, loaded) = begun(name, num_ready), begun(name, num_ready, seed=9)
    send, sends = old.env.send, itertools.count(1)

    def sending(*arguments):
        if next(sends) == 3:
            old.pause()
        send(*arguments)

    old.env.send = sending
    info = old.unroll(9)
    assert old.unfinished and 0 < info.env_steps < 4 * 9
    new.env.load_state_dict(old.env.state_dict())
    loaded.load_state_tensors(join_state(*split_state(saved.state_tensors())))
    new.buffer.load_state_tensors(old.buffer.state_tensors())
    new.load_state(join_state(*split_state(old.state())))
    return new


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_an_unroll_that_was_paused_and_moved_goes_on_bit_for_bit(name):
    """F22, F25."""
    (whole, _), cut = begun(name, num_ready=4), paused_and_moved(name, num_ready=4)
    for collector in (whole, cut):
        collector.unroll(9)
    assert cut.env_steps == whole.env_steps
    assert not cut.unfinished
    assert lanes_of(cut) == lanes_of(whole)
    for field in ("action", "policy_info"):
        ours, theirs = (tree_leaves(collector.buffer.recent(field, 12)) for collector in (cut, whole))
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_pause_neither_loses_nor_repeats_a_row_of_lanes_that_answer_on_their_own(name):
    """F22, F25: they answer in another order after it; rows from before it have their log-probabilities, too."""
    collector = paused_and_moved(name, num_ready=2)
    collector.unroll(9)
    assert not collector.unfinished
    streams = lanes_of(collector)
    for lane, stream in enumerate(streams):
        assert stream == expected(lane, LENGTHS[lane], len(stream))
    acted = sum(kind != LAST for stream in streams for _, kind in stream[:-1])
    assert acted == collector.env_steps
    if name == "ppo":
        buffer = collector.buffer
        rows = np.concatenate([buffer.in_time_order(lane)[:-1] for lane in range(buffer.num_lanes)])
        seen, action = buffer.take("observation", rows), buffer.take("action", rows)
        torch.testing.assert_close(
            buffer.take("policy_info.log_prob", rows), collector.policy.behaviour(seen, action).log_prob
        )


# -- hooks and random actions


def test_preprocess_sees_every_time_step_before_it_is_acted_on_and_stored():
    """TS-26: also the LAST rows of a step that resets, and FIRST rows, of which only the observation counts."""
    env, seen = Numbered(LENGTHS, same_step=True), []

    def preprocess(time_step):
        seen.extend(time_step.step_type.tolist())
        reward = time_step.reward * 2 + 100 * time_step.first
        return time_step._replace(observation=time_step.observation + 0.5, reward=reward)

    algorithm = make("dqn", env)
    acted = []
    choose = algorithm.policy.act
    algorithm.policy.act = lambda step, *args, **named: (acted.append(step.observation), choose(step, *args, **named))[
        1
    ]
    collector = Collector.of(env, algorithm, preprocess=preprocess)
    info = collector.collect(n_step=20)
    assert seen.count(FIRST) >= 4
    assert LAST in seen
    assert all((observation % 1 == 0.5).all() for observation in acted)
    assert {episode.episode_return for episode in info.episodes} <= {2.0, 4.0, 6.0, 10.0}


def test_random_actions_are_uniform_and_come_from_the_policys_generator():
    """TS-26: whatever the policy would do; the same seed gives the same actions."""
    runs = []
    for _ in range(2):
        env = Numbered([50] * 4)
        algorithm = make("dqn", env, epsilon=0.0, capacity=4000)
        collector = Collector.of(env, algorithm)
        collector.collect(n_step=1200, random=True)
        runs.append(env.actions)
    assert runs[0] == runs[1]
    counts = [sum(lane.count(action) for lane in runs[0]) for action in range(3)]
    assert all(330 < count < 470 for count in counts)
    collector.collect(n_step=40)
    assert len({action for lane in env.actions for action in lane[-5:]}) < 3  # greedy again


def test_random_actions_have_no_log_probability_of_the_policy():
    """What the buffer keeps of an on-policy algorithm would be wrong."""
    env = Numbered(LENGTHS)
    with pytest.raises(ConfigError, match="random actions have no log_prob of the policy"):
        Collector.of(env, make("ppo", env)).unroll(3, random=True)


def test_statistics_have_the_documented_names():
    """TS-26: n/ep, n/st, v/st, v/ep, rew, len."""
    env = Numbered(LENGTHS)
    info = Collector.of(env, make("dqn", env)).collect(n_episode=[1, 1, 1, 1])
    stats = info.stats
    assert (stats["n/ep"], stats["n/st"], stats["rew"], stats["len"]) == (4, 11, 2.75, 2.75)
    assert stats["v/st"] == pytest.approx(11 / info.total_s)
    assert stats["v/ep"] == pytest.approx(4 / info.total_s)
    assert 0 < info.env_s + info.inference_s <= info.total_s


def test_a_hundred_thousand_steps_without_an_episode_are_warned_of(monkeypatch):
    """TS-26: asked for episodes that never end."""
    monkeypatch.setattr("palaestra.rollout.collection._PATIENCE_STEPS", 100)
    monkeypatch.setattr("palaestra.rollout.collection._LONG_EPISODE", 50)
    env = Numbered([90, 90])
    collector = Collector.of(env, make("dqn", env))
    with pytest.warns(UserWarning, match=r"n_episode=1\) has taken 100 env steps and no episode has ended"):
        assert len(collector.collect(n_episode=1).episodes) >= 1
    env = Numbered([30, 200])
    collector = Collector.of(env, make("dqn", env))
    with pytest.warns(UserWarning, match="160 env steps and no episode has ended in the last 100") as told:
        collector.collect(n_episode=[1, 1])
    assert len(told) == 1
    collector.episodes = 1
    with pytest.warns(UserWarning, match="an unroll of 1 whole episodes of each environment has taken 160 env steps"):
        collector.unroll(1)


class Failing(Numbered):
    """The third step of each of lane 0's episodes fails, and its next one begins."""

    def _advance(self, lane: int) -> tuple[int, float, int, int]:
        return self._begin(lane) if lane == 0 and self._step[0] == 2 else super()._advance(lane)


@pytest.mark.parametrize("num_ready", [1, 2])
def test_a_step_that_failed_is_no_env_step(num_ready):
    """Of `env.on_fault` restart and drop: the environment answers with a FIRST row, and has executed nothing."""
    env = Failing([90, 90], num_ready=num_ready)
    collector = Collector.of(env, make("ppo", env))
    assert collector.unroll(8).env_steps == collector.env_steps == 6 + 8


def test_random_actions_have_no_search():
    env = environment("game")
    collector = Collector.of(env, make("alphazero", env, kind="game"))
    with pytest.raises(ConfigError, match="random actions have no search"):
        collector.collect(n_step=4, random=True)
