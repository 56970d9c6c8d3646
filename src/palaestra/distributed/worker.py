"""`RolloutWorker`: acts in environments of its own, wherever it lives, and sends what happened."""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, RunSeeds
from palaestra.distributed.factories import ActingParts, Shares
from palaestra.distributed.replay_shard import ShardMap
from palaestra.envs import Fault, leaks_of
from palaestra.multiagent import MultiAgentCollector
from palaestra.policies import Policy
from palaestra.rollout import CollectInfo
from palaestra.runtime import LOOK_PERIOD_S, LeakWatch, Parcel, Shared

__all__ = ["ActingWeights", "RolloutWorker", "acting_weights"]

_MOST_PARTS = 4  # of weights; a worker remembers twice as many shared values
_UNSEEN = 15  # versions of a policy
_UNSET = object()  # what is said of an attribute that an environment was not given

_SENT = (
    *("step_type", "reward", "discount", "observation", "action", "policy_version", "policy_info", "state"),
    *("env_info", "untransformed"),
)


class Fragment(NamedTuple):
    """What a worker collected in one go. Its call names it: worker, incarnation, sequence."""

    versions: dict[str, int]
    """Of the policies that acted."""
    pieces: dict[str, list[tuple[list[int], Batch]]]
    """By policy: lanes of the worker, and rows of them as `ReplayBuffer.extend` takes them."""
    info: CollectInfo
    """What the collection did; environments are numbered within the worker."""
    lanes: dict[str, np.ndarray] | None
    """Seed and episode number of every environment, for the worker that takes its place; `None` where unknown."""
    faults: list[Fault]
    """Of the environments, since the fragment before; environments are numbered as in the run."""
    parcels: dict[int, Parcel]
    """Rows that go to shards of replay, by shard; the pieces then have only what their index needs."""

    @property
    def with_rows(self) -> list[str]:
        """Policies that have more than open rows in it."""
        return [name for name in self.versions if any(len(rows.step_type) > 1 for _, rows in self.pieces[name])]

    def without(self, policies: Collection[str]) -> "Fragment":
        """The rest: what other policies learn from.

        Args:
            policies: that do not.
        """
        pieces = {name: [] if name in policies else pieces for name, pieces in self.pieces.items()}
        rows_of = {**self.info.rows_of, **dict.fromkeys(policies, 0)}
        return self._replace(pieces=pieces, info=dataclasses.replace(self.info, rows_of=rows_of))


