"""Scenario 7, the synchronous half: slow, late and dead workers in one run."""

import functools

import pytest

from palaestra import Trainer, TrainerConfig
from palaestra.core import POLICY
from palaestra.runtime import LocalRuntime
from tests.distributed.runs import QUICK, HoldBack, env_of, kill, make_algorithm, make_manager


@pytest.mark.fault
def test_a_run_with_slow_late_and_dead_workers_uses_every_fragment_once_or_names_it():
    """Scenario 7, MARO-02..07: four workers, of which three are waited for; 15 iterations, each with its update."""
    with LocalRuntime(QUICK) as runtime:
        hold, run = HoldBack(runtime), Run(runtime)
        assert run.iterate(1) == [(4, 0)], "all are quick: every fragment is of the newest version (MARO-06)"
        slow, dying = (run.manager.group.workers[number].id for number in (3, 1))

        hold.held = {slow}
        assert run.iterate(1) == [(3, 0)], "nobody waits for who is slow (MARO-04)"
        hold.held = set()
        assert run.iterate(1)[0][1] == 1, "its fragment comes one version late, and may be used (MARO-05)"
        assert not run.manager.dropped

        hold.held = {slow}
        run.iterate(3)
        hold.held = set()
        run.iterate(1)
        assert [dropped.worker for dropped in run.manager.dropped] == [slow], "two versions are too many (MARO-12)"

        kill(runtime, dying)  # the others go on, and it comes back (F14)
        assert all(fragments >= 3 for fragments, _ in run.iterate(8))
        status, metrics = runtime.status()[dying], run.manager.metrics()
        assert (status.incarnation, status.calls > 0) == (1, True)
        assert (metrics["workers/there"], metrics["workers/restarts"]) == (4, 1)
        assert run.algorithm.policy_version == 15


class Run:
    """A learner whose manager waits for three of four workers, and takes data of the version before."""

    def __init__(self, runtime):
        make = functools.partial(make_algorithm, "ppo", "discrete")
        self.algorithm = make()
        settings = {"num_workers": 4, "min_finished_workers": 3, "max_lag": 1}
        self.manager = make_manager(runtime, self.algorithm, env_of("discrete"), make, **settings)
        self._learner = Trainer(self.manager, self.algorithm, TrainerConfig(total_env_steps=10**9))
        self._fragments = 0

    def iterate(self, times):
        """Of each iteration: fragments that were used, and how many versions old the oldest that came was."""
        found = []
        for _ in range(times):
            self._learner.train_iter()
            metrics, before = self.manager.metrics(), self._fragments
            self._fragments = metrics["workers/fragments"]
            found.append((self._fragments - before, metrics["workers/lag_max"]))
        assert set(self.manager.buffers) == {POLICY}
        return found
