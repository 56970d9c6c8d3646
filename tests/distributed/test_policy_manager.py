"""Tests of `palaestra.distributed.policy_manager`."""

import copy
import dataclasses
import logging
import time
from typing import Any

import pytest
import torch

from palaestra import PPO, Collector, Trainer, TrainerConfig
from palaestra.buffers import ReplayBuffer
from palaestra.core import POLICY, ConfigError, NonFiniteError, OnPolicy
from palaestra.distributed import DistributedPolicyManager, GradientWorkers, TrainerAllocator
from palaestra.runtime import LocalRuntime, ProcessRuntime, RestartPolicy, Result, WorkerDiedError
from palaestra.testing.algorithms import different, whole_state
from palaestra.training import PolicyManager, SimplePolicyManager
from tests.algorithms.parts import (
    CASES,
    FAST,
    any_kind,
    collected,
    collector_for,
    environment,
    make,
    slow_but_of,
    tiny_config,
)
from tests.distributed.parts import QUICK, Mortal, local, several, sources_of, twin


@pytest.fixture(autouse=True)
def _rows_are_learned_from_again(monkeypatch):
    """Managers are compared on the same rows in every update, which an algorithm alone refuses."""
    draw = ReplayBuffer.draw

    def again(buffer, plan, generator):
        buffer.writer.used = False
        return draw(buffer, plan, generator)

    monkeypatch.setattr(ReplayBuffer, "draw", again)


def trained_side_by_side(runtime: Any, algorithms: Any, collectors: Any, times: int = 3, **options: Any) -> None:
    """Learns with both managers from the same data; everything must be equal after every update."""
    simple = {name: twin(algorithm) for name, algorithm in algorithms.items()}
    mine = {name: copy.deepcopy(collector.buffer) for name, collector in collectors.items()}
    here = SimplePolicyManager(simple)
    there = DistributedPolicyManager(algorithms, runtime, **options)
    assert isinstance(there, PolicyManager)
    for turn in range(times):
        told, heard = here.update(mine), there.update(sources_of(collectors))
        assert list(told) == list(heard)
        for name in told:
            assert told[name].metrics == heard[name].metrics
            assert told[name].policy_version == heard[name].policy_version == turn + 1
            assert not different(whole_state(simple[name]), whole_state(there.algorithms[name])), name
        here.set_progress(turn / times)
        there.set_progress(turn / times)
    for name, algorithm in simple.items():
        assert not different(here.state()[name], there.state()[name])
        sampler = getattr(mine[name], "sampler", None)
        if sampler is not None:
            theirs = collectors[name].buffer.sampler.state()
            assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(theirs[k])) for k, v in sampler.state().items())
        assert algorithm.policy_version == times
    there.close()


@pytest.mark.parametrize(("name", "kind"), slow_but_of(FAST, CASES))
def test_every_algorithm_learns_on_a_host_what_it_learns_in_place_bit_by_bit(name, kind):
    """MARO-24, MARO-26, MARO-29, MARO-30: also those that state no losses."""
    algorithm, collector = collected(name, kind)
    with local() as runtime:
        trained_side_by_side(runtime, {"policy": algorithm}, {"policy": collector})


def test_priorities_come_back_from_the_host():
    algorithm, collector = collected("dqn", "discrete", prioritized=True)
    with local() as runtime:
        trained_side_by_side(runtime, {"policy": algorithm}, {"policy": collector})


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_policies_are_spread_over_hosts(hosts):
    """MARO-26, MARO-29."""
    algorithms, collectors = several("ppo", "dqn", "sac")
    with local() as runtime:
        trained_side_by_side(runtime, algorithms, collectors, num_hosts=hosts)
        assert len(runtime.status()) == hosts


@pytest.mark.slow
def test_policies_learn_at_the_same_time_in_processes_and_equal_those_that_learn_in_turn():
    """MARO-25: same seed, equal parameters in both modes; the intervals of parallel updates overlap."""
    algorithms, collectors = several("ppo", "sac")
    with ProcessRuntime(QUICK) as runtime:
        trained_side_by_side(runtime, {name: twin(a) for name, a in algorithms.items()}, copy.deepcopy(collectors))
        slow = {name: twin(algorithm) for name, algorithm in algorithms.items()}
        for algorithm in slow.values():
            algorithm.plan = _much(algorithm.plan)
        manager = DistributedPolicyManager(slow, runtime)
        manager.update(sources_of(collectors))  # the first update waits for the processes to start
        manager.update(sources_of(collectors))
        spans = list(manager.spans.values())
        assert max(began for began, _ in spans) < min(ended for _, ended in spans)


