"""Replay in shards: rows lie in workers, and are drawn as from one buffer (F14, F21)."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import (
    Batch,
    CheckpointError,
    ConfigError,
    OnPolicy,
    Replay,
    RowsLostError,
)
from palaestra.distributed import (
    DistributedConfig,
    ReplayShards,
    ShardedReplay,
    WorkersLostError,
    require_replay_shards,
)
from palaestra.runtime import LocalRuntime, RemoteError
from tests.distributed.parts import local
from tests.distributed.runs import iterate, kill, make_trainer
from tests.distributed.shards import LANES, PLANS, Pair, assert_equal, options_of, plan_of, up_to_ends, worker_of

# -- what is drawn


@pytest.mark.parametrize("rows", [{}, {"frames": 3}, {"memory": True}], ids=["plain", "frames", "memory"])
@pytest.mark.parametrize("name", PLANS)
def test_every_draw_has_the_bits_of_one_buffer(name, rows):
    """Rings that wrap, streams that break off, lanes of different length, priorities that are written back."""
    if rows.get("memory") and name not in ("sequences", "prioritized sequences"):
        pytest.skip("hidden states are kept for sequences")
    with LocalRuntime() as runtime:
        pair = Pair(runtime, plan_of(name), **rows)
        for turn in range(12):
            pair.fill(4)
            first, second = pair.draws(turn)
            assert_equal(first, second)
            if "prioritized" in name:
                priority = torch.rand(len(first.index), generator=torch.Generator().manual_seed(turn))
                for source in (pair.whole, pair.sharded):
                    source.write_back(first.index, priority)
                    source.set_progress(turn / 12)
        assert int(pair.whole.positions.written.max()) > 2 * pair.whole.rows_per_lane
        assert len(pair.sharded) == len(pair.whole)


@pytest.mark.parametrize("rows", [{}, {"memory": True}], ids=["plain", "memory"])
def test_what_one_buffer_saved_goes_on_in_shards(rows):
    """Its lanes are not in step, and not all places of its ring keep a hidden state."""
    plan = plan_of("sequences", capacity=41 * LANES)
    with LocalRuntime() as runtime, LocalRuntime() as other:
        pair, again = Pair(runtime, plan, **rows), Pair(other, plan, **rows)
        pair.fill(24)
        again.sharded.load_state_tensors(pair.whole.state_tensors())
        again.whole = pair.whole
        assert_equal(*again.draws(5))


def chi_square_is_likely(counts: np.ndarray, probability: np.ndarray) -> bool:
    """Within four standard deviations of its mean."""
    expected = counts.sum() * probability / probability.sum()
    assert expected.min() > 5
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = len(counts) - 1
    return abs(statistic - degrees) < 4 * np.sqrt(2 * degrees)


def counts_of(source: ShardedReplay, plan: Replay, starts: np.ndarray, draws: int) -> np.ndarray:
    generator, drawn = torch.Generator().manual_seed(7), []
    for _ in range(draws):
        drawn.append(source.draw(plan, generator).index.numpy())
    assert np.isin(np.concatenate(drawn), starts).all()
    return np.bincount(np.concatenate(drawn), minlength=starts.max() + 1)[starts]


@pytest.mark.parametrize("name", ["uniform", "n-step", "sequences"])
def test_all_rows_of_all_shards_are_equally_likely(name):
    plan = plan_of(name, mini_batch_size=2000)
    with LocalRuntime() as runtime:
        pair = Pair(runtime, plan)
        pair.fill()
        starts = pair.whole.starts(plan.window)
        counts = counts_of(pair.sharded, plan, starts, 10)
        assert chi_square_is_likely(counts, np.ones(len(starts)))
        assert not chi_square_is_likely(counts, np.where(starts % LANES < 2, 1.3, 1.0))  # it can tell


@pytest.mark.parametrize("name", ["prioritized", "prioritized sequences"])
def test_rows_of_all_shards_are_drawn_by_their_priority_and_weighted_by_the_sum_of_all(name):
    plan = plan_of(name, mini_batch_size=2000)
    settings = plan.prioritized
    assert settings is not None
    with LocalRuntime() as runtime:
        pair = Pair(runtime, plan)
        pair.fill()
        starts = pair.whole.starts(plan.window)
        pair.draws(0)
        priority = 0.5 + 3 * np.random.default_rng(1).random(len(starts))
        for source in (pair.whole, pair.sharded):
            source.write_back(torch.from_numpy(starts), torch.from_numpy(priority))
        size = (priority + 1e-6) ** settings.alpha
        counts = counts_of(pair.sharded, plan, starts, 20)
        assert chi_square_is_likely(counts, size)
        assert not chi_square_is_likely(counts, np.ones(len(starts)))
        whole, sharded = pair.draws(3)
        assert torch.equal(whole.weight, sharded.weight)
        chance = dict(zip(starts.tolist(), size / size.sum(), strict=True))
        expected = np.array([chance[row] for row in sharded.index.tolist()])
        expected = (expected / expected.min()) ** -0.4
        assert np.allclose(sharded.weight.numpy(), expected, rtol=1e-4)


def test_it_is_a_data_source_like_any_other():
    """Fields at any rows, for samplers that look at them; and a length."""
    with LocalRuntime() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        pair.fill(10)
        rows = pair.whole.starts(1)[:12].reshape(3, 4)
        for name in ("reward", "observation.number", "observation", "step_type"):
            assert_equal(Batch.of({"x": pair.whole.take(name, rows)}), Batch.of({"x": pair.sharded.take(name, rows)}))
        with pytest.raises(ConfigError, match="asked for OnPolicy"):
            pair.sharded.draw(OnPolicy(unroll_length=3), torch.Generator())


# -- what is lost


@pytest.mark.parametrize("name", PLANS)
def test_a_shard_that_is_lost_costs_what_it_held_and_says_so(name):
    """The rest is drawn as before, new rows join in, and no window or sequence crosses the gap."""
    plan = plan_of(name, mini_batch_size=500) if name != "whole" else plan_of(name)
    with local() as runtime:
        pair = Pair(runtime, plan, frames=3)
        pair.fill()
        pair.draws(0)
        held = int(pair.whole.positions.counts[1:3].sum())
        kept = len(pair.sharded) - held
        before = {int(row) for row in pair.whole.starts(plan.window)}
        kill(runtime, worker_of(pair.shards, 1))
        assert pair.sharded.draw(plan, torch.Generator().manual_seed(1)) is not None
        assert (pair.shards.lost_rows, pair.shards.lost_shards, len(pair.sharded)) == (held, 1, kept)
        (fault,) = pair.shards.faults
        assert fault.worker.startswith("replay shard 2 of ") and f"the {held:,} rows that it held" in str(fault)
        lanes = np.array(sorted(before)) % LANES
        left = np.array(sorted(before))[(lanes != 1) & (lanes != 2)]
        assert set(pair.sharded.index.starts(plan.window).tolist()) == set(left.tolist())
        for _ in range(40):
            pair.write(list(range(LANES)), 4)  # over the end of the ring
            whole, sharded = (
                source.draw(plan, torch.Generator().manual_seed(5)) for source in (pair.whole, pair.sharded)
            )
        if not plan.prioritized:  # with the same rows again, though at other places, draws have the same bits again
            assert_equal(whole.replace(index=sharded.index), sharded)


@pytest.mark.parametrize("name", ["uniform", "prioritized", "sequences"])
def test_after_a_loss_rows_are_what_their_numbers_say(name):
    """Every row that is drawn from the new shard is one that was written after the loss, with its true neighbours."""
    plan = plan_of(name, mini_batch_size=400)
    with local() as runtime:
        pair = Pair(runtime, plan)
        pair.fill()
        pair.draws(0)
        newest = pair.streams._number
        kill(runtime, worker_of(pair.shards, 2))
        seen = 0
        for turn in range(25):
            pair.write([0, 1, 3, 4], 3)
            drawn = pair.sharded.draw(plan, torch.Generator().manual_seed(turn))
            lanes = drawn.index % LANES
            number = drawn.observation.number
            mine = (number[0] if number.ndim == 2 else number)[lanes == 3]
            assert (mine >= newest - LANES).all()
            seen += len(mine)
            if name == "sequences":
                continue
            follows = drawn.next_observation.number - number
            assert (follows > 0).all()
            assert torch.equal(drawn.observation.camera[:, 1].long(), lanes)
            assert torch.equal(drawn.next_observation.camera[:, 1].long(), lanes)
        assert seen > 100
        starts = pair.sharded.index.starts(plan.window)
        if name != "sequences":
            plan_now = plan_of(name, mini_batch_size=2000)
            counts = counts_of(pair.sharded, plan_now, starts, 10)
            if name == "uniform":
                assert chi_square_is_likely(counts, np.ones(len(starts)))


def test_rows_after_a_loss_in_the_middle_of_an_unroll_lie_where_the_index_says():
    """The index knows all fragments of an unroll before the first is passed on; the loss is noticed among them."""
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"), shards=1)
        for turn in range(8):
            parts = []
            for lane in range(LANES):
                rows = pair.streams.fragment([lane], 5)
                parts.append((rows, pair.shards.map.split({"policy": [([lane], rows)]}, {"policy": 0})))
            for _, (rest, _) in parts:
                for lanes, piece in rest["policy"]:
                    pair.sharded.extend(piece, lanes)
            if turn == 3:
                kill(runtime, worker_of(pair.shards, 0))
            for _, (_, parcels) in parts:
                pair.shards.extend(parcels, ["policy"])
            pair.shards.keep_up()
        assert pair.shards.lost_shards == 1
        for lane, (rows, _) in enumerate(parts):
            held = pair.sharded.index.reader.in_time_order(lane)[:-1]
            read = pair.sharded.take("observation", held)["number"].tolist()
            assert read[-5:] == rows["observation"]["number"][:-1, 0].tolist()


def test_a_shard_that_hangs_while_rows_are_passed_on_is_lost_once_its_time_is_over():
    """F15: it is not waited for again with every unroll."""
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        pair.fill(5)
        pair.shards._timeout_s, submit, silent = 2.0, runtime.submit, worker_of(pair.shards, 2)
        runtime.submit = lambda worker, call, request: (  # type: ignore[method-assign]
            None if call.worker == silent and call.incarnation == 0 else submit(worker, call, request)
        )
        for _ in range(30):
            pair.write(list(range(LANES)), 2)
        assert pair.shards.lost_shards == 1
        assert "did not answer within" in str(pair.shards.faults[-1])


def test_a_shard_that_is_lost_while_it_is_written_to_or_read_is_noticed_there():
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        pair.fill(10)
        kill(runtime, worker_of(pair.shards, 0))
        for _ in range(10):
            pair.write(list(range(LANES)), 2)
        assert pair.shards.lost_shards == 1
        kill(runtime, worker_of(pair.shards, 3))
        with pytest.raises(RowsLostError, match="while it was read"):
            pair.sharded.take("reward", np.array([5]))
        assert len(pair.sharded.take("reward", np.array([1, 2, 3]))) == 3


def test_a_shard_that_is_lost_between_the_states_of_two_policies_costs_the_checkpoint(tmp_path):
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        pair.fill(10)
        saved = pair.sharded.state_tensors()["shards"]["0"]
        kill(runtime, worker_of(pair.shards, 0))
        pair.sharded.state_tensors()  # as of another policy, which is noticed and replaced there
        with pytest.raises(CheckpointError, match="lost while its state was saved"):
            saved.write(tmp_path, {})


def test_a_shard_that_is_lost_while_rows_are_loaded_ends_the_resume_and_the_next_one_goes_on():
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        pair.fill(10)
        saved = pair.whole.state_tensors()
        kill(runtime, worker_of(pair.shards, 2))
        with pytest.raises(WorkersLostError, match="while rows were loaded; resume the run again"):
            pair.sharded.load_state_tensors(saved)
        pair.sharded.load_state_tensors(saved)
        assert len(pair.sharded) == len(pair.whole)


@pytest.mark.parametrize("rows", [{}, {"frames": 3}], ids=["plain", "frames"])
@pytest.mark.parametrize("name", PLANS)
def test_a_fragment_that_is_lost_on_its_way_to_a_shard_costs_its_rows_alone(name, rows):
    """F14: what is drawn then, and what is written and drawn later, is what one buffer gives without these rows."""
    plan = plan_of(name)
    with local() as runtime:
        pair = Pair(runtime, plan, **rows)
        pair.fill()
        pair.draws(0)
        fragment, lanes, steps = pair.streams.fragment([0, 1, 2, 4], 5), [0, 1, 2, 4], 5
        pair.whole.extend(fragment, lanes)
        for lane in (1, 2):
            places = pair.whole.positions.cursors[lane] - np.arange(steps, 0, -1)
            pair.whole.lose(places % pair.whole.positions.ring_size, [lane])
        pair.send(fragment, lanes, lost=1)  # which has the lanes 1 and 2
        pair.write([2, 3], 2)  # before it is noticed
        assert pair.sharded.draw(plan, torch.Generator()) is not None  # in place of a draw that noticed it
        for turn in range(12):
            assert_equal(*(up_to_ends(drawn) for drawn in pair.draws(turn)))
            pair.write(list(range(LANES)), 3)
        assert (pair.shards.lost_rows, pair.shards.lost_shards) == (2 * steps, 0)
        (fault,) = pair.shards.faults
        assert fault.worker.startswith("replay shard 2 of ") and fault.handled == "drop"
        assert "10 rows of a fragment were lost on their way to a shard of replay: its node has ended" in str(fault)
        assert runtime.restarted == 0


def test_an_update_waits_for_rows_where_all_are_lost_and_training_goes_on():
    with local() as runtime:
        trainer = make_trainer(runtime, "dqn", replay_shards=1)
        iterate(trainer, 6)
        before = trainer.algorithm.num_gradient_steps
        replay = trainer.collector.buffers["policy"]
        kill(runtime, worker_of(replay.shards, 0))
        with pytest.raises(RowsLostError, match="nothing can be drawn yet"):
            replay.draw(trainer.algorithm.plan, trainer.algorithm.minibatch_generator)
        iterate(trainer, 6)
        assert trainer.algorithm.num_gradient_steps > before
        metrics = trainer.collector.metrics()
        assert metrics["replay/lost_shards"] == 1 and metrics["replay/lost_rows"] > 0
        assert "a shard of replay was lost" in str(trainer.collector.faults[-1])


def test_a_shard_that_is_lost_too_often_ends_the_run():
    with local() as runtime:
        pair = Pair(runtime, plan_of("uniform"))
        with pytest.raises(WorkersLostError, match="restarted 8 times within an hour"):
            lose_again_and_again(runtime, pair)
        assert pair.shards.faults[-1].handled == "raise"


def lose_again_and_again(runtime: Any, pair: Pair) -> None:
    for _ in range(40):
        pair.write(list(range(LANES)), 2)
        kill(runtime, worker_of(pair.shards, 0))
        with contextlib.suppress(RowsLostError):
            pair.sharded.draw(pair.plan, torch.Generator())


# -- what is refused


def test_what_cannot_be_is_refused_before_anything_starts():
    replay: Any = SimpleNamespace(plan=plan_of("uniform"))
    unrolls: Any = SimpleNamespace(plan=OnPolicy(unroll_length=3))
    keeps: Any = SimpleNamespace(plan=OnPolicy(unroll_length=3, clear=False, capacity=10))
    config = DistributedConfig(runtime="local", replay_shards=4)
    require_replay_shards({"a": replay, "b": unrolls}, config, 4)
    with pytest.raises(ConfigError, match="keeps no replay buffer; leave it out"):
        require_replay_shards({"a": unrolls}, config, 4)
    with pytest.raises(ConfigError, match="b keeps its unrolls"):
        require_replay_shards({"a": replay, "b": keeps}, config, 4)
    with_returns: Any = SimpleNamespace(plan=plan_of("whole", returns=True))
    with pytest.raises(ConfigError, match="b asks for returns of all that is kept"):
        require_replay_shards({"a": replay, "b": with_returns}, config, 4)
    with pytest.raises(ConfigError, match="give at most 3 shards, or more"):
        require_replay_shards({"a": replay}, config, 3)
    with pytest.raises(ConfigError, match="replay_shards needs workers"):
        DistributedConfig(replay_shards=2)
    with pytest.raises(ConfigError, match="replay_copies are of shards; give distributed"):
        DistributedConfig(runtime="local", replay_copies=True)
    with pytest.raises(ConfigError, match="replay_shards is 0; it must be at least 1"):
        DistributedConfig(runtime="local", replay_shards=0)


def test_shards_without_room_for_their_rows_say_so_before_they_begin(monkeypatch):
    """F21: each shard counts for itself; on one machine all of them together."""
    monkeypatch.setattr("palaestra.buffers.storage.available_bytes", lambda: 400_000)
    with LocalRuntime() as runtime:
        make_trainer(runtime, "dqn", replay_shards=4).collector.begin()
        plan = plan_of("uniform", capacity=20_000)  # about 720 kB
        monkeypatch.setattr("palaestra.buffers.storage.available_bytes", lambda: 600_000)
        template: Any = ReplayBuffer(None, LANES, **options_of(plan))
        algorithm: Any = SimpleNamespace(plan=plan)
        config = DistributedConfig(runtime="ray", replay_shards=4)
        with pytest.raises(RemoteError, match="each of 4 shards on this machine has"):
            ReplayShards(runtime, {"policy": algorithm}, {"policy": template}, config)
        cluster = DistributedConfig(runtime="ray", replay_shards=4, address="10.0.0.1:6379")
        assert len(ReplayShards(runtime, {"policy": algorithm}, {"policy": template}, cluster)) == 4
