"""Products of matrices in compiled code by oneDNN, on processors where that is faster than MKL.

PyTorch leaves products in single precision to Intel's MKL, which takes vectors of 256 bits on every processor of AMD;
those that have units for 512 bits (since Zen 5) then run at half their speed. oneDNN, which PyTorch has for
convolutions and for products in bfloat16, asks what a processor has and not who made it.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.ir import ExternKernel, FixedLayout, TensorBox
from torch._inductor.lowering import permute, register_lowering
from torch._inductor.mkldnn_ir import LinearUnary
from torch.utils._pytree import tree_map

__all__ = ["ProductsByOneDNN", "products_by_onednn"]

_aten: Any = torch.ops.aten
_LEAST_WORK = 2_500_000
"""Floating-point operations of a product that pays: a call of oneDNN takes 8 microseconds, of MKL one."""
_LEAST_GAIN = 1.3

_library = torch.library.Library("palaestra", "DEF")
_library.define("product(Tensor a, Tensor b) -> Tensor")
torch.library.register_fake("palaestra::product", lambda a, b: a.new_empty(a.shape[0], b.shape[1]))


def _product(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")


_library.impl("product", _product, "CPU")
_op: Any = torch.ops.palaestra.product.default


@register_lowering(_op, type_promotion_kind=None)
def _called(a: Any, b: Any) -> Any:
    """The call in C++, with factors as they lie: Inductor's own lowering copies those that are not contiguous."""
    a, b = ExternKernel.realize_input(a), ExternKernel.realize_input(permute(b, [1, 0]))
    layout = FixedLayout(a.get_device(), a.get_dtype(), [a.get_size()[0], b.get_size()[0]])
    return TensorBox.create(LinearUnary(layout, [a, b], [None, "none", [-1], ""]))


@functools.cache
def products_by_onednn() -> "ProductsByOneDNN | None":
    """What changes a graph's products; none where MKL is nearly as fast: both multiply 256 x 256, 20 times in turns."""
    x, taken = torch.ones(256, 256), dict[Callable[..., Tensor], float]()
    for product in (torch.mm, _product) * 20:
        began = time.perf_counter()
        try:
            product(x, x)
        except (AttributeError, RuntimeError):  # a PyTorch without it
            return None
        taken[product] = min(time.perf_counter() - began, taken.get(product, torch.inf))
    return ProductsByOneDNN() if taken[torch.mm] > _LEAST_GAIN * taken[_product] else None


class ProductsByOneDNN(CustomGraphPass):
    """Puts oneDNN's products in the place of PyTorch's in a graph, where they are large enough."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target in (_aten.mm.default, _aten.addmm.default, _aten.bmm.default) and _pays(node):
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_replaced(graph, node))
                graph.erase_node(node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _pays(node: Any) -> bool:
    a, result = node.args[-2].meta["val"], node.meta["val"]
    work = 2 * a.shape[-1] * result.shape[-2] * result.shape[-1]
    return a.is_cpu and a.dtype == torch.float32 and not node.kwargs and work >= _LEAST_WORK


def _replaced(graph: Any, node: Any) -> Any:
    def added(op: Any, *args: Any) -> Any:
        new = graph.call_function(op, args)
        with node.meta["val"].fake_mode:
            new.meta["val"] = op(*tree_map(lambda leaf: leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf, args))
        return new

    *bias, a, b = node.args
    if node.target is _aten.bmm.default:
        pairs = [[added(_aten.select.int, x, 0, k) for x in (a, b)] for k in range(len(node.meta["val"]))]
        return added(_aten.cat.default, [added(_aten.unsqueeze.default, added(_op, *pair), 0) for pair in pairs])
    product = added(_op, a, b)
    return added(_aten.add.Tensor, product, *bias) if bias else product
