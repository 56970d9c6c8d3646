"""Observations and actions as JSON: read and checked against their spec before anything is computed, and written."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.core import Batch, SpecTree, TensorSpec, children_of, dtype_limits, numpy_dtype

__all__ = []

_KINDS: dict[str, tuple[frozenset[type], str]] = {
    "f": (frozenset({float, int}), "numbers"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "b": (frozenset({bool}), "true or false"),
}


class JsonNest:
    """Values of a spec as JSON: nested lists of its shape; objects for dicts, lists for tuples.

    Args:
        spec: of one value, without leading dimensions.

    Examples:
        >>> from palaestra.core import DiscreteSpec
        >>> nest = JsonNest({"position": TensorSpec((2,)), "door": DiscreteSpec(num=3)})
        >>> nest.read([{"position": [0.5, 1], "door": 2}])["position"].tolist()
        [[0.5, 1.0]]
        >>> nest.read([{"position": [0.5], "door": 2}])
        Traceback (most recent call last):
            ...
        ValueError: observation.position has 1 entries; it needs 2
    """

    def __init__(self, spec: SpecTree) -> None:
        self.spec = spec
        children = {} if isinstance(spec, TensorSpec) else children_of(spec)
        self._children = {key: JsonNest(child) for key, child in children.items()}
        if isinstance(spec, TensorSpec):
            dtype = numpy_dtype(spec.dtype)
            self._allowed, self._kind = _KINDS[dtype.kind]
            self._dtype, self._bounds = dtype, spec.bounds

    @property
    def size(self) -> int:
        """Numbers in one value."""
        if self._children:
            return sum(child.size for child in self._children.values())
        return self.spec.size if isinstance(self.spec, TensorSpec) else 0

    # -- reading

    def read(self, values: Sequence[Any], path: str = "observation", *, many: bool = False) -> Any:
        """The rows of several values.

        Args:
            values: N of them, as `json.loads` gives them.
            path: what they are called in messages.
            many: whether messages say which of them is meant.

        Returns:
            An array [N, ...] of the spec's dtype, or a `Batch` of them; tuples get the keys "0", "1", ...

        Raises:
            ValueError: a value has other keys, another length or type, is not finite or out of the spec's range; the
                message says where, what was given and what is needed.
        """
        paths = [f"{path}[{number}]" for number in range(len(values))] if many else [path] * len(values)
        return self._read(values, paths)

    def _read(self, values: Sequence[Any], paths: Sequence[str]) -> Any:
        if isinstance(self.spec, TensorSpec):
            return self._rows(values, paths)
        at: Any = int if isinstance(self.spec, tuple) else str
        for value, path in zip(values, paths, strict=True):
            self._require_children(value, path)
        return Batch.of(
            {
                key: child._read(
                    [value[at(key)] for value in values],
                    [f"{path}[{key}]" if isinstance(self.spec, tuple) else f"{path}.{key}" for path in paths],
                )
                for key, child in self._children.items()
            }
        )

    def _require_children(self, value: Any, path: str) -> None:
        if isinstance(self.spec, tuple):
            _require_list(value, len(self._children), path)
        elif type(value) is not dict:
            raise ValueError(f"{path} is {_shown(value)}; an object with {_listed(self._children)} is needed")
        elif value.keys() != self._children.keys():
            missing, unknown = self._children.keys() - value.keys(), value.keys() - self._children.keys()
            what = f"lacks {_listed(missing)}" if missing else f"has the unknown key {_shown(min(unknown))}"
            raise ValueError(f"{path} {what}; it needs {_listed(self._children)} and nothing else")

    def _rows(self, values: Sequence[Any], paths: Sequence[str]) -> np.ndarray:
        """One array of the checked values. Lists are checked before numpy sees them: it would make room for texts."""
        for value, path in zip(values, paths, strict=True):
            self._require_numbers(value, self.spec.shape, path)
        try:
            with np.errstate(over="ignore"):  # becomes infinite, and is refused below
                rows = np.array(values, self._dtype).reshape((len(values), *self.spec.shape))
        except OverflowError as error:
            raise ValueError(f"{paths[0]} has a number that {self._dtype} cannot hold: {error}") from None
        if self._dtype.kind == "f" and not np.isfinite(rows).all():
            where = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(f"{_at(paths, where)} is not finite as {self._dtype}; a policy needs finite numbers")
        if self._bounds is not None:
            outside = (rows < self._bounds[0]) | (rows > self._bounds[1])
            if outside.any():
                where = tuple(np.argwhere(outside)[0])
                low, high = (np.broadcast_to(bound, self.spec.shape)[where[1:]] for bound in self._bounds)
                raise ValueError(f"{_at(paths, where)} is {rows[where]}; it must lie in [{low}, {high}]")
        return rows

    def _require_numbers(self, value: Any, shape: tuple[int, ...], path: str) -> None:
        if not shape:
            if type(value) not in self._allowed:
                raise ValueError(f"{path} is {_shown(value)}; {self._kind} of {self._dtype} are needed")
            return
        _require_list(value, shape[0], path)
        if len(shape) > 1:
            for number, row in enumerate(value):
                self._require_numbers(row, shape[1:], f"{path}[{number}]")
        elif not self._allowed.issuperset(map(type, value)):
            number = next(i for i, entry in enumerate(value) if type(entry) not in self._allowed)
            self._require_numbers(value[number], (), f"{path}[{number}]")

    # -- writing

    def write(self, rows: Any) -> list[Any]:
        """Values as JSON has them.

        Args:
            rows: a tensor [N, ...], or a `Batch` of them with the keys that `read` gives.

        Returns:
            N values.
        """
        if isinstance(self.spec, TensorSpec):
            return (rows if rows.dtype is self.spec.dtype else rows.to(self.spec.dtype)).tolist()
        columns = [child.write(rows[key]) for key, child in self._children.items()]
        if isinstance(self.spec, tuple):
            return [list(values) for values in zip(*columns, strict=True)]
        return [dict(zip(self._children, values, strict=True)) for values in zip(*columns, strict=True)]

    # -- describing

    def schema(self) -> dict[str, Any]:
        """What one value must look like, as JSON Schema (draft 2020-12)."""
        if isinstance(self.spec, dict):
            properties = {key: child.schema() for key, child in self._children.items()}
            closed = {"required": list(properties), "additionalProperties": False}
            return {"type": "object", "properties": properties, **closed}
        if isinstance(self.spec, tuple):
            return _array([child.schema() for child in self._children.values()])
        limits = self._bounds if self._bounds is not None else dtype_limits(self._dtype)
        low, high = (np.broadcast_to(limit, self.spec.shape) for limit in limits)
        return self._numbers(low, high)

    def _numbers(self, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
        if low.ndim:
            rows = [self._numbers(*row) for row in zip(low[:1], high[:1], strict=True)]
            if all(len(np.unique(bound, axis=0)) <= 1 for bound in (low, high)):
                return {"type": "array", "items": rows[0] if rows else {}, "minItems": len(low), "maxItems": len(low)}
            return _array([self._numbers(*row) for row in zip(low, high, strict=True)])
        if self._dtype.kind == "b":
            return {"type": "boolean"}
        limits = {"minimum": low.item(), "maximum": high.item()}
        finite = {name: limit for name, limit in limits.items() if np.isfinite(limit)}
        return {"type": "number" if self._dtype.kind == "f" else "integer", **finite}


def _array(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "prefixItems": entries, "minItems": len(entries), "maxItems": len(entries)}


def _require_list(value: Any, length: int, path: str) -> None:
    if type(value) is not list:
        raise ValueError(f"{path} is {_shown(value)}; a list of {length} is needed")
    if len(value) != length:
        raise ValueError(f"{path} has {len(value)} entries; it needs {length}")


def _at(paths: Sequence[str], where: Sequence[int]) -> str:
    """The name of one element of the rows."""
    return paths[where[0]] + "".join(f"[{index}]" for index in where[1:])


def _listed(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)))


def _shown(value: Any) -> str:
    """A value in few characters, whatever it is."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} with {len(value)} entries"
    text = str(value) if isinstance(value, float | int) and not isinstance(value, bool) else f"{value!r:.40}"
    return text if len(text) <= 40 else f"{text[:40]}..."
