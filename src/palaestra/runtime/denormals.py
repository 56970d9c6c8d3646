"""Numbers too small for full precision, which processors compute with many times more slowly."""

from __future__ import annotations

from typing import final

import torch

__all__ = ["FlushedDenormals"]

_SMALLEST = 5e-324


@final
class FlushedDenormals:
    """Inside, this thread takes results below 1.2e-38 (float32; 2.2e-308 in float64) for zero, as graphics cards do.

    Adam's mean of a gradient that stays zero, such as that of a unit which a ReLU has switched off, shrinks by a tenth
    in every step. After 900 steps it is a denormal number, and from then on each operation on it takes a hundred cycles
    more. What the thread did before is put back at the end, so simulators and code of others compute as ever.

    Examples:
        >>> tiny = torch.tensor([1e-39])
        >>> with FlushedDenormals():
        ...     flushed = tiny * 0.5
        >>> flushed.item(), (tiny * 0.5).item() > 0
        (0.0, True)
    """

    def __enter__(self) -> None:
        self._before = _SMALLEST * 1.0 == 0.0
        torch.set_flush_denormal(True)

    def __exit__(self, *_: object) -> None:
        torch.set_flush_denormal(self._before)
