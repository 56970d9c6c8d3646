"""Registration of the batch classes as nodes of optree's and torch's trees."""

from __future__ import annotations

from typing import Any

import optree
from torch.utils import _pytree as torch_pytree

__all__ = ["register"]


def register(cls: Any) -> None:
    """Makes a class whose instances hold their children in `__dict__` a node, its fields in sorted order.

    Args:
        cls: has a constructor `of` that takes a dict of fields.
    """

    def flatten(node: Any) -> tuple[list[Any], tuple[str, ...]]:
        keys = tuple(sorted(node.__dict__))
        return [node.__dict__[key] for key in keys], keys

    def flatten_with_entries(node: Any) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
        children, keys = flatten(node)
        return children, keys, keys

    def flatten_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        children, keys = flatten(node)
        return [(torch_pytree.MappingKey(key), child) for key, child in zip(keys, children, strict=True)], keys

    def unflatten(keys: Any, children: Any) -> Any:
        return cls.of(dict(zip(keys, children, strict=True)))

    optree.register_pytree_node(
        cls,
        flatten_with_entries,
        unflatten,
        path_entry_type=optree.MappingEntry,
        namespace=optree.registry.__GLOBAL_NAMESPACE,  # pyright: ignore[reportAttributeAccessIssue]
    )
    torch_pytree.register_pytree_node(
        cls,
        flatten,
        lambda children, keys: unflatten(keys, children),
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