def _much(plan: Any) -> Any:
    name = "num_epochs" if isinstance(plan, OnPolicy) else "gradient_steps"
    return dataclasses.replace(plan, **{name: 60})


class Counting(PPO):
    """Says how many threads compute its losses."""

    def losses(self, batch):
        found = super().losses(batch)
        return found._replace(metrics={**found.metrics, "threads": torch.tensor(float(torch.get_num_threads()))})


def test_a_host_computes_with_as_many_threads_as_the_run():
    """Sums of several threads are rounded otherwise than those of one."""
    with environment("discrete") as env:
        algorithm = Counting(env.observation_spec, env.action_spec, tiny_config(PPO))
        collector = collector_for(env, algorithm)
        collector.unroll(12)
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            with ProcessRuntime(QUICK) as runtime:
                manager = DistributedPolicyManager({"policy": algorithm}, runtime)
                found = manager.update(sources_of({"policy": collector}))["policy"]
        finally:
            torch.set_num_threads(before)
    assert found.metrics["threads"] == 3


def test_only_named_policies_learn():
    algorithms, collectors = several("ppo", "ppo")
    first, second = algorithms
    with local() as runtime:
        manager = DistributedPolicyManager(algorithms, runtime, num_hosts=1)
        before = whole_state(algorithms[second])
        assert list(manager.update({first: collectors[first].buffer})) == [first]
        assert algorithms[first].policy_version == 1
        assert not different(before, whole_state(algorithms[second]))


def test_acting_here_goes_on_with_its_own_random_numbers():
    """What a host answers must not take the acting generator back."""
    algorithm, collector = collected("ppo", "discrete")
    with local() as runtime:
        manager = DistributedPolicyManager({"policy": algorithm}, runtime)
        before = algorithm.policy.generator.get_state()
        collector.unroll(12)
        moved = algorithm.policy.generator.get_state()
        manager.update({"policy": collector.buffer})
        assert not torch.equal(before, moved)
        assert torch.equal(algorithm.policy.generator.get_state(), moved)


def test_a_checkpoint_of_one_manager_is_one_of_the_other():
    """F25: state, load_state, and the next update is bit-equal whoever makes it."""
    algorithm, collector = collected("sac", "continuous")
    other = twin(algorithm)
    with local() as runtime:
        manager = DistributedPolicyManager({"policy": algorithm}, runtime)
        manager.update({"policy": collector.buffer})
        manager.update({"policy": collector.buffer})
        simple = SimplePolicyManager({"policy": other})
        simple.load_state(copy.deepcopy(manager.state()))
        assert not different(simple.state()["policy"], manager.state()["policy"])
        earlier = copy.deepcopy(manager.state())
        first = manager.update({"policy": collector.buffer})["policy"]
        manager.load_state(earlier)
        again = manager.update({"policy": collector.buffer})["policy"]
        in_place = simple.update({"policy": collector.buffer})["policy"]
        assert first.metrics == again.metrics == in_place.metrics
        assert not different(simple.state()["policy"], manager.state()["policy"])


def test_collection_begins_when_every_host_has_reported_its_newest_weights():
    """MARO-02, 06, 07, 09, 22: collect, then update; actions are of the version after all updates."""
    with environment("discrete") as env, local() as runtime:
        algorithm = make("ppo", env)
        manager = DistributedPolicyManager({POLICY: algorithm}, runtime)
        learner = Trainer(Collector.of(env, algorithm), manager, TrainerConfig(total_env_steps=10_000))
        collect, acted = learner.collector, []
        unroll = collect.unroll

        def seen(length: float, **options: Any) -> Any:
            version = algorithm.policy_version
            info = unroll(length, **options)
            acted.append(collect.buffers[POLICY].newest(1).policy_version.unique().tolist())
            assert algorithm.policy_version == version
            return info

        collect.unroll = seen
        for _ in range(5):
            learner.train_iter()
    assert acted == [[0], [1], [2], [3], [4]]
    assert algorithm.policy_version == 5


# -- with gradient workers


