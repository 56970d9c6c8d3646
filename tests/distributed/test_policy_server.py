"""Tests of `palaestra.distributed.policy_server` and `asynchronous`: actors that wait for nobody."""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.buffers.writer import StreamWriter
from palaestra.core import POLICY, ConfigError, OnPolicy
from palaestra.distributed import AsynchronousConfig, Pace, WorkersLostError
from palaestra.envs import probe_specs
from palaestra.nn import NetworkConfig
from palaestra.rollout import buffer_for
from palaestra.runtime import ProcessRuntime, RayRuntime
from palaestra.training import CheckpointStore, Trainer
from tests.distributed.actors import CATCH, TRACK, Overtaken, asynchronous, make_algorithm, server
from tests.distributed.parts import QUICK, Mortal, local

LEARNERS = [("impala", CATCH), ("ppo", CATCH), ("dqn", CATCH), ("sac", TRACK)]


def watched(trainer: Trainer) -> list[int]:
    """The lag of every row that is learned from, as the learning algorithm sees it."""
    seen: list[int] = []
    source, algorithm = trainer.collector.sources[POLICY], trainer.algorithm
    draw = source.draw

    def drawn(plan: Any, generator: Any) -> Any:
        batch = draw(plan, generator)
        if "policy_version" in batch:
            lag = algorithm.policy_version - batch.policy_version
            seen.extend(lag[batch.valid.bool()].flatten().tolist())
        return batch

    source.draw = drawn  # pyright: ignore[reportAttributeAccessIssue]
    return seen


@pytest.mark.parametrize(
    ("name", "max_lag"), [("impala", 0), ("impala", 2), ("impala", 8), ("impala", None), ("ppo", 0), ("ppo", None)]
)
def test_exactly_the_data_that_max_lag_allows_is_used(name, max_lag):
    """Scenario 7, MARO-12, MARO-13, F19: one slow actor of four; what is older is dropped, counted, named."""
    with Overtaken("actor-1", every=30) as runtime:
        trainer = asynchronous(runtime, name, max_lag=max_lag)
        used, collect = watched(trainer), trainer.collector
        arrived = Counter[int]()
        lags_of = collect.lags_of

        def noted(fragment: Any) -> dict[str, int]:
            lags = lags_of(fragment)
            arrived[lags[POLICY]] += 1
            return lags

        collect.lags_of = noted
        for _ in range(30):
            trainer.train_iter()
    allowed = Counter({lag: n for lag, n in arrived.items() if max_lag is None or lag <= max_lag})
    assert max(arrived) > 8, "the slow actor is not slow"
    assert collect.lags == allowed
    assert set(used) == set(allowed)
    assert trainer.algorithm.policy_version == sum(allowed.values()) == 30
    assert collect.dropped.total == sum((arrived - allowed).values())
    assert len(set(collect.dropped)) == len(collect.dropped)
    for dropped in collect.dropped:
        assert f"max_lag is {max_lag}" in dropped.reason
    assert collect.env_steps > 0


def test_an_actor_whose_data_was_dropped_gets_the_newest_weights():
    """MARO-11, MARO-13: every answer carries the newest version there is."""
    with Overtaken("actor-1", every=12) as runtime:
        trainer = asynchronous(runtime, "impala", max_lag=0)
        collect, sent = trainer.collector, []
        give = collect.group.give

        def given(member: Any, method: str, *args: Any, **kwargs: Any) -> None:
            sent.append((member.id, args[-1].view()[POLICY]["version"], trainer.algorithm.policy_version))
            give(member, method, *args, **kwargs)

        collect.group.give = given
        for _ in range(30):
            trainer.train_iter()
    assert any(one.worker == "actor-1" for one in collect.dropped)
    assert {worker for worker, _, _ in sent} == {"actor-0", "actor-1", "actor-2", "actor-3"}
    assert all(version == newest for _, version, newest in sent)
    assert max(version for worker, version, _ in sent if worker == "actor-1") > 8


@pytest.mark.parametrize("place", ["local", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "together"), [("impala", 1), ("impala", 3), ("ppo", 1), ("ppo", 3), ("a2c", 1), ("a2c", 3), ("dqn", 1)]
)
def test_of_one_actor_nothing_is_dropped_whatever_max_lag_is(name, together, place):
    """MARO-11, MARO-12: the server learns from a fragment and replies then, so the next one is of the newest policy."""
    with local() if place == "local" else ProcessRuntime(QUICK) as runtime:
        trainer = asynchronous(runtime, name, actors=1, max_lag=0, fragments_per_update=together, total=900)
        trainer.run()
        collect = trainer.collector
    assert collect.dropped == []
    assert set(collect.lags) == {0}
    assert trainer.algorithm.policy_version > 4


