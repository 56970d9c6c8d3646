"""Products of matrices in bfloat16, while weights, sums and everything between them stay in single precision."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from palaestra.core import ConfigError

__all__ = ["Precision", "bfloat16_products", "has_bfloat16_products", "in_full_precision", "require_bfloat16"]

_KINDS = [kind for kind in ("cpu", "cuda") if torch.amp.is_autocast_available(kind)]

Precision: TypeAlias = Literal["float32", "bf16"]
"""Of matrix products in gradient steps."""


def require_bfloat16(device: torch.device) -> None:
    """Checks that products in bfloat16 are instructions of a device, and not slower than those in single precision.

    Args:
        device: where networks are.

    Raises:
        ConfigError: it has none.
    """
    if device.type == "cpu":
        found = getattr(torch.cpu, "get_capabilities", dict)()
        fast = any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    else:
        fast = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if not fast:
        raise ConfigError(
            f"run.precision is 'bf16', but this {device.type} has no instructions for products in bfloat16 "
            "(AVX512_BF16 or AMX on processors), so that they would be slower; leave it out"
        )


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


def in_full_precision(function: Callable[..., Tensor], x: Tensor, *others: Any) -> Tensor:
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
