"""`CompiledSteps`: one graph of a gradient step for each set of loss terms and each layout of the minibatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from palaestra.core import Batch
from palaestra.nn import compiled_method

__all__ = ["CompiledSteps"]


@final
class CompiledSteps:
    """A gradient step as compiled code; what it needs is compiled when it is first needed.

    There is one graph for each set of periodic loss terms that are due together, for each device, and for each layout
    of a minibatch: names, shapes, strides and types of its fields. What belongs to the algorithm (parameters, settings,
    optimizer state) stays the same object on one device, so nothing of it is checked. A call leads to the graph at
    once: the way through `torch.compile`'s own dispatch costs a sixth of a small gradient step.

    Args:
        algorithm: whose step it is.
        step: the method, not bound.
    """

    def __init__(self, algorithm: Any, step: Any) -> None:
        self._algorithm, self._step = algorithm, step
        self._graphs: dict[Any, Callable[[Batch], Any]] = {}

    def __call__(self, due: tuple[str, ...], batch: Batch) -> Any:
        """One step.

        Args:
            due: the periodic loss terms that it uses.
            batch: the minibatch.
        """
        key = due, self._algorithm.device, _layout(batch)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = compiled_method(self._algorithm, self._step, batch)
        return graph(batch)


def _layout(batch: Batch) -> tuple[Any, ...]:
    """Everything of a minibatch that compiled code takes for granted."""
    return tuple(
        (name, _layout(leaf) if isinstance(leaf, Batch) else (leaf.dtype, leaf.shape, leaf.stride()))
        for name, leaf in vars(batch).items()
    )
