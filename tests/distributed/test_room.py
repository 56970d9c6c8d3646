"""A run that has no room for all its workers, or does not wait for them."""

import functools
import logging

import numpy as np

from palaestra import EnvConfig, Trainer
from palaestra.runtime import LocalRuntime
from tests.distributed.runs import QUICK, HoldBack, copied, fake_time, iterate, kill, make_manager, make_trainer
from tests.distributed.test_processes import ppo_for


def lanes_with_rows(manager):
    return np.flatnonzero(manager.buffers["policy"].positions.counts > 0).tolist()


def test_workers_that_wait_for_room_are_not_waited_for_and_join_later(monkeypatch, caplog):
    """F15: there is room for three of four; the fourth is no fault, and a checkpoint without it is resumed by two."""
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        clock = fake_time(runtime, silent_s=0.1)
        hold.held.add("rollout-3")
        monkeypatch.setattr(runtime, "room", lambda resources: 3.0)
        monkeypatch.setattr(runtime, "waits_for_room", lambda worker: worker in hold.held)
        trainer = make_trainer(runtime, "ppo", num_workers=4)
        manager = trainer.collector
        with caplog.at_level(logging.WARNING):
            manager.begin()
        assert "there is room for 3 of 4 workers" in caplog.text
        for _ in range(10):  # a hundred seconds, longer than timeout_s
            clock[0] += 10.0
            trainer.train_iter()
        assert lanes_with_rows(manager) == [0, 1, 2]
        state = copied(trainer.state())
        hold.held.clear()
        iterate(trainer, 2)
        assert lanes_with_rows(manager) == [0, 1, 2, 3]
        assert manager.faults == []
    with LocalRuntime() as second:
        resumed = make_trainer(second, "ppo", num_workers=2)
        resumed.load_state(state)
        iterate(resumed, 1)
        assert resumed.collector.resume == "statistical"


def test_who_came_late_has_no_more_seconds_than_the_unroll_that_takes_it(monkeypatch):
    """Environments had more than 100% of the time and storing rows less than none."""
    with LocalRuntime(QUICK) as runtime:
        manager = make_trainer(runtime, "ppo", num_workers=2).collector
        fresh = manager.fresh

        def late(worker, call, fragment, max_lag):
            fragment.info.env_s = fragment.info.total_s = 3600.0
            return fresh(worker, call, fragment, max_lag)

        monkeypatch.setattr(manager, "fresh", late)
        info = manager.unroll(10)
        assert 0.0 < info.env_s + info.inference_s <= info.total_s


def test_what_failed_in_a_fragment_that_is_too_old_is_told():
    """F19: the rows are dropped, and the record of the environment that was restarted is not."""
    env = EnvConfig(name="palaestra.envs.tiny:Endless", num_envs=4, on_fault="restart", chaos="raise@12#3")
    make = functools.partial(ppo_for, env, unroll_length=10)
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        algorithm = make()
        manager = make_manager(runtime, algorithm, env, make, num_workers=4, min_finished_workers=3)
        trainer = Trainer(manager, algorithm)
        trainer.train_iter()
        hold.held.add("rollout-3")
        trainer.train_iter()
        assert manager.faults == []
        hold.held.clear()
        trainer.train_iter()
        assert [one.worker for one in manager.dropped] == ["rollout-3"]
        assert (manager.faults[0].env_id, manager.faults[0].episode) == (3, 0)


def test_restarts_are_those_of_the_workers_that_collect():
    """Those of learners, hosts and shards of replay counted with them."""
    with LocalRuntime(QUICK) as runtime:
        manager = make_trainer(runtime, "ppo", num_workers=2).collector
        manager.unroll(5)
        runtime.restart(runtime.start(list, name="learner"))
        assert manager.metrics()["workers/restarts"] == 0
        kill(runtime, manager.group.workers[0].id)
        for _ in range(2):
            manager.unroll(5)
        assert manager.metrics()["workers/restarts"] == 1
