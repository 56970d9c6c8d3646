"""Tests of `palaestra.distributed.gradient_workers`: replicas that learn together."""

import copy
import logging
import time

import pytest
import torch

from palaestra.algorithms import ALGORITHMS, GradientAlgorithm, ShardedSteps
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, NonFiniteError, PalaestraError, shards
from palaestra.distributed import GradientWorkers, PolicyHost, TrainerAllocator
from palaestra.distributed.exchange import Exchange, GroupSeat, fingerprint
from palaestra.distributed.policy_host import HostTask, _here
from palaestra.runtime import RemoteError, Shared
from palaestra.testing.algorithms import different, whole_state
from palaestra.training import SimplePolicyManager
from tests.algorithms.parts import CASES, FAST, any_kind, collected, slow_but_of
from tests.distributed.parts import Mortal, local, several, sources_of, twin

GRADIENT = sorted({name for name, _ in CASES if issubclass(ALGORITHMS[name], GradientAlgorithm)})
LEARNERS = ["ppo", "dqn", "sac"]
RANKS = [*LEARNERS, "impala"]
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


def test_a_replica_computes_on_the_gpu_that_it_was_given(monkeypatch):
    """Ray shows a process only its own, as the first: the number of the driver's says nothing there."""
    algorithm = collected("ppo", "discrete")[0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [_here(name, 1) for name in ("cuda:0", "cuda:1", "cuda", "cpu")] == ["cuda:0", "cuda", "cuda", "cpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [_here(name, 1) for name in ("cuda:0", "cuda:1", "cpu")] == ["cuda:0", "cuda:1", "cpu"]  # which see all
    assert [_here("cuda", number) for number in range(4)] == ["cuda:0", "cuda:1"] * 2
    monkeypatch.setattr("palaestra.algorithms.algorithm.require_device", lambda name: torch.device("cpu"))
    assert algorithm.to("cuda").asked_device == "cuda"


@pytest.mark.parametrize("name", LEARNERS)
def test_an_update_is_the_same_across_one_two_and_four_ranks(name):
    """MARO-20, MARO-27, MARO-30, MARO-39, acceptance scenario 8: within a relative 1e-5 of the update without any."""
    algorithm, collector = collected(name, any_kind(name))
    algorithm.update(collector.buffer)
    collector.unroll(12)
    alone, told = updated_with(None, algorithm, collector)
    for workers in (0, 1, 3):
        shared, info = updated_with(workers, algorithm, collector)
        assert_weights_agree(shared, alone, 1e-5)
        assert info.gradient_steps == told.gradient_steps
        assert info.rows_trained == told.rows_trained
        assert shared.num_gradient_steps == alone.num_gradient_steps
        assert shared.policy_version == alone.policy_version == 2
        assert info.metrics.keys() == told.metrics.keys()
        assert info.metrics == pytest.approx(told.metrics, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", RANKS)
def test_with_a_number_of_shards_any_number_of_ranks_learns_the_same_bit_by_bit(name):
    """Gradients are added in the order of the shards, whoever computed them."""
    algorithm, collector = collected(name, any_kind(name))
    algorithm.update(collector.buffer)
    collector.unroll(12)
    first, told = updated_with(0, algorithm, collector, times=2, num_shards=4)
    for workers in (1, 3):
        mine, heard = updated_with(workers, algorithm, collector, times=2, num_shards=4)
        assert not different(whole_state(mine), whole_state(first))
        assert heard.metrics == told.metrics


@pytest.mark.parametrize("name", slow_but_of(FAST, GRADIENT))
def test_two_ranks_learn_what_one_learns_bit_by_bit(name):
    """MARO-24: every algorithm, with its targets, schedules, periodic terms and priorities."""
    algorithm, collector = collected(name, any_kind(name))
    alone, _ = updated_with(0, algorithm, collector, times=2, num_shards=2)
    shared, _ = updated_with(1, algorithm, collector, times=2, num_shards=2)
    assert not different(whole_state(alone), whole_state(shared))


def test_a_minibatch_whose_rows_are_mixed_is_learned_from_by_the_learner_alone(caplog):
    """Batch normalisation: what is learned does not depend on the number of workers, bit by bit."""
    algorithm, collector = collected("crossq", "batch-norm")
    alone, _ = updated_with(None, algorithm, collector, times=2)
    with caplog.at_level(logging.WARNING):
        shared, _ = updated_with(3, algorithm, collector, times=2)
    assert not different(whole_state(alone), whole_state(shared))
    assert "so that its learner gets all of them, and its 3 gradient workers do nothing for it" in caplog.text


def test_priorities_of_shards_are_written_back_as_of_the_whole():
    algorithm, collector = collected("dqn", "discrete", prioritized=True)
    buffers = [copy.deepcopy(collector.buffer) for _ in range(2)]
    mine = twin(algorithm)
    algorithm.update(buffers[0])
    with local() as runtime:
        GradientWorkers({"policy": mine}, runtime, 2).update("policy", buffers[1])
    one, other = (buffer.sampler.state() for buffer in buffers)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.allclose(torch.as_tensor(value), torch.as_tensor(other[key]), rtol=1e-5), key


@pytest.mark.parametrize("name", LEARNERS)
def test_what_a_worker_answers_depends_on_its_task_alone(name):
    """MARO-31: repeated, reordered, on another worker and on a new one, a task with its state ends the same."""
    algorithm, collector = collected(name, any_kind(name))
    collector.unroll(12)
    drawn = copy.deepcopy(collector.buffer).draw(algorithm.plan, algorithm.minibatch_generator)
    old = algorithm.minibatch_generator.get_state(), copy.deepcopy(algorithm.state_tensors())
    algorithm.update(copy.deepcopy(collector.buffer))
    new = algorithm.minibatch_generator.get_state(), copy.deepcopy(algorithm.state_tensors())

    def answer(worker, generator, state):
        seat = GroupSeat("", 0, "group", 0, 1, 2, 60.0)
        worker.update("policy", HostTask(0, generator, 0.5, seat), drawn, copy.deepcopy(state))
        return copy.deepcopy(worker.finish("policy", 60.0).state)

    first, second = (PolicyHost({"policy": twin(algorithm)}) for _ in range(2))
    tasks = [old, new, new, old]
    answers = [answer(first, *task) for task in tasks]
    again = [answer(second, *task) for task in reversed(tasks)]
    fresh = [answer(PolicyHost({"policy": twin(algorithm)}), *task) for task in tasks]
    for one, two, three in zip(answers, reversed(again), fresh, strict=True):
        assert not different(one, two)
        assert not different(one, three)
    assert not different(answers[0], answers[3])
    assert different(answers[0], answers[1])


class Sent:
    """Notes for every update whether a worker was sent the policy's state; MARO-30."""

    def __init__(self, runtime):
        self.states = []
        self._call = runtime.call
        runtime.call = self

    def __call__(self, worker, method, *args):
        if method == "update":
            self.states.append(args[-1] is not None)
        return self._call(worker, method, *args)


def test_weights_travel_to_a_worker_once_and_when_something_else_changed_them():
    """MARO-30: after updates that both have made a worker has them, after a checkpoint was loaded it has not."""
    algorithm, collector = collected("sac", any_kind("sac"))
    collector.unroll(12)
    earlier = copy.deepcopy(algorithm.state_tensors())
    expected, _ = updated_with(0, algorithm, collector, num_shards=2)
    with local() as runtime:
        workers, sent = GradientWorkers({"policy": algorithm}, runtime, 1), Sent(runtime)
        for _ in range(3):
            workers.update("policy", copy.deepcopy(collector.buffer))
        assert sent.states == [True, False, False]
        algorithm.load_state_tensors(earlier)
        workers.update("policy", copy.deepcopy(collector.buffer))
        assert sent.states == [True, False, False, True]
        assert workers.regrouped == 0
    assert not different(whole_state(expected), whole_state(algorithm))


def test_every_bit_of_the_weights_is_in_the_fingerprint():
    algorithm, _ = collected("ppo", "discrete")
    before = fingerprint(algorithm)
    assert fingerprint(twin(algorithm)) == before
    with torch.no_grad():
        weight = next(iter(algorithm.model.parameters())).view(-1)[3:4]
        weight.copy_(torch.nextafter(weight, weight + 1))
    assert fingerprint(algorithm) != before


def test_a_worker_that_comes_to_other_weights_ends_the_run(monkeypatch):
    """A copy that has drifted would spoil every later update."""
    algorithm, collector = collected("ppo", "discrete")
    apply, exchange = GradientAlgorithm.apply_shards, Exchange.step

    def step(self, one, minibatch):
        if self.seat.rank:
            one.apply_shards = lambda parts: apply(
                one, [part._replace(values={k: 2 * v for k, v in part.values.items()}) for part in parts]
            )
        return exchange(self, one, minibatch)

    monkeypatch.setattr(Exchange, "step", step)
    with local() as runtime:
        workers = GradientWorkers({"policy": algorithm}, runtime, 1)
        with pytest.raises(PalaestraError, match="grad-worker has other weights of policy 'policy' than its learner"):
            workers.update("policy", collector.buffer)


# -- faults


def test_a_worker_that_fails_ends_the_run_with_the_cause_and_keeps_nobody_waiting(monkeypatch):
    """F17: not at the deadline of two minutes, but at once."""
    algorithm, collector = collected("ppo", "discrete")
    exchange = Exchange.step

    def step(self, one, minibatch):
        if self.seat.rank:
            raise RuntimeError("there is no memory left on this machine")
        return exchange(self, one, minibatch)

    monkeypatch.setattr(Exchange, "step", step)
    with local() as runtime:
        workers = GradientWorkers({"policy": algorithm}, runtime, 1)
        began = time.monotonic()
        with pytest.raises(RemoteError, match="there is no memory left on this machine"):
            workers.update("policy", collector.buffer)
        assert time.monotonic() - began < 60.0


@pytest.mark.parametrize(("workers", "times"), [(1, 1), (2, 1), (3, 3)])
def test_a_worker_that_dies_before_an_update_changes_nothing_of_what_is_learned(workers, times, caplog):
    """F17: never a partial sum; the learner makes the update alone, and the next one is shared again."""
    algorithm, collector = collected("ppo", "discrete")
    unbroken, told = updated_with(0, algorithm, collector, times=3, num_shards=4)
    mine, buffer = twin(algorithm), copy.deepcopy(collector.buffer)
    with local() as runtime, caplog.at_level(logging.WARNING):
        pool = GradientWorkers({"policy": mine}, runtime, workers, num_shards=4)
        killer = Mortal(runtime, "update", times=times)
        for _ in range(3):
            info = pool.update("policy", buffer)
            buffer = copy.deepcopy(buffer)
        assert len(killer.victims) == times
        assert runtime.restarted >= 1
        assert pool.regrouped >= 1
    assert not different(whole_state(unbroken), whole_state(mine))
    assert info.gradient_steps == told.gradient_steps
    assert f"of {workers + 1} is lost in update 1, and rank 0 makes its rest" in caplog.text


def test_a_worker_that_died_is_restarted_once_however_late_that_is_heard():
    """It was restarted for its silence, say, and is back before anybody hears of the call that died with it."""
    algorithm, collector = collected("ppo", "discrete")
    with local() as runtime:
        pool = GradientWorkers({"policy": algorithm}, runtime, 1)
        Mortal(runtime, "update")
        drawn = Shared(collector.buffer.draw(algorithm.plan, algorithm.minibatch_generator))
        pool.begin("policy", HostTask(0, algorithm.minibatch_generator.get_state(), algorithm.progress), drawn)
        (call,) = pool.calls
        heard = runtime.wait([call], timeout_s=60.0)
        runtime.restart(call.worker)
        runtime.wait([runtime.call(call.worker, "there_is_none")], timeout_s=60.0)  # it lives again
        pool.take(heard)
        assert runtime.restarted == 1


@pytest.mark.parametrize("name", RANKS)
def test_a_group_that_breaks_in_the_middle_of_an_update_learns_the_same_bit_by_bit(name, monkeypatch, caplog):
    """F17: the interrupted gradient step is made again, and the next update has a new group."""
    algorithm, collector = collected(name, any_kind(name))
    unbroken, _ = updated_with(0, algorithm, collector, times=3, num_shards=4)
    mine, buffer, asked = twin(algorithm), copy.deepcopy(collector.buffer), []
    gathered = Exchange._gathered

    def breaks_once(exchange, parts):
        asked.append(exchange.seat.rank)
        if asked.count(1) == 2 and exchange.seat.rank == 1:
            exchange._broken(RuntimeError("it was cut off by a test"))
        return gathered(exchange, parts)

    monkeypatch.setattr(Exchange, "_gathered", breaks_once)
    with local() as runtime, caplog.at_level(logging.WARNING):
        pool = GradientWorkers({"policy": mine}, runtime, 2, num_shards=4)
        for _ in range(3):
            pool.update("policy", buffer)
            buffer = copy.deepcopy(buffer)
        assert pool.regrouped == 1
    assert caplog.text.count("learner has computed the rest of the update: rank 0 of 3 lost the others") == 1
    assert not different(whole_state(unbroken), whole_state(mine))


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


@pytest.mark.slow
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
        with pytest.raises(
            ConfigError, match="num_shards=2: give at least 0 workers, and a shard for each and one for"
        ):
            GradientWorkers({"policy": ppo}, runtime, 2, num_shards=2)
        with pytest.raises(ConfigError, match="shares out 3 workers, but there are 2"):
            GradientWorkers({"policy": ppo}, runtime, 2, allocator=TrainerAllocator("by-policy", 3, ["policy"]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_workers_place_what_arrives_on_the_device_of_the_algorithm(device):
    """They are sent CPU tensors, compute where the algorithm is, and it takes their gradients back."""
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
        return parts.apply_shards([parts.gradients(part) for part in shards(minibatch, parts.plan, 2)])

    parts.update(received, ShardedSteps(step))
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
