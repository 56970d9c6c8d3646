"""Tests of `palaestra.distributed.gradient_workers`: data-parallel gradients."""

import copy
import logging

import pytest
import torch

from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, NonFiniteError, shards
from palaestra.distributed import GradientWorkers, GradWorker, LossState, TrainerAllocator
from palaestra.runtime import WorkerDiedError
from palaestra.training import SimplePolicyManager
from tests.algorithms.parts import CASES, any_kind, collected, first_minibatch
from tests.contracts.states import different, whole_state
from tests.distributed.parts import Mortal, local, several, sources_of, twin

GRADIENT = sorted({name for name, _ in CASES if issubclass(ALGORITHMS[name], GradientAlgorithm)})
LEARNERS = ["ppo", "dqn", "sac"]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")


def updated_with(workers, algorithm, collector, times=1, num_shards=None):
    """A copy of the algorithm after updates with so many gradient workers; `None` is without any."""
    mine, buffer = twin(algorithm), copy.deepcopy(collector.buffer)
    if workers is None:
        for _ in range(times):
            info = mine.update(buffer)
            buffer = copy.deepcopy(buffer)  # a copy does not know who has learned from it
        return mine, info
    with local() as runtime:
        pool = GradientWorkers({"policy": mine}, runtime, workers, num_shards=num_shards)
        for _ in range(times):
            info = pool.update("policy", buffer)
            buffer = copy.deepcopy(buffer)
    return mine, info


def assert_weights_agree(mine, others, tolerance):
    """Relative to the size of each component's parameters, which gradients are combined for."""
    for name, value in mine.model.state_dict().items():
        other = others.model.state_dict()[name]
        error = (value - other).double().norm() / other.double().norm().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: {float(error)}"


