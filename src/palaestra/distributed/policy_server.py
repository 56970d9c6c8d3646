"""`PolicyServer`: actors that do not wait, and learning from what arrives, if it is fresh enough."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import ConfigError, Offline, OnPolicy, Replay, spec_leaves
from palaestra.distributed.config import AsynchronousConfig, DistributedConfig
from palaestra.distributed.factories import ActingParts
from palaestra.distributed.replay_shards import ReplayShards, ShardedReplay
from palaestra.distributed.rollout_manager import RolloutManager, WorkerStreams
from palaestra.distributed.worker import Fragment
from palaestra.distributed.worker_group import Worker
from palaestra.rollout import CollectInfo
from palaestra.runtime import Call, Runtime

__all__ = ["Pace", "PolicyServer", "worker_streams"]

_SLICE_S = 0.2  # how soon a pause is noticed
_GLANCE_S = 0.001  # to take what has arrived meanwhile
_REPLAY_FRAGMENT_STEPS = 16


def _misfits(
    name: str, algorithm: Algorithm[Any, Any], buffer: Any, num_actors: int, config: AsynchronousConfig
) -> Iterator[str]:
    """Says why actors cannot feed a policy."""
    plan = algorithm.plan
    if buffer is None or buffer.num_lanes % num_actors:
        lanes = "no" if buffer is None else buffer.num_lanes
        yield f"the buffer of {name!r} has {lanes} lanes, which {num_actors} actors cannot share"
    elif isinstance(plan, Offline) or (isinstance(plan, OnPolicy) and not plan.clear):
        yield (
            f"policy {name!r} learns by {type(algorithm).__name__}, whose plan {plan} keeps its own data, so actors "
            "cannot feed it; use an algorithm that discards its unrolls, or one with a replay"
        )
    elif isinstance(plan, Replay):
        if plan.num_epochs is not None:
            yield (
                f"policy {name!r} goes through its whole buffer in every update (num_epochs={plan.num_epochs}), and "
                "actors are held to a number of rows drawn for each row written; leave num_epochs out"
            )
        stacked = max(leaf.stacked for leaf in spec_leaves(buffer.options["observation_spec"]).values())
        if stacked > 1 and (max_lag := config.max_lag_of(name)) is not None:
            yield (
                f"asynchronous.max_lag is {max_lag}, but the buffer of {name!r} stores single frames of stacks of "
                f"{stacked}, which cannot be put together where a fragment is missing; leave max_lag out, or give None "
                f"for {name!r} in max_lags"
            )


class Pace:
    """Says when there is enough to learn from, and whether more may be taken.

    Args:
        buffers: by policy name, with the lanes of all actors.
        num_actors: that share the lanes.
        num_envs: that the actors step, over all of them.

    Raises:
        ConfigError: see `PolicyServer`.
    """

    def __init__(
        self,
        algorithms: Mapping[str, Algorithm[Any, Any]],
        buffers: Mapping[str, ReplayBuffer | ShardedReplay],
        num_actors: int,
        config: AsynchronousConfig,
        num_envs: int,
    ) -> None:
        plans = {name: algorithm.plan for name, algorithm in algorithms.items()}
        wrong = [
            text for name in plans for text in _misfits(name, algorithms[name], buffers.get(name), num_actors, config)
        ]
        self.on_policy = any(isinstance(plan, OnPolicy) for plan in plans.values())
        """Whether a policy learns on-policy; those that replay then follow it."""
        if self.on_policy and config.samples_per_insert is not None:
            wrong.append(
                "asynchronous.samples_per_insert is for runs in which every policy replays; one here learns on-policy, "
                "and the others follow it: leave it out, or give fragments_per_update"
            )
        if not self.on_policy and config.fragments_per_update != 1:
            wrong.append(
                "asynchronous.fragments_per_update is for policies that learn on-policy, and all here replay: leave it "
                "out, or give samples_per_insert"
            )
        if wrong:
            raise ConfigError("\n".join(wrong))
        config.require_policies(plans)
        self._config, self._num_actors = config, num_actors
        self.bounded = any(config.max_lag_of(name) is not None for name in plans)
        """Whether data of a policy may be too old for it."""
        replayed = [plan for plan in plans.values() if isinstance(plan, Replay)]
        # rows of all policies that are drawn in one training iteration
        self._drawn = sum(plan.gradient_steps * plan.mini_batch_size * plan.mini_batch_length for plan in replayed)
        self.lanes = sum(buffers[name].num_lanes for name, plan in plans.items() if isinstance(plan, Replay))
        """Rows that all actors write in one time step."""
        self._first = min((plan.learns_after(num_envs) for plan in replayed), default=0)
        self._ratio = self.slack = 0.0
        if not self.on_policy:
            self._ratio = config.samples_per_insert or self._drawn / (replayed[0].unroll_length * self.lanes)
            self.slack = self._ratio * self.fragment_steps(0.0) * self.lanes + self._drawn
        self.ahead: float | None = None
        """Rows that learning still has to draw for those that were written, within ±`slack`; negative where learning is
        ahead. None before learning may begin."""

    def fragment_steps(self, length: float) -> int:
        """Time steps of a fragment.

        Args:
            length: of the plan's unroll.
        """
        if self._config.fragment_steps is not None:
            return self._config.fragment_steps
        return max(1, round(length)) if self.on_policy else _REPLAY_FRAGMENT_STEPS

    def blocks(self, buffer: ReplayBuffer | ShardedReplay) -> ReplayBuffer:
        """Room for the fragments of one on-policy update, beside each other.

        Args:
            buffer: with the same rows.
        """
        lanes = buffer.num_lanes // self._num_actors * self._config.fragments_per_update
        return ReplayBuffer(None, lanes, **buffer.options)

    def may_take(self, taken: int, rows: int) -> bool:
        """Whether one more fragment may be taken: as many as an update needs, or until learning falls behind.

        Args:
            taken: in this training iteration.
            rows: of the fragment.
        """
        if self.on_policy:
            return taken < self._config.fragments_per_update
        return self.ahead is None or self.ahead + self._ratio * rows <= self.slack

    def wanted(self, taken: int) -> int:
        """Fragments that are still to come before there is enough, as far as this can be known.

        Args:
            taken: in this training iteration, which were not enough.
        """
        return self._config.fragments_per_update - taken if self.on_policy else 1

    def took(self, rows: int, env_steps: int) -> None:
        """A fragment was taken.

        Args:
            rows: of it.
            env_steps: of the run, with it.
        """
        if not self.on_policy and env_steps > self._first:
            self.ahead = 0.0 if self.ahead is None else self.ahead + self._ratio * rows

    def enough(self, taken: int, env_steps: int) -> bool:
        """Whether there is enough to learn from. What a replay plan will draw is counted by saying yes.

        Args:
            taken: fragments in this training iteration.
        """
        if self.on_policy:
            return taken == self._config.fragments_per_update
        if env_steps <= self._first:
            return taken > 0
        if self.ahead is None or self.ahead - self._drawn < -self.slack:
            return False
        self.ahead -= self._drawn
        return True


class _Waiting(NamedTuple):
    """A fragment in the queue."""

    worker: Worker
    call: Call
    fragment: Fragment


@final
class PolicyServer(WorkerStreams):
    """Serves independent actors: takes their fragments, and answers each with the newest weights.

    A `Trainer` takes it instead of a `Collector`, so asynchronous training is the same loop as any other. An actor
    is a `RolloutWorker` that alternates between acting for a while and being answered; no actor waits for another one.
    Fragments wait in a bounded queue, oldest first. When one is taken out, the lag of a policy's rows in it is the
    newest version of the policy minus the one that acted. Rows with a lag above the `max_lag` of their policy are
    dropped, while others learn from theirs, and the fragment is named in `dropped`. Actors are answered with the newest
    weights in either case, and not before there is room in the queue: without a `max_lag` while their fragment
    waits to be learned from, with one after it was. So nothing of a single actor is dropped, whatever `max_lag` is.

    On-policy plans learn from `fragments_per_update` fragments at a time: IMPALA corrects their lag by V-trace, PPO
    by its probability ratios, within its clipping range. Replay plans keep the buffer here, and rows drawn follow rows
    written at the pace of `samples_per_insert`.

    Args:
        make: makes the parts of an actor from its number, such as a `CollectorFactory`.
        algorithms: of the policies by name, as they are in this process.
        buffers: by policy name; the actors share their lanes evenly, the first actor has the first. Replay plans learn
            from them; of on-policy plans only what a row consists of is taken over.
        config: how many actors, and how to wait for them.
        asynchronous: staleness, fragments and pace.
        num_envs: environments stepped side by side, over all actors; as many as the first buffer has lanes if left out.

    Raises:
        ConfigError: the lanes of a buffer cannot be shared evenly, or a plan keeps data that asynchronous learning
            cannot keep for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        algorithms: Mapping[str, Algorithm[Any, Any]],
        buffers: Mapping[str, ReplayBuffer | ShardedReplay],
        config: DistributedConfig,
        asynchronous: AsynchronousConfig | None = None,
        num_envs: int | None = None,
    ) -> None:
        self._asynchronous = asynchronous or AsynchronousConfig()
        num_envs = num_envs or next(iter(buffers.values())).num_lanes
        self._pace = Pace(algorithms, buffers, config.num_workers, self._asynchronous, num_envs)
        keeps = {name for name, one in algorithms.items() if isinstance(one.plan, Replay)}
        blocks = {name: buffers[name] if name in keeps else self._pace.blocks(buffers[name]) for name in buffers}
        policies = {name: one.policy for name, one in algorithms.items()}
        super().__init__(runtime, make, policies, blocks, config, num_lanes=num_envs, name="actor")
        self.continued = keeps
        self.lags: Counter[int] = Counter()
        """How many fragments of each lag were used; that of one with several policies is of the oldest rows used."""
        self._num_actors = config.num_workers
        self._sizes = {name: buffer.num_lanes // config.num_workers for name, buffer in buffers.items()}
        self._queue: deque[_Waiting] = deque()
        self._queue_size = self._asynchronous.queue_size or config.num_workers
        self._taken: list[_Waiting] = []  # of an unroll that is not over
        self._replayed = set[int]()  # workers whose fragment may be learned from once more, before there is another
        self.unfinished = False
        """Whether an unroll was ended by `pause`."""

    # -- collecting

    def unroll(self, length: float, *, random: Collection[str] = ()) -> CollectInfo:
        """Serves actors until there is enough to learn from.

        Args:
            length: time steps of an on-policy fragment, if the configuration says no other number.
            random: names of the policies that act at random.

        Raises:
            WorkersLostError: there are too few actors.
            RemoteError: an actor's environment or policy failed.
        """
        began, waited_s = time.perf_counter(), 0.0
        self.unfinished = False
        self.begin()
        steps, names = self._pace.fragment_steps(length), sorted(random)
        self._serve(steps, names, _GLANCE_S, 0)
        while not self._taken_enough():
            if self.group.runtime.now() >= self.group.limit_s:
                self.unfinished = True
                return CollectInfo(0) if self._pace.on_policy else self._stored_away(began, waited_s)
            began_s = time.perf_counter()
            self._serve(steps, names, _SLICE_S, self._pace.wanted(len(self._taken)))
            waited_s += time.perf_counter() - began_s
        self._answer(steps, names, wanted=0)
        return self._stored_away(began, waited_s)

    def _taken_enough(self) -> bool:
        """Takes fragments out of the queue as far as they are needed and fresh."""
        while self._queue and self._pace.may_take(len(self._taken), self._rows(self._queue[0])):
            arrived = self._queue.popleft()
            fragment, lag = self.fresh(*arrived, self._asynchronous.max_lag_of)
            if fragment is None:
                continue
            waiting = arrived._replace(fragment=fragment)
            self.lags[lag] += 1
            self._lags[lag] += 1
            self._taken.append(waiting)
            self._store_in(self.continued, [waiting], by_actor=True)
            self.pass_on([waiting.fragment])
            self.env_steps += waiting.fragment.info.env_steps
            self._pace.took(self._rows(waiting), self.env_steps)
        if self._pace.enough(len(self._taken), self.env_steps):
            return True
        self._replayed.clear()
        return False

    def _stored_away(self, began: float, waited_s: float) -> CollectInfo:
        """What the unroll did; on-policy data goes where it is learned from."""
        taken, self._taken = self._taken, []
        if not self._pace.on_policy:
            self._replayed |= {one.worker.number for one in taken}
        self._store_in(self.buffers.keys() - self.continued, taken, by_actor=False)
        info = CollectInfo(0)
        acted_s = sum(one.fragment.info.total_s for one in taken)
        share = min(1.0, waited_s / acted_s) if acted_s else 0.0
        for worker, _, fragment in taken:
            self.report(info, worker, fragment, share)
        info.total_s = time.perf_counter() - began
        return info

    def _store_in(self, names: Collection[str], taken: Sequence[_Waiting], *, by_actor: bool) -> None:
        """In the lanes of the actor, where streams continue; or one fragment beside the other, where they need not."""
        for name in names:
            for block, (worker, _, fragment) in enumerate(taken):
                first = (worker.number if by_actor else block) * self._sizes[name]
                for lanes, rows in fragment.pieces.get(name, ()):
                    self.buffers[name].extend(rows, [first + lane for lane in lanes])

    def _rows(self, waiting: _Waiting) -> int:
        """Rows for buffers. Where no ratio is asked for, steps in which a lane waits count too, as in one process."""
        if self._asynchronous.samples_per_insert is None:
            return waiting.fragment.info.rows * (self._pace.lanes // self._num_actors)
        pieces = waiting.fragment.pieces.values()  # the first row of each is there already
        return sum((len(rows.step_type) - 1) * len(lanes) for some in pieces for lanes, rows in some)

    # -- actors

    def _serve(self, steps: int, random: Sequence[str], timeout_s: float, wanted: int) -> None:
        """Takes what actors send, and answers them."""
        self.group.admit(0.0 if (self.group.idle or self.group.busy) else timeout_s)
        self._answer(steps, random, wanted)
        arrived = self.group.take(at_least=1, timeout_s=timeout_s)
        for worker, call, fragment in sorted(arrived, key=lambda one: one[0].asked_s):  # the oldest weights first
            worker.position = {"lanes": fragment.lanes}
            self._queue.append(_Waiting(worker, call, fragment))
        self._answer(steps, random, wanted)

    def _answer(self, steps: int, random: Sequence[str], wanted: int) -> None:
        """The newest weights to every actor that waits for an answer, while there is room in the queue.

        Where data may be too old, who is not learned from yet waits for it, unless fewer fragments than `wanted` are on
        the way.
        """
        weights, unlearned = self.weights(), set[int]()
        if self._pace.bounded:
            unlearned = self._replayed | {one.worker.number for one in (*self._queue, *self._taken)}
        for worker in self.group.idle:
            if len(self._queue) >= self._queue_size:
                return
            if worker.number in unlearned and len(self._queue) + len(self.group.busy) >= wanted:
                continue
            attributes = self.attributes_of(worker)
            self.group.give(worker, "collect", steps, *weights, episodes=False, random=random, attributes=attributes)

    def pause(self) -> None:
        """Ends a running unroll as soon as it can; its fragments stay for the next one."""
        self.group.limit_s = self.group.runtime.now()

    # -- how things are

    acts_meanwhile = True
    """Whether workers act while the run evaluates and saves, too."""
    resume = "statistical"
    """How a run resumes from a checkpoint: with new episodes."""

    def metrics(self) -> dict[str, float]:
        """For a row of metrics: who is there, what waits, what was dropped, how old data was since the last call."""
        bins = {f"workers/lag_{name}": count for name, count in _histogram(self._lags).items()}
        waiting, used = len(self._queue), sum(self.lags.values())
        return {**super().metrics(), "workers/waiting_fragments": waiting, "workers/fragments": used, **bins}

    def opponents(self) -> dict[int, list[Tensor]]:
        """Nothing: actors, each with its own pool of self-play, are at work all the time."""
        return {}

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is. Fragments on their way and in the queue are lost to a resumed run, and not counted."""
        uncounted = self._taken if self._pace.on_policy else ()  # by a paused unroll, and in no buffer yet
        return {
            "env_steps": self.env_steps - sum(one.fragment.info.env_steps for one in uncounted),
            "ahead": self._pace.ahead,
            "lags": {str(lag): count for lag, count in self.lags.items()},
            "positions": [worker.position for worker in self.group.workers] or list(self.positions or ()),
            **self.attributes_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave; actors continue with the episodes after those that they had begun.

        Args:
            state: of a server with as many actors.
        """
        self.env_steps, self._pace.ahead = state["env_steps"], state["ahead"]
        self.load_attributes(state)
        self.lags = Counter({int(lag): count for lag, count in state["lags"].items()})
        self.positions = list(state["positions"]) or None


def _histogram(lags: Counter[int]) -> dict[str, int]:
    """Counts of lags, in bins that double: 0, 1, 2, 3-4, 5-8, 9-16, 17+."""
    bins: dict[str, int] = {"0": 0, "1": 0, "2": 0, "3-4": 0, "5-8": 0, "9-16": 0, "17+": 0}
    edges = np.array([0, 1, 2, 4, 8, 16])
    for lag, count in lags.items():
        bins[list(bins)[int(np.searchsorted(edges, lag))]] += count
    return bins


def worker_streams(
    runtime: Runtime,
    make: Callable[[int], ActingParts],
    algorithms: Mapping[str, Algorithm[Any, Any]],
    buffers: Mapping[str, ReplayBuffer],
    config: DistributedConfig,
    asynchronous: AsynchronousConfig,
    num_envs: int,
) -> RolloutManager | PolicyServer:
    """What collects with workers, as a configuration says: a `RolloutManager` or a `PolicyServer`, with shards or none.

    Args:
        make: makes the parts of a worker from its number.
        algorithms: of the policies by name, as they are in this process.
        buffers: by policy name; with shards of replay their size does not matter, for the rows do not lie in them.
        config: how many workers and shards, and how to wait for them.
        asynchronous: for mode=async.
        num_envs: environments stepped side by side, over all workers.

    Raises:
        ConfigError: the lanes of a buffer cannot be shared evenly, or a plan does not go with the mode.
        RemoteError: a shard has no room for its rows.
    """
    used: dict[str, ReplayBuffer | ShardedReplay] = dict(buffers)
    if config.replay_shards is not None:
        used |= ReplayShards(runtime, algorithms, buffers, config).replays
    if config.mode == "async":
        return PolicyServer(runtime, make, algorithms, used, config, asynchronous, num_envs)
    policies = {name: one.policy for name, one in algorithms.items()}
    return RolloutManager(runtime, make, policies, used, config, num_envs)
