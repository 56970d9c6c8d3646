"""Tests of `palaestra.distributed.rollout_manager`: who is waited for, what is used, and what is dropped."""

import functools
import logging
import time

import numpy as np
import pytest
import torch

from palaestra.core import ConfigError, StepType
from palaestra.distributed import CollectorFactory, DistributedConfig, WorkersLostError
from palaestra.envs import EnvConfig
from palaestra.runtime import LocalRuntime, RemoteError, RestartPolicy
from tests.distributed.runs import (
    QUICK,
    HoldBack,
    assert_same,
    copied,
    env_of,
    fake_time,
    iterate,
    kill,
    make_algorithm,
    make_manager,
    make_trainer,
    unrolls,
    worker_of,
)

FOUR = {"num_workers": 4}


@pytest.fixture
def runtime():
    with LocalRuntime(QUICK) as runtime:
        yield runtime


def lanes_with_rows(manager):
    return np.flatnonzero(manager.buffers["policy"].positions.counts > 0).tolist()


def test_all_workers_are_waited_for_and_share_the_lanes(runtime):
    """MARO-03, MARO-08."""
    manager = make_trainer(runtime, "ppo", **FOUR).collector
    info = manager.unroll(10)
    assert info.rows == 10
    assert lanes_with_rows(manager) == [0, 1, 2, 3]
    assert manager.buffers["policy"].positions.lockstep
    assert manager.env_steps == info.env_steps <= 40
    assert {episode.env_id for episode in info.episodes} == {0, 1, 2, 3}
    assert manager.drain() == []


def test_fractions_of_a_row_are_met_on_average(runtime):
    manager = make_trainer(runtime, "dqn", num_workers=2).collector
    assert [manager.unroll(0.5).rows for _ in range(4)] == [0, 1, 0, 1]


def test_enough_finished_workers_end_an_unroll(runtime):
    """MARO-04: three of four, the fourth does not answer."""
    hold = HoldBack(runtime)
    manager = make_trainer(runtime, "ppo", **FOUR, min_finished_workers=3).collector
    manager.unroll(10)
    hold.held.add(worker_of(manager, 3))
    info = manager.unroll(10)
    assert info.env_steps <= 30
    assert manager.metrics()["workers/late"] == 1
    unroll = manager.buffers["policy"].reader.everything()
    assert unroll.valid[:, :3].sum() > 0


def test_workers_that_finish_within_the_grace_count(runtime):
    """MARO-05: the window lets a fourth worker in, and its length bounds the wait."""
    hold = HoldBack(runtime)
    manager = make_trainer(runtime, "ppo", **FOUR, min_finished_workers=1, grace_timeout_s=0.5).collector
    manager.unroll(10)
    assert lanes_with_rows(manager) == [0, 1, 2, 3]
    hold.held.add(worker_of(manager, 0))
    began = time.monotonic()
    manager.unroll(10)
    assert 0.5 <= time.monotonic() - began < 50.0


@pytest.mark.parametrize(("max_lag", "used"), [(0, False), (1, True), (3, True)])
def test_late_data_is_used_if_it_is_not_too_old_and_named_if_it_is(runtime, max_lag, used):
    """F19, MARO-12: data of version 1 arrives when the policy has version 2. Nothing that was asked for vanishes."""
    hold = HoldBack(runtime)
    trainer = make_trainer(runtime, "ppo", **FOUR, min_finished_workers=3, max_lag=max_lag)
    manager = trainer.collector
    trainer.train_iter()
    hold.held.add(late := worker_of(manager, 3))
    trainer.train_iter()
    steps = manager.env_steps
    hold.held.clear()
    trainer.train_iter()
    metrics = manager.metrics()
    assert metrics["workers/lag_max"] == 1
    assert (manager.dropped == []) is used
    if not used:
        (dropped,) = manager.dropped
        assert (dropped.worker, dropped.incarnation) == (late, 0)
        assert dropped.reason == f"it is 1 policy versions old, and max_lag is {max_lag}"
    assert manager.env_steps > steps
    versions = set(manager.buffers["policy"].reader.everything().policy_version.flatten().tolist())
    assert 2 in versions and (1 in versions) is used
    assert hold.asked["collect"] == sum(metrics[f"workers/{where}"] for where in ("fragments", "dropped", "late"))


