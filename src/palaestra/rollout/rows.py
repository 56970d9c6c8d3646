"""Rows on their way into a buffer: of some lanes or of all, checked for finite values, with their log-probabilities."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, NonFiniteError, StepType, TimeStep, episode_seed, tree_leaves, tree_map, tree_select
from palaestra.core.errors import is_news
from palaestra.core.tree import as_array
from palaestra.envs import Environment
from palaestra.policies import Policy
from palaestra.rollout.episodes import EpisodeTracker

__all__ = ["RowWriter", "put_rows", "require_finite"]

_log = logging.getLogger(__name__)


def put_rows(nest: Any, lanes: np.ndarray, rows: Any) -> Any:
    """A copy of the nest with the rows of some lanes replaced.

    Args:
        nest: tensors [B, ...] in batches, dicts and tuples.
        lanes: [n] which.
        rows: the same structure, leaves [n, ...].
    """
    index = torch.from_numpy(lanes)
    return tree_map(lambda leaf, new: leaf.index_copy(0, index, new), nest, rows)


_ENDS = 20
_MOST_ROWS, _MOST_NUMBERS = 1000, 1000


class OwnEnds:
    """Looks whether the first episodes of a run end with an observation of their own, or with the next one's first.

    An environment that resets itself and does not say so (`info["final_obs"]`) ends where episodes begin, and the row
    before lies elsewhere. Where most other rows lie there too, as where there is nothing to see, it says nothing.
    Nothing is computed in steps, and nothing after the first 20 ends, or after a thousand episodes of one step, which
    have no such row.
    """

    def __init__(self) -> None:
        self._first, self._last, self._before, self._others = (list[np.ndarray]() for _ in range(4))
        self._judged, self._ended = False, 0

    def look(self, buffer: ReplayBuffer, rows: int) -> None:
        """Takes what is new, and warns once there is enough.

        Args:
            buffer: that has it.
            rows: T that are new.
        """
        if self._judged:
            return
        step_type = buffer.recent("step_type", rows + 1)
        if not step_type.is_cpu:  # environments on a GPU are those of this library's contract, which decides ends
            return
        kinds = as_array(step_type)
        over, inner = kinds[1:] == StepType.LAST, kinds[:-1] == StepType.MID
        first, last, others = kinds[:-1] == StepType.FIRST, over & inner, inner & ~over
        if not (first.any() or last.any() or (len(self._others) < _MOST_ROWS and others.any())):
            return
        leaves = list[np.ndarray]()
        for leaf in tree_leaves(buffer.recent("observation", rows + 1)):
            flat = as_array(leaf).reshape(*kinds.shape, -1)
            leaves.append(flat[..., :: -(-flat.shape[-1] // _MOST_NUMBERS) or 1])
        new = ((self._first, 0, first), (self._last, 1, last), (self._before, 0, last), (self._others, 0, others))
        for found, ahead, which in new:
            for t, b in np.argwhere(which)[: _MOST_ROWS - len(found)]:
                found.append(np.concatenate([leaf[t + ahead, b] for leaf in leaves], dtype=np.float64))
        if len(self._last) >= _ENDS and len(self._first) >= _ENDS:
            self._judge()
        self._ended += int(over.sum())
        if self._ended > _MOST_ROWS:
            self._forget()

    def _forget(self) -> None:
        self._judged, self._first, self._last, self._before, self._others = True, [], [], [], []

    def _judge(self) -> None:
        first = np.stack(self._first)
        least = first.min(0)  # large constants would leave products of matrices no digits
        size = np.ptp(first, 0) + 4e-6 * np.abs(first).max(0) + 1e-12  # of where episodes begin

        def apart(seen: list[np.ndarray]) -> Tensor:
            """[n, firsts] how far, in sizes."""
            rows, firsts = ((np.reshape(one, (len(one), len(size))) - least) / size for one in (seen, first))
            return torch.cdist(torch.from_numpy(rows), torch.from_numpy(firsts))

        to_next = apart(self._first).fill_diagonal_(torch.inf).amin(1)
        near = max(0.25, 2 * to_next.max().item())  # there are more first observations than have been seen
        inside, outside, others = (
            (apart(seen) <= near).any(1).numpy() for seen in (self._last, self._before, self._others)
        )
        self._forget()
        says_nothing = outside.mean() > 0.1 or (len(others) and others.mean() > 0.5)
        if inside.mean() < 0.95 or says_nothing or not is_news("resets itself"):
            return
        _log.warning(
            "the environment seems to reset itself where an episode ends: %d of %d last observations lie where "
            "episodes begin, and those before them do not. Learners would take the next episode for what follows a "
            "time limit. Return the episode's own last observation from step, and leave resetting to reset(); "
            "`palaestra check-env` says more. If episodes do end where they begin, all is well",
            inside.sum(), len(inside),
        )  # fmt: skip


class RowWriter:
    """Appends rows to a buffer, and what the policy computes about them; lanes need not move together.

    Args:
        buffer: to append to.
        policy: that acted.
        tracker: counts episodes.
    """

    def __init__(self, buffer: ReplayBuffer, policy: Policy, tracker: EpisodeTracker) -> None:
        self._buffer, self._policy, self._tracker = buffer, policy, tracker
        self._keeps_state = bool(policy.stored_state_spec)  # the policy's hidden state is appended as well
        self._ends = OwnEnds()
        self._together = 0  # rows of all lanes since the last `write_log_probs`
        self._apart: np.ndarray | None = None  # [B] rows of each lane besides

    @property
    def new(self) -> int:
        """Rows since the last `write_log_probs`, of the lane with most: ends and begins in one step add to it."""
        return self._together + (0 if self._apart is None else int(self._apart.max()))

    def state(self) -> dict[str, Any]:
        """`fresh_rows`: those of all lanes together, and of each lane besides."""
        return {"fresh_rows": self._together, "fresh_rows_apart": None if self._apart is None else self._apart.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from such counts.

        Args:
            state: with its entries, and possibly others.
        """
        self._together, apart = state["fresh_rows"], state["fresh_rows_apart"]
        self._apart = None if apart is None else np.array(apart, np.int64)

    def write(
        self,
        action: Any,
        time_step: TimeStep,
        state: Any,
        lanes: np.ndarray | None = None,
        ended: TimeStep | None = None,
    ) -> None:
        """Appends one row of some lanes, and before new FIRST rows the LAST rows that the same step brought.

        Args:
            action: [n, ...] taken on the open rows.
            time_step: [n] what the environments answered.
            state: [n, ...] the policy's hidden state before it acted; `()` without.
            lanes: [n] which they are; `None` is all.
            ended: LAST rows of lanes that began a new episode within the step; others than `lanes` are left out.
        """
        hidden = state if self._keeps_state else None
        append, version = self._buffer.append, self._policy.version
        if lanes is None and ended is None:  # nearly every step
            append(action, time_step, policy_version=version, state=hidden)
            self._tracker.waiting.append((time_step.reward, time_step.step_type, time_step.env_info))
            self._together += 1
            return
        if ended is not None:
            place = np.full(self._buffer.num_lanes, -1)
            place[... if lanes is None else lanes] = np.arange(len(time_step.step_type))
            mine: TimeStep = tree_select(ended, np.flatnonzero(place[as_array(ended.env_id)] >= 0))
            numbers = as_array(mine.env_id)
            its_action, its_state = tree_select((action, hidden), place[numbers])
            append(its_action, mine, policy_version=version, state=its_state, env_id=numbers)
            self._tracker.add(mine, numbers)
            self._count(numbers)
        append(action, time_step, policy_version=version, state=hidden, env_id=lanes)
        self._tracker.add(time_step, lanes)
        self._count(... if lanes is None else lanes)

    def extend(self, env: Environment, rows: Batch, newest: TimeStep) -> int:
        """Appends many rows of all lanes, with all that is known of them.

        Args:
            env: where they come from.
            rows: as `ReplayBuffer.extend` takes them.
            newest: the time step of every lane after them.

        Returns:
            Env steps.

        Raises:
            NonFiniteError: an observation or reward is NaN or infinite.
        """
        floats = [] if env.checks_finite else [*_floats("", rows["observation"], 0), *_floats("", rows["reward"], 0)]
        total = _total([value for _, value, _ in floats])
        kinds = as_array(rows["step_type"])  # here a GPU is waited for
        self._buffer.extend(rows.replace(step_type=torch.from_numpy(kinds)))
        self._tracker.extend(rows["reward"][1:], rows["step_type"][1:])
        if not math.isfinite(total):
            require_finite(env, self._buffer, newest, len(rows["action"]))
        return kinds[:-1].size - int(np.count_nonzero(kinds[:-1] == StepType.LAST))

    def _count(self, lanes: Any) -> None:
        if self._apart is None:
            self._apart = np.zeros(self._buffer.num_lanes, np.int64)
        self._apart[lanes] += 1

    def write_log_probs(self) -> None:
        """Adds log-probabilities of the newest actions, and whatever else losses need of the policy that acted.

        Acting only chooses. This is one batched pass over the rows just stored, with the same weights.
        """
        buffer, policy, rows = self._buffer, self._policy, self.new
        self._together, self._apart = 0, None
        if rows:
            self._ends.look(buffer, rows)
        if not rows or not buffer.info_fields:
            return
        with torch.inference_mode():
            hidden: tuple[Any, ...] = ()
            if buffer.keeps_states:
                hidden = (buffer.recent("state", rows), buffer.recent("step_type", rows) == StepType.FIRST)
            observation, action = buffer.recent("observation", rows), buffer.recent("action", rows)
            info = policy.behaviour(observation, action, *hidden)
            if not buffer.positions.lockstep:  # a lane with fewer new rows shows older ones, of other weights
                new = buffer.recent("policy_version", rows) == policy.version
                old = buffer.recent("policy_info", rows)
                found = {name: (info[name], old[name]) for name in buffer.info_fields}
                kept = {
                    name: torch.where(new.view(*new.shape, *[1] * (a.ndim - 2)), a, b) for name, (a, b) in found.items()
                }
                info = Batch.of(kept)
            buffer.write_info(info, rows)


