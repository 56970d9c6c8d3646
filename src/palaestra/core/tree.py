"""Trees of arrays: leaves in batches, dicts, lists, tuples and named tuples, at any depth.

The functions here are optree's, for the few things that the library does with trees. `None` and `()` hold no leaf and
stay what they are.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import optree
import torch
from torch.utils import _pytree as torch_pytree

from palaestra.core.errors import ConfigError, ShapeError

__all__ = [
    "as_array",
    "as_tensor",
    "available_devices",
    "device_of",
    "require_device",
    "to_device",
    "tree_leaves",
    "tree_map",
    "tree_paths",
    "tree_select",
    "tree_split",
]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree of the same structure with the function's result for every leaf.

    Args:
        function: takes a leaf, and the part of every other tree at the same place.
        others: trees with at least that structure.

    Raises:
        ValueError: another tree has a different structure.

    Examples:
        >>> tree_map(lambda x, y: x + y, {"a": 1, "b": (2, None)}, {"a": 10, "b": (20, None)})
        {'a': 11, 'b': (22, None)}
    """
    return optree.tree_map(function, tree, *others)


def tree_leaves(tree: Any) -> Iterable[Any]:
    """Every leaf, in the order of sorted keys."""
    return optree.tree_iter(tree)


def tree_paths(tree: Any) -> dict[str, Any]:
    """Every leaf by its path, in the order of sorted keys.

    Args:
        tree: any tree; a leaf alone has the path "".

    Examples:
        >>> tree_paths({"camera": 1, "body": (2, 3)})
        {'body.0': 2, 'body.1': 3, 'camera': 1}
    """
    paths, leaves, _ = optree.tree_flatten_with_path(tree)
    return {".".join(map(str, path)): leaf for path, leaf in zip(paths, leaves, strict=True)}


def tree_select(tree: Any, index: Any) -> Any:
    """The tree with every leaf indexed.

    Examples:
        >>> tree_select((torch.arange(4), {"x": torch.zeros(4, 2)}), slice(2))
        (tensor([0, 1]), {'x': tensor([[0., 0.],
                [0., 0.]])})
    """
    return optree.tree_map(rows_by(index), tree)


_PLAIN = frozenset({int, slice, type(None), type(...)})
"""Kinds of an index that every leaf understands alike."""


def rows_by(index: Any) -> Callable[[Any], Any]:
    """What takes the rows of a leaf at an index, which is that of `index_for`.

    Args:
        index: whatever indexes an array.
    """
    if type(index) in _PLAIN or (type(index) is tuple and _PLAIN.issuperset(map(type, index))):
        return operator.itemgetter(index)
    if isinstance(index, np.ndarray):
        return operator.itemgetter(index_for(None, index))
    return lambda leaf: leaf[index_for(leaf, index)]


def index_for(leaf: Any, index: Any) -> Any:
    """An index that means to this leaf what it means to leaves of the other kind.

    numpy would take a tensor of one element for a number, and torch whole numbers of the dtype uint8 for a mask.

    Args:
        leaf: an array, or anything else.
        index: whatever indexes an array.
    """
    if type(index) in _PLAIN:
        return index
    if isinstance(index, tuple):
        return tuple([index_for(leaf, part) for part in index])
    if isinstance(index, np.ndarray):  # compiled code has no dtype of numpy
        return index.astype(np.int64) if index.itemsize == 1 and index.dtype == np.uint8 else index
    if not isinstance(index, torch.Tensor):
        return index
    if isinstance(leaf, np.ndarray):
        return as_array(index) if index.ndim else index.item()
    return index.long() if index.dtype == torch.uint8 else index


_SHORT_BYTES = 128


def take_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Some rows of a tensor, in the order asked for.

    On a GPU, short rows of floating-point numbers are read number by number: PyTorch gives each row threads of its own
    if its bytes are a multiple of 16, which for four numbers takes eight times as long.

    Args:
        rows: [M, ...].
        index: [N] int64, where `rows` is.

    Returns:
        [N, ...].
    """
    width = rows.numel() // max(1, len(rows))
    length = width * rows.element_size()
    if not (rows.is_cuda and rows.is_floating_point()) or width < 2 or length > _SHORT_BYTES or length % 16:
        return rows.index_select(0, index)
    places = index[:, None] * width + torch.arange(width, device=rows.device)
    return torch.take(rows, places).reshape(len(index), *rows.shape[1:])


def tree_split(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """Parts of so many rows each, one after another, which share memory with the whole.

    Args:
        sizes: rows of each part, in order; they add up to the rows of every leaf.

    Raises:
        ShapeError: they do not.

    Examples:
        >>> [part["x"].tolist() for part in tree_split({"x": torch.arange(3)}, [2, 1])]
        [[0, 1], [2]]
    """
    for path, leaf in tree_paths(tree).items():
        if len(leaf) != sum(sizes):
            what = f"leaf {path!r}" if path else "a tensor"
            raise ShapeError(f"{what} has {len(leaf)} rows, but parts of {list(sizes)} rows were asked for")
    ends = np.cumsum(sizes).tolist()
    return [tree_select(tree, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


class _Fields(tuple[str, ...]):
    """Names of a batch's fields, sorted, so that batches with equal names have equal structures."""

    order: tuple[str, ...] = ()
    """In the order in which they were set."""


_batch_classes: list[Any] = []


def plain_batch(fields: dict[str, Any]) -> Any:
    """A batch of any fields: of the class that was registered first, which those of layouts extend.

    Args:
        fields: by name, taken as they are.
    """
    return _batch_classes[0].of(fields)