def test_a_dropped_fragment_leaves_a_gap_that_nothing_is_learned_across(runtime):
    """The rows on both sides of it are of one episode, and do not belong together."""
    hold = HoldBack(runtime)
    trainer = make_trainer(runtime, "dqn", **FOUR, min_finished_workers=3)
    manager = trainer.collector
    manager.unroll(2)
    manager.unroll(1)
    hold.held.add(worker_of(manager, 3))
    manager.unroll(1)
    trainer.algorithm.policy.version += 1
    hold.held.clear()
    while not manager.dropped:
        manager.unroll(1)
    manager.unroll(1)
    buffer = manager.buffers["policy"]
    rows = buffer.in_time_order(3)
    kinds = buffer.take("step_type", rows)
    (gap,) = [i for i in range(1, len(rows)) if kinds[i] == StepType.MID and kinds[i - 1] == StepType.LAST]
    before, after = (buffer.take("observation", rows[[i]])[0] for i in (gap - 1, gap))
    assert not buffer.is_start(rows[[gap - 1]])[0]
    assert buffer.take("discount", rows[[gap - 1]]) == 1
    assert not torch.equal(before, after)


@pytest.mark.fault
def test_a_dead_worker_is_replaced_and_its_fragment_dropped(runtime, caplog, wait_until):
    """F14: training goes on, the newest weights are sent again, and broken fragments are never bootstrapped from."""
    manager = make_trainer(runtime, "dqn", **FOUR).collector
    manager.unroll(3)
    victim = worker_of(manager, 2)
    before = dict(manager.group.workers[2].position["lanes"])
    hold = HoldBack(runtime)
    hold.held.add(victim)
    manager.group._config = DistributedConfig(runtime="local", **FOUR, min_finished_workers=3, grace_timeout_s=0.0)
    manager._config = manager.group._config
    manager.unroll(3)
    with caplog.at_level(logging.WARNING):
        kill(runtime, victim)
        hold.held.clear()
        manager.unroll(3)
        manager.unroll(3)
    (dropped,) = manager.dropped
    assert dropped[:3] == (victim, 0, 3)
    assert "SIGKILL" in dropped.reason
    assert "SIGKILL" in caplog.text
    assert str(manager.faults[0]) == f"{victim} was killed by signal 9 (SIGKILL); another takes its place"
    assert runtime.status()[victim].incarnation == 1

    def back_at_work():
        manager.unroll(3)
        return manager.group.workers[2].position["lanes"]["episode"][0] > before["episode"][0]

    wait_until(back_at_work, what="fragments of the new life")
    assert manager.metrics()["workers/there"] == 4
    buffer = manager.buffers["policy"]
    rows = buffer.in_time_order(2)
    kinds = buffer.take("step_type", rows).tolist()
    joints = [i for i in range(1, len(kinds)) if kinds[i] == StepType.FIRST and kinds[i - 1] == StepType.MID]
    assert not any(buffer.is_start(rows[[i - 1]])[0] for i in joints)
    after = manager.group.workers[2].position["lanes"]
    assert after["lane_seed"].tolist() == before["lane_seed"].tolist()


@pytest.mark.fault
def test_a_worker_that_takes_too_long_is_ended_and_restarted(runtime):
    """F4, F18."""
    hold = HoldBack(runtime)
    fake_time(runtime, silent_s=20.0)
    manager = make_trainer(runtime, "ppo", **FOUR).collector
    manager.unroll(10)
    hung = worker_of(manager, 1)
    hold.held.add(hung)
    manager.unroll(10)
    (dropped,) = manager.dropped
    assert dropped.worker == hung
    assert dropped.reason == "did not answer within 60 s"
    hold.held.clear()
    manager.unroll(10)
    manager.unroll(10)
    assert manager.metrics()["workers/there"] == 4


@pytest.mark.fault
def test_below_the_minimum_of_workers_a_run_stops_with_the_first_cause():
    """F15."""
    with LocalRuntime(RestartPolicy(max_restarts=0)) as runtime:
        manager = make_trainer(runtime, "ppo", **FOUR, min_workers=3).collector
        manager.unroll(5)
        kill(runtime, worker_of(manager, 2))
        manager.unroll(5)
        kill(runtime, worker_of(manager, 0))
        with pytest.raises(WorkersLostError, match=r"2 of 4 workers are there and 3 are needed.*rollout-2") as raised:
            manager.unroll(5)
    assert raised.value.exit_code == 3