def test_an_actor_waits_for_learning_only_where_there_is_a_max_lag():
    """MARO-11: without one it acts while its fragment is learned from; with one it is answered afterwards."""
    for max_lag, at_work in ((None, 2), (50, 1)):
        with local() as runtime:
            trainer = asynchronous(runtime, "impala", actors=2, max_lag=max_lag)
            trainer.train_iter()
            assert trainer.algorithm.policy_version == 1
            assert len(trainer.collector.group.busy) == at_work
            trainer.train_iter()
            assert sum(trainer.collector.lags.values()) == 2


def test_actors_begin_with_the_first_weights_and_end_with_the_runtime():
    """MARO-14, MARO-23: the server is the trainer's process; it hands out version 0 first, and leaves nobody behind."""
    with local() as runtime:
        trainer = asynchronous(runtime, "impala")
        seen = watched(trainer)
        trainer.train_iter()
        assert seen
        assert set(seen) == {0}
        assert trainer.collector.env_steps > 0
        assert {status.state for status in runtime.status().values()} <= {"idle", "busy"}
    assert {status.state for status in runtime.status().values()} == {"dead"}


@pytest.mark.parametrize(("name", "env"), LEARNERS)
def test_every_fragment_is_learned_from_once_and_counted_once(name, env):
    """MARO-10, MARO-11, F14: on-policy data is discarded after one update; replayed data lies in the buffer."""
    with local() as runtime:
        trainer = asynchronous(runtime, name, env)
        result = trainer.run()
        collect = trainer.collector
        calls = sum(status.calls for status in runtime.status().values())
    assert result.status == "done"
    assert result.env_steps == collect.env_steps >= 400
    used, waiting = sum(collect.lags.values()), collect.metrics()["workers/waiting_fragments"]
    begun = 4  # the first call of every actor
    assert used + waiting + len(collect.dropped) == calls - begun
    if isinstance(trainer.algorithm.plan, OnPolicy):
        assert trainer.algorithm.policy_version == used
    else:
        stored = collect.buffers[POLICY]
        assert len(stored) > 0
    assert all(torch.isfinite(p).all() for p in trainer.algorithm.model.parameters())


def test_the_queue_is_bounded_and_actors_wait_while_it_is_full():
    """F20: a learner that needs four fragments at a time, and room for two of them."""
    with local() as runtime:
        trainer = asynchronous(runtime, "ppo", queue_size=2)
        collect = trainer.collector
        for _ in range(20):
            trainer.train_iter()
            assert collect.metrics()["workers/waiting_fragments"] <= 2 + 3  # those that were under way when it was full
            assert len(collect.group.busy) + collect.metrics()["workers/waiting_fragments"] <= 2 + 4


def test_an_update_may_wait_for_several_fragments():
    with local() as runtime:
        trainer = asynchronous(runtime, "impala", fragments_per_update=3)
        seen = watched(trainer)
        for _ in range(6):
            trainer.train_iter()
        assert sum(trainer.collector.lags.values()) == 18
        assert trainer.algorithm.policy_version == 6
        assert len(seen) > 6 * 2 * 12 * 0.5


@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_rows_drawn_follow_rows_written_at_the_pace_that_was_asked_for(ratio):
    """F20: whoever is ahead waits, however quick the actors are."""
    with local() as runtime:
        trainer = asynchronous(runtime, "dqn", samples_per_insert=ratio, fragment_steps=4, total=4000)
        collect = trainer.collector
        pace, ahead = collect._pace, []
        took = pace.took

        def noted(rows: int, env_steps: int) -> None:
            took(rows, env_steps)
            ahead.append((rows, pace.ahead))

        pace.took = noted
        for _ in range(60):
            trainer.train_iter()
        drawn = trainer.algorithm.num_gradient_steps * trainer.algorithm.plan.mini_batch_size
        written = [rows for rows, so_far in ahead if so_far is not None]
        assert all(so_far is None or abs(so_far) <= pace.slack for _, so_far in ahead)
        assert abs(pace.ahead) <= pace.slack
        # what was written before the first draw is not caught up
        assert drawn == pytest.approx(ratio * sum(written[1:]), abs=pace.slack)
        assert pace.slack < 0.25 * drawn  # so the pace shows
        assert len(collect.buffers[POLICY]) <= 120  # memory is flat


