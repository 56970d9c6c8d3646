"""Replay in shards: rows lie in workers, and are drawn as from one buffer (F14, F21)."""

import contextlib
import functools
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import palaestra
from palaestra import Trainer
from palaestra.buffers import ReplayBuffer, sampler_of
from palaestra.core import (
    Batch,
    ConfigError,
    DiscreteSpec,
    Linear,
    OnPolicy,
    Prioritized,
    Replay,
    RowsLostError,
    TensorSpec,
)
from palaestra.distributed import (
    AgentsFactory,
    AsynchronousConfig,
    DistributedConfig,
    ReplayShards,
    ShardedReplay,
    WorkersLostError,
    require_replay_shards,
    worker_streams,
)
from palaestra.distributed.replay_shards import ReplayShard
from palaestra.runtime import LocalRuntime, RemoteError
from palaestra.training import CheckpointStore
from tests.distributed.actors import CATCH, server
from tests.distributed.actors import make_algorithm as make_asynchronous
from tests.distributed.parts import local
from tests.distributed.runs import assert_same, iterate, kill, make_trainer
from tests.distributed.test_agents_factory import RANDOM, TWO_KINDS, actors, manager_of
from tests.experiments.test_hindsight import SMALL

RUNS = {"dqn": "discrete", "sac": "continuous", "rainbow": "discrete", "r2d2": "recurrent"}
LANES = 6
PLANS = {
    "uniform": {},
    "n-step": {"n_step": 3},
    "prioritized": {"prioritized": Prioritized(alpha=0.7, beta=Linear(0.4, 1.0)), "n_step": 2},
    "sequences": {"mini_batch_length": 4, "burn_in": 2},
    "prioritized sequences": {"mini_batch_length": 4, "prioritized": Prioritized()},
    "whole": {"num_epochs": 1},
}


def plan_of(name: str, **changes: Any) -> Replay:
    return Replay(**{"unroll_length": 1, "capacity": 40 * LANES, "mini_batch_size": 64, **PLANS[name], **changes})


def options_of(plan: Replay, *, frames: int = 1, memory: bool = False) -> dict[str, Any]:
    camera = TensorSpec((frames, 2), torch.float32, stacked=frames) if frames > 1 else TensorSpec((2,))
    options = {"observation_spec": {"camera": camera, "number": TensorSpec(())}, "action_spec": DiscreteSpec(num=3)}
    if memory:
        options |= {"state_spec": {"h": TensorSpec((2,))}, "state_period": plan.mini_batch_length}
    return options