@pytest.mark.fault
def test_lost_workers_have_so_much_time_to_come_back():
    """F15."""
    with LocalRuntime(RestartPolicy(backoff_s=3600.0, max_backoff_s=3600.0)) as runtime:
        manager = make_trainer(runtime, "ppo", num_workers=1, recover_timeout_s=0.3).collector
        manager.unroll(5)
        kill(runtime, worker_of(manager, 0))
        manager.unroll(5)  # the first restart is immediate
        manager.unroll(5)
        kill(runtime, worker_of(manager, 0))
        began = time.monotonic()
        with pytest.raises(WorkersLostError, match="0 of 1 workers are there and 1 are needed"):
            unrolls(manager, 3)
        assert 0.2 < time.monotonic() - began < 60.0


def test_what_an_environment_raises_stops_the_run_with_its_text():
    """F1."""
    make = functools.partial(make_algorithm, "ppo", "masked")  # for an environment that forbids actions
    env = EnvConfig(name="tests.algorithms.parts:Masked", num_envs=2, chaos="raise@3")
    with LocalRuntime() as runtime:
        manager = make_manager(runtime, make(), env, make, num_workers=2)
        with pytest.raises(RemoteError, match=r"rollout-0: collect raised EnvError(.|\n)*episode") as raised:
            manager.unroll(20)
    assert raised.value.exit_code == 3


def test_a_worker_that_cannot_be_made_stops_the_run_at_once(runtime):
    make = functools.partial(make_algorithm, "ppo", "discrete")
    env = env_of("discrete")
    manager = make_manager(runtime, make(), env, make)
    manager.group._make = functools.partial(_broken)
    with pytest.raises(RemoteError, match="no such simulator"):
        manager.unroll(5)
    assert runtime.restarted == 0


def _broken(number):
    raise ConfigError("no such simulator")


def test_whole_episodes_can_be_asked_for(runtime):
    """MARO-08: segments to the episode's end."""
    manager = make_trainer(runtime, "reinforce", num_workers=2).collector
    manager.episodes = 2
    info = manager.unroll(12)
    assert sorted(episode.env_id for episode in info.episodes) == [0, 0, 1, 1, 2, 2, 3, 3]
    buffer = manager.buffers["policy"]
    assert sum(episode.length for episode in info.episodes) == info.env_steps
    for lane in range(4):
        kinds = buffer.take("step_type", buffer.in_time_order(lane))
        assert kinds[0] == StepType.FIRST
        assert kinds[-1] == StepType.LAST
    assert manager.unroll(12).env_steps > 0