@pytest.mark.parametrize("name", LEARNERS)
def test_an_update_is_the_same_across_one_two_and_four_gradient_workers(name):
    """MARO-20, MARO-27, MARO-30, MARO-39, acceptance scenario 8: within a relative 1e-5 of the update without any."""
    algorithm, collector = collected(name, any_kind(name))
    algorithm.update(collector.buffer)
    collector.unroll(12)
    alone, told = updated_with(None, algorithm, collector)
    for workers in (1, 2, 4):
        shared, info = updated_with(workers, algorithm, collector)
        assert_weights_agree(shared, alone, 1e-5)
        assert info.gradient_steps == told.gradient_steps
        assert info.rows_trained == told.rows_trained
        assert shared.num_gradient_steps == alone.num_gradient_steps
        assert shared.policy_version == alone.policy_version == 2
        assert info.metrics.keys() == told.metrics.keys()
        assert info.metrics == pytest.approx(told.metrics, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_with_a_number_of_shards_any_number_of_workers_learns_the_same_bit_by_bit(name):
    """Gradients are added in the order of the shards, whoever computed them."""
    algorithm, collector = collected(name, any_kind(name))
    algorithm.update(collector.buffer)
    collector.unroll(12)
    first, _ = updated_with(1, algorithm, collector, num_shards=4)
    for workers in (2, 3, 4):
        assert_weights_agree(updated_with(workers, algorithm, collector, num_shards=4)[0], first, 0)


@pytest.mark.parametrize("name", GRADIENT)
def test_one_gradient_worker_learns_what_none_learns_bit_by_bit(name):
    """MARO-24, MARO-31: every algorithm, with its targets, schedules, periodic terms and priorities."""
    algorithm, collector = collected(name, any_kind(name))
    alone, _ = updated_with(None, algorithm, collector, times=2)
    shared, _ = updated_with(1, algorithm, collector, times=2)
    assert not different(whole_state(alone), whole_state(shared))


def test_a_minibatch_whose_rows_are_mixed_goes_to_one_of_several_workers(caplog):
    """Batch normalisation: what is learned does not depend on the number of workers, bit by bit."""
    algorithm, collector = collected("crossq", "batch-norm")
    alone, _ = updated_with(None, algorithm, collector, times=2)
    with caplog.at_level(logging.WARNING):
        shared, _ = updated_with(3, algorithm, collector, times=2)
    assert not different(whole_state(alone), whole_state(shared))
    assert "so that one of its 3 gradient workers gets all of them" in caplog.text


def test_priorities_of_shards_are_written_back_as_of_the_whole():
    algorithm, collector = collected("dqn", "discrete", prioritized=True)
    buffers = [copy.deepcopy(collector.buffer) for _ in range(2)]
    mine = twin(algorithm)
    algorithm.update(buffers[0])
    with local() as runtime:
        GradientWorkers({"policy": mine}, runtime, 3).update("policy", buffers[1])
    one, other = (buffer.sampler.state() for buffer in buffers)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.allclose(torch.as_tensor(value), torch.as_tensor(other[key]), rtol=1e-5), key


def worker_for(algorithm):
    return GradWorker({"policy": twin(algorithm)})


@pytest.mark.parametrize("name", LEARNERS)
def test_a_gradient_worker_remembers_nothing_that_an_answer_depends_on(name):
    """MARO-31: repeated, reordered, on another worker and on a new one, a task has the same gradients."""
    algorithm, collector = collected(name, any_kind(name))
    minibatch = first_minibatch(twin(algorithm), collector.buffer)
    old = LossState.of(twin(algorithm), 0)
    algorithm.update(collector.buffer)
    algorithm.set_progress(0.5)
    new = LossState.of(algorithm, 1)
    first, second = worker_for(algorithm), worker_for(algorithm)
    tasks = [old, new, new, old]
    answers = [first.gradients("policy", state, minibatch) for state in tasks]
    again = [second.gradients("policy", state, minibatch) for state in reversed(tasks)]
    fresh = [worker_for(algorithm).gradients("policy", state, minibatch) for state in tasks]
    for one, two, three in zip(answers, reversed(again), fresh, strict=True):
        assert not different(one.values, two.values)
        assert not different(one.values, three.values)
    assert not different(answers[0].values, answers[3].values)
    assert different(answers[0].values, answers[1].values)


def test_a_worker_loads_each_version_of_the_weights_once(monkeypatch):
    """MARO-30: weights are cached by version."""
    algorithm, collector = collected("ppo", "discrete")
    minibatch = first_minibatch(twin(algorithm), collector.buffer)
    loads = []
    monkeypatch.setattr(LossState, "load_into", lambda state, algorithm: loads.append(state.version))
    worker = GradWorker({"a": algorithm, "b": algorithm})
    for policy, version in [("a", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 0), ("a", 0)]:
        worker.gradients(policy, LossState.of(algorithm, version), minibatch)
    assert loads == [0, 0, 1, 0]


# -- faults


@pytest.mark.parametrize(("workers", "times"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_a_task_whose_worker_dies_is_given_to_another_and_weights_equal_the_unbroken_run(workers, times, caplog):
    """F17, MARO-31: never a partial sum; with nobody left, this process computes."""
    algorithm, collector = collected("ppo", "discrete")
    unbroken, told = updated_with(workers, algorithm, collector)
    mine = twin(algorithm)
    with local() as runtime, caplog.at_level(logging.WARNING):
        pool = GradientWorkers({"policy": mine}, runtime, workers)
        killer = Mortal(runtime, "gradients", times=times, skip=2)
        info = pool.update("policy", copy.deepcopy(collector.buffer))
        assert len(killer.victims) == times
        assert pool.reassigned >= times
        assert runtime.restarted >= 1
    assert not different(whole_state(unbroken), whole_state(mine))
    assert info.gradient_steps == told.gradient_steps
    assert "died and its task is given to another one" in caplog.text


def test_a_task_that_kills_every_worker_ends_the_run_with_the_cause():
    algorithm, collector = collected("ppo", "discrete")
    with local() as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 6)
        Mortal(runtime, "gradients", times=100)
        with pytest.raises(WorkerDiedError, match=r"4 gradient workers died of the same task of policy 'policy'"):
            pool.update("policy", collector.buffer)
    assert not algorithm.policy.updating


def test_a_gradient_that_is_not_finite_skips_the_update_and_keeps_the_minibatch():
    """F23."""
    algorithm, collector = collected("ppo", "discrete")
    with torch.no_grad():
        next(iter(algorithm.model.parameters())).fill_(torch.nan)
    with local() as runtime:
        workers = GradientWorkers({"policy": algorithm}, runtime, 2)
        manager = SimplePolicyManager({"policy": algorithm}, gradient_workers=workers)
        result = manager.update({"policy": collector.buffer})["policy"]
        assert isinstance(result, NonFiniteError)
        assert result.batch is not None
    assert not algorithm.policy.updating
    assert algorithm.policy_version == 0


# -- sharing out


def test_workers_are_shared_out_anew_while_training_goes_on():
    """MARO-27, MARO-28: by experience, 12 rows of one policy and 36 of the other; then the other way round."""
    algorithms, collectors = several("ppo", "ppo")
    names = list(algorithms)
    with local() as runtime:
        allocator = TrainerAllocator("by-experience", 4, names, period=4)
        workers = GradientWorkers(algorithms, runtime, 4, allocator=allocator)
        manager = SimplePolicyManager(algorithms, gradient_workers=workers)
        assert {name: len(mine) for name, mine in workers.allocation.items()} == {names[0]: 2, names[1]: 2}
        for busy, idle in (names, reversed(names)):
            for turn in range(4):
                name = busy if turn < 3 else idle
                collectors[name].unroll(12)
                assert not isinstance(manager.update({name: collectors[name].buffer})[name], NonFiniteError)
            shares = workers.allocation
            assert (len(shares[busy]), len(shares[idle])) == (3, 1)
            assert sorted(shares[busy] + shares[idle]) == [0, 1, 2, 3]
        manager.close()
        assert {status.state for status in runtime.status().values()} == {"dead"}


def test_the_simple_manager_with_gradient_workers_updates_every_named_policy():
    """MARO-27: either manager."""
    algorithms, collectors = several("ppo", "dqn", "sac")
    alone = {name: twin(algorithm) for name, algorithm in algorithms.items()}
    buffers = {name: copy.deepcopy(collector.buffer) for name, collector in collectors.items()}
    SimplePolicyManager(alone).update(buffers)
    with local() as runtime:
        workers = GradientWorkers(algorithms, runtime, 2)
        results = SimplePolicyManager(algorithms, gradient_workers=workers).update(sources_of(collectors))
    assert list(results) == list(algorithms)
    for name, algorithm in algorithms.items():
        assert_weights_agree(algorithm, alone[name], 1e-5)


def test_what_cannot_work_is_refused():
    trpo, _ = collected("trpo", "discrete")
    ppo, _ = collected("ppo", "discrete")
    with local() as runtime:
        with pytest.raises(ConfigError, match="learns by TRPO, which makes updates of a kind of its own"):
            GradientWorkers({"policy": trpo}, runtime, 2)
        with pytest.raises(ConfigError, match="give at least 1"):
            GradientWorkers({"policy": ppo}, runtime, 0)
        with pytest.raises(ConfigError, match="shares out 3 workers, but there are 2"):
            GradientWorkers({"policy": ppo}, runtime, 2, allocator=TrainerAllocator("by-policy", 3, ["policy"]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_workers_place_what_arrives_on_the_device_of_the_algorithm(device):
    """MARO-31: they are sent CPU tensors, compute where the algorithm is, and it takes their gradients back."""
    algorithm, collector = collected("ppo", any_kind("ppo"), seed=3)
    algorithm.to(device)
    with local() as runtime:
        workers = GradientWorkers({"policy": algorithm}, runtime, 2)
        before = [parameter.clone() for parameter in algorithm.model.parameters()]
        workers.update("policy", collector.buffer)
        made = [runtime._workers[worker].handle._target._algorithms["policy"] for worker in workers._workers]
    for one in (algorithm, *made):
        assert {parameter.device.type for parameter in one.model.parameters()} == {device}
    assert any(not torch.equal(a, b) for a, b in zip(before, algorithm.model.parameters(), strict=True))


def test_gradients_and_trajectories_of_several_places_are_one_update():
    """MARO-20: `update_with_multi_loss_info` is `apply` of several, `learn_from_multi_trajectories` a lane for each."""
    algorithm, collector = collected("ppo", any_kind("ppo"), seed=3)
    whole, parts = twin(algorithm), twin(algorithm)
    whole.update(copy.deepcopy(collector.buffer))
    received = ReplayBuffer(None, collector.buffer.num_lanes, **collector.buffer.options)
    for lane in range(received.num_lanes):
        trajectory = collector.buffer.newest(len(collector.buffer) // received.num_lanes)
        received.extend(trajectory.map(lambda leaf, lane=lane: leaf[:, lane : lane + 1]), [lane])

    def step(minibatch):
        return parts.apply([parts.gradients(part) for part in shards(minibatch, parts.plan, 2)]), None

    parts.update(received, step)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_factory_that_cannot_be_sent_says_what_to_write():
    """F27: a lambda in a factory is refused before anything starts, with what to give instead."""
    with local() as runtime, pytest.raises(ConfigError, match=r"Lambdas .* cannot; use .*functools.partial of one"):
        runtime.start(lambda: GradWorker({}), name="grad-worker")
