"""`ListReplayBuffer`: any Python objects, in a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, final

import numpy as np
import torch

from palaestra.core import ConfigError

__all__ = ["ListReplayBuffer"]


@final
class ListReplayBuffer:
    """Keeps whatever is appended, without a limit: text, graphs, episodes of any shape. It cannot be sampled.

    Args:
        items: to begin with.

    Examples:
        >>> buffer = ListReplayBuffer(["a", {"b": 1}])
        >>> buffer.append(("c", 2))
        >>> len(buffer), buffer[-1], buffer[0:2]
        (3, ('c', 2), ['a', {'b': 1}])
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        """One item by its number; or a list of them, by a slice or by numbers."""
        if isinstance(index, list | tuple | np.ndarray | torch.Tensor):
            return [self._items[int(number)] for number in index]
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def append(self, item: Any) -> None:
        """Adds one item.

        Args:
            item: kept as it is.
        """
        self._items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        """Adds items in their order.

        Args:
            items: kept as they are; another `ListReplayBuffer`, for example.
        """
        self._items += list(items)

    def clear(self) -> None:
        """Forgets everything."""
        self._items.clear()

    def draw(self, plan: Any, generator: torch.Generator) -> NoReturn:
        """Refused: nothing is known about the items that could make a batch of them.

        Args:
            plan: not used.
            generator: not used.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a ListReplayBuffer cannot be sampled; read its items, or use a ReplayBuffer")
