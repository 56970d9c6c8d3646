"""`Stream`: the rows of a policy on their way into its buffer, in order, but not before their rewards are known."""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, StepType, TimeStep
from palaestra.envs.contract.nest import to_batched
from palaestra.multiagent import acting
from palaestra.multiagent.acting import Choice, MappedPolicy, Row, stacked

__all__ = ["Stream"]

_FIRST, _MID, _LAST = (int(kind) for kind in StepType)
_UNOPENED = -1


class Stream:
    """Appends the rows of a policy's lanes to a buffer.

    Args:
        mapped: the policy that the rows come from.
        buffer: with a lane for each of the policy's.
    """

    def __init__(self, mapped: MappedPolicy, buffer: ReplayBuffer) -> None:
        self.mapped, self.buffer = mapped, buffer
        policy = mapped.policy
        self._action_spec, self._state_spec = policy.raw_action_spec, policy.state_spec or None
        self._no_info = [np.zeros(policy.behaviour_spec[name].shape, np.float32) for name in buffer.info_fields]
        self._waiting: list[deque[Row]] = [deque() for _ in range(mapped.num_lanes)]
        self._kinds = [_UNOPENED] * mapped.num_lanes
        self._fresh: list[list[Choice]] = [[] for _ in range(mapped.num_lanes)]

    def forget(self, env: int) -> None:
        """Drops what waits of one environment: its episode broke off.

        Args:
            env: its number.
        """
        width = self.mapped.policy_spec.lanes_per_env
        for lane in range(env * width, (env + 1) * width):
            self._waiting[lane].clear()
            if self._kinds[lane] not in (_UNOPENED, _LAST):  # an episode that had ended follows as any other
                self._kinds[lane] = _MID

    # -- writing

    def put(self, rows: Sequence[Row]) -> None:
        """Takes new rows, and appends every row that is complete and follows complete ones.

        Args:
            rows: from `MappedPolicy.take`.
        """
        for row in rows:
            self._waiting[row.lane].append(row)
        while ready := [lane for lane in self._waiting if lane and not lane[0].waiting]:
            self._append([lane.popleft() for lane in ready])

    def _append(self, rows: Sequence[Row]) -> None:
        """One row of some lanes."""
        opening: list[Row] = []
        written: dict[int, list[Row]] = {}
        for row in rows:
            if row.choice is None and self._kinds[row.lane] != _LAST:  # a new lane, or a stream that broke off
                opening.append(row)
                continue
            if row.choice is None:  # what stands with a LAST row, whose action is not executed, a mask may forbid
                row.choice = self.mapped.no_choice(row.observation, first=False)
                row.choice.info = list(self._no_info)
            written.setdefault(row.choice.version, []).append(row)
            self._fresh[row.lane].append(row.choice)
        for row in rows:
            self._kinds[row.lane] = row.step_type
        if opening:
            self.buffer.open(self._time_step(opening), env_id=[row.lane for row in opening])
        for version, mine in written.items():
            choices = [row.choice for row in mine if row.choice is not None]
            action = to_batched(stacked([choice.action for choice in choices]), self._action_spec)
            lanes: list[int] | None = [row.lane for row in mine]
            if lanes == list(range(self.mapped.num_lanes)):
                lanes = None
            state = self._state(choices)
            self.buffer.append(action, self._time_step(mine), policy_version=version, state=state, env_id=lanes)

    def _state(self, choices: Sequence[Choice]) -> Any:
        """The hidden state before each choice; `None` without."""
        if self._state_spec is None:
            return None
        return to_batched(stacked([choice.state for choice in choices]), self._state_spec)

    def _time_step(self, rows: Sequence[Row]) -> TimeStep:
        return TimeStep(
            step_type=torch.tensor([row.step_type for row in rows], dtype=torch.int32),
            reward=torch.from_numpy(np.stack([row.reward for row in rows])),
            discount=torch.tensor([row.discount for row in rows], dtype=torch.float32),
            observation=self.mapped.batch([row.observation for row in rows]),
        )

    # -- what policies say about their choices, before new weights are taken

    def complete(self) -> int:
        """Adds behaviour to the rows appended since the last call, and to choices whose rows are still to come.

        Returns:
            How many rows the lane with most of them has got.
        """
        rows = max(map(len, self._fresh))
        if self.buffer.info_fields:
            waiting = (row.choice for lane in self._waiting for row in lane if row.choice is not None)
            self._ask([*waiting, *self.mapped.taken.values(), *itertools.chain(*self._fresh)])
            if rows:
                self._write_info(rows)
        for lane in self._fresh:
            lane.clear()
        return rows

    def _ask(self, choices: Sequence[Choice]) -> None:
        """One batched pass over all choices that have no info yet: the weights are those that chose."""
        asked = [choice for choice in choices if choice.info is None]
        if not asked:
            return
        policy = self.mapped.policy
        observation = self.mapped.batch([choice.observation for choice in asked])
        action = to_batched(stacked([choice.action for choice in asked]), self._action_spec)
        state, first = self._state(asked), torch.tensor([choice.first for choice in asked])
        with torch.inference_mode():
            info = policy.behaviour(observation, action, *(() if state is None else (state, first)))
        columns = [info[name].numpy() for name in self.buffer.info_fields]
        for row, choice in enumerate(asked):
            choice.info = [column[row] for column in columns]

    def _write_info(self, rows: int) -> None:
        info: dict[str, torch.Tensor] = {}
        recent = self.buffer.recent("policy_info", rows)
        for place, name in enumerate(self.buffer.info_fields):
            column = recent[name].cpu().clone()
            values = column.numpy()
            for lane, choices in enumerate(self._fresh):
                for back, choice in enumerate(reversed(choices)):
                    assert choice.info is not None
                    values[rows - 1 - back, lane] = choice.info[place]
            info[name] = column
        self.buffer.write_info(Batch.of(info), rows)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """Rows and choices that are on their way, and where the policy is."""
        return {
            "actor": self.mapped.state_dict(),
            "kinds": list(self._kinds),
            "waiting": acting.pack_rows(list(itertools.chain(*self._waiting))),
            "fresh": {
                "counts": [len(lane) for lane in self._fresh],
                "choices": acting.pack_choices(list(itertools.chain(*self._fresh))),
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: of a stream with the same lanes.
        """
        rows = acting.unpack_rows(state["waiting"])
        self.mapped.load_state_dict(state["actor"], rows)
        self._kinds = list(state["kinds"])
        self._waiting = [deque() for _ in self._waiting]
        for row in rows:
            self._waiting[row.lane].append(row)
        choices = iter(acting.unpack_choices(state["fresh"]["choices"]))
        self._fresh = [list(itertools.islice(choices, count)) for count in state["fresh"]["counts"]]