def test_rows_of_sequences_and_of_several_policies_are_counted_as_what_they_are():
    """F20."""
    memory = NetworkConfig(hidden_sizes=(8,), recurrent="gru")
    parts = make_algorithm("r2d2", CATCH, network=memory), make_algorithm("dqn", CATCH)
    algorithms = dict(zip(("remembers", "reacts"), parts, strict=True))
    observation_spec, _, reward_spec = probe_specs(CATCH)
    specs: Any = {"observation_spec": observation_spec, "reward_spec": reward_spec}
    buffers = {
        name: buffer_for(algorithms[name], lanes, **specs) for name, lanes in zip(algorithms, (8, 4), strict=True)
    }
    pace = Pace(algorithms, buffers, 4, AsynchronousConfig(samples_per_insert=2.0), num_envs=4)
    drawn = [one.plan.gradient_steps * one.plan.mini_batch_size * one.plan.mini_batch_length for one in parts]
    assert parts[0].plan.mini_batch_length > 1
    assert pace.lanes == 12  # two agents of each environment share the first
    pace.took(10 * pace.lanes, env_steps=10_000)
    assert pace.ahead == 0
    assert pace.enough(1, 10_000)
    assert pace.ahead == -sum(drawn)


@functools.cache
def _replaying() -> tuple[Any, Any]:
    algorithm = make_algorithm("dqn", CATCH)
    observation_spec, _, reward_spec = probe_specs(CATCH)
    return algorithm, buffer_for(algorithm, 4, observation_spec=observation_spec, reward_spec=reward_spec)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ratio=st.floats(0.1, 20), steps=st.integers(1, 16), who=st.lists(st.booleans(), max_size=200))
def test_whoever_is_ahead_waits_and_one_of_both_can_always_go_on(ratio, steps, who):
    """F20: the bound holds at every moment, whatever the order in which both want to go on."""
    algorithm, buffer = _replaying()  # which a pace only asks for sizes
    config = AsynchronousConfig(samples_per_insert=ratio, fragment_steps=steps)
    pace = Pace({POLICY: algorithm}, {POLICY: buffer}, 4, config, num_envs=4)
    rows, learning = steps * pace.lanes, 10_000
    assert not pace.enough(0, learning)  # nothing is written
    for acts in [True, *who]:
        can_act = pace.may_take(0, rows)
        if acts and can_act:
            pace.took(rows, learning)
        else:
            assert pace.enough(1, learning) or can_act
        assert pace.ahead is not None and abs(pace.ahead) <= pace.slack


@pytest.mark.parametrize("joined", [False, True])
def test_no_transition_leads_over_a_fragment_that_was_dropped(joined, monkeypatch):
    """MARO-12, TS-07: the ball falls by one row in every transition; it would not if streams were joined (mutant)."""
    if joined:
        monkeypatch.setattr(StreamWriter, "end_streams", lambda writer, env_id=None: None)
    with local() as runtime:
        trainer = asynchronous(runtime, "dqn", fragment_steps=5, capacity=4000, total=4000, max_lag=100)
        turns = itertools.cycle([0, 101, 100])
        monkeypatch.setattr(trainer.collector, "lags_of", lambda fragment: {POLICY: next(turns)})
        for _ in range(30):
            trainer.train_iter()
        assert len(trainer.collector.dropped) > 10
        buffer = trainer.collector.buffers[POLICY]
        windows = buffer.windows(buffer.starts(1), 1)
    before, after = _height(windows.observation), _height(windows.next_observation)
    assert len(before) > 100
    assert np.array_equal(after, before + 1) != joined


def _height(observation: Any) -> np.ndarray:
    """The row of the ball, which is the first square that is not empty; three squares are a row."""
    return observation.argmax(1).numpy() // 3


@pytest.mark.parametrize(("name", "env"), [("impala", CATCH), ("sac", TRACK)])
def test_a_killed_actor_is_replaced_and_its_fragment_is_dropped_and_named(name, env):
    """F14."""
    with local() as runtime:
        trainer = asynchronous(runtime, name, env, total=800)
        killer = Mortal(runtime, "collect", times=3, skip=5)
        result = trainer.run()
        collect = trainer.collector
    assert result.status == "done"
    assert len(killer.victims) == 3
    assert runtime.restarted == 3
    lost = [(one.worker, one.incarnation, one.sequence) for one in collect.dropped]
    assert lost == [(call.worker, call.incarnation, call.sequence) for call in killer.victims]
    assert collect.metrics()["workers/restarts"] == 3
    assert [fault.worker for fault in collect.faults] == [call.worker for call in killer.victims]


def test_with_too_few_actors_the_run_stops_with_exit_code_3_and_the_first_cause():
    """F14, F15."""
    with local() as runtime:
        trainer = asynchronous(runtime, "impala", total=100_000, min_workers=4)
        Mortal(runtime, "collect", times=10_000, skip=4)
        with pytest.raises(WorkersLostError, match="4 are needed") as stopped:
            trainer.run()
    assert stopped.value.exit_code == 3
    assert "was killed by a test" in str(stopped.value)


