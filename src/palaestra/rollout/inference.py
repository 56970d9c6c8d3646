"""`InferenceServer`: one forward pass for the observations of many callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, ShapeError, SpecTree, TensorSpec, numpy_dtype
from palaestra.rollout.requests import Callers, RequestServer

__all__ = ["InferenceServer", "pack", "unpack"]


def pack(inputs: Sequence[Any], spec: SpecTree) -> Any:
    """The rows of several inputs, one after another, as one.

    Args:
        inputs: nests shaped like the spec, arrays or tensors [n_i, ...]; numbers of rows may differ.
        spec: of one row.

    Returns:
        A tensor [N, ...] of the spec's dtype, or a `Batch` of them; tuples get the keys "0", "1", ...

    Raises:
        ShapeError: an input has no such entry, or one of another shape; the message says whose.

    Examples:
        >>> pack([np.zeros((2, 3)), np.ones((1, 3))], TensorSpec((3,))).shape
        torch.Size([3, 3])
    """
    return _packed(inputs, spec, "")


def _packed(inputs: Sequence[Any], spec: SpecTree, path: str) -> Any:
    if not isinstance(spec, TensorSpec):
        items = spec.items() if isinstance(spec, dict) else ((str(i), child) for i, child in enumerate(spec))
        packed = {}
        for key, child in items:
            inner = f"{path}.{key}" if path else key
            packed[key] = _packed([_child(x, key, i, inner) for i, x in enumerate(inputs)], child, inner)
        return Batch.of(packed)
    arrays = [np.asarray(leaf, numpy_dtype(spec.dtype)) for leaf in inputs]
    for number, array in enumerate(arrays):
        if array.shape[1:] != spec.shape or array.ndim != len(spec.shape) + 1:
            raise ShapeError(
                f"input {number}{f' {path!r}' if path else ''} has shape {array.shape}; its spec needs "
                f"(rows, {', '.join(map(str, spec.shape))})"
            )
    return torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


def _child(node: Any, key: str, number: int, path: str) -> Any:
    try:
        return node[int(key)] if isinstance(node, tuple | list) else node[key]
    except (KeyError, IndexError, TypeError):
        raise ShapeError(f"input {number} is a {type(node).__name__} without the entry {path!r} of its spec") from None


def unpack(outputs: Any, rows: Sequence[int]) -> list[Any]:
    """The inverse of `pack`: each caller's rows; tensors are views.

    Args:
        outputs: a tensor [N, ...], or a `Batch`, dict or tuple of them.
        rows: of each caller, in order; they add up to N.

    Raises:
        ShapeError: they do not.

    Examples:
        >>> [part.tolist() for part in unpack(torch.arange(3), [2, 1])]
        [[0, 1], [2]]
    """
    if isinstance(outputs, Tensor):
        if len(outputs) != sum(rows):
            raise ShapeError(f"{len(outputs)} rows of output were computed for {sum(rows)} rows of input")
        return list(outputs.split(list(rows)))
    if isinstance(outputs, Batch | dict):
        parts = {key: unpack(value, rows) for key, value in outputs.items()}
        made = [{key: part[i] for key, part in parts.items()} for i in range(len(rows))]
        return [Batch.of(each) for each in made] if isinstance(outputs, Batch) else made
    return [tuple(each) for each in zip(*(unpack(part, rows) for part in outputs), strict=True)] or [()] * len(rows)


class InferenceServer(RequestServer):
    """Computes what many callers ask for in batches, and gives each its own rows.

    Args:
        function: a packed batch [N, ...] in, a nest of tensors [N, ...] out; called in the server's thread.
        input_spec: of one row.
        max_batch_size: rows in a batch.
        max_wait_s: seconds that a batch may wait for more requests.
        name: for messages.
        callers: shared with other servers; its own if left out.

    Raises:
        ConfigError: the size is below 1, or the time negative.

    Examples:
        >>> with InferenceServer(lambda x: x.sum(-1), TensorSpec((2,))) as server:
        ...     server.callers.connect(0)
        ...     server.predict(0, torch.ones(3, 2)).result()
        tensor([2., 2., 2.])
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        input_spec: SpecTree,
        *,
        max_batch_size: int = 64,
        max_wait_s: float = 0.002,
        name: str = "inference",
        callers: Callers | None = None,
    ) -> None:
        super().__init__(self._infer, name=name, max_batch_size=max_batch_size, max_wait_s=max_wait_s, callers=callers)
        self._function, self._input_spec = function, input_spec

    def predict(self, caller: int, inputs: Any) -> Future[Any]:
        """Asks for the outputs of some rows.

        Args:
            caller: number of one that is connected.
            inputs: a nest shaped like the input spec, [n, ...].

        Returns:
            The outputs to come, [n, ...].

        Raises:
            RequestError: the server is stopping, or the caller is not connected.
            ShapeError: the inputs do not fit the spec; nobody else's batch suffers from it.
        """
        packed = pack([inputs], self._input_spec)
        return self.submit(caller, packed, rows=_rows(packed))

    def _infer(self, batches: list[Any]) -> list[Any]:
        return unpack(self._function(pack(batches, self._input_spec)), [_rows(batch) for batch in batches])


def _rows(nest: Any) -> int:
    return len(nest) if isinstance(nest, Tensor) else _rows(next(iter(nest.values())))
