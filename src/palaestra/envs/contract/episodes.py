"""Running episodes: their seeds, their actions, and how many steps they have left.

A lane is one environment's stream. Its state is (seed of the lane, number of the episode, actions so far): replaying
them through the whole stack of layers gives the same environment, and the digest of its latest observation proves it.
"""

import hashlib
import json
import logging
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from palaestra.core import ACTION_MASK, ConfigError, EnvError, SpecError, SpecTree, episode_seed, spec_leaves
from palaestra.core.nests import join_state, split_state
from palaestra.envs.contract.nest import flatten, leaf_dtypes, unflatten
from palaestra.envs.supervision.places import Place

NEVER = sys.maxsize >> 1
"""A number of steps that no episode reaches."""
_FIRST_CAPACITY = 64
MOST_STEPS = 100_000
"""Of an episode whose actions are kept: more cannot be replayed in a reasonable time."""
_MOST_BYTES, _ALWAYS_KEPT = 1 << 28, 1_000  # one lane's long episode keeps rows of all; short ones are replayed anyway

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaneEpisode:
    """One lane's running episode."""

    lane_seed: int
    """63-bit seed of the lane."""
    number: int
    """From 0; -1 before the first reset."""
    actions: list[Any]
    """The actions executed so far, as the bare environment takes them."""
    digest: str
    """Of the observation and the reward after the last of them; empty where no episode is running."""
    attributes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """What was set of the environment: before this episode, and to be set before the next one."""

    @property
    def seed(self) -> int:
        """The seed of this episode's reset."""
        return episode_seed(self.lane_seed, self.number)

    @property
    def carried(self) -> dict[str, Any]:
        """What layers carried into it from earlier ones, as the digest has it."""
        _, _, text = self.digest.partition(":")
        return join_state(json.loads(text or "{}"), {})

    @staticmethod
    def carried_text(carried: Mapping[str, Any]) -> str:
        """What layers carried into an episode, as a word for behind its digest; empty where they carry nothing.

        Args:
            carried: by layer.

        Raises:
            SpecError: it holds arrays.
        """
        values, arrays = split_state(carried)
        if arrays:
            raise SpecError(
                f"what wrappers carry has arrays, {', '.join(arrays)}; let `snapshot` return numbers, text and nests "
                "of them, such as array.tolist()"
            )
        return f":{json.dumps(values, separators=(',', ':'))}".replace(" ", "\\u0020") if carried else ""


