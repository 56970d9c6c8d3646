"""What a policy is called with outside any training, as rows of tensors; and its actions as their spec says."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.core import Batch, ConfigError, NonFiniteError, ShapeError, tree_map, tree_paths
from palaestra.core.spec import SpecTree, TensorSpec, children_of, first_leaf, numpy_dtype, spec_leaves

__all__: list[str] = []


def leading_shape(observation: Any, spec: SpecTree) -> tuple[int, ...]:
    """The leading dimensions of a nest, read off its first leaf.

    Args:
        observation: of any kind that a policy can be called with.
        spec: of one observation.

    Raises:
        ShapeError: it lacks a part, or holds no numbers.
    """
    keys, leaf_spec = first_leaf(spec)
    leaf, path = observation, ".".join(keys)
    for key in keys:
        leaf = _child(leaf, key, path)
    shape = tuple(np.shape(_array(leaf, leaf_spec, path) if isinstance(leaf, list | tuple) else leaf))
    return shape[: max(0, len(shape) - len(leaf_spec.shape))]


def _child(node: Any, key: str, path: str) -> Any:
    try:
        if isinstance(node, tuple | list) or (isinstance(node, dict) and key not in node):
            return node[int(key)]
        return node[key]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ShapeError(f"the observation is a {type(node).__name__} without the entry {path!r} of its spec") from None


def _named(path: str) -> str:
    return f"the observation{f' {path!r}' if path else ''}"


def _array(value: Any, spec: TensorSpec, path: str) -> Tensor | np.ndarray:
    if isinstance(value, Tensor):
        return value
    try:
        array = np.array(value)
    except ValueError as error:
        raise ShapeError(f"{_named(path)} is ragged: {error}; numbers of shape {spec.shape} are needed") from None
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"{_named(path)} is {value!r}; numbers of shape {spec.shape} are needed")
    return array


def as_rows(value: Any, spec: SpecTree, device: torch.device, leading: tuple[int, ...], path: str = "") -> Any:
    """A nest as tensors and batches of leading shape [N].

    Args:
        value: of any kind that a policy can be called with.
        spec: of one observation.
        device: where the tensors are to be.
        leading: dimensions that become N.
        path: of the nest, for messages.

    Raises:
        ShapeError: it does not fit the spec, or holds no numbers.
        NonFiniteError: an element is NaN or infinite, or beyond the numbers of the spec's type.
    """
    if not isinstance(spec, TensorSpec):
        paths = {key: (child, f"{path}.{key}" if path else key) for key, child in children_of(spec).items()}
        return Batch.of(
            {
                key: as_rows(_child(value, key, inner), child, device, leading, inner)
                for key, (child, inner) in paths.items()
            }
        )
    name, array = _named(path), _array(value, spec, path)
    array = array if isinstance(array, Tensor) else torch.as_tensor(array)
    if tuple(array.shape) != (*leading, *spec.shape):
        raise ShapeError(
            f"{name} has shape {tuple(array.shape)}; its spec needs "
            f"{(*leading, *spec.shape)}, with or without leading dimensions, the same for every entry"
        )
    rows = array.to(device, spec.dtype)
    if spec.dtype.is_floating_point:
        if not rows.isfinite().all():
            raise NonFiniteError(f"{name} is {array.tolist()}; a policy needs finite numbers")
        return rows.reshape((math.prod(leading), *spec.shape))
    given, found, allowed = array.numpy(force=True), rows.numpy(force=True), ""  # numpy compares all types
    fits = found == given
    if spec.bounds is not None:
        low, high = spec.bounds
        fits, allowed = fits & (found >= low) & (found <= high), f" from {low.tolist()} to {high.tolist()}"
    if not fits.all():
        raise ShapeError(f"{name} is {given.tolist()}; its spec needs whole numbers{allowed} as {spec.dtype}")
    return rows.reshape((math.prod(leading), *spec.shape))


def to_numpy(action: Any, spec: SpecTree, leading: tuple[int, ...]) -> Any:
    """Actions as their spec says, in numpy.

    Args:
        action: leaves [N, ...].
        spec: of one action.
        leading: dimensions that N stands for.
    """
    if isinstance(spec, dict):
        return {key: to_numpy(action[str(key)], child, leading) for key, child in spec.items()}
    if isinstance(spec, tuple):
        return tuple(to_numpy(action[str(index)], child, leading) for index, child in enumerate(spec))
    array = action.detach().cpu().numpy().astype(numpy_dtype(spec.dtype), copy=False)
    return array.reshape((*leading, *spec.shape))[()]


def observation_field(given: Any, spec: SpecTree) -> str | None:
    """Which field of a batch is the observation; `None` where what was given is one itself.

    Args:
        given: what a policy was called with.
        spec: of one observation.
    """
    if not isinstance(given, Batch) or (isinstance(spec, dict) and all(key in given for key in spec)):
        return None
    return next((name for name in ("obs", "observation") if name in given), None)


def checked_state(state: Any, initial: Any, count: int) -> Any:
    """The state that a policy was called with, as tensors.

    Args:
        state: that was given.
        initial: the policy's, of so many lanes.
        count: lanes.

    Raises:
        ShapeError: it is not that of so many lanes of this policy.
    """
    shapes = [{path: tuple(np.shape(leaf)) for path, leaf in tree_paths(tree).items()} for tree in (state, initial)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"the state has leaves of shape {shapes[0]}, and this policy's for {count} observations have "
            f"{shapes[1]}; give what the call before answered as `state`, or None where an episode begins"
        )
    return tree_map(torch.as_tensor, state) if shapes[0] else ()


def parts_of(*specs: SpecTree) -> list[list[str]]:
    """Keys of observations and actions in their order, by which weights count.

    Args:
        specs: of both.
    """
    return [list(spec_leaves(spec)) for spec in specs]


def require_parts(policy: Any, saved: Sequence[list[str]], weights: str = "the weights") -> None:
    """Refuses weights for inputs or actions that come in another order than a policy's; Gymnasium calls both equal.

    Args:
        policy: that is to have the weights.
        saved: `parts_of` those that they are for; nothing where that is not known.
        weights: what they are called.

    Raises:
        ConfigError: keys come in another order, which the message shows.
    """
    own = parts_of(policy.observation_spec, policy.action_spec)
    for what, there, here in zip(("observation", "action"), saved, own, strict=False):
        if there != here and sorted(there) == sorted(here):
            raise ConfigError(
                f"the {what} has its parts in the order {here}, and {weights} are for {there}; make the Dict space in "
                "that order, from pairs: Dict([(key, space), ...])"
            )


def keep_order(policy: Any) -> None:
    """Lets the metadata of a policy's `state_dict` say what it is for, and `load_state_dict` look at that.

    Args:
        policy: a module with specs; one loaded from others, which do not say it, takes them as they are.
    """
    policy.register_state_dict_post_hook(_say_parts)
    policy.register_load_state_dict_pre_hook(_check_parts)


def _say_parts(policy: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    metadata["parts"] = parts_of(policy.observation_spec, policy.action_spec)


def _check_parts(policy: Any, state: Any, prefix: str, metadata: dict[str, Any], *others: Any) -> None:
    require_parts(policy, metadata.get("parts", ()))
