"""`PolicyServer`: actors that wait for nobody, and learning from whatever arrives, as long as it is fresh enough."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from palaestra.algorithms import Algorithm
from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, DataSource, Replay, StepType
from palaestra.distributed.asynchronous import AsynchronousConfig, Pace
from palaestra.distributed.config import DistributedConfig
from palaestra.distributed.crew import Crew, Dropped, Member
from palaestra.distributed.weights import acting_weights
from palaestra.distributed.worker import ActingParts, Fragment, RolloutWorker
from palaestra.rollout import CollectInfo, Episode
from palaestra.runtime import Call, Runtime, Shared

__all__ = ["PolicyServer"]

_SLICE_S = 0.2  # how soon a pause is noticed
_GLANCE_S = 0.001  # to take what has arrived meanwhile


class _Waiting(NamedTuple):
    """A fragment in the queue."""

    member: Member
    call: Call
    fragment: Fragment


@final
class PolicyServer:
    """Serves independent actors: takes their fragments, and answers each with the newest weights.

    A `Trainer` takes it in the place of a `Collector`, so asynchronous training is the same loop as any other. An actor
    is a `RolloutWorker` that alternates between acting for a while and being answered; no actor waits for another one.
    Fragments wait in a bounded queue, oldest first. When one is taken out, its lag is the newest policy version minus
    the one that acted; with a lag above `max_lag` it is dropped and named in `dropped`. Actors are answered with the
    newest weights in either case, and not before there is room in the queue.

    On-policy plans learn from `fragments_per_update` fragments at a time: IMPALA corrects their lag by V-trace, PPO
    by its probability ratios, within its clipping range. Replay plans keep the buffer here, and rows drawn follow rows
    written at the pace of `samples_per_insert`.

    Args:
        runtime: where the actors live.
        make: makes the parts of an actor from its number, such as a `CollectorFactory`.
        algorithms: of the policies by name, as they are in this process.
        buffers: by policy name; the actors share their lanes evenly, the first actor has the first. Replay plans learn
            from them; of on-policy plans only what a row consists of is taken over.
        config: how many actors, and how to wait for them.
        asynchronous: staleness, fragments and pace.

    Raises:
        ConfigError: the lanes of a buffer cannot be shared evenly, or a plan keeps data that asynchronous learning
            cannot keep for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[int], ActingParts],
        algorithms: Mapping[str, Algorithm[Any]],
        buffers: Mapping[str, ReplayBuffer],
        config: DistributedConfig,
        asynchronous: AsynchronousConfig | None = None,
    ) -> None:
        self._algorithms, self._asynchronous = dict(algorithms), asynchronous or AsynchronousConfig()
        self._pace = Pace(self._algorithms, buffers, config.num_workers, self._asynchronous)
        self._keeps = {name for name, one in self._algorithms.items() if isinstance(one.plan, Replay)}
        blocks = {name: buffers[name] if name in self._keeps else self._pace.blocks(buffers[name]) for name in buffers}
        self.buffers: dict[str, ReplayBuffer] = blocks
        """Where rows lie, by policy; those of on-policy plans are discarded after one update."""
        self.sources: dict[str, DataSource] = dict(blocks)
        """What each policy learns from; may be set to a mixture of it with loaded data."""
        self.num_lanes = next(iter(buffers.values())).num_lanes
        """Environments stepped side by side, over all actors."""
        self.env_steps = 0
        """Actions executed so far, of fragments that were used."""
        self.lags: Counter[int] = Counter()
        """How many fragments of each lag were used."""
        self.runtime = runtime
        """Where the actors live."""
        self._num_actors = config.num_workers
        self._sizes = {name: buffer.num_lanes // config.num_workers for name, buffer in buffers.items()}
        self._queue: deque[_Waiting] = deque()
        self._queue_size = self._asynchronous.queue_size or config.num_workers
        self._crew = Crew(runtime, functools.partial(RolloutWorker, make), config, name="actor")
        self._positions: list[Any] | None = None
        self._weights: Shared | None = None
        self._weights_of: Any = None
        self._gaps: set[int] = set()  # actors whose last fragment is missing in the streams
        self._taken: list[_Waiting] = []  # of an unroll that is not over
        self._since_last_row: Counter[int] = Counter()
        self._env_faults: list[Any] = []
        self._paused = False

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
        self._paused, self._crew.limit_s = False, math.inf
        if not self._crew.members:
            self._crew.start(self._positions)
        steps, names = self._pace.fragment_steps(length), sorted(random)
        self._publish()
        self._serve(steps, names, _GLANCE_S)
        while not self._taken_enough():
            if time.monotonic() >= self._crew.limit_s:
                self._paused = True
                return CollectInfo(0)
            began_s = time.perf_counter()
            self._serve(steps, names, _SLICE_S)
            waited_s += time.perf_counter() - began_s
        self._answer(steps, names)
        return self._stored_away(began, waited_s)

    def _taken_enough(self) -> bool:
        """Takes fragments out of the queue as far as they are needed and fresh."""
        while self._queue and self._pace.may_take(len(self._taken), self._rows(self._queue[0])):
            waiting = self._queue.popleft()
            lag = self._lag(waiting.fragment)
            if not self._pace.fresh(lag):
                self._crew.drop(
                    waiting.call, f"it is {lag} policy versions old, and max_lag is {self._asynchronous.max_lag}"
                )
                self._gaps.add(waiting.member.number)
                continue
            self.lags[lag] += 1
            self._since_last_row[lag] += 1
            self._taken.append(waiting)
            if self._keeps:
                self._store_in(self._keeps, [waiting], by_actor=True)
            self.env_steps += waiting.fragment.info.env_steps
            self._pace.took(self._rows(waiting), self.env_steps)
        return self._pace.enough(len(self._taken), self.env_steps)

    def _stored_away(self, began: float, waited_s: float) -> CollectInfo:
        """What the unroll did; on-policy data goes where it is learned from."""
        taken, self._taken = self._taken, []
        if len(self._keeps) < len(self.buffers):
            self._store_in(self.buffers.keys() - self._keeps, taken, by_actor=False)
        info, size = CollectInfo(0), self.num_lanes // self._num_actors
        acted_s = sum(one.fragment.info.total_s for one in taken)
        share = min(1.0, waited_s / acted_s) if acted_s else 0.0
        for member, _, fragment in taken:
            one = fragment.info
            info.env_steps += one.env_steps
            info.rows = max(info.rows, one.rows)
            info.rows_of = {
                name: max(rows, info.rows_of.get(name, 0)) for name, rows in {**info.rows_of, **one.rows_of}.items()
            }
            first = member.number * size
            info.episodes += [episode._replace(env_id=first + episode.env_id) for episode in one.episodes]
            info.env_s += one.env_s * share
            info.inference_s += one.inference_s * share
            self._env_faults += [dataclasses.replace(fault, env_id=first + fault.env_id) for fault in fragment.faults]
        info.total_s = time.perf_counter() - began
        return info

    def _store_in(self, names: Collection[str], taken: Sequence[_Waiting], *, by_actor: bool) -> None:
        """In the lanes of the actor, where streams go on; or one fragment beside the other, where they need not."""
        for name in names:
            for block, (member, _, fragment) in enumerate(taken):
                first = (member.number if by_actor else block) * self._sizes[name]
                for lanes, rows in fragment.pieces.get(name, ()):
                    whole = _broken_off(rows) if by_actor and member.number in self._gaps else rows
                    self.buffers[name].extend(whole, [first + lane for lane in lanes])
        if by_actor:
            self._gaps -= {one.member.number for one in taken}

    def _lag(self, fragment: Fragment) -> int:
        return max(self._algorithms[name].policy_version - version for name, version in fragment.versions.items())

    def _rows(self, waiting: _Waiting) -> int:
        return waiting.fragment.info.rows * (self.num_lanes // self._num_actors)

    # -- actors

    def _publish(self) -> None:
        """Encodes the weights, if they are not those that were encoded last."""
        policies = {name: algorithm.policy for name, algorithm in self._algorithms.items()}
        now = {
            name: (policy.version, None if policy.exploration is None else policy.exploration.strength)
            for name, policy in policies.items()
        }
        if self._weights is None or now != self._weights_of:
            self._weights, self._weights_of = Shared(acting_weights(policies)), now

    def _serve(self, steps: int, random: Sequence[str], timeout_s: float) -> None:
        """Takes what actors send, and answers them."""
        self._crew.admit(0.0 if (self._crew.idle or self._crew.busy) else timeout_s)
        self._answer(steps, random)
        for member, call, fragment in self._crew.take(at_least=1, timeout_s=timeout_s):
            member.position = {"lanes": fragment.lanes}
            self._queue.append(_Waiting(member, call, fragment))
        self._answer(steps, random)

    def _answer(self, steps: int, random: Sequence[str]) -> None:
        """The newest weights to every actor that waits for an answer, while there is room in the queue."""
        for member in self._crew.idle:
            if len(self._queue) >= self._queue_size:
                return
            self._crew.give(member, "collect", self._weights, steps, episodes=False, random=random)

    def pause(self) -> None:
        """Ends a running unroll as soon as it can; its fragments stay for the next one."""
        self._crew.limit_s = time.monotonic()

    @property
    def unfinished(self) -> bool:
        """Whether an unroll was ended by `pause`."""
        return self._paused

    def drain(self) -> list[Episode]:
        """Nothing: every fragment brings the episodes that have ended in it."""
        return []

    # -- how things are

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Fragments that nobody learns from, in order."""
        return self._crew.dropped

    @property
    def faults(self) -> Sequence[Any]:
        """Ends of actors, and faults of environments that actors dealt with."""
        return [*self._crew.faults, *self._env_faults]

    @property
    def resume(self) -> str:
        """How a run goes on from a checkpoint: "statistical", with new episodes."""
        return "statistical"

    @property
    def queue_length(self) -> int:
        """Fragments that wait to be learned from."""
        return len(self._queue)

    def metrics(self) -> dict[str, float]:
        """For a row of metrics: who is there, what waits, what was dropped, how old data was since the last call."""
        lags, self._since_last_row = self._since_last_row, Counter()
        crew, used = self._crew, sum(lags.values())
        return {
            "workers/there": len(crew.idle) + len(crew.busy),
            "workers/waiting_fragments": len(self._queue),
            "workers/restarts": crew.runtime.restarted,
            "workers/fragments": sum(self.lags.values()),
            "workers/dropped": len(crew.dropped),
            "workers/duplicates": crew.runtime.duplicates,
            "workers/lag_mean": sum(lag * count for lag, count in lags.items()) / max(used, 1),
            "workers/lag_max": float(max(lags, default=0)),
            **{f"workers/lag_{name}": count for name, count in _histogram(lags).items()},
        }

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Where collection is. Fragments on their way and in the queue are lost to a resumed run, and not counted."""
        return {
            "env_steps": self.env_steps - (self._uncounted if self._pace.on_policy else 0),
            "lags": {str(lag): count for lag, count in self.lags.items()},
            "positions": [member.position for member in self._crew.members],
        }

    @property
    def _uncounted(self) -> int:
        """Env steps of fragments that a paused unroll has taken, and that are in no buffer yet."""
        return sum(one.fragment.info.env_steps for one in self._taken)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave; actors go on with the episodes after those that they had begun.

        Args:
            state: of a server with as many actors.
        """
        self.env_steps = state["env_steps"]
        self.lags = Counter({int(lag): count for lag, count in state["lags"].items()})
        self._positions = list(state["positions"]) or None


def _broken_off(rows: Any) -> Batch:
    """The rows as the beginning of a stream: nothing before them leads to the first one."""
    step_type = rows["step_type"].clone()
    step_type[0] = int(StepType.FIRST)
    return rows.replace(step_type=step_type)


def _histogram(lags: Counter[int]) -> dict[str, int]:
    """Counts of lags, in bins that double: 0, 1, 2, 3-4, 5-8, 9-16, 17+."""
    bins: dict[str, int] = {"0": 0, "1": 0, "2": 0, "3-4": 0, "5-8": 0, "9-16": 0, "17+": 0}
    edges = np.array([0, 1, 2, 4, 8, 16])
    for lag, count in lags.items():
        bins[list(bins)[int(np.searchsorted(edges, lag))]] += count
    return bins
