"""A pretend device: CPU memory that behaves as that of a GPU does, so that ways between devices can be tested.

Its tensors compute what CPU tensors compute, and refuse what CUDA tensors refuse: to meet a CPU tensor of more than one
number in a computation, or of one number where that is no second operand, to become a numpy array, and to draw from a
generator of the CPU. Its generators draw what those of the CPU draw, so a run on it must give the numbers of a run on
the CPU exactly.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

import palaestra.core.tree

NAME = "lazy"  # torch knows a device of this name that needs no driver and has no kernels here
_CPU_GENERATOR = torch.Generator
_MOVES = ("_to_copy", "to", "copy_")
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_", "unsafe_index")  # indices may be on the CPU
_TAKE_NUMBERS = {  # from the CPU too, as the second of two operands
    *("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "where", "masked_fill", "index_put"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
}


class FarGenerator(torch.Generator):
    """A generator of the pretend device."""

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return torch.device(NAME)


class _Generators(torch.Generator):
    """What `torch.Generator` is meanwhile: makes one of either kind."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return FarGenerator() if torch.device(device).type == NAME else _CPU_GENERATOR(device)


class FarTensor(Tensor):
    """A tensor of the pretend device."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "FarTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=torch.device(NAME),
        )
        made.near = near
        return made

    @property
    def data(self) -> Tensor:
        """Without its gradient."""
        return self.detach()

    @data.setter
    def data(self, other: Any) -> None:
        Tensor.data.__set__(self, other)  # pyright: ignore
        self.near = other.near

    def tolist(self) -> Any:
        """Numbers, for which a GPU is waited for."""
        return self.near.tolist()

    def __repr__(self, **kwargs: Any) -> str:
        return f"FarTensor({self.near})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    """Sees what makes tensors of the pretend device out of nothing, or out of CPU tensors."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Generated(TorchFunctionMode):
    """Looks at generators, which come to the mode above as other objects."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (generator := kwargs.get("generator")) is not None:
            far = torch.device(kwargs.get("device") or "cpu").type == NAME or any(
                isinstance(x, FarTensor) for x in args
            )
            if isinstance(generator, FarGenerator) != far:
                raise RuntimeError(f"{function.__name__}: the generator is of another device than the tensor")
        return function(*args, **kwargs)


def _near(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.near if isinstance(value, FarTensor) else value


def _far(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, FarTensor):
        return value
    with torch.inference_mode(False):  # where a view would have to be what its base is
        return FarTensor(value)


def _computed(function: Any, args: Any, kwargs: Any) -> Any:
    name = function._schema.name.removeprefix("aten::")
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    some_far, devices = (
        any(isinstance(t, FarTensor) for t in tensors),
        [x for x in leaves if isinstance(x, torch.device)],
    )
    goes_far = devices[0].type == NAME if devices else some_far
    if not some_far and not goes_far:
        return function(*args, **kwargs)
    if name not in _MOVES:
        _require_one_device(name, tensors, goes_far)
    near_args, near_kwargs = tree_map(_near, args), tree_map(_near, kwargs)
    result = function(*near_args, **near_kwargs)
    if name in ("_to_copy", "to") and goes_far != some_far and result is near_args[0]:
        result = result.clone()  # it is a move, so it has memory of its own
    if name == "_local_scalar_dense" or not goes_far:
        return result
    result = tree_map(_far, result)
    return return_and_correct_aliasing(function, args, kwargs, result) if some_far else result


def _require_one_device(name: str, tensors: list[Tensor], far: bool) -> None:
    """Refuses what CUDA refuses."""
    least = int(name.removesuffix("_") in _TAKE_NUMBERS or name in _INDEXED)
    strangers = [t for t in tensors[1 if name in _INDEXED else 0 :] if not isinstance(t, FarTensor) and t.ndim >= least]
    if name in _INDEXED:
        strangers = [t for t in strangers if t.dtype.is_floating_point]
    if strangers and far:
        raise RuntimeError(f"{name}: expected all tensors on one device, but one of {strangers[0].shape} is on the CPU")


def _there(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Threads see the device too: torch keeps such modes for each."""

    def on_the_device(thread: threading.Thread) -> None:
        with _Everywhere(), _Generated():
            run(thread)

    return on_the_device


@contextmanager
def pretend_device() -> Iterator[str]:
    """Inside, there is a device of this name, for `require_device` too."""
    swap = torch.__future__.get_swap_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch, _Everywhere(), _Generated():
        patch.setattr(torch, "Generator", _Generators)
        patch.setattr(palaestra.core.tree, "available_devices", lambda: ["cpu", NAME])
        patch.setattr(threading.Thread, "run", _there(threading.Thread.run))
        torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the same objects, as with CUDA
        torch._C._set_only_lift_cpu_tensors(True)  # so that `torch.tensor(..., device=)` is seen
        try:
            yield NAME
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_swap_module_params_on_conversion(swap)
