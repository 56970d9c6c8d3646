"""An environment of numbered steps: in lockstep, with resets within the step, or first-n-ready."""

from typing import Any

import torch

from palaestra.core import Batch, DiscreteSpec, TensorSpec, TimeStep
from palaestra.envs import Environment

FIRST, MID, LAST = 0, 1, 2


class Numbered(Environment):
    """Lane b's observations are 1000 b, 1000 b + 1, ...; its episodes have `lengths[b]` steps of reward 1 each.

    Args:
        lengths: of the episodes of each lane.
        same_step: whether a lane resets within its last step, so that its LAST row is in `ended`.
        num_ready: lanes that one `recv` gives; they answer in the order in which they were sent, the last lane first.
    """

    seeding = "per_episode"
    resume = "exact"

    def __init__(self, lengths: list[int], *, same_step: bool = False, num_ready: int | None = None) -> None:
        self.batch_size, self._num_ready = len(lengths), num_ready or len(lengths)
        self._lengths, self._same_step = lengths, same_step
        self._serial = [1000 * lane - 1 for lane in range(len(lengths))]
        self._step = [0] * len(lengths)
        self._due = [True] * len(lengths)
        self.sent: list[int] = []
        self.actions: list[list[int]] = [[] for _ in lengths]
        """Executed in each lane."""
        self.most_on_the_way = 0

    @property
    def num_ready(self) -> int:
        return self._num_ready

    @property
    def observation_spec(self) -> TensorSpec:
        return TensorSpec((1,))

    @property
    def action_spec(self) -> DiscreteSpec:
        return DiscreteSpec(num=3)

    def reset(self) -> TimeStep:
        self.sent = []
        self.ended = None
        return self._rows([self._begin(lane) for lane in range(self.batch_size)])

    def send(self, action: Any, env_id: torch.Tensor | None = None) -> None:
        lanes = list(range(self.batch_size)) if env_id is None else env_id.tolist()
        for lane, taken in zip(lanes, action.tolist(), strict=True):
            assert lane not in self.sent, "an action for a lane that has not answered yet"
            if not self._due[lane]:
                self.actions[lane].append(taken)
        self.sent += sorted(lanes, reverse=True)
        self.most_on_the_way = max(self.most_on_the_way, len(self.sent))

    def recv(self) -> TimeStep:
        lanes, self.sent = self.sent[: self.num_ready], self.sent[self.num_ready :]
        assert len(lanes) == self.num_ready, "nothing is on its way"
        if self.num_ready == self.batch_size:
            lanes = sorted(lanes)
        rows, ended = [], []
        for lane in lanes:
            row = self._begin(lane) if self._due[lane] else self._advance(lane)
            if self._same_step and row[0] == LAST:
                ended.append(row)
                row = self._begin(lane)
            rows.append(row)
        self.ended = self._rows(ended) if ended else None
        return self._rows(rows)

    def _begin(self, lane: int) -> tuple[int, float, int, int]:
        self._due[lane], self._step[lane] = False, 0
        self._serial[lane] += 1
        return FIRST, 0.0, self._serial[lane], lane

    def _advance(self, lane: int) -> tuple[int, float, int, int]:
        self._step[lane] += 1
        self._serial[lane] += 1
        self._due[lane] = self._step[lane] == self._lengths[lane]
        return (LAST if self._due[lane] else MID), 1.0, self._serial[lane], lane

    def _rows(self, rows: list[tuple[int, float, int, int]]) -> TimeStep:
        kinds, rewards, serials, lanes = zip(*rows, strict=True)
        discount = torch.tensor([0.0 if kind == LAST else 1.0 for kind in kinds])
        observation = torch.tensor(serials, dtype=torch.float32)[:, None]
        zeros = torch.zeros(len(rows), dtype=torch.int64)
        info = Batch.of({"serial": observation[:, 0].double()})
        kinds = torch.tensor(kinds, dtype=torch.int32)
        return TimeStep(kinds, torch.tensor(rewards), discount, observation, zeros, torch.tensor(lanes), (), info)

    def state_dict(self) -> dict[str, Any]:
        return {"serial": list(self._serial), "step": list(self._step), "due": list(self._due)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._serial, self._step, self._due = list(state["serial"]), list(state["step"]), list(state["due"])

    def close(self) -> None:
        """Holds nothing."""
