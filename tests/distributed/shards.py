"""The same rows in one buffer and in shards, for the tests."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer, sampler_of
from palaestra.core import (
    Batch,
    DiscreteSpec,
    Linear,
    Prioritized,
    Replay,
    StepType,
    TensorSpec,
)
from palaestra.distributed import (
    DistributedConfig,
    ReplayShards,
)
from palaestra.runtime import Parcel, ParcelLostError

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


class LostParcel(Parcel):
    """As one is whose node has ended."""

    def open(self) -> Any:
        raise ParcelLostError("its node has ended")


class Pair:
    """The same rows in one buffer and in shards."""

    def __init__(
        self, runtime: Any, plan: Replay, shards: int = 4, seed: int = 0, copies: bool = False, **rows: Any
    ) -> None:
        options = options_of(plan, **rows)
        self.plan, self.streams, self.rng = plan, Streams(options, seed), np.random.default_rng(seed)
        self.whole = ReplayBuffer(plan.capacity_for(LANES), LANES, sampler=sampler_of(plan), **options)
        template: Any = ReplayBuffer(None, LANES, **{**options, "state_period": 1})
        config = DistributedConfig(runtime="local", replay_shards=shards, replay_copies=copies)
        algorithm: Any = SimpleNamespace(plan=plan)
        self.shards = ReplayShards(runtime, {"policy": algorithm}, {"policy": template}, config)
        self.sharded = self.shards.replays["policy"]

    def write(self, lanes: list[int], steps: int) -> None:
        rows = self.streams.fragment(lanes, steps)
        self.whole.extend(rows, lanes)
        self.send(rows, lanes)

    def send(self, rows: Batch, lanes: list[int], *, lost: int | None = None) -> None:
        """The part of one shard may get lost on its way."""
        rest, parcels = self.shards.map.split({"policy": [(lanes, rows)]}, {"policy": 0})
        for known, which in [(piece, lane) for lane, piece in rest["policy"]]:
            self.sharded.extend(known, which)
        if lost is not None:
            parcels[lost] = LostParcel.of(parcels[lost].content, parcels[lost].label)
        self.shards.extend(parcels, ["policy"])
        self.shards.keep_up()

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


def up_to_ends(drawn: Batch) -> Batch:
    """Zeros behind the first end of an episode in every window: nobody learns from what stands there."""
    ended = (drawn.step_type == StepType.LAST).cumsum(0)
    arrived, acted = ended - (drawn.step_type == StepType.LAST).long() == 0, ended == 0

    def before(name: str, leaf: torch.Tensor) -> torch.Tensor:
        if leaf.ndim < 2 or leaf.shape[:2] not in (arrived.shape, acted[:-1].shape):
            return leaf
        steps_in = name.split(".")[0] in ("step_type", "reward", "discount", "observation")
        kept = (arrived if steps_in else acted)[: len(leaf)]
        return torch.where(kept.reshape(*kept.shape, *(1,) * (leaf.ndim - 2)), leaf, torch.zeros_like(leaf))

    return Batch.of({name: before(name.strip("."), leaf) for name, leaf in flat(drawn).items()})


def assert_equal(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        assert torch.equal(value, second[name]), name


def worker_of(shards: ReplayShards, number: int, copy: int = 0) -> str:
    return shards._ids[number][copy]
