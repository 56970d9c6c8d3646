"""What a collector writes: rows of some lanes, in the order that streams need, and what policies say about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.buffers import ReplayBuffer
from palaestra.core import Batch, StepType, TimeStep
from palaestra.policies import Policy
from palaestra.rollout.episodes import EpisodeTracker
from palaestra.rollout.lanes import take_rows

__all__ = ["RowWriter"]


class RowWriter:
    """Appends rows of lanes that need not move together.

    Args:
        buffer: to append to.
        policy: that acted.
        tracker: counts episodes.
    """

    def __init__(self, buffer: ReplayBuffer, policy: Policy, tracker: EpisodeTracker) -> None:
        self._buffer, self._policy, self._tracker = buffer, policy, tracker

    def rows(
        self, action: Any, time_step: TimeStep, lanes: np.ndarray, state: Any, ended: TimeStep | None = None
    ) -> None:
        """Appends one row of some lanes, and before new FIRST rows the LAST rows that the same step brought.

        Args:
            action: [n, ...] taken on the open rows.
            time_step: [n] what the environments answered.
            lanes: [n] which they are.
            state: [n, ...] the memory with which the actions were chosen; `()` without.
            ended: LAST rows of lanes that began a new episode within the step; others than `lanes` are left out.
        """
        memory = {} if isinstance(state, tuple) and not state else {"state": state}
        append, version = self._buffer.append, self._policy.version
        if ended is not None:
            place = np.full(self._buffer.num_lanes, -1)
            place[lanes] = np.arange(len(lanes))
            mine: TimeStep = take_rows(ended, np.flatnonzero(place[np.asarray(ended.env_id)] >= 0))
            numbers = np.asarray(mine.env_id)
            at = place[numbers]
            append(take_rows(action, at), mine, env_id=numbers, policy_version=version, **take_rows(memory, at))
            self._tracker.add(mine, numbers)
        append(action, time_step, policy_version=version, env_id=lanes, **memory)
        self._tracker.add(time_step, lanes)

    def behaviour(self, rows: int) -> None:
        """Adds what the policy says about its newest actions, in one batched pass with the weights that acted.

        Args:
            rows: that the lane with most of them has new.
        """
        buffer, policy = self._buffer, self._policy
        if not rows or not buffer.info_fields:
            return
        with torch.inference_mode():
            memory: tuple[Any, ...] = ()
            if buffer.keeps_states:
                memory = (buffer.recent("state", rows), buffer.recent("step_type", rows) == StepType.FIRST)
            observation, action = buffer.recent("observation", rows), buffer.recent("action", rows)
            info = policy.behaviour(observation, action, *memory)
            if not buffer.lockstep:  # a lane with fewer new rows shows older ones, of other weights
                new = buffer.recent("policy_version", rows) == policy.version
                old = buffer.recent("policy_info", rows)
                info = Batch.of({name: torch.where(new, info[name], old[name]) for name in buffer.info_fields})
            buffer.write_info(info, rows)
