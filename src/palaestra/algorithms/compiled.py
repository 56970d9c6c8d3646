"""`CompiledSteps`: one graph of a gradient step for each set of loss terms that are due together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, final

import torch

__all__ = ["CompiledSteps"]

_GLOBAL_STATE = ("GRAD_MODE", "GLOBAL_STATE", "SHAPE_ENV", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS")


@final
class CompiledSteps(dict[tuple[str, ...], Callable[..., Any]]):
    """Compiled gradient steps by the names of the periodic loss terms that are due; made when first asked for.

    Args:
        algorithm: whose step it is.
        step: the method, not bound.
    """

    def __init__(self, algorithm: Any, step: Any) -> None:
        super().__init__()
        torch._dynamo.config.trace_autograd_ops = True
        self._algorithm, self._step = algorithm, step

    def __missing__(self, due: tuple[str, ...]) -> Callable[..., Any]:
        # Compiled code is kept with the code object, and what it checks leaves out the algorithm: so each algorithm
        # and each set of terms gets a code object of its own.
        own = FunctionType(self._step.__code__.replace(), self._step.__globals__, self._step.__name__)
        self[due] = torch.compile(
            MethodType(own, self._algorithm),
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _batch_guards},
        )
        return self[due]


def _batch_guards(guards: Sequence[Any]) -> list[bool]:
    """Which conditions compiled code checks at every call: those on the batch and on torch's global state.

    What belongs to the algorithm (parameters, settings, optimizer state) stays the same object after `compile`, and
    checking some two hundred conditions on it takes a tenth of a small gradient step.
    """
    return [guard.name.startswith("L['batch']") or guard.guard_type in _GLOBAL_STATE for guard in guards]
