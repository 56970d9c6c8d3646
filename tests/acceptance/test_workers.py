"""Scenario 7, the synchronous half: slow, late and dead workers in one run."""

import functools

import pytest

from palaestra import Trainer, TrainerConfig
from palaestra.core import POLICY
from palaestra.runtime import LocalRuntime, WorkerDiedError
from tests.distributed.runs import QUICK, HoldBack, env_of, make_algorithm, make_manager


@pytest.mark.fault
def test_a_run_with_slow_late_and_dead_workers_uses_every_fragment_once_or_names_it():
    """Scenario 7, MARO-02..07: four workers, of which three are waited for."""
    make = functools.partial(make_algorithm, "ppo", "discrete")
    algorithm = make()
    with LocalRuntime(QUICK) as runtime:
        hold = HoldBack(runtime)
        settings = {"num_workers": 4, "min_finished_workers": 3, "max_lag": 1}
        manager = make_manager(runtime, algorithm, env_of("discrete"), make, **settings)
        learner = Trainer(manager, algorithm, TrainerConfig(total_env_steps=10**9))
        used = _versions_used(manager)

        # all are quick: every fragment is of the newest version (MARO-06)
        learner.train_iter()
        slow, dying = (manager.group.workers[number].id for number in (3, 1))
        assert set(used.pop()) == {0}

        # one is slow: nobody waits for it, and its fragment comes one version late, which may be used (MARO-04, 05)
        hold.held.add(slow)
        learner.train_iter()
        assert used.pop() == [1, 1, 1]
        hold.held.clear()
        learner.train_iter()
        assert sorted(used.pop())[0] == 1
        assert not manager.dropped

        # it is slower still: two versions are too many, and it gets the newest weights all the same (MARO-12, 13)
        hold.held.add(slow)
        for _ in range(3):
            learner.train_iter()
        hold.held.clear()
        learner.train_iter()
        assert [dropped.worker for dropped in manager.dropped] == [slow]
        assert max(used[-1]) == algorithm.policy_version - 1

        # one dies: the others go on, and it comes back (F14)
        runtime._bury(runtime._workers[dying], WorkerDiedError("killed by signal 9 (SIGKILL)"))
        for _ in range(8):
            learner.train_iter()
        status = runtime.status()
        assert status[dying].incarnation == 1
        assert status[dying].calls > 0
        metrics = manager.metrics()
        assert metrics["workers/there"] == 4
        assert metrics["workers/restarts"] == 1
        assert algorithm.policy_version == 15  # one update an iteration, whatever happened
        assert set(manager.buffers) == {POLICY}


def _versions_used(manager):
    """For every iteration from now on, the versions of the fragments that were used in it."""
    versions, store = [], manager._store

    def store_and_note(taken, info):
        versions.append([fragment.versions[POLICY] for _, fragment in taken])
        store(taken, info)

    manager._store = store_and_note
    return versions
