"""`ExperienceSet`: MARO's layout of transitions, with list-like use."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from palaestra.core.batch import Batch
from palaestra.core.errors import ShapeError

__all__ = ["ExperienceSet"]


class ExperienceSet(Batch):
    """Transitions with list-like use: `len`, `.size`, `[0]`, `[0:20:5]`, `.extend`.

    Every index gives a set again, also a single number, so whatever comes out can be learned from or extended with.

    Raises:
        ShapeError: the fields differ in length, or are single values.

    Examples:
        >>> states = np.zeros((4, 2))
        >>> experiences = ExperienceSet(states, np.arange(4), np.ones(4), states, {"loss": np.ones(4)})
        >>> experiences.size, experiences[0:4:2].actions, experiences[-1].actions
        (4, array([0, 2]), array([3]))
    """

    states: Any
    actions: Any
    rewards: Any
    next_states: Any
    info: Any

    def __init__(self, /, *fields: Any, **named: Any) -> None:
        if len(fields) < len(self._layout):
            named.setdefault("info", Batch())
        super().__init__(*fields, **named)
        if np.ndim(self.rewards) == 0:
            raise ShapeError(f"rewards is {self.rewards!r}; an ExperienceSet needs one per transition, for example [r]")
        len(self)

    def __getitem__(self, index: Any) -> Any:
        """One field by its name; or transitions: by a number one of them, else whatever indexes an array."""
        if isinstance(index, str) or not hasattr(index, "__index__") or np.ndim(index):
            return super().__getitem__(index)
        position, size = operator.index(index), len(self)
        if not -size <= position < size:
            raise IndexError(f"transition {position} was asked for, but the set has {size}")
        position %= size
        return super().__getitem__(slice(position, position + 1))

    @property
    def size(self) -> int:
        """Number of transitions."""
        return len(self)

    def extend(self, other: ExperienceSet) -> None:
        """Appends transitions in place.

        Args:
            other: with the same fields.

        Raises:
            ShapeError: its fields differ.
        """
        self.__dict__.update(ExperienceSet.cat([self, other]).__dict__)