def require_finite(
    env: Environment, buffer: ReplayBuffer, newest: TimeStep, rows: int, *, changed: bool = False
) -> None:
    """Looks at the rows that were just completed and at the newest time step.

    Args:
        env: where they come from.
        buffer: that has them.
        newest: the time step of every lane.
        rows: completed in every lane.
        changed: whether what the environment emitted was changed since.

    Raises:
        NonFiniteError: an observation or reward is NaN or infinite; the message names environment, field, episode, its
            seed and step.
    """
    if env.checks_finite and not changed:
        return
    values = [*_floats("observation", newest.observation, 0), *_floats("reward", newest.reward, 0)]
    if rows > 1:
        for name in ("observation", "reward"):
            values += _floats(name, buffer.recent(name, rows), rows)
    if math.isfinite(_total([value for _, value, _ in values])):
        return
    for name, value, rows in values:
        _check(name, value, env, buffer, newest, rows)


def _floats(name: str, value: Any, rows: int) -> list[tuple[str, Tensor, int]]:
    """Names and values of the parts of a field that can be NaN, with so many rows."""
    if isinstance(value, Batch):
        return [part for key, leaf in value.items() for part in _floats(f"{name}.{key}", leaf, rows)]
    return [(name, value, rows)] if value.is_floating_point() else []


