"""Tests of `palaestra.rollout.collector`."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from palaestra import PPO, Collector, EnvConfig, ReplayBuffer, create_environment, evaluate
from palaestra.core import ConfigError, Linear, NonFiniteError, Offline, Replay, StepType, join_state, split_state
from palaestra.envs import (
    BatchedWrapper,
    FaultPolicy,
    FirstReadyEnvironment,
    GymEnvironment,
    LaneEnvironment,
    SerialDriver,
    TimeLimit,
)
from palaestra.training import Trainer, TrainerConfig
from tests.algorithms.parts import collected, environment, make
from tests.training.parts import Hooks

FIRST, MID, LAST = 0, 1, 2


class Poisoned(gymnasium.Env[np.ndarray, np.int64]):
    """Emits a value of choice in its third step."""

    def __init__(self, observation: float = 1.0, reward: float = 1.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._values, self._count = (observation, reward), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._count += 1
        observation, reward = self._values if self._count == 3 else (1.0, 1.0)
        return np.array([1.0, observation], np.float32), reward, False, False, {}


def test_collecting_steps_gathers_at_least_so_many_and_stores_them():
    """TS-23, TS-25: 10 steps from 3 environments are 12, plus what resets displaced."""
    with environment("discrete", 3) as env:
        collector = Collector.of(env, make("ppo", env))
        info = collector.collect(n_step=10)
        assert 10 <= info.env_steps <= 12
        assert collector.env_steps == info.env_steps
        drawn = collector.buffer.newest(len(collector.buffer) // 3)
        assert int(drawn.valid.sum()) == info.env_steps


def test_collecting_episodes_gathers_at_least_so_many():
    """TS-23, TS-25, TS-26: the statistics have each episode's return, length and environment."""
    with environment("discrete", 3) as env:
        collector = Collector.of(env, make("ppo", env))
        info = collector.collect(n_episode=4)
        assert len(info.episodes) >= 4
        assert {episode.length for episode in info.episodes} == {5}
        assert {episode.episode_return for episode in info.episodes} <= {1.0, -1.0}
        assert info.env_steps >= 4 * 5
        assert info.env_s > 0.0
        assert len(collector.collect(n_episode=1).episodes) >= 1


def test_the_discount_of_reported_episodes_is_the_one_that_a_schedule_ends_with():
    """1 + 0.9 + 0.81 from the beginning on, so that early episodes can be compared with late ones."""
    with environment(EnvConfig(name="CartPole-v1", max_episode_steps=3), 2) as env:
        collector = Collector.of(env, make("ppo", env, gamma=Linear(0.5, 0.9)))
        episodes = collector.collect(n_episode=2).episodes
    assert [episode.discounted_return for episode in episodes] == pytest.approx([2.71, 2.71])


def test_collecting_episodes_stops_with_the_step_that_ends_the_last():
    with environment("discrete", 3) as env:
        collector = Collector.of(env, make("ppo", env))
        info = collector.collect(n_episode=1)
        assert (len(info.episodes), info.env_steps) == (3, 3 * 5)
        assert collector.buffer.newest(1).step_type.tolist() == [[MID] * 3, [LAST] * 3]


@pytest.mark.parametrize("request_", [{}, {"n_step": 1, "n_episode": 1}])
def test_exactly_one_request_is_needed(request_):
    """TS-23: exactly one argument."""
    _, collector = collected("ppo", "discrete")
    with pytest.raises(ConfigError, match="give exactly one of the two"):
        collector.collect(**request_)


def test_an_unroll_takes_so_many_time_steps_from_every_environment():
    """ALF-02, ALF-04: B environments give B · unroll_length time steps; a reset is a time step and no env step."""
    with environment("discrete", 3) as env:
        collector = Collector.of(env, make("ppo", env))
        info = collector.unroll(12)
        assert len(collector.buffer) == 36
        resets = int((collector.buffer.recent("step_type", 12) == StepType.LAST).sum())
        assert resets > 0
        assert info.env_steps == 36 - resets