class EpisodeLog:
    """The actions of every lane's running episode.

    Actions are rows [B, ...] of arrays that grow by doubling; rows that no running episode needs are dropped when the
    arrays are full. Writing one row a step costs the same for any number of lanes.

    Args:
        lane_seeds: one seed for every lane.
        action_spec: of one bare environment.

    Attributes:
        lane_seeds: as given.
        episodes: number of every lane's running episode, -1 before the first.
        due: lanes whose next step starts an episode.
        dropped: lanes that are not stepped any more.
        forgotten: env steps of running episodes that became too long to be replayed, by lane; a checkpoint begins new
            ones there.
        attributes: what was set of each lane's environment, by name.
        awaiting: what is to be set before the next episode of a lane.
    """

    def __init__(self, lane_seeds: Sequence[int], action_spec: SpecTree) -> None:
        self.lane_seeds = [int(seed) for seed in lane_seeds]
        self.episodes = [-1] * len(self.lane_seeds)
        self.due = list(range(len(self.lane_seeds)))
        self.dropped: set[int] = set()
        self.forgotten: dict[int, int] = {}
        self.attributes = [dict[str, Any]() for _ in self.lane_seeds]
        self.awaiting: dict[int, dict[str, Any]] = {}
        self._spec = action_spec
        self._specs = spec_leaves(action_spec)
        self._begins = [0] * len(self.lane_seeds)
        self._length = 0
        self._silent = set(self.due)
        self._rows = self._empty(_FIRST_CAPACITY)
        self._take_place()

    def _take_place(self) -> None:
        self._place = Place(len(self.lane_seeds))
        self._told, self._base = self._place.steps, self._place.base
        self._tell_all()

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have a place of their own."""
        return {name: value for name, value in vars(self).items() if name not in ("_place", "_told", "_base")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take_place()

    def send(self, actions: Sequence[np.ndarray]) -> dict[int, int]:
        """Records one action for every lane, and starts the next episode of those that are `due`.

        Args:
            actions: leaf arrays [B, ...] in the order of the action spec; copied.

        Returns:
            The seeds to reset those lanes with; their actions do not count.
        """
        if self._length == len(self._rows[0]):
            self._make_room()
        length, rows = self._length, self._rows
        if len(rows) == 1:
            rows[0][length] = actions[0]
        else:
            for leaf, action in zip(rows, actions, strict=True):
                leaf[length] = action
        self._length = length + 1
        if self._silent:
            self._silent = set(self.dropped)
            for lane in self.dropped:
                self._begins[lane] = self._length
        self._told[0] = self._base + self._length
        if not self.due:
            return {}
        due, self.due = self.due, []
        return {lane: self.restart(lane) for lane in due}

    def abandon(self) -> None:
        """Makes every lane start its next episode with the next step."""
        self._silent = set(range(len(self.lane_seeds)))
        self.due = sorted(self._silent - self.dropped)
        self._begins = [self._length] * len(self.lane_seeds)
        self.forgotten = {}

    def restart(self, lane: int) -> int:
        """Starts a lane's next episode at once, in the middle of a step; the running one is abandoned.

        Returns:
            The seed to reset it with.
        """
        self.episodes[lane] += 1
        self._begins[lane] = self._length
        if self.forgotten:
            self.forgotten.pop(lane, None)
        self._tell(lane)
        return episode_seed(self.lane_seeds[lane], self.episodes[lane])

    def _tell(self, lane: int) -> None:
        cells, cell = self._place.cells, 1 + 3 * lane
        cells[cell], cells[cell + 1] = self.lane_seeds[lane], self.episodes[lane]
        cells[cell + 2] = self._begins[lane] - self.forgotten.get(lane, 0)

    def _tell_all(self) -> None:
        for lane in range(len(self.lane_seeds)):
            self._tell(lane)

    def take_awaiting(self, lanes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """What is to be set of environments now, and is set from then on.

        Args:
            lanes: whose episodes begin.
        """
        taken = {lane: self.awaiting.pop(lane) for lane in lanes if lane in self.awaiting}
        for lane, attributes in taken.items():
            self.attributes[lane] = {**self.attributes[lane], **attributes}
        return taken

    def attributes_text(self) -> dict[str, str]:
        """What was set, as an entry of a state; none if nothing was."""
        pairs = [(attributes, self.awaiting.get(lane, {})) for lane, attributes in enumerate(self.attributes)]
        return {"attributes": json.dumps(pairs)} if any(one for pair in pairs for one in pair) else {}

    def drop(self, lane: int) -> None:
        """Gives a lane up: it has no episodes any more."""
        self.dropped.add(lane)
        self._silent.add(lane)
        self._begins[lane] = self._length

    def restore(self, episodes: Sequence[LaneEpisode], due: Sequence[int]) -> None:
        """Takes over running episodes that were replayed.

        Args:
            episodes: one for every lane.
            due: lanes that are at the end of theirs, or before their first.
        """
        self.due, self.forgotten = list(due), {}
        self._silent = {lane for lane, episode in enumerate(episodes) if not episode.digest}
        self.lane_seeds = [episode.lane_seed for episode in episodes]
        self.episodes = [episode.number for episode in episodes]
        self.attributes = [dict(episode.attributes[0]) for episode in episodes]
        self.awaiting = {lane: dict(one.attributes[1]) for lane, one in enumerate(episodes) if one.attributes[1]}
        longest = max(len(episode.actions) for episode in episodes)
        self._length = longest
        self._rows = self._empty(max(_FIRST_CAPACITY, 2 * longest))
        for lane, episode in enumerate(episodes):
            self._begins[lane] = longest - len(episode.actions)
            for row, action in enumerate(episode.actions, start=self._begins[lane]):
                for rows, leaf in zip(self._rows, flatten(action, self._spec), strict=True):
                    rows[row, lane] = leaf
        self._tell_all()

    def steps(self, lane: int) -> int:
        """Number of env steps that a lane's running episode has."""
        return self._length - self._begins[lane] + self.forgotten.get(lane, 0)

    def last_action(self, lane: int) -> Any:
        """The action that a lane executed last, or is executing; `None` after a reset."""
        if not self.steps(lane):
            return None
        return unflatten((rows[self._length - 1, lane] for rows in self._rows), self._spec)

    def place(self, lane: int) -> tuple[int, int | None, int, Any]:
        """Where in its stream a lane is: the episode, its seed, the step and its action."""
        number = self.episodes[lane]
        seed = episode_seed(self.lane_seeds[lane], number) if number >= 0 else None
        return number, seed, self.steps(lane), self.last_action(lane)

    def latest(self) -> list[np.ndarray]:
        """Copies of the leaf arrays [B, ...] recorded last."""
        return [rows[self._length - 1].copy() for rows in self._rows]

    def state_dict(self, digests: Sequence[str]) -> dict[str, Any]:
        """Running episodes as named arrays and one string.

        Args:
            digests: of every lane's latest observation; empty where no episode is running.
        """
        lanes = range(len(self.lane_seeds))
        begins = [self._length if lane in self.forgotten else begin for lane, begin in enumerate(self._begins)]
        silent = self._silent | self.forgotten.keys()
        state: dict[str, Any] = {
            "lane_seed": np.array(self.lane_seeds, np.int64),
            "episode": np.array(self.episodes, np.int64),
            "steps": self._length - np.array(begins, np.int64),
            "digest": " ".join("" if lane in silent else digests[lane] for lane in lanes),
        }
        if self.forgotten:
            state["forgotten"] = np.array([self.steps(lane) if lane in self.forgotten else 0 for lane in lanes])
        if self.dropped:
            state["dropped"] = np.array(sorted(self.dropped))
        state |= self.attributes_text()
        for path, rows in zip(self._specs, self._rows, strict=True):
            parts = [rows[begins[lane] : self._length, lane] for lane in lanes]
            state[f"action.{path}" if path else "action"] = np.concatenate(parts)
        return state

    def episodes_of(self, state: dict[str, Any]) -> list[LaneEpisode]:
        """The running episodes that `state_dict` wrote.

        Args:
            state: from `state_dict`, also after a round through torch tensors.

        Raises:
            EnvError: it is of another number of lanes, or of other actions.
        """
        names = [f"action.{path}" if path else "action" for path in self._specs]
        missing = [name for name in ("lane_seed", "episode", "steps", "digest", *names) if name not in state]
        if missing:
            raise EnvError(f"the saved environment state lacks {missing}; it has {sorted(state)}")
        seeds = saved_seeds(state, len(self.lane_seeds))
        numbers, steps = np.asarray(state["episode"]), np.asarray(state["steps"])
        digests = state["digest"].split(" ")
        leaves = [np.asarray(state[name]) for name in names]
        set_before = attributes_of(state, len(seeds))
        episodes: list[LaneEpisode] = []
        for lane, end in enumerate(np.cumsum(steps).tolist()):
            rows = range(end - steps[lane], end)
            actions = [unflatten((leaf[row] for leaf in leaves), self._spec) for row in rows]
            episodes.append(LaneEpisode(seeds[lane], int(numbers[lane]), actions, digests[lane], set_before[lane]))
        if lanes := is_forgotten(state):
            counts = [f"environment {lane} after {state['forgotten'][lane]:,} steps" for lane in lanes]
            _log.warning(
                "%s: episodes of more than %s steps are not replayed, nor those of more than %s for which actions "
                "of all environments would take 256 MB, and new ones begin; what wrappers remembered from earlier "
                "episodes is lost there", ", ".join(counts), f"{MOST_STEPS:,}", f"{_ALWAYS_KEPT:,}",
            )  # fmt: skip
        if len(dropped := state.get("dropped", ())):
            _log.warning("environments %s were dropped; they are made anew, and play along again", dropped.tolist())
        return episodes

    def _empty(self, capacity: int) -> list[np.ndarray]:
        num_lanes = len(self.lane_seeds)
        leaves = zip(self._specs.values(), leaf_dtypes(self._spec), strict=True)
        return [np.empty((capacity, num_lanes, *leaf.shape), dtype) for leaf, dtype in leaves]

    def _make_room(self) -> None:
        row_bytes = sum(rows[0].nbytes for rows in self._rows)
        most = min(MOST_STEPS, max(_ALWAYS_KEPT, _MOST_BYTES // max(1, row_bytes)))
        for lane, begin in enumerate(self._begins):
            if lane in self.forgotten or self._length - begin > most:
                self.forgotten[lane] = self.steps(lane) - 1
                self._begins[lane] = self._length - 1  # the newest action is asked for
        drop = min(self._begins)
        kept = self._length - drop
        old = self._rows
        if 2 * kept > len(old[0]):
            self._rows = self._empty(2 * len(old[0]))
        for rows, source in zip(self._rows, old, strict=True):
            rows[:kept] = source[drop : self._length].copy()
        self._begins = [begin - drop for begin in self._begins]
        self._length = kept
        self._tell_all()


def attributes_of(state: Mapping[str, Any], count: int) -> list[Any]:
    """What was set of every lane's environment, and is to be set before its next episode, as a state has it.

    Args:
        state: with what `EpisodeLog.attributes_text` gave, if anything was set.
        count: number of lanes.
    """
    return json.loads(state["attributes"]) if "attributes" in state else [({}, {})] * count


def is_forgotten(state: Mapping[str, Any]) -> list[int]:
    """The lanes whose episodes were too long to be saved, and begin anew.

    Args:
        state: from `EpisodeLog.state_dict`.
    """
    return np.flatnonzero(np.asarray(state.get("forgotten", ()))).tolist()


class StepLimits:
    """Counts the env steps of running episodes, and says which have come to their limit.

    Args:
        durations: the limit of every lane; `NEVER` where there is none.
    """

    def __init__(self, durations: Sequence[int]) -> None:
        self._durations, self._clock = list(durations), 0
        self._ends, self._next = [NEVER] * len(self._durations), NEVER

    def begin(self, lane: int, steps: int = 0, *, duration: int | None = None) -> None:
        """An episode runs.

        Args:
            lane: in which lane.
            steps: that it has already; -1 where the next `tick` is that of its FIRST step.
            duration: the limit of this lane from now on; `None` leaves it as it was.
        """
        if duration is not None:
            self._durations[lane] = duration
        self._ends[lane] = end = self._clock + self._durations[lane] - steps
        self._next = min(self._next, end)

    def tick(self) -> Sequence[int]:
        """Counts a step in every lane; returns those whose limit it is."""
        self._clock += 1
        if self._clock < self._next:
            return ()
        self._next = min((end for end in self._ends if end > self._clock), default=NEVER)
        return [lane for lane, end in enumerate(self._ends) if end == self._clock]

    def reached(self, lane: int) -> bool:
        """Whether the running episode has come to its limit.

        Args:
            lane: in which lane.
        """
        return self._clock >= self._ends[lane]


def require_read_mask(info: Any, observation_spec: SpecTree, remedy: str = "give --env.wrappers ActionMask") -> None:
    """Refuses a mask of actions in `info`, which no policy reads, where observations have none.

    Args:
        info: of a time step, an episode's first one say.
        observation_spec: of what policies see.
        remedy: what makes them see the mask.

    Raises:
        SpecError: there is one; the message has the line that moves it to the observation.
    """
    seen: Any = observation_spec
    while isinstance(seen, dict) and ACTION_MASK not in seen:
        seen = seen.get("seen")  # of `Untransformed`
    if info and ACTION_MASK in info and not isinstance(seen, dict):
        raise SpecError(
            f"info has an action_mask, which no policy reads there; {remedy} (wrappers=['ActionMask']), which "
            "moves it into the observation, or --env.wrappers 'ActionMask(ignored=True)' to try forbidden actions, too"
        )


def lane_seeds_of(lane_seeds: Sequence[int] | None, count: int) -> list[int]:
    """One 63-bit seed for every environment; fresh ones of the operating system if none are given.

    Args:
        lane_seeds: as given.
        count: number of environments.

    Raises:
        SpecError: their number is wrong, two are equal, or one is no whole number in [0, 2^63).
    """
    if lane_seeds is None:
        return [int(seed) >> 1 for seed in np.random.SeedSequence().generate_state(count, np.uint64)]
    if len(lane_seeds) != count or len(set(lane_seeds)) != count:
        raise SpecError(f"{count} environments were given the lane seeds {list(lane_seeds)}; each needs one of its own")
    for seed in lane_seeds:
        if not isinstance(seed, SupportsIndex) or not 0 <= operator.index(seed) < 2**63:
            raise SpecError(f"a lane seed is {seed!r}; it must be a whole number of at least 0 and below 2^63")
    return [operator.index(seed) for seed in lane_seeds]


def batch_seeds(lane_seeds: Sequence[int] | None, batch_size: int, max_episode_steps: int) -> list[int]:
    """Seeds of the lanes of a batch that is made; see `lane_seeds_of`.

    Args:
        lane_seeds: one for each, or `None`.
        batch_size: number of lanes.
        max_episode_steps: after which episodes are cut off; 0 is never.

    Raises:
        ConfigError: a number is out of range.
    """
    if batch_size < 1 or max_episode_steps < 0:
        raise ConfigError(
            f"batch_size is {batch_size} and max_episode_steps {max_episode_steps}; at least 1 and 0 are needed"
        )
    return lane_seeds_of(lane_seeds, batch_size)


def saved_seeds(state: Mapping[str, Any], count: int) -> list[int]:
    """The lane seeds of a saved state.

    Args:
        state: of a batched environment.
        count: number of environments that it is for.

    Raises:
        EnvError: it is of another number.
    """
    seeds = [int(seed) for seed in state["lane_seed"]]
    if len(seeds) != count:
        raise EnvError(
            f"the saved state is of {len(seeds)} environments and this has {count}; resume with the same number"
        )
    return seeds


def digest(observation: Any, observation_spec: SpecTree, reward: Any, num_rewards: int = 1) -> str:
    """A short hash of an observation, and behind it one of the reward.

    Args:
        observation: of one environment.
        observation_spec: of that environment; the leaves are cast to its dtypes first.
        reward: a number, or several.
        num_rewards: how many; a number stands for as many of them.
    """
    code = hashlib.blake2b(digest_size=12)
    leaves = flatten(observation, observation_spec)
    for leaf, dtype in zip(leaves, leaf_dtypes(observation_spec), strict=True):
        code.update(np.ascontiguousarray(leaf, dtype).tobytes())
    earned = np.broadcast_to(np.asarray(reward, np.float32).reshape(-1), (num_rewards,)) + np.float32(0)  # no -0
    return f"{code.hexdigest()}-{hashlib.blake2b(earned.tobytes(), digest_size=4).hexdigest()}"
