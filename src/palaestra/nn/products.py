"""Large products of matrices in compiled code by oneDNN, on processors where that is faster than MKL.

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
from torch.utils._pytree import tree_map

__all__ = ["graph_pass", "product", "replace_products"]

_LEAST_WORK = 2_500_000
"""Floating-point operations of a product that pays: a call of oneDNN takes 8 microseconds, of MKL one."""
_LEAST_GAIN = 1.3

_library = torch.library.Library("palaestra", "DEF")
_library.define("product(Tensor a, Tensor b) -> Tensor")
torch.library.register_fake("palaestra::product", lambda a, b: a.new_empty(a.shape[0], b.shape[1]))


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")


_library.impl("product", _multiply, "CPU")
product: Any = torch.ops.palaestra.product.default
"""By oneDNN, of a matrix, [N, in], with another one, [in, out]; an operation that graphs may hold."""


@functools.cache
def _is_faster() -> bool:
    """Whether MKL is far behind: both multiply 256 x 256 by 256 x 256, 20 times in turns."""
    x, taken = torch.ones(256, 256), dict[Callable[..., Tensor], float]()
    with torch.no_grad():
        for multiply in (torch.mm, _multiply) * 20:
            began = time.perf_counter()
            try:
                multiply(x, x)
            except (AttributeError, RuntimeError):  # a PyTorch without it
                return False
            taken[multiply] = min(time.perf_counter() - began, taken.get(multiply, torch.inf))
    return taken[torch.mm] > _LEAST_GAIN * taken[_multiply]


@functools.cache
def graph_pass() -> Any:
    """What makes Inductor put oneDNN's products in the place of PyTorch's; nothing where that is not faster."""
    if not _is_faster():
        return None
    try:
        return _make_pass()
    except ImportError:  # another version of PyTorch
        return None


def _make_pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files  # takes a second
    from torch._inductor.ir import ExternKernel, FixedLayout, TensorBox
    from torch._inductor.lowering import permute, register_lowering
    from torch._inductor.mkldnn_ir import LinearUnary

    @register_lowering(product, type_promotion_kind=None)
    def called(a: Any, b: Any) -> Any:
        """The call in C++, with factors as they lie: Inductor's own lowering copies those that are not contiguous."""
        a, b = ExternKernel.realize_input(a), ExternKernel.realize_input(permute(b, [1, 0]))
        layout = FixedLayout(a.get_device(), a.get_dtype(), [a.get_size()[0], b.get_size()[0]])
        return TensorBox.create(LinearUnary(layout, [a, b], [None, "none", [-1], ""]))

    class Pass(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            replace_products(graph)

        def uuid(self) -> Any:
            return get_hash_for_files((__file__,))

    return Pass()


def replace_products(graph: fx.Graph) -> None:
    """Replaces products that are large enough.

    Args:
        graph: of ATen's operations, with the examples that tracing noted.
    """
    aten: Any = torch.ops.aten
    for node in list(graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default) and _pays(node):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_replaced(graph, node))
            graph.erase_node(node)


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

    aten: Any = torch.ops.aten
    *bias, a, b = node.args
    if node.target is aten.bmm.default:
        pairs = [[added(aten.select.int, x, 0, k) for x in (a, b)] for k in range(len(node.meta["val"]))]
        return added(aten.cat.default, [added(aten.unsqueeze.default, added(product, *pair), 0) for pair in pairs])
    multiplied = added(product, a, b)
    return added(aten.add.Tensor, multiplied, *bias) if bias else multiplied
