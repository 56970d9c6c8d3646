"""What trees of named fields have in common: walking, joining and computing over their leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from palaestra.core.errors import ShapeError
from palaestra.core.tree import array_of

__all__ = [
    "Node",
    "compute_inplace",
    "computed",
    "flat",
    "joined",
    "protect_methods",
    "raise_with_culprit",
    "refuse_text",
    "require_same_fields",
]


class Node:
    """Something whose `__dict__` holds named leaves and other nodes."""

    @classmethod
    def of(cls, fields: Any) -> Any:
        """A node of fields as they are.

        Args:
            fields: by name.
        """
        raise NotImplementedError


class _Method:
    """A method that a field of the same name does not hide: data descriptors come before what an instance holds."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError("a method cannot be set")


def protect_methods(cls: type[Node]) -> None:
    """Makes the public methods of a class come before an instance's fields.

    Args:
        cls: changed in place.
    """
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, _Method(member))


def flat(node: Node, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf with its path.

    Args:
        node: where to begin.
        prefix: path of the node itself.
    """
    for key, value in node.__dict__.items():
        if isinstance(value, Node):
            yield from flat(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def require_same_fields(node: Node, others: Sequence[Any]) -> None:
    """Refuses nodes whose fields are not those of the first.

    Args:
        node: the first.
        others: the others.

    Raises:
        ShapeError: says both lists of fields.
    """
    for other in others:
        if not isinstance(other, Node) or other.__dict__.keys() != node.__dict__.keys():
            given = list(other.__dict__) if isinstance(other, Node) else type(other).__name__
            raise ShapeError(f"batches have different fields: {list(node.__dict__)} and {given}; they must be equal")


def raise_with_culprit(node: Node, index: Any, error: Exception) -> NoReturn:
    """Raises an error of indexing again, with the leaf that refused.

    Args:
        node: what was indexed.
        index: with what.
        error: what was raised.
    """
    where = ""
    for path, leaf in flat(node):
        try:
            refuse_text(leaf) if isinstance(leaf, str) else leaf[index]
        except (IndexError, TypeError, ValueError) as refusal:
            shapes = (getattr(value, "shape", None) for value in (leaf, index))
            what, by = (
                repr(value) if shape is None else f"of shape {tuple(shape)}"
                for value, shape in zip((leaf, index), shapes, strict=True)
            )
            error, where = refusal, f" (field {'.'.join(path)!r} {what}, index {by})"
            break
    kind = next(kind for kind in (IndexError, TypeError, ValueError) if isinstance(error, kind))
    raise kind(f"{error}{where}") from None


def refuse_text(text: str) -> NoReturn:
    """Says that text is one value, where Python would index its letters.

    Args:
        text: what was indexed.

    Raises:
        TypeError: always.
    """
    raise TypeError("text has no rows")


def joined(nodes: Sequence[Any], torch_join: Callable[..., Any], numpy_join: Callable[..., Any]) -> Any:
    """One node of the first one's class, each leaf made of the leaves at the same place.

    Args:
        nodes: at least one.
        torch_join: joins a list of tensors.
        numpy_join: joins a list of anything else.

    Raises:
        ShapeError: their fields differ, or leaves do not fit together.
    """
    if not nodes:
        raise ShapeError("no batches were given; at least one is needed")
    first = nodes[0]
    require_same_fields(first, nodes[1:])
    fields: dict[str, Any] = {}
    for key, value in first.__dict__.items():
        leaves = [node.__dict__[key] for node in nodes]
        if isinstance(value, Node):
            fields[key] = joined(leaves, torch_join, numpy_join)
            continue
        try:
            fields[key] = torch_join(leaves) if isinstance(value, torch.Tensor) else array_of(key, numpy_join(leaves))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ShapeError(f"field {key!r} cannot be joined: {error}") from None
    return type(first).of(fields)


def computed(node: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """The result of an operator on every leaf.

    Args:
        node: its left side.
        other: its right side: one for all leaves, or a node with the same fields.
        function: the operator.
    """
    if isinstance(other, Node):
        return node.map(function, other)
    return node.map(lambda leaf: function(leaf, other))


def compute_inplace(node: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Runs an in-place operator on every leaf.

    Args:
        node: changed in place.
        other: one for all leaves, or a node with the same fields.
        function: the operator.

    Returns:
        The node.
    """
    if isinstance(other, Node):
        require_same_fields(node, [other])
    fields = node.__dict__
    for key, value in fields.items():
        operand = other.__dict__[key] if isinstance(other, Node) else other
        operate = compute_inplace if isinstance(value, Node) else _apply
        fields[key] = operate(value, operand, function)
    return node


def _apply(leaf: Any, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    return function(leaf, other)