@pytest.mark.parametrize(("length", "rows"), [(2.5, [2, 3, 2, 3]), (0.25, [0, 0, 0, 1]), (1.75, [1, 2, 2, 2])])
def test_a_fractional_unroll_length_is_met_on_average(length, rows):
    """ALF-04: between floor and ceiling, and right in the mean."""
    with environment("Endless", 2) as env:
        collector = Collector.of(env, make("dqn", env))
        assert [collector.unroll(length).env_steps // 2 for _ in range(4)] == rows


def test_every_lane_keeps_its_own_time_order():
    """TS-24, scenario 6: no interleaving: in each lane FIRST comes first and after LAST, and boards fall row by row."""
    with environment("discrete", 3) as env:
        collector = Collector.of(env, make("ppo", env))
        collector.unroll(30)
        drawn = collector.buffer.newest(30)
        for lane in range(3):
            kinds = drawn.step_type[:, lane].tolist()
            expected = [FIRST, MID, MID, MID, MID, LAST]
            assert kinds == [expected[t % 6] for t in range(31)]
            ball = drawn.observation[:, lane].view(-1, 6, 3)[:, :5].sum(-1).argmax(-1).tolist()
            assert [row for row, kind in zip(ball, kinds, strict=True) if kind != LAST] == [
                t % 6 for t in range(31) if t % 6 != 5
            ]


def test_only_complete_episodes_are_drawn_where_that_is_asked_for():
    """TS-24, scenario 6: what has not ended is in the buffer, and not in what is learned from."""
    with environment("discrete", 2) as env:
        algorithm = make("ppo", env)
        collector = Collector.of(env, algorithm, complete_episodes_only=True)
        collector.unroll(9)  # rows FIRST MID MID MID MID LAST | FIRST MID MID
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
        assert drawn.valid[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0]
        collector.unroll(3)  # the running episode was kept, and ends here
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
        assert drawn.step_type[:, 0].tolist() == [FIRST, MID, MID, MID, MID, LAST, FIRST]
        assert drawn.valid[:, 0].tolist() == [1, 1, 1, 1, 1, 0]


def test_a_replay_of_complete_episodes_samples_no_running_one():
    """TS-24: every sampled row belongs to an episode that has ended."""
    with environment("discrete", 2) as env:
        algorithm = make("dqn", env, mini_batch_size=500)
        collector = Collector.of(env, algorithm, complete_episodes_only=True)
        collector.unroll(10)
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator().manual_seed(0))
        assert set((drawn.index // 2).tolist()) == {0, 1, 2, 3, 4}


def test_a_replay_of_complete_episodes_waits_until_one_has_ended():
    """TS-24: learning may begin before, by the env steps."""
    with environment("discrete", 2) as env:
        algorithm = make("dqn", env, learning_starts=4, unroll_length=1)
        collector = Collector.of(env, algorithm, complete_episodes_only=True)
        versions: list[int] = []
        note = Hooks(iteration_ended=lambda *_: versions.append(algorithm.policy_version))
        Trainer(collector, algorithm, TrainerConfig(total_env_steps=16), callbacks=[note]).run()
        assert versions[:5] == [0, 0, 0, 0, 1]


def test_rows_carry_the_version_that_acted():
    """DESIGN.md section 1: every row carries the version that acted."""
    algorithm, collector = collected("dqn", "discrete")
    for version in range(1, 3):
        algorithm.update(collector.buffer)
        collector.unroll(2)
        assert collector.buffer.recent("policy_version", 2).unique().tolist() == [version]


def test_on_policy_data_is_discarded_after_its_update_and_replayed_data_is_kept():
    """ALF-05, ALF-06, MARO-21: one-time use, without replay, against many later iterations."""
    ppo, unrolls = collected("ppo", "discrete")
    dqn, replay = collected("dqn", "discrete")
    for algorithm, collector, rows in ((ppo, unrolls, [36, 36]), (dqn, replay, [72, 108])):
        for count in rows:
            algorithm.update(collector.buffer)
            collector.unroll(12)
            assert len(collector.buffer) == count


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["observation", "reward"])
@pytest.mark.parametrize("at_once", [True, False])
def test_non_finite_data_is_caught_where_it_enters(value, where, at_once):
    """F5: environment, field and index are named, before anything is learned from it."""
    config = EnvConfig(name="tests.rollout.test_collector:Poisoned", kwargs={where: value})
    with environment(config, 2) as env:
        collector = Collector.of(env, make("dqn", env))
        place = r"observation\[1\]" if where == "observation" else "reward"
        if not at_once:
            collector.unroll(1)
            collector.unroll(1)
        with pytest.raises(NonFiniteError, match=rf"environment 0 emitted {place} = -?(nan|inf)") as caught:
            collector.unroll(8 if at_once else 1)
        assert caught.value.exit_code == 4


def test_the_step_of_a_number_that_is_not_finite_is_counted_from_the_start_of_its_episode():
    """F5: also where the episode began in an unroll before, and went on after it."""
    with environment("discrete", 1) as env:
        count = itertools.count()  # the reset is the first
        made = Collector.of(
            env, make("dqn", env), preprocess=lambda step: step._replace(reward=step.reward / (next(count) != 3))
        )
        made.unroll(1)
        with pytest.raises(NonFiniteError, match=r"emitted reward = \w+ in episode 0 \(seed \d+\), step 3;"):
            made.unroll(4)


def test_what_a_layer_around_a_batch_makes_is_looked_at_although_the_batch_looks_itself():
    """F5: learned from without a word; a layer that changes nothing takes no look of its own."""

    class Spoilt(BatchedWrapper):
        def change(self, time_step):
            return time_step._replace(reward=time_step.reward / 0)

    with environment("discrete", 2) as inner:
        assert inner.checks_finite and BatchedWrapper(inner).checks_finite
        env = Spoilt(inner)
        with pytest.raises(NonFiniteError, match="environment 0 emitted reward"):
            Collector.of(env, make("dqn", env)).unroll(4)


def test_what_preprocess_makes_is_looked_at_although_the_environment_looks_itself():
    """F5."""
    with environment("discrete", 1) as env:
        assert env.checks_finite
        algorithm = make("dqn", env)
        collector = Collector.of(env, algorithm, preprocess=lambda step: step._replace(reward=step.reward / 0))
        with pytest.raises(NonFiniteError, match="environment 0 emitted reward"):
            collector.unroll(4)


def test_numbers_whose_sum_overflows_are_finite():
    config = EnvConfig(name="tests.rollout.test_collector:Poisoned", kwargs={"observation": 3e38})
    with environment(config, 3) as env:
        collector = Collector.of(env, make("dqn", env))
        assert collector.unroll(8).env_steps == 24


def test_a_buffer_needs_a_lane_for_every_environment():
    with environment("discrete", 3) as env:
        buffer = ReplayBuffer(10, 2, observation_spec=env.observation_spec, action_spec=env.action_spec)
        with pytest.raises(ConfigError, match="2 lanes for 3 environments"):
            Collector(env, make("ppo", env).policy, buffer)


def test_an_offline_plan_collects_nothing():
    with environment("discrete", 1) as env:
        algorithm = make("dqn", env)
        algorithm.plan = Offline()
        with pytest.raises(ConfigError, match="collects nothing"):
            Collector.of(env, algorithm)


def test_episodes_that_had_ended_before_are_not_those_that_are_asked_for():
    """TS-23."""
    with environment("discrete", 2) as env:
        collect = Collector.of(env, make("dqn", env, capacity=400))
        while collect.env_steps < 80:
            collect.unroll(1)
        before = collect.env_steps
        info = collect.collect(n_episode=1)
        assert info.env_steps == collect.env_steps - before > 0


def test_the_buffer_is_as_large_as_the_plan_says(caplog):
    with environment("discrete", 3) as env:
        algorithm = make("dqn", env, capacity=60)
        assert isinstance(algorithm.plan, Replay)
        assert Collector.of(env, algorithm).buffer.rows_per_lane == 20
        assert not caplog.records
        assert Collector.of(env, make("dqn", env, capacity=2)).buffer.rows_per_lane == 2
        assert "algorithm.capacity is 2, and draws from each of 3 lanes need 6 rows" in caplog.text


@pytest.mark.parametrize("vectorization", ["serial", "process"])
@pytest.mark.parametrize(("name", "kind"), [("dqn", "discrete"), ("ppo", "continuous")])
def test_collection_goes_on_exactly_from_a_saved_state(name, kind, vectorization):
    """F25: environment, running episode, waiting rows and acting noise; the next rows are bit-equal."""
    runs = []
    for resumed in (False, True):
        env = environment(kind, 2, vectorization=vectorization)
        algorithm = make(name, env)
        collector = Collector.of(env, algorithm)
        collector.unroll(7.5)
        if resumed:
            saved = [split_state(part) for part in (collector.state(), algorithm.state_tensors())]
            buffer = collector.buffer.state_tensors()
            env.close()
            env = environment(kind, 2, vectorization=vectorization)
            algorithm = make(name, env, seed=8)
            collector = Collector.of(env, algorithm)
            algorithm.load_state_tensors(join_state(*saved[1]))
            collector.buffer.load_state_tensors(buffer)
            collector.load_state(join_state(*saved[0]))
        info = collector.unroll(8.5)
        runs.append((collector.buffer.newest(15), info.episodes + collector.drain(), collector.env_steps))
        env.close()
    (before, episodes, steps), (after, others, count) = runs
    assert [tuple(e)[:4] for e in episodes] == [tuple(e)[:4] for e in others] != []
    assert steps == count
    for field in ("observation", "action", "reward", "step_type", "discount", "policy_version"):
        assert torch.equal(before[field], after[field]), field


def test_an_evaluation_in_the_training_environment_breaks_the_running_episodes_off():
    """DESIGN.md section 4: MID followed by FIRST is neither trained nor bootstrapped, and no episode is reported."""
    with environment("discrete", 2) as env:
        algorithm = make("ppo", env)
        collector = Collector.of(env, algorithm)
        collector.unroll(3)
        evaluate(algorithm.policy, env, episodes=2)
        info = collector.unroll(9)
        drawn = collector.buffer.draw(algorithm.plan, torch.Generator())
        assert drawn.step_type[:6, 0].tolist() == [FIRST, MID, MID, FIRST, MID, MID]
        assert drawn.valid[:6, 0].tolist() == [1, 1, 0, 1, 1, 1]
        assert info.env_steps == 16
    assert [episode.length for episode in collector.drain()] == [5, 5]


@pytest.mark.parametrize("number", [np.int64(3), torch.tensor(3), np.array([1, 2]), torch.tensor([1, 2]), (1, 2)])
def test_numbers_of_episodes_may_be_of_any_kind_of_whole_numbers(number):
    env = create_environment(EnvConfig(num_envs=2), seed=0)
    collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
    assert len(collector.collect(n_episode=number).episodes) >= 3


def test_an_environment_that_was_dropped_is_not_waited_for():
    """One fails while its episodes are waited for, and plays none that are asked for later."""
    worlds = [TimeLimit(GymEnvironment(Poisoned(value)), 4) for value in (1.0, np.nan)]
    env = LaneEnvironment(SerialDriver(worlds, faults=FaultPolicy(on_fault="drop")))
    collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
    info = collector.collect(n_episode=[2, 1])
    assert [(episode.env_id, episode.length) for episode in info.episodes] == [(0, 4), (0, 4)]
    assert info.env_steps == 2 * 4 + 2
    with pytest.warns(UserWarning, match=r"environments \[1\] were dropped and play none of the episodes"):
        assert len(collector.collect(n_episode=[1, 1]).episodes) == 1
    assert len(collector.collect(n_episode=[1, 0]).episodes) == 1


def test_one_that_was_dropped_is_not_waited_for_where_all_of_several_groups_are():
    groups = [
        LaneEnvironment(
            SerialDriver(
                [TimeLimit(GymEnvironment(Poisoned(value)), 4) for value in (1.0, bad)],
                faults=FaultPolicy(on_fault="drop"),
            )
        )
        for bad in (1.0, np.nan)
    ]
    env = FirstReadyEnvironment(groups, num_ready=4)
    collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
    info = collector.collect(n_episode=[1, 1, 1, 1])
    assert sorted(episode.env_id for episode in info.episodes) == [0, 1, 2]
    assert env.dropped == {3}


@pytest.mark.parametrize("number", [3.0, -1, [1, -1], "3", [1, 2, 3], np.array([1.0, 2.0])])
def test_other_numbers_of_episodes_are_refused(number):
    env = create_environment(EnvConfig(num_envs=2), seed=0)
    collector = Collector.of(env, PPO(env.observation_spec, env.action_spec))
    with pytest.raises(ConfigError, match="give a whole number of at least 0"):
        collector.collect(n_episode=number)
