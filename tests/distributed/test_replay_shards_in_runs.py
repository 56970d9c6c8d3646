"""Runs with replay in shards learn, resume and are saved as those with one buffer (F25)."""

import functools
import tempfile
from typing import Any

import numpy as np
import pytest
import torch

import palaestra
from palaestra import Trainer
from palaestra.buffers import ReplayBuffer
from palaestra.core import (
    Replay,
)
from palaestra.distributed import (
    AgentsFactory,
    AsynchronousConfig,
    DistributedConfig,
    ShardedReplay,
    worker_streams,
)
from palaestra.distributed.replay_shards import ReplayShard
from palaestra.runtime import LocalRuntime
from palaestra.training import CheckpointStore
from tests.distributed.actors import CATCH, server
from tests.distributed.actors import make_algorithm as make_asynchronous
from tests.distributed.runs import assert_same, iterate, make_trainer
from tests.distributed.shards import LANES, Pair, assert_equal, options_of, plan_of
from tests.distributed.test_agents_factory import RANDOM, TWO_KINDS, actors, manager_of
from tests.experiments.test_hindsight import SMALL

RUNS = {"dqn": "discrete", "sac": "continuous", "rainbow": "discrete", "r2d2": "recurrent"}


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_shards_learns_the_bits_of_one_without(name, shards):
    with LocalRuntime() as one, LocalRuntime() as several:
        whole = iterate(make_trainer(one, name, RUNS[name]), 8)
        sharded = make_trainer(several, name, RUNS[name], replay_shards=shards)
        assert isinstance(sharded.collector.buffers["policy"], ShardedReplay)
        assert_same(iterate(sharded, 8), whole)
        assert sharded.algorithm.num_gradient_steps > 0


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("r2d2", 4, 4), ("rainbow", 4, 1), ("rainbow", 1, 3), ("r2d2", 2, None), ("rainbow", None, 4)],
)
def test_a_run_resumes_with_any_number_of_shards_and_the_same_bits(name, first, second, tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    with LocalRuntime() as runtime:
        trainer = make_trainer(runtime, name, RUNS[name], replay_shards=first)
        iterate(trainer, 5)
        store.save(1, trainer.state())
        iterate(trainer, 1)
        store.save(2, trainer.state())
        expected = iterate(trainer, 4)
    with LocalRuntime() as runtime:
        resumed = make_trainer(runtime, name, RUNS[name], replay_shards=second)
        resumed.load_state(store.load_newest()[1])
        assert_same(iterate(resumed, 4), expected)


def test_shards_that_do_not_see_the_folder_are_written_and_read_for(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path / "checkpoints")
    load = ReplayShard.load

    def blind(self: Any, name: str, parts: Any, positions: Any) -> Any:
        return None if "directory" in parts[0][0] else load(self, name, parts, positions)

    monkeypatch.setattr(ReplayShard, "write", lambda self, name, directory, new: list(new))
    monkeypatch.setattr(ReplayShard, "load", blind)
    states = []
    with LocalRuntime() as runtime:
        trainer = make_trainer(runtime, "dqn", replay_shards=3)
        iterate(trainer, 5)
        store.save(1, trainer.state())
        states.append(iterate(trainer, 3))
    with LocalRuntime() as runtime:
        resumed = make_trainer(runtime, "dqn", replay_shards=2)
        resumed.load_state(store.load_newest()[1])
        states.append(iterate(resumed, 3))
    assert_same(*states)


def test_only_new_pieces_are_written_and_a_damaged_one_costs_its_rows(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", copies=0)
    plan = plan_of("uniform", capacity=30_000)
    with LocalRuntime() as runtime:
        pair = Pair(runtime, plan, shards=2)
        for lane in range(LANES):
            pair.write([lane], 4_500)
        first = store.save(1, {"buffer": pair.sharded.state_tensors()})
        pair.write([0], 4)
        second = store.save(2, {"buffer": pair.sharded.state_tensors()})
        old, new = ({file.name for file in path.glob("segment-*")} for path in (first, second))
        assert len(old & new) > 3 and 0 < len(new - old) < len(new) / 2
        damaged = next(one for one in sorted(old & new) if "field.observation.number" in files_in(second / one))
        content = bytearray((second / damaged).read_bytes())
        content[-1] ^= 255
        (second / damaged).unlink()
        (second / damaged).write_bytes(content)
        (first / damaged).unlink()
        (first / damaged).write_bytes(content)
        resumed = Pair(runtime, plan, shards=3)
        resumed.sharded.load_state_tensors(store.load_newest()[1]["buffer"])
        one = ReplayBuffer(plan.capacity, LANES, **options_of(plan))
        one.load_state_tensors(store.load_newest()[1]["buffer"])
        starts = resumed.sharded.index.starts(1)
        assert 0 < len(starts) < len(pair.sharded.index.starts(1))
        assert np.array_equal(starts, one.starts(1))
        assert torch.equal(resumed.sharded.take("observation.number", starts), one.take("observation.number", starts))
        assert (one.take("observation.number", starts) > 0).all()


def files_in(path: Any) -> str:
    return path.read_bytes()[:4000].decode(errors="replace")


@pytest.mark.slow
def test_hindsight_exchanges_goals_of_rows_in_shards():
    """The sampler looks at other rows of an episode, and they are in the same shard."""
    settings = {**SMALL, "env__num_envs": 4, "distributed__runtime": "local", "run__name": "run"}
    weights = []
    for shards in (None, 3):
        with tempfile.TemporaryDirectory() as folder:
            made = palaestra.train(
                *("sac", "tests.experiments.test_hindsight:Reach"),
                run__directory=folder,
                distributed__replay_shards=shards,
                **settings,
            )
            weights.append(made.policy.state_dict())
    assert_same(*weights)


def test_every_policy_of_many_has_its_rows_in_all_shards():
    with LocalRuntime() as runtime:
        manager, _ = manager_of(runtime, RANDOM, TWO_KINDS)
        make = functools.partial(actors, RANDOM, TWO_KINDS)
        algorithms: Any = make()[1]
        factory = AgentsFactory(env=RANDOM, actors=make, num_workers=2, seed=3)
        config, pace = DistributedConfig(runtime="local", num_workers=2, replay_shards=3), AsynchronousConfig()
        sharded = worker_streams(runtime, factory, algorithms, manager.buffers, config, pace, RANDOM.num_envs)
        for _ in range(5):
            manager.unroll(13)
            sharded.unroll(13)
        for name, buffer in manager.buffers.items():
            plan = algorithms[name].plan
            first, second = (
                source.draw(plan, torch.Generator().manual_seed(1)) for source in (buffer, sharded.buffers[name])
            )
            assert_equal(first, second)
            assert len(first.index) == plan.mini_batch_size


def test_actors_that_do_not_wait_send_their_rows_to_shards():
    """Fragments that are too old are dropped, and what is left is in the shards as the index has it."""
    with LocalRuntime() as runtime:
        algorithm = make_asynchronous("dqn", CATCH)
        manager = server(runtime, algorithm, CATCH, replay_shards=4, max_lag=1)
        trainer = Trainer(manager, algorithm)
        iterate(trainer, 12)
        replay = manager.buffers["policy"]
        rows = replay.index.starts(1)
        assert len(rows) > 50 and trainer.algorithm.num_gradient_steps > 0
        drawn = replay.draw(Replay(unroll_length=1, num_epochs=1), torch.Generator())
        assert np.array_equal(drawn.index.numpy(), rows)
        assert torch.equal(drawn.step_type[0], torch.from_numpy(replay.index._streams.storage.step_types[rows]))
