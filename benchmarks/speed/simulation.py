"""A discrete-event model (SimPy) of a run with many workers and learners, some of which are lost and replaced."""

import math
import statistics
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from benchmarks.speed.sleepy import ENVS_EACH

UNROLL = 128
Events = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Costs:
    """Seconds that things take."""

    env_s: float
    """A step of one environment."""
    act_s: float
    """Of a processor, for one step of all environments of a worker: the policy, and what is around the environments."""
    call_s: float
    """Of the driver, for a message."""
    byte_s: float
    """Of the driver, for a byte of it."""
    row_s: float
    """Of one learner, for a row: all passes over it."""
    update_s: float
    """Of a learner, for an update, whatever its size; and of the driver for all else that an iteration needs."""
    exchange_s: float
    """Of a gradient step, for the exchange between two learners; of more, as of a ring."""
    steps: int = 16
    """Gradient steps in an update."""
    lost_s: float = 0.0
    """Of the first update of a learner that takes a lost one's place: all connect anew, and wait for its first step."""
    back_s: float = 0.0
    """From the loss of a learner until the one in its place is there."""
    draw_s: float = 0.0
    """Of the driver, for a minibatch that it draws from shards of replay."""
    told_s: float = 0.0
    """Of the driver, for rows that it passes on to a shard, or to its copy."""
    told_byte_s: float = 0.0
    """Of the driver, for a byte of them."""
    noticed_s: float = 0.0
    """Of a draw that meets with a lost shard: to notice, and to start another."""
    filled_byte_s: float = 0.0
    """Of the same draw, for each byte that the shard held and its copy tells the one in its place."""


@dataclass(frozen=True)
class Cluster:
    """Who takes part."""

    workers: int
    learners: int = 1
    cores: int | None = None
    """That all share; by default each worker and learner has its own."""
    asynchronous: bool = False
    """Whether workers act on while there is learning."""
    fragments: int = 16
    """In an update of an asynchronous run."""
    max_lag: int = 4
    """Policy versions, after which a fragment of an asynchronous run is dropped."""
    spread: float = 0.1
    """Standard deviation of the logarithm of the time that a worker acts."""
    learner_life_s: float = math.inf
    """Mean time after which a learner is lost; the first, which is the run's own process, never is."""
    shards: int = 0
    """Of replay; without any, what was collected is learned from once, and no more is kept."""
    copies: bool = False
    """Whether each shard has a copy."""
    shard_life_s: float = math.inf
    """Mean time after which a shard is lost, or its copy."""
    held_rows: int = 1_000_000
    """In all shards together, once they are full."""
    row_bytes: int = 64
    """Of a row."""


@dataclass
class Outcome:
    """What came of it."""

    env_steps_per_s: float
    """That were learned from."""
    ideal: float
    """Divided by those of workers that never wait."""
    lag: float
    """Mean policy versions between acting and learning."""
    dropped: float
    """Share of what was collected."""
    busy: dict[str, float]
    """Share of the time in which workers act, and the driver takes messages and learns."""
    lost_learners: int = 0
    """That were replaced."""
    lost_rows: float = 0.0
    """Share of the rows written to shards that was lost with one."""
    seconds: float = 0.0
    """Of the cluster's time, that this was looked at."""

    @property
    def bottleneck(self) -> str:
        """What is busy longest."""
        return max(self.busy, key=lambda name: self.busy[name])


