"""Products of matrices in less than single precision, while weights and what is between products stay in it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from palaestra.core import ConfigError, computing

__all__ = [
    "Precision",
    "bfloat16_products",
    "has_bfloat16_products",
    "in_full_precision",
    "set_deterministic",
    "set_products",
]

T = TypeVar("T")

_KINDS = [kind for kind in ("cpu", "cuda") if torch.amp.is_autocast_available(kind)]

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
"""Of matrix products in gradient steps. TF32 rounds what a GPU multiplies to 11 bits, when it acts as well."""


def set_products(precision: Precision, device: torch.device) -> None:
    """Checks that a device has products of a precision, and makes those of TF32 PyTorch's default there.

    Args:
        precision: see `Precision`.
        device: where networks are.

    Raises:
        ConfigError: it has none, so that they would be slower than those in single precision.
    """
    found = getattr(torch.cpu, "get_capabilities", dict)() if device.type == "cpu" else {"bf16": True}
    recent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cuda":  # `is_bf16_supported` is true where products are emulated, too
        found = {"bf16": recent or torch.version.hip is not None}
    if precision == "bf16" and not any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")):
        unknown = f"torch {torch.__version__} does not say that this {device.type} has"  # an older one
        raise ConfigError(
            f"run.precision is 'bf16', but {f'this {device.type} has no' if found else unknown} instructions for "
            "products in bfloat16 (AVX512_BF16 or AMX on processors), without which they are slower; leave it out"
        )
    if precision == "tf32" and not recent:
        raise ConfigError(f"run.precision is 'tf32', but this {device.type} has no products in TF32; leave it out")
    if device.type == "cuda":
        with suppress(RuntimeError):  # set for each backend alone, as no run does
            before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
            computing.put_back_later("products", partial(_set_products, *before))
        _set_products("high" if precision == "tf32" else "highest", precision == "tf32")


def _set_products(precision: str, tf32: bool) -> None:
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32  # of convolutions and recurrent cells


def set_deterministic(deterministic: bool, *, warn_only: bool = False) -> None:
    """Chooses kernels that give equal results on equal GPUs, in all of this process; on a CPU all do.

    Args:
        deterministic: else those that the process has: the fastest, unless its program asked for others.
        warn_only: about what has no such kernel, as `torch.use_deterministic_algorithms` can; else it raises.
    """
    if not deterministic:
        return
    if not warn_only:
        computing.set_variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mode = torch.get_deterministic_debug_mode()
    if mode < (1 if warn_only else 2):  # to say it takes a second
        computing.put_back_later("kernels", partial(torch.use_deterministic_algorithms, mode > 0, warn_only=mode == 1))
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def bfloat16_products(device: torch.device) -> torch.autocast:
    """What a forward pass, and the backward pass of it, run in: products take bfloat16 and give bfloat16.

    Args:
        device: where networks are.
    """
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def has_bfloat16_products(x: Tensor) -> bool:
    """Whether products with a tensor are made in bfloat16 here.

    Args:
        x: any tensor.
    """
    return x.device.type in _KINDS and torch.is_autocast_enabled(x.device.type)


def in_full_precision(function: Callable[..., T], x: Tensor, *others: Any) -> T:
    """A product that stays in single precision inside `bfloat16_products`: a value of 500 has steps of 2 there.

    Args:
        function: the product.
        x: its first argument.
        *others: the other ones, in single precision as they are.
    """
    if not has_bfloat16_products(x):
        return function(x, *others)
    with torch.autocast(x.device.type, enabled=False):
        return function(x.float(), *others)
