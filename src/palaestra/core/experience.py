"""`ExperienceSet`: MARO's layout of transitions, with list-like use."""

from __future__ import annotations

from typing import Any

import numpy as np

from palaestra.core.batch import Batch

__all__ = ["ExperienceSet"]


class ExperienceSet(Batch):
    """Transitions with list-like use: `len`, `.size`, `[0]`, `[0:20:5]`, `.extend`.

    Raises:
        ShapeError: the fields differ in length.

    Example:
        >>> states = np.zeros((4, 2))
        >>> experiences = ExperienceSet(states, np.arange(4), np.ones(4), states, {"loss": np.ones(4)})
        >>> experiences.size, experiences[0:4:2].actions
        (4, array([0, 2]))
    """

    states: Any
    actions: Any
    rewards: Any
    next_states: Any
    info: Any

    def __init__(self, *fields: Any, **named: Any) -> None:
        if len(fields) < 5:
            named.setdefault("info", Batch())
        super().__init__(*fields, **named)
        if np.ndim(self.rewards):
            self.size  # noqa: B018 - raises where the fields differ in length

    @property
    def size(self) -> int:
        """Number of transitions."""
        return len(self)

    def extend(self, other: ExperienceSet) -> None:
        """Appends transitions in place.

        Args:
            other: with the same fields.
        """
        self.__dict__.update(self.cat([self, other]).__dict__)
