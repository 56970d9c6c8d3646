"""Averages of metrics between two log rows, exact across a resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Averages"]

# Records that wait at most. Every metric is a small tensor of its own: thousands of them, kept alive between the large
# ones of the gradient steps that made them, split the heap until each step needs fresh pages for its activations.
_MOST_WAITING = 32


class Averages:
    """Running sums in float64, added up in order, so that stopping in between changes no digit.

    Examples:
        >>> averages = Averages()
        >>> averages.add([{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0)}])
        >>> averages.take()
        {'loss': 1.5}
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._pending: list[Mapping[str, Tensor]] = []

    def add(self, records: Iterable[Mapping[str, Tensor]]) -> None:
        """Takes records; they are added up when there are some dozens.

        Args:
            records: 0-dim tensors by name.
        """
        self._pending += records
        if len(self._pending) >= _MOST_WAITING:
            self._settle()

    def take(self) -> dict[str, float]:
        """The mean of everything since the last call."""
        self._settle()
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def _settle(self) -> None:
        columns: dict[str, list[Tensor]] = {}
        for record in self._pending:
            for name, value in record.items():
                columns.setdefault(name, []).append(value)
        for name, values in columns.items():
            total = self._sums.get(name, 0.0)
            for value in torch.stack(values).tolist():
                total += value
            self._sums[name] = total
            self._counts[name] = self._counts.get(name, 0) + len(values)
        self._pending = []

    def state(self) -> dict[str, Any]:
        """Sums and counts, as JSON values."""
        self._settle()
        return {"sums": self._sums, "counts": self._counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave.

        Args:
            state: from `state`.
        """
        self._sums, self._counts, self._pending = dict(state["sums"]), dict(state["counts"]), []