def _total(values: Sequence[Tensor]) -> float | Tensor:
    """The sum of all numbers, which is finite if they are; on a GPU, if any is there."""
    with np.errstate(over="ignore", invalid="ignore"):
        here = sum(float(np.add.reduce(value.numpy(), axis=None)) for value in values if value.is_cpu)
    there = [value.sum().double() for value in values if not value.is_cpu]
    return torch.stack(there).sum() + here if there else here


def _check(name: str, value: Tensor, env: Environment, buffer: ReplayBuffer, newest: TimeStep, rows: int) -> None:
    """Looks at values [B, ...] of the newest time step, or at [rows, B, ...] of the rows before it."""
    for place in (~torch.isfinite(value)).nonzero().tolist():  # none where only the sum overflows
        row, lane, element = (place[0], place[1], place[2:]) if rows else (0, place[0], place[1:])
        kinds = [*buffer.recent("step_type", rows)[:, lane].tolist()] if rows else []
        when = _when(env, lane, [*kinds, int(newest.step_type[lane])], row)
        raise NonFiniteError(
            f"environment {lane} emitted {name}{element or ''} = {value[tuple(place)].item()}{when}; "
            "look at the environment, or clip what it emits"
        )


def _when(env: Environment, lane: int, kinds: list[int], row: int) -> str:
    """Episode, seed and step of one of a lane's newest rows, where the environment counts them."""
    state = env.state_dict()
    if not {"lane_seed", "episode", "steps"} <= state.keys():
        return ""
    later = kinds[row + 1 :].count(StepType.FIRST)
    number = int(state["episode"][lane]) - later
    seed = episode_seed(int(state["lane_seed"][lane]), number)
    firsts = [index for index in range(row + 1) if kinds[index] == StepType.FIRST]
    if not firsts and later:
        return f" in episode {number} (seed {seed})"
    step = row - firsts[-1] if firsts else int(state["steps"][lane]) - (len(kinds) - 1 - row)
    return f" in episode {number} (seed {seed}), step {step}"