@pytest.mark.parametrize(("name", "env"), [("ppo", CATCH), ("dqn", CATCH)])
def test_a_run_is_resumed_from_its_checkpoint(name, env, tmp_path):
    """F16, F25: weights, counters and the replay buffer are as they were; new episodes begin."""
    with local() as runtime:
        trainer = asynchronous(runtime, name, env, total=300, checkpoints=CheckpointStore(tmp_path / "checkpoints"))
        trainer.run()
        version, steps, lags = trainer.algorithm.policy_version, trainer.collector.env_steps, trainer.collector.lags
        positions = trainer.collector.state()["positions"]
    with local() as runtime:
        store = CheckpointStore(tmp_path / "checkpoints")
        again = asynchronous(runtime, name, env, total=600, checkpoints=store)
        again.load_state(store.load_newest()[1])
        assert again.collector.state()["positions"] == positions  # also where it ends before actors are there
        assert again.algorithm.policy_version == version
        assert again.collector.env_steps == steps
        assert again.collector.lags == lags
        if name == "dqn":
            assert len(again.collector.buffers[POLICY]) == len(trainer.collector.buffers[POLICY])
        result = again.run()
        assert result.env_steps >= 600
        assert again.algorithm.policy_version > version
        later = again.collector.state()["positions"]
    for before, after in zip(positions, later, strict=True):
        assert (np.asarray(after["lanes"]["episode"]) > np.asarray(before["lanes"]["episode"])).all()


def test_a_paused_unroll_keeps_what_it_has_and_counts_nothing_twice():
    with local() as runtime:
        trainer = asynchronous(runtime, "impala", fragments_per_update=8)
        collect = trainer.collector
        trainer.train_iter()
        steps = collect.env_steps
        take, left = collect.group.take, [1]

        def interrupted(**named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                collect.pause()
            return take(**named)

        collect.group.take = interrupted
        trainer.train_iter()
        assert collect.unfinished
        assert trainer.algorithm.policy_version == 1
        assert collect.state()["env_steps"] == steps
        trainer.train_iter()
        assert not collect.unfinished
        assert trainer.algorithm.policy_version == 2
        assert sum(collect.lags.values()) == 16


def test_the_lag_histogram_is_among_the_metrics():
    """F19."""
    with Overtaken("actor-1", every=12) as runtime:
        trainer = asynchronous(runtime, "impala")
        for _ in range(60):
            trainer.train_iter()
        row = trainer.collector.metrics()
    bins = {name: count for name, count in row.items() if name.startswith("workers/lag_") and "m" not in name[12:]}
    assert list(bins) == [f"workers/lag_{name}" for name in ("0", "1", "2", "3-4", "5-8", "9-16", "17+")]
    assert sum(bins.values()) == 60
    assert bins["workers/lag_9-16"] + bins["workers/lag_17+"] >= 1
    assert row["workers/lag_max"] >= 9


@pytest.mark.slow
@pytest.mark.parametrize("place", ["process", "ray"])
def test_actors_elsewhere_go_on_while_one_of_them_is_killed(place):
    """MARO-10, F14, F18: real processes, and machines of a cluster."""
    if place == "ray":
        pytest.importorskip("ray", reason="ray is not installed; pip install 'palaestra[ray]'")
    with ProcessRuntime(QUICK) if place == "process" else RayRuntime(QUICK, num_cpus=2) as runtime:
        trainer = asynchronous(runtime, "impala", total=600, actors=2)
        killer = Mortal(runtime, "collect", times=1, skip=3)
        result = trainer.run()
        assert result.status == "done"
        assert len(killer.victims) == 1
        (dropped,), victim = trainer.collector.dropped, killer.victims[0]
        assert dropped[:2] == victim[:2]
        assert dropped[2] >= victim[2], "it may finish one more before the kill arrives"


def test_what_cannot_work_is_refused():
    with local() as runtime:
        replayed = make_algorithm("dqn", CATCH)
        replayed.plan = OnPolicy(unroll_length=4, clear=False, capacity=16)
        with pytest.raises(ConfigError, match="keeps its own data"):
            server(runtime, replayed, CATCH)
        trainer = asynchronous(runtime, "ppo")
        with pytest.raises(ConfigError, match="lanes, which 3 actors cannot share"):
            Pace(trainer.algorithms, trainer.collector.buffers, 3, AsynchronousConfig(), 4)
        for setting in ("max_lag", "fragment_steps", "queue_size", "samples_per_insert"):
            with pytest.raises(ConfigError, match=setting):
                AsynchronousConfig(**{setting: -1})