class RolloutWorker:
    """What a roll-out manager starts on a runtime.

    Args:
        make: makes the parts of a worker.
        number: of this one.
        shards: where rows go, if they do not go to the driver.
    """

    def __init__(self, make: Callable[[int], ActingParts], number: int, *, shards: ShardMap | None = None) -> None:
        self._parts = make(number)
        self._number, self._shards = number, shards or ShardMap({})
        self._buffers: Mapping[str, ReplayBuffer] = self._parts.collector.buffers
        self._weights: Sequence[Mapping[str, Any]] = ()  # loaded, in this order
        self._faults_told = 0
        self._attributes: Any = None
        self._leaks, self._look_at_s = LeakWatch(), 0.0

    def begin(self, position: Mapping[str, Any] | None) -> str:
        """Takes the place of a worker that was there before.

        Args:
            position: what `state` gave; or only its `lanes`, to continue with the next episode of each, and perhaps the
                `opponents` of another worker; or `None`.

        Returns:
            Whether the environments continue exactly: "exact" or "statistical".
        """
        collector, env = self._parts.collector, self._parts.env
        if position is not None and "collector" in position:
            for name, buffer in self._buffers.items():
                buffer.load_state_tensors(position["buffers"][name])
            collector.load_state(position["collector"])  # which may begin an episode in the buffers
            for name, state in position["generators"].items():
                self._parts.policies[name].generator.set_state(state)
            for name, memory in position.get("explorations", {}).items():
                exploration: Any = self._parts.policies[name].exploration
                exploration.memory = memory
        elif position is not None:
            acting = [*self._parts.policies.values()]
            if isinstance(collector, MultiAgentCollector):
                collector.adopt(position.get("opponents", {}))
                acting += collector.not_learning
            if position["lanes"] is not None:
                env.load_lane_state(position["lanes"])
                episodes = max(0, int(np.sum(position["lanes"]["episode"])))
                for policy in acting:  # else it would repeat the choices of who was there first
                    policy.seed(RunSeeds(policy.generator.initial_seed()).integer("acting", episodes))
        return env.resume

    def collect(
        self,
        amount: int,
        *weights: Mapping[str, Any],
        episodes: bool,
        random: Collection[str],
        attributes: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Fragment:
        """Acts for a while.

        Args:
            amount: time steps, or whole episodes, of every environment.
            weights: of the policies, from `acting_weights`; or all values of `ActingWeights`, in their order.
            episodes: whether it is these.
            random: names of policies that act at random.
            attributes: of environments, by their number and by name, all that were ever set.
        """
        if attributes and attributes != self._attributes:
            env, lanes = self._parts.env, list(attributes)
            for name in {name: None for given in attributes.values() for name in given}:
                values = [attributes[lane].get(name, _UNSET) for lane in lanes]
                if len(lanes) == env.batch_size and all(value == values[0] for value in values):
                    env.set_attr(name, values[0])  # some environments have only one value for all lanes
                    continue
                for lane, value in zip(lanes, values, strict=True):
                    if value is not _UNSET:
                        env.set_attr(name, value, [lane])
            self._attributes = attributes
        known = {id(one) for one in self._weights}
        # what follows something new overrides it
        for one in itertools.dropwhile(lambda one: id(one) in known, weights):
            load_acting_weights(self._parts.policies, one)
        self._weights = weights
        self._forget_sent()
        collector = self._parts.collector
        if episodes:
            info = collector.collect(n_episode=[amount] * collector.num_lanes, random=bool(random))
        else:
            info = collector.unroll(amount, random=random)
        info.episodes += collector.drain()
        pieces = {name: [_sent(*piece) for piece in b.pieces()] for name, b in self._buffers.items()}
        faults, log = self._found_leaks(), self._parts.env.faults
        faults, self._faults_told = log.since(self._faults_told) + faults, log.total
        versions = {name: policy.version for name, policy in self._parts.policies.items()}
        firsts = {name: self._number * buffer.num_lanes for name, buffer in self._buffers.items()}
        pieces, parcels = self._shards.split(pieces, firsts)
        return Fragment(versions, pieces, info, self._lanes(), faults, parcels)

    def state(self) -> dict[str, Any]:
        """Where the worker is, for a checkpoint."""
        self._forget_sent()
        return {
            "collector": self._parts.collector.state(),
            "generators": {name: policy.generator.get_state() for name, policy in self._parts.policies.items()},
            "explorations": {
                name: policy.exploration.memory
                for name, policy in self._parts.policies.items()
                if policy.exploration is not None
            },
            "buffers": {name: buffer.state_tensors() for name, buffer in self._buffers.items()},
            "lanes": self._lanes(),
        }

    def opponents(self) -> dict[int, list[Tensor]]:
        """Weights of the worker's pool of self-play; see `MultiAgentCollector.opponents`."""
        return self._parts.collector.opponents()

    def _forget_sent(self) -> None:
        """Once for each fragment, however often the state is asked for: that is counted, and saved with the rest."""
        for buffer in self._buffers.values():
            if len(buffer):
                buffer.clear()

    def _found_leaks(self) -> list[Fault]:
        """What leaks in this process, looked for once a second at most."""
        now = time.monotonic()
        if now < self._look_at_s:
            return []
        self._look_at_s = now + LOOK_PERIOD_S
        allowed = sum(buffer.size_bytes for buffer in self._buffers.values())
        nowhere = (-1, None, 0, None)
        lanes = range(self._parts.env.batch_size)
        incidents = leaks_of(self._leaks.look(allowed), lanes)
        return [Fault.of(one, nowhere, handled="warn", first_id=self._number * len(lanes)) for one in incidents]

    def close(self) -> None:
        """Closes the environments."""
        self._parts.env.close()

    def _lanes(self) -> dict[str, np.ndarray] | None:
        lane_state = getattr(self._parts.env, "lane_state", None)
        return None if lane_state is None else lane_state()


def _sent(lanes: list[int], rows: Batch) -> tuple[list[int], Batch]:
    return lanes, Batch.of({name: rows[name] for name in _SENT if name in rows})


def shared_out(lanes: Sequence[Mapping[str, Any] | None], number: int, make: Any = None) -> list[dict[str, Any]]:
    """Positions of another number of workers: the same environments in the same order; arrays, or lists as JSON.

    Args:
        lanes: of each worker that there was, in order; `None` where it is not known.
        number: of workers that there are.
        make: makes their parts; one that shares out environments says the seeds of those that have not begun.
    """
    if None in lanes and any(lanes) and isinstance(make, Shares):
        shares = dataclasses.replace(make, num_workers=len(lanes))
        seeds = [np.array(shares.share(worker)[1]) for worker in range(len(lanes))]
        unbegun = [{"lane_seed": one, "episode": np.full(len(one), -1)} for one in seeds]
        lanes = [new if one is None else one for one, new in zip(lanes, unbegun, strict=True)]
    known = [one for one in lanes if one is not None]
    positions: list[dict[str, Any]] = [{"lanes": {} if len(known) == len(lanes) else None} for _ in range(number)]
    names = {name: isinstance(value, str) for one in known for name, value in one.items()}
    for name, is_text in names.items() if len(known) == len(lanes) else ():
        every: list[Any] = []
        for one in known:
            nothing = [[{}, {}]] * len(one["lane_seed"])  # attributes of a worker that was told none
            every += nothing if name not in one else json.loads(one[name]) if is_text else list(one[name])
        size = len(every) // number
        for worker, position in enumerate(positions):
            part = every[worker * size : (worker + 1) * size]
            position["lanes"][name] = json.dumps(part) if is_text else np.array(part)
    return positions


def acting_weights(policies: Mapping[str, Policy]) -> dict[str, dict[str, Any]]:
    """What `load_acting_weights` takes, by policy name; tensors are views of the policies' own.

    Args:
        policies: by name, as they are now.
    """
    return {
        name: {
            "version": policy.version,
            "exploration": None if (one := policy.exploration) is None else (one.strength, one.progress),
            "tensors": policy.state_dict(),
            "whole": True,
        }
        for name, policy in policies.items()
    }


def load_acting_weights(policies: Mapping[str, Policy], weights: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes copies act as the learning policies did when `acting_weights` was called.

    Their generators stay their own.

    Args:
        weights: from `acting_weights`; or a part of what `ActingWeights` gives, after those before it.
    """
    for name, given in weights.items():
        policy = policies[name]
        policy.load_state_dict(given["tensors"], strict=given["whole"])
        policy.version = given["version"]
        if policy.exploration is not None:
            policy.exploration.strength, policy.exploration.progress = given["exploration"]


@dataclass(eq=False)
class _Part:
    """Tensors of one version."""

    shared: Shared
    live: dict[str, dict[str, int]]
    """The sizes of those that are still the newest, by policy and name."""

    @functools.cached_property
    def values(self) -> dict[str, dict[str, Any]]:
        return self.shared.view()

    @property
    def size_bytes(self) -> int:
        return sum(sum(sizes.values()) for sizes in self.live.values())


@final
class ActingWeights:
    """Weights of policies for workers: what has changed is sent, and nothing else.

    A new version is one new shared value with the tensors whose bits have changed; the others stay in the values where
    they are. A worker is sent those values that it does not have: the new one; or all, if it is new itself or was away.
    There are four at most; then the smallest joins the newest.

    A policy whose version is the same is not looked at. One of which less than a quarter stayed is sent whole, and so
    are its next fifteen versions: to compare would cost more than to send.

    Args:
        policies: by name, whose weights they are.

    Examples:
        >>> from palaestra import PPO, EnvConfig, PPOConfig, RunSeeds
        >>> from palaestra.envs import probe_specs
        >>> ppo = PPO(*probe_specs(EnvConfig(name="CartPole-v1"))[:2], PPOConfig(), RunSeeds(0))
        >>> weights = ActingWeights({"policy": ppo.policy})
        >>> first = weights.newest()
        >>> ppo.policy.version += 1
        >>> [shared.message.size_bytes < 1000 for shared in weights.newest()]  # no tensor has changed
        [False, True]
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._policies, self._parts = policies, list[_Part]()
        self._homes: dict[str, dict[str, _Part]] = {name: {} for name in policies}
        self._marks: dict[str, tuple[int, tuple[float, float] | None]] = {}
        self._unseen = dict.fromkeys(policies, 0)  # versions that go whole

    def newest(self) -> list[Shared]:
        """Shared values that together are the weights as they are now, to be loaded in this order."""
        changed: dict[str, dict[str, Any]] = {}
        for name, policy in self._policies.items():
            explores = None if (one := policy.exploration) is None else (one.strength, one.progress)
            before, now = self._marks.get(name), (policy.version, explores)
            if before != now:
                self._marks[name] = now
                changed[name] = self._changed(name) if before is None or before[0] != now[0] else {}
        if changed:
            self._replace(changed)
        return [part.shared for part in self._parts]

    def _changed(self, name: str) -> dict[str, Any]:
        homes, tensors = self._homes[name], self._policies[name].state_dict()
        if self._unseen[name] or homes.keys() != tensors.keys():
            self._unseen[name] = max(self._unseen[name] - 1, 0)
            return tensors
        held = {key: part.values[name]["tensors"][key] for key, part in homes.items()}
        changed = {key: leaf for key, leaf in tensors.items() if not _equal(leaf, held[key])}
        if sum(map(_size, changed.values())) <= 0.75 * sum(map(_size, tensors.values())):
            return changed
        self._unseen[name] = _UNSEEN
        return tensors

    def _replace(self, changed: dict[str, dict[str, Any]]) -> None:
        """Makes a part of what has changed, and forgets it in the others."""
        for part in self._parts:
            for name in part.live.keys() & changed.keys():
                part.live[name] = {key: size for key, size in part.live[name].items() if key not in changed[name]}
                if not part.live[name]:
                    del part.live[name]
        self._parts = [part for part in self._parts if part.live]
        joining: dict[str, dict[str, int]] = {}
        if len(self._parts) == _MOST_PARTS:
            smallest = min(self._parts, key=lambda part: part.size_bytes)
            self._parts.remove(smallest)
            joining = smallest.live
        sent = acting_weights({name: self._policies[name] for name in changed.keys() | joining.keys()})
        for name, one in sent.items():
            keys = changed.get(name, {}).keys() | joining.get(name, {}).keys()
            if one["tensors"].keys() != keys:
                one.update(tensors={key: one["tensors"][key] for key in keys}, whole=False)
        live = {name: {key: _size(leaf) for key, leaf in one["tensors"].items()} for name, one in sent.items()}
        self._parts.append(_Part(Shared(sent), live))
        for name, tensors in live.items():
            kept = {} if sent[name]["whole"] else self._homes[name]
            self._homes[name] = {**kept, **dict.fromkeys(tensors, self._parts[-1])}


def _size(leaf: Any) -> int:
    return leaf.nbytes if isinstance(leaf, Tensor) else 0


def _equal(first: Any, second: Any) -> bool:
    """Whether two leaves of a state have the same bits."""
    if not isinstance(first, Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    one, other = _raw(first), _raw(second)
    cut = len(one) // 8 * 8  # whole words are compared in an eighth of the time
    words = one[:cut].view(torch.int64), other[:cut].view(torch.int64)
    return torch.equal(*words) and torch.equal(one[cut:], other[cut:])


def _raw(leaf: Tensor) -> Tensor:
    flat = leaf.detach().cpu().reshape(-1).view(torch.uint8)
    return flat.clone() if flat.storage_offset() % 8 else flat