@pytest.mark.parametrize("workers", [1, 2])
def test_hosts_use_gradient_workers_as_the_simple_manager_does(workers):
    """MARO-27, MARO-30: host and workers are a group; both managers give the same weights bit by bit."""
    algorithms, collectors = several("ppo", "dqn", "sac")
    simple = {name: twin(algorithm) for name, algorithm in algorithms.items()}
    mine = {name: copy.deepcopy(collector.buffer) for name, collector in collectors.items()}
    with local() as runtime, local() as other:
        here = SimplePolicyManager(simple, gradient_workers=GradientWorkers(simple, other, workers))
        there = DistributedPolicyManager(
            algorithms, runtime, num_hosts=2, gradient_workers=GradientWorkers(algorithms, runtime, workers)
        )
        for _ in range(2):
            told, heard = here.update(mine), there.update(sources_of(collectors))
            for name in told:
                assert told[name].metrics == heard[name].metrics
                assert not different(whole_state(simple[name]), whole_state(algorithms[name]))
        there.close()
        assert {status.state for status in runtime.status().values()} == {"dead"}


def test_hosts_workers_rebalancing_and_a_restart_leave_learning_as_it_is():
    """Acceptance scenario 8, MARO-25..31: local, and hosts with gradient workers that die and are shared out anew."""
    algorithms, collectors = several("ppo", "dqn")
    simple = {name: twin(algorithm) for name, algorithm in algorithms.items()}
    mine = {name: copy.deepcopy(collector.buffer) for name, collector in collectors.items()}
    with ProcessRuntime(QUICK) as runtime:
        allocator = TrainerAllocator("by-experience", 3, list(algorithms), period=2)
        workers = GradientWorkers(algorithms, runtime, 3, allocator=allocator)
        manager = DistributedPolicyManager(algorithms, runtime, gradient_workers=workers)
        Mortal(runtime, "update", times=2, skip=4)
        shares = [workers.allocation]
        here = SimplePolicyManager(simple)
        for _ in range(3):
            manager.update(sources_of(collectors))
            here.update(mine)
            shares.append(workers.allocation)
        assert runtime.restarted >= 2
        assert shares[0] != shares[-1]
    for name, algorithm in simple.items():
        assert algorithms[name].num_gradient_steps == algorithm.num_gradient_steps
        for key, value in algorithm.model.state_dict().items():
            error = (value - algorithms[name].model.state_dict()[key]).norm() / value.norm().clamp(min=1e-3)
            assert error < 1e-4, f"{name} {key}: {float(error)}"


# -- faults


@pytest.mark.parametrize("runtime_class", [LocalRuntime, ProcessRuntime])
@pytest.mark.parametrize("skip", [0, 2])
def test_a_killed_host_is_replaced_and_nothing_is_lost_or_learned_twice(runtime_class, skip, caplog):
    """F14, F17: killed before its first and after its second update; the run equals the unbroken one bit by bit."""
    algorithms, collectors = several("ppo", "dqn")
    with runtime_class(QUICK) as runtime, caplog.at_level(logging.WARNING):
        killer = Mortal(runtime, "update", times=2, skip=skip)
        trained_side_by_side(runtime, algorithms, collectors, num_hosts=1)
        assert len(killer.victims) == 2
        assert runtime.restarted >= 1
    told = [record.getMessage() for record in caplog.records]
    ends = [text for text in told if text.endswith("begins again; another takes its place")]
    assert len(ends) == runtime.restarted and "incarnation" not in "".join(told)


def test_a_host_that_dies_in_an_update_with_gradient_workers_begins_it_again():
    """F14, F17: hosts and gradient workers, both policies, before and after they have begun."""
    algorithms, collectors = several("ppo", "dqn")
    unbroken = {name: twin(algorithm) for name, algorithm in algorithms.items()}
    mine = {name: copy.deepcopy(collector.buffer) for name, collector in collectors.items()}
    with local() as runtime:
        pool = GradientWorkers(unbroken, runtime, 2)
        DistributedPolicyManager(unbroken, runtime, num_hosts=1, gradient_workers=pool).update(mine)
    with local() as runtime:
        pool = GradientWorkers(algorithms, runtime, 2)
        manager = DistributedPolicyManager(algorithms, runtime, num_hosts=1, gradient_workers=pool)
        killer = Mortal(runtime, "finish", times=2, skip=1)
        manager.update(sources_of(collectors))
        assert len(killer.victims) == 2
    for name, algorithm in algorithms.items():
        assert not different(whole_state(unbroken[name]), whole_state(algorithm))


def test_the_end_of_a_worker_is_announced_once(caplog):
    """Of one that may not be restarted, too, however many updates go on without it."""
    algorithms, collectors = several("ppo", "dqn")
    with LocalRuntime(RestartPolicy(max_restarts=0)) as runtime, caplog.at_level(logging.WARNING):
        pool = GradientWorkers(algorithms, runtime, 1)
        Mortal(runtime, "update")
        for _ in range(3):
            for name, source in sources_of(collectors).items():
                pool.update(name, copy.deepcopy(source))
    (said,) = caplog.messages
    assert "is lost in update" in said and "restarted 0 times within an hour" in said