def register_batch(cls: Any) -> None:
    """Makes a batch class a node of optree's and torch's trees.

    Args:
        cls: its instances hold their children in `__dict__`; its constructor `of` takes a dict of them.
    """

    def flatten(batch: Any) -> tuple[list[Any], _Fields, _Fields]:
        fields = batch.__dict__
        keys = _Fields(sorted(fields))
        keys.order = tuple(fields)
        return [fields[key] for key in keys], keys, keys

    def unflatten(keys: Any, children: Any) -> Any:
        fields = dict(zip(keys, children, strict=True))
        return cls.of({key: fields[key] for key in keys.order})

    def torch_flatten(batch: Any) -> tuple[list[Any], tuple[str, ...]]:
        keys = tuple(sorted(batch.__dict__))
        return [batch.__dict__[key] for key in keys], keys

    def flatten_with_keys(batch: Any) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        children, keys = torch_flatten(batch)
        return [(torch_pytree.MappingKey(key), child) for key, child in zip(keys, children, strict=True)], keys

    _batch_classes.append(cls)
    optree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        path_entry_type=optree.MappingEntry,
        namespace=optree.registry.__GLOBAL_NAMESPACE,  # pyright: ignore[reportAttributeAccessIssue]
    )
    torch_pytree.register_pytree_node(
        cls,
        torch_flatten,
        lambda children, keys: cls.of(dict(zip(keys, children, strict=True))),
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )


def array_of(key: str, values: Any) -> np.ndarray:
    """A list or tuple as a numpy array; text becomes objects, so that its parts keep their length.

    Args:
        key: name of the field, for the error message.
        values: what the list holds.

    Raises:
        ShapeError: its parts differ in length.
        TypeError: numbers stand beside something that is neither a number nor text: an array of objects would do, and
            every later computation would be wrong or slow without a word.
    """
    try:
        array = np.asanyarray(values)
    except ValueError as error:
        raise ShapeError(f"field {key!r} is ragged: {error}; pad it, or keep its parts in separate fields") from None
    if array.dtype == object:
        kinds = {type(part).__name__: isinstance(part, int | float | np.generic) for part in array.reshape(-1)}
        if len(set(kinds.values())) > 1:
            raise TypeError(f"field {key!r} mixes {sorted(kinds)}; give numbers alone (NaN for one that is missing)")
    return array.astype(object) if array.dtype.kind in "US" else array


def as_tensor(leaf: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
    """A leaf as a tensor, which shares its memory where it can.

    Args:
        leaf: an array, tensor or number.
        dtype: cast floating-point numbers to this.

    Raises:
        TypeError: it holds objects or text.
    """
    if not isinstance(leaf, torch.Tensor):
        array = np.asarray(leaf)
        if array.dtype.kind not in "fiubc":
            sample = array.reshape(-1)[:3]
            raise TypeError(f"a leaf of dtype {array.dtype} ({sample} ...) cannot become a tensor")
        if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # a copy: torch can share none of these
        leaf = torch.from_numpy(array)
    return leaf.to(device=device, dtype=dtype if dtype is not None and leaf.is_floating_point() else None)


_LOCKED_BYTES = 1 << 24


def as_array(leaf: Any) -> Any:
    """A tensor as a numpy array, which shares its memory on a CPU; anything else as it is.

    Args:
        leaf: of any kind. bfloat16, which numpy does not have, becomes float32.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    # new memory that is not page-locked is found page by page, which takes a millisecond for 2 MB; but PyTorch keeps it
    if leaf.is_cuda and leaf.nbytes <= _LOCKED_BYTES:
        leaf = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True).copy_(leaf)
    leaf = leaf.cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()


def available_devices() -> list[str]:
    """The devices that this process can compute on, as `run.device` takes them."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def require_device(name: str, setting: str = "device") -> torch.device:
    """The device of a name.

    Args:
        name: `cpu`, `cuda` (the first GPU) or `cuda:1`.
        setting: what it was given for, for the message.

    Raises:
        ConfigError: there is no such device; the message says which there are.

    Examples:
        >>> require_device("cpu")
        device(type='cpu')
        >>> require_device("cuda:99")
        Traceback (most recent call last):
            ...
        palaestra.core.errors.ConfigError: device is 'cuda:99', but this process can compute on cpu...
    """
    there = available_devices()
    if name in there or f"{name}:0" in there:
        return torch.device(name if name in there else f"{name}:0")
    why = ""
    if name.split(":")[0] == "cuda" and len(there) == 1:
        why = (
            "torch was installed without CUDA; install a build with it (https://pytorch.org/get-started), or "
            if torch.version.cuda is None
            else "torch finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or "
        )
    found = ", ".join(there)
    raise ConfigError(f"{setting} is {name!r}, but this process can compute on {found}; {why}give one of them")


def to_device(tree: Any, device: torch.device | str) -> Any:
    """The tree with its tensors on a device; those that are there already are not copied.

    A copy to a GPU does not wait: what is computed there next finds it. What a tensor in pinned memory held may only be
    overwritten after something computed from the copy has been read. A copy to the CPU is there on return.

    Args:
        tree: any tree; leaves that are no tensors stay as they are.

    Examples:
        >>> to_device({"x": torch.zeros(2), "name": "a"}, "cpu")
        {'x': tensor([0., 0.]), 'name': 'a'}
    """
    target = torch.device(device)
    ahead = target.type != "cpu"

    def move(leaf: Any) -> Any:
        return leaf.to(target, non_blocking=ahead) if isinstance(leaf, torch.Tensor) else leaf

    return optree.tree_map(move, tree)


def device_of(tree: Any) -> torch.device:
    """Device of a tree: that of its first tensor; the CPU where it has none."""
    tensors = (leaf.device for leaf in optree.tree_iter(tree) if isinstance(leaf, torch.Tensor))
    return next(tensors, torch.device("cpu"))