@pytest.mark.parametrize("name", ["ppo", "dqn", "rainbow", "r2d2", "dreamer"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(name, runtime):
    """F25: train 6 iterations, or 3, save, load elsewhere, and 3 more."""
    kind = "recurrent" if name == "r2d2" else "discrete"
    whole = iterate(make_trainer(runtime, name, kind), 6)
    with LocalRuntime() as first:
        trainer = make_trainer(first, name, kind)
        iterate(trainer, 3)
        saved = copied(trainer.state())
    with LocalRuntime() as second:
        trainer = make_trainer(second, name, kind)
        trainer.load_state(saved)
        assert trainer.collector.resume == "exact"
        assert_same(iterate(trainer, 3), whole)


def test_whole_episodes_are_resumed_bit_by_bit(runtime):
    """F25, MARO-08: workers that collect two episodes of each environment go on where they were."""

    def made(there):
        trainer = make_trainer(there, "reinforce", num_workers=2)
        trainer.collector.episodes = 2
        return trainer

    whole = iterate(made(runtime), 6)
    with LocalRuntime() as first:
        trainer = made(first)
        iterate(trainer, 3)
        saved = copied(trainer.state())
    with LocalRuntime() as second:
        trainer = made(second)
        trainer.load_state(saved)
        assert trainer.collector.resume == "exact"
        assert_same(iterate(trainer, 3), whole)


def test_who_is_still_at_work_begins_new_episodes_in_a_resumed_run(runtime):
    hold = HoldBack(runtime)
    trainer = make_trainer(runtime, "ppo", **FOUR, min_finished_workers=3)
    trainer.train_iter()
    hold.held.add(worker_of(trainer.collector, 0))
    trainer.train_iter()
    state = trainer.state()
    assert not state["collect"]["exact"]
    with LocalRuntime() as second:
        resumed = make_trainer(second, "ppo", **FOUR)
        resumed.load_state(state)
        assert resumed.collector.resume == "statistical"
        iterate(resumed, 2)
        begun = resumed.collector.group.workers[0].position["lanes"]["episode"]
    assert begun[0] > state["collect"]["workers"]["0"]["lanes"]["episode"][0]


@pytest.mark.parametrize("number", [1, 2])
def test_another_number_of_workers_goes_on_with_the_next_episodes_of_the_same_environments(number, runtime):
    """No episode is begun twice, and none of another seed."""
    trainer = make_trainer(runtime, "ppo", **FOUR)
    iterate(trainer, 3)
    state = trainer.state()
    before = [state["collect"]["workers"][str(worker)]["lanes"] for worker in range(4)]
    with LocalRuntime() as second:
        resumed = make_trainer(second, "ppo", num_workers=number)
        resumed.load_state(copied(state))
        assert resumed.collector.resume == "statistical"
        assert resumed.collector.env_steps == trainer.collector.env_steps
        iterate(resumed, 2)
        assert resumed.collector.env_steps > trainer.collector.env_steps
        after = [worker.position["lanes"] for worker in resumed.collector.group.workers]
    assert len(after) == number
    seeds, episodes = (
        [np.concatenate([one[name] for one in lanes]).tolist() for lanes in (before, after)]
        for name in ("lane_seed", "episode")
    )
    assert seeds[0] == seeds[1]
    assert all(later > earlier for earlier, later in zip(*episodes, strict=True))


def test_a_signal_ends_an_unroll_and_the_next_one_begins_it_again(runtime, monkeypatch):
    """F22."""
    monkeypatch.setattr("palaestra.distributed.rollout_manager._PATIENCE_S", 0.2)
    hold = HoldBack(runtime)
    manager = make_trainer(runtime, "ppo", **FOUR).collector
    manager.unroll(10)
    assert not manager.unfinished
    hold.held.add(worker_of(manager, 2))
    poll = runtime.poll

    def poll_and_pause(timeout_s):
        manager.pause()
        runtime.poll = poll
        return poll(timeout_s)

    runtime.poll = poll_and_pause
    began = time.monotonic()
    manager.unroll(10)
    assert time.monotonic() - began < 50.0
    assert manager.unfinished
    assert not manager.state()["exact"]
    hold.held.clear()
    manager.unroll(10)
    assert not manager.unfinished


def test_weights_that_did_not_change_are_not_sent_again(runtime):
    trainer = make_trainer(runtime, "dqn", num_workers=2)
    manager, policy = trainer.collector, trainer.algorithm.policy
    manager.unroll(2)
    (first,) = manager.weights()
    manager.unroll(2)
    assert manager.weights() == [first]
    policy.version += 1
    list(policy.parameters())[-1].data += 1
    manager.unroll(2)
    again, second = manager.weights()
    assert again is first
    assert [len(one.view()["policy"]["tensors"]) for one in (first, second)] == [len(policy.state_dict()), 1]


def test_settings_that_cannot_work_are_refused():
    env = env_of("discrete")
    make = functools.partial(make_algorithm, "ppo", "discrete")
    with pytest.raises(
        ConfigError, match=r"num_envs is 4, which cannot be shared out evenly over 3 workers; give 3 or 6"
    ):
        CollectorFactory(env=env, algorithm=make, num_workers=3)
    with pytest.raises(ConfigError, match="workers of the run are processes already"):
        CollectorFactory(env=EnvConfig(num_envs=4, vectorization="process"), algorithm=make, num_workers=2)
    for settings, text in [
        ({"num_workers": 0}, "num_workers is 0"),
        ({"min_finished_workers": 3}, "min_finished_workers is 3; there are 2 workers"),
        ({"min_workers": 9}, "min_workers is 9"),
        ({"address": "auto"}, "it is for runtime=ray"),
        ({"runtime": "process", "num_gpus": 1.0}, "it is for runtime=ray"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"grace_timeout_s": -1.0}, "grace_timeout_s is -1.0"),
    ]:
        with pytest.raises(ConfigError, match=text):
            DistributedConfig(**settings)