class Simulation:
    """One cluster at work.

    Args:
        costs: of everything.
        cluster: who takes part.
        held: rows in the shards at the beginning; all that they can hold, by default.
    """

    def __init__(self, costs: Costs, cluster: Cluster, held: float | None = None) -> None:
        self.costs, self.cluster, self.env = costs, cluster, simpy.Environment()
        self.cores = None if cluster.cores is None else simpy.Resource(self.env, cluster.cores)
        self.rng, self.chance = np.random.default_rng(0), np.random.default_rng(1)  # of acting; of losses
        self.began, self.version, self.learned, self.dropped = 0.0, 0, 0, 0
        self.lags: list[int] = []
        self.busy = {"workers": 0.0, "messages": 0.0, "learning": 0.0}
        self.arrived: simpy.Store = simpy.Store(self.env)
        size = cluster.held_rows / max(1, cluster.shards)
        self.held = [size if held is None else held / max(1, cluster.shards)] * cluster.shards
        self.written = self.lost_rows = 0.0
        self.lost_learners, self.away = 0, list[float]()  # until when
        self.next_learner = self._after(cluster.learner_life_s, cluster.learners - 1)
        self.next_shard = self._after(cluster.shard_life_s, cluster.shards * (1 + cluster.copies))

    def _after(self, life_s: float, alive: int) -> float:
        """When the next of so many is lost."""
        return math.inf if math.isinf(life_s) or not alive else self.env.now + self.chance.exponential(life_s / alive)

    def run(self, updates: int) -> Outcome:
        """Lets it work for so many updates, after two that do not count."""
        driver = self._waits_for_none if self.cluster.asynchronous else self._waits_for_all
        warm = self.env.process(driver(2))
        self.env.run(warm)
        began = self.began = self.env.now
        self.learned, self.dropped, self.lags = 0, 0, []
        self.written = self.lost_rows = 0.0
        self.lost_learners, self.busy = 0, dict.fromkeys(self.busy, 0.0)
        self.env.run(self.env.process(driver(updates)))
        seconds, rows = self.env.now - began, UNROLL * ENVS_EACH
        busy = {name: value / seconds for name, value in self.busy.items()}
        busy["workers"] /= self.cluster.workers
        rate = self.learned * rows / seconds
        collected = self.learned + self.dropped
        lag = statistics.fmean(self.lags) if self.lags else 0.0
        ideal, lost = rate * self.costs.env_s / self.cluster.workers, self.lost_rows / (self.written or 1.0)
        return Outcome(rate, ideal, lag, self.dropped / collected, busy, self.lost_learners, lost, seconds)

    def _compute(self, seconds: float, kind: str) -> Events:
        """Takes a processor for so long."""
        if self.cores is None:
            yield self.env.timeout(seconds)
        else:
            with self.cores.request() as mine:
                yield mine
                yield self.env.timeout(seconds)
        self.busy[kind] += seconds

    def _act(self) -> Events:
        """One unroll of a worker."""
        step_s, costs = ENVS_EACH * self.costs.env_s, self.costs
        slow = float(self.rng.lognormal(0.0, self.cluster.spread))
        if self.cores is None:
            seconds = UNROLL * (step_s + costs.act_s) * slow
            yield self.env.timeout(seconds)
            self.busy["workers"] += min(seconds, self.env.now - self.began)
            return
        for _ in range(UNROLL):
            yield self.env.timeout(step_s * slow)
            self.busy["workers"] += step_s * slow
            yield from self._compute(costs.act_s, "workers")

    def message(self) -> Events:
        """A fragment comes, and its rows are passed on to the shard that has its lanes."""
        costs, rows = self.costs, UNROLL * ENVS_EACH
        size = rows * self.cluster.row_bytes
        seconds = costs.call_s + size * costs.byte_s
        if self.held:
            seconds += (1 + self.cluster.copies) * (costs.told_s + size * costs.told_byte_s)
            full = self.cluster.held_rows / len(self.held)
            self.held = [min(full, held + rows / len(self.held)) for held in self.held]
            self.written += rows
        yield from self._compute(seconds, "messages")

    def learn(self, fragments: int) -> Events:
        """An update, with what it draws from shards; and the losses that it meets with."""
        costs, rows = self.costs, fragments * UNROLL * ENVS_EACH
        if self.held:
            yield from self._compute(costs.steps * costs.draw_s + self._lost_shards(), "learning")
        self._lost_learners(self.env.now)
        away = [until for until in self.away if until > self.env.now]
        returned, self.away = len(away) < len(self.away), away
        there = max(1, self.cluster.learners - len(away))
        exchange = costs.steps * costs.exchange_s * 2 * (there - 1) / there
        together = rows * costs.row_s / there + exchange
        met = self._lost_learners(self.env.now + costs.update_s + together)
        if met is not None:  # what is left then, the first learner computes alone
            left = 1 - max(0.0, met - self.env.now - costs.update_s) / together
            together += left * (rows * costs.row_s - together)
        yield from self._compute(costs.update_s + together + returned * costs.lost_s, "learning")
        self.version += 1
        self.learned += fragments

    def _lost_learners(self, until: float) -> float | None:
        """Notes losses of learners before a moment; when the first of them was, if there is one."""
        first = self.next_learner if self.next_learner <= until else None
        while self.next_learner <= until:
            self.lost_learners += 1
            self.away.append(self.next_learner + self.costs.back_s)
            self.next_learner += self.chance.exponential(self.cluster.learner_life_s / (self.cluster.learners - 1))
        return first

    def _lost_shards(self) -> float:
        """What a draw takes longer, for shards that were lost since the last one."""
        seconds, workers = 0.0, len(self.held) * (1 + self.cluster.copies)
        while self.next_shard <= self.env.now:
            number = int(self.chance.integers(len(self.held)))
            seconds += self.costs.noticed_s
            if self.cluster.copies:
                seconds += self.held[number] * self.cluster.row_bytes * self.costs.filled_byte_s
            else:
                self.lost_rows += self.held[number]
                self.held[number] = 0.0
            self.next_shard += self.chance.exponential(self.cluster.shard_life_s / workers)
        return seconds

    # -- synchronous: everybody acts with the same weights, and waits

    def _waits_for_all(self, updates: int) -> Events:
        for _ in range(updates):
            for _ in range(self.cluster.workers):
                self.env.process(self._once())
            for _ in range(self.cluster.workers):
                yield self.arrived.get()
                yield from self.message()
            self.lags += [0] * self.cluster.workers
            yield from self.learn(self.cluster.workers)

    def _once(self) -> Events:
        yield from self._act()
        yield self.arrived.put(self.version)

    # -- asynchronous: everybody acts on with the newest weights there are

    def _waits_for_none(self, updates: int) -> Events:
        if not self.version:
            for _ in range(self.cluster.workers):
                self.env.process(self._forever())
        for _ in range(updates):
            taken = 0
            while taken < self.cluster.fragments:
                version, taken_over = yield self.arrived.get()
                lag = self.version - version
                yield from self.message()
                taken_over.succeed()
                if lag > self.cluster.max_lag:
                    self.dropped += 1
                    continue
                taken += 1
                self.lags.append(lag)
            yield from self.learn(taken)

    def _forever(self) -> Events:
        while True:
            version = self.version
            yield from self._act()
            taken_over = self.env.event()
            yield self.arrived.put((version, taken_over))
            yield taken_over