class Streams:
    """Lanes with episodes of random lengths, in fragments of random lengths; every row has a number of its own."""

    def __init__(self, options: dict[str, Any], seed: int = 0) -> None:
        self._rng, self._options = np.random.default_rng(seed), options
        self._open: list[Any] = [None] * LANES
        self._frames = options["observation_spec"]["camera"].stacked
        self._number = 0

    def _step(self, lane: int) -> dict[str, Any]:
        before = self._open[lane]
        begins = before is None or before["step_type"] == 2
        self._number += 1
        stack = np.zeros((self._frames, 2), np.float32) if begins else np.roll(before["camera"], -1, 0)
        stack[-1] = self._number, lane
        ends = not begins and self._rng.random() < 0.15
        step = {"step_type": 0 if begins else 2 if ends else 1, "discount": float(not ends or self._rng.random() < 0.5)}
        return {**step, "reward": float(self._number % 7), "number": float(self._number), "camera": stack}

    def fragment(self, lanes: list[int], steps: int) -> Batch:
        """T + 1 time steps of some lanes; the first is the newest that they had before."""
        columns = []
        for lane in lanes:
            column = [self._open[lane] or self._step(lane)]
            for _ in range(steps):
                self._open[lane] = column[-1]
                column.append(self._step(lane))
            self._open[lane] = column[-1]
            columns.append(column)

        def of(name: str, dtype: Any = np.float32) -> torch.Tensor:
            return torch.from_numpy(np.array([[c[t][name] for c in columns] for t in range(steps + 1)], dtype))

        camera = of("camera") if self._frames > 1 else of("camera")[:, :, 0]
        fields = {
            "step_type": of("step_type", np.int32),
            "reward": of("reward"),
            "discount": of("discount"),
            "observation": Batch.of({"camera": camera, "number": of("number")}),
            "action": of("number", np.int64)[:-1] % 3,
            "policy_version": torch.full((steps, len(lanes)), self._number // 50, dtype=torch.int32),
        }
        if "state_spec" in self._options:
            fields["state"] = Batch.of({"h": of("number")[:-1, :, None].expand(-1, -1, 2).contiguous()})
        return Batch.of(fields)


class Pair:
    """The same rows in one buffer and in shards."""

    def __init__(self, runtime: Any, plan: Replay, shards: int = 4, seed: int = 0, **rows: Any) -> None:
        options = options_of(plan, **rows)
        self.plan, self.streams, self.rng = plan, Streams(options, seed), np.random.default_rng(seed)
        self.whole = ReplayBuffer(plan.capacity_for(LANES), LANES, sampler=sampler_of(plan), **options)
        template: Any = ReplayBuffer(None, LANES, **{**options, "state_period": 1})
        config = DistributedConfig(runtime="local", replay_shards=shards)
        algorithm: Any = SimpleNamespace(plan=plan)
        self.shards = ReplayShards(runtime, {"policy": algorithm}, {"policy": template}, config)
        self.sharded = self.shards.replays["policy"]

    def write(self, lanes: list[int], steps: int) -> None:
        rows = self.streams.fragment(lanes, steps)
        self.whole.extend(rows, lanes)
        self.send(rows, lanes)

    def send(self, rows: Batch, lanes: list[int]) -> None:
        rest, parcels = self.shards.map.split({"policy": [(lanes, rows)]}, {"policy": 0})
        for known, which in [(piece, lane) for lane, piece in rest["policy"]]:
            self.sharded.extend(known, which)
        self.shards.extend(parcels)

    def fill(self, turns: int = 40) -> None:
        """Some lanes get more than others, and some streams break off."""
        for turn in range(turns):
            lanes = [lane for lane in range(LANES) if self.rng.random() < (0.3 if lane < 2 else 0.8)] or [LANES - 1]
            self.write(lanes, int(self.rng.integers(1, 6)))
            if turn % 9 == 5:
                self.whole.end_streams([lanes[0]])
                self.sharded.end_streams([lanes[0]])
                self.streams._open[lanes[0]] = None

    def draws(self, seed: int) -> tuple[Batch, Batch]:
        both: Any = tuple(
            source.draw(self.plan, torch.Generator().manual_seed(seed)) for source in (self.whole, self.sharded)
        )
        return both


def flat(batch: Any, path: str = "") -> dict[str, torch.Tensor]:
    if not isinstance(batch, Batch):
        return {path: batch}
    return {key: leaf for name, value in batch.items() for key, leaf in flat(value, f"{path}.{name}").items()}


def assert_equal(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        assert torch.equal(value, second[name]), name


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


def worker_of(shards: ReplayShards, number: int) -> str:
    return shards._ids[number]


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
        assert fault.worker == "replay-1" and f"the {held:,} rows that it held" in str(fault)
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


# -- runs


@pytest.mark.parametrize("shards", [1, 3, 4])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_shards_learns_the_bits_of_one_without(name, shards):
    with LocalRuntime() as one, LocalRuntime() as several:
        whole = iterate(make_trainer(one, name, RUNS[name]), 8)
        sharded = make_trainer(several, name, RUNS[name], replay_shards=shards)
        assert isinstance(sharded.collector.buffers["policy"], ShardedReplay)
        assert_same(iterate(sharded, 8), whole)
        assert sharded.algorithm.num_gradient_steps > 0


@pytest.mark.parametrize(("first", "second"), [(4, 4), (4, 1), (1, 3), (2, None), (None, 4)])
@pytest.mark.parametrize("name", ["rainbow", "r2d2"])
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
        damaged = sorted(old & new)[0]
        assert "field.observation.number" in files_in(second / damaged)
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
    with pytest.raises(ConfigError, match="give at most 3 shards, or more"):
        require_replay_shards({"a": replay}, config, 3)
    with pytest.raises(ConfigError, match="replay_shards needs workers"):
        DistributedConfig(replay_shards=2)
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
