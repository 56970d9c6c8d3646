"""Products of compiled code by oneDNN: the same numbers, only where they pay, chosen by measurement."""

import time

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from palaestra.nn import compiled_method, products


def layers(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, members: Tensor) -> Tensor:
    """Two linear layers, the first with a bias, and one of several members; [K, N, units]."""
    hidden = nn.functional.linear(torch.relu(nn.functional.linear(x, first, bias)), second)
    return torch.relu(torch.bmm(hidden.expand(members.shape[0], -1, -1), members))


def with_gradients(x: Tensor, *weights: Tensor) -> list[Tensor]:
    loss = layers(x, *weights).square().mean()
    return [loss, *torch.autograd.grad(loss, [x, *weights])]


def arguments(rows: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(rows, 96), (128, 96), (128,), (160, 128), (3, 160, 128)]
    return [(torch.randn(shape) / 12).requires_grad_() for shape in shapes]


def changed(given: list[Tensor]) -> torch.fx.GraphModule:
    """The graph of `with_gradients`, after the pass."""
    graph = make_fx(with_gradients, tracing_mode="fake")(*given)
    products.replace_products(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def count(graph: torch.fx.GraphModule) -> int:
    return sum(node.target is products.product for node in graph.graph.nodes)


def test_a_graph_and_its_gradients_have_the_same_numbers():
    given = arguments(256)
    graph = changed(given)
    torch.testing.assert_close(graph(*given), with_gradients(*given), rtol=1e-4, atol=1e-6)
    assert count(graph) == 3 * (1 + 1 + 3)  # forward, for what comes in, for the weights


def test_in_a_graph_small_products_and_those_in_double_precision_stay():
    assert count(changed(arguments(8))) == 0
    assert count(changed([x.detach().double().requires_grad_() for x in arguments(256)])) == 0


class Owner:
    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return layers(x, *self.weights)


def test_compiled_code_has_the_same_numbers(monkeypatch):
    monkeypatch.setattr(products, "graph_pass", products._make_pass)
    x, *weights = [x.detach() for x in arguments(256)]
    owner = Owner(weights)
    torch.testing.assert_close(compiled_method(owner, Owner.forward, x)(x), owner.forward(x), rtol=1e-4, atol=1e-6)


def test_the_faster_library_is_taken(monkeypatch):
    choose, answer = products._is_faster.__wrapped__, torch.ones(256, 256)

    def late(a: Tensor, b: Tensor) -> Tensor:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.005:
            torch.mm(a, b)
        return answer

    monkeypatch.setattr(products, "_multiply", lambda a, b: answer)
    assert choose()
    monkeypatch.setattr(products, "_multiply", late)
    assert not choose()


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_a_torch_without_it_keeps_its_own(monkeypatch, error):
    def missing(a: Tensor, b: Tensor) -> Tensor:
        raise error("no _linear_pointwise")

    monkeypatch.setattr(products, "_multiply", missing)
    assert not products._is_faster.__wrapped__()


def test_a_torch_whose_compiler_has_other_parts_keeps_its_products(monkeypatch):
    def missing() -> None:
        raise ImportError("LinearUnary")

    monkeypatch.setattr(products, "_is_faster", lambda: True)
    monkeypatch.setattr(products, "_make_pass", missing)
    assert products.graph_pass.__wrapped__() is None