def test_a_host_that_hangs_is_replaced_at_its_deadline(monkeypatch):
    """F4: its answer is never waited for again."""
    algorithm, collector = collected("ppo", "discrete")
    unbroken = twin(algorithm)
    unbroken.update(copy.deepcopy(collector.buffer))
    with ProcessRuntime(QUICK) as runtime:
        manager = DistributedPolicyManager({"policy": algorithm}, runtime, timeout_s=0.0)
        begin = manager._begin

        def patient_the_second_time(job: Any) -> None:
            begin(job)
            manager._timeout_s = 60.0

        monkeypatch.setattr(manager, "_begin", patient_the_second_time)
        manager.update({"policy": collector.buffer})
        assert runtime.restarted == 1
        (fault,) = manager.faults
        assert fault.worker == "policy host 1 of 1"
        assert str(fault).startswith("policy host 1 of 1 did not answer within ")
        assert str(fault).endswith(" s: update 1 begins again; another takes its place")
    assert not different(whole_state(unbroken), whole_state(algorithm))


def test_a_host_that_says_that_it_works_is_left_to_work():
    """F4: the deadline is for silence; an update may take longer."""
    algorithms, collectors = several("ppo")
    with local() as runtime:
        manager = DistributedPolicyManager(algorithms, runtime, timeout_s=10.0)
        ((name, source),) = sources_of(collectors).items()
        job = manager._job(name, source)
        manager._begin(job)
        assert job.call is not None
        job.deadline, call = 0.0, job.call
        manager._heard(job, Result(call, value=None, error=None))
        assert job.deadline > time.monotonic()
        assert job.call.method == "finish"


def test_a_host_that_dies_again_and_again_ends_the_run_with_the_first_cause():
    algorithm, collector = collected("ppo", "discrete")
    with local() as runtime:
        manager = DistributedPolicyManager({"policy": algorithm}, runtime)
        Mortal(runtime, "update", times=100)
        with pytest.raises(WorkerDiedError, match=r"restarted 8 times within an hour(.|\n)*was killed by a test"):
            manager.update({"policy": collector.buffer})


def test_an_update_that_is_not_finite_is_reported_and_leaves_what_the_simple_manager_leaves():
    """F23: the minibatch comes along, so that it can be kept."""
    algorithm, collector = collected("ppo", "discrete")
    with torch.no_grad():
        next(iter(algorithm.model.parameters())).fill_(torch.nan)
    for workers in (0, 2):
        mine, theirs = twin(algorithm), twin(algorithm)
        buffers = [copy.deepcopy(collector.buffer) for _ in range(2)]
        with local() as runtime:
            pool = GradientWorkers({"policy": theirs}, runtime, workers) if workers else None
            manager = DistributedPolicyManager({"policy": theirs}, runtime, gradient_workers=pool)
            told = SimplePolicyManager({"policy": mine}).update({"policy": buffers[0]})["policy"]
            heard = manager.update({"policy": buffers[1]})["policy"]
        assert isinstance(told, NonFiniteError)
        assert isinstance(heard, NonFiniteError)
        assert torch.equal(told.batch.advantage, heard.batch.advantage)
        generators = [a.minibatch_generator.get_state() for a in (mine, theirs)]
        assert torch.equal(*generators)
        assert (mine.policy_version, theirs.policy_version) == (0, 0)


def test_what_cannot_work_is_refused():
    algorithm, _ = collected("ppo", any_kind("ppo"))
    with local() as runtime, local() as other:
        with pytest.raises(ConfigError, match="0 policies on 0 hosts"):
            DistributedPolicyManager({}, runtime)
        with pytest.raises(ConfigError, match="1 policies on 2 hosts"):
            DistributedPolicyManager({"policy": algorithm}, runtime, num_hosts=2)
        pool = GradientWorkers({"policy": algorithm}, other, 1)
        with pytest.raises(ConfigError, match="need one runtime"):
            DistributedPolicyManager({"policy": algorithm}, runtime, gradient_workers=pool)


def test_learners_that_were_closed_say_so():
    algorithm, collector = collected("ppo", "discrete")
    with LocalRuntime() as runtime:
        workers = GradientWorkers({"policy": algorithm}, runtime, 1)
        workers.close()
        with pytest.raises(ConfigError, match="these learners were closed"):
            workers.update("policy", collector.source)
