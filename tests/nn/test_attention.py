"""Tests of `palaestra.nn.attention`."""

import math

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, ShapeError
from palaestra.nn import AttentionMemory, NetworkConfig

T, B, F, H, W = 9, 3, 2, 8, 3
# Lane 0 begins twice, lane 1 at the first and last row, lane 2 never.
FIRST = torch.zeros(T, B, dtype=torch.bool)
FIRST[0, 0] = FIRST[0, 1] = FIRST[3, 0] = FIRST[T - 1, 1] = True


def memory(layers=2):
    torch.manual_seed(0)
    config = NetworkConfig(recurrent_size=H, attention_window=W, attention_layers=layers, attention_heads=2)
    module = AttentionMemory(F, config)
    for layer in module.layers:
        torch.nn.init.normal_(layer.distance_bias)
    return module


def inputs():
    return torch.randn(T, B, F, generator=torch.Generator().manual_seed(0))


def remembering(module):
    """As after an episode's first two rows."""
    return module(inputs()[:2] - 1.0, module.initial_state(B), torch.zeros(2, B, dtype=torch.bool))[1]


def plain(module, rows):
    """One lane's single episode [T, F], by loops over layers, rows, heads and what a row sees; formulas (6) to (9)."""
    rows = module.embedding(rows)
    for layer in module.layers:
        seen = torch.nn.functional.layer_norm(rows, (H,))
        after = []
        for t, row in enumerate(rows):
            query, answer = layer.query(seen[t]), []
            window = range(max(0, t - W), t + 1)
            for head in range(2):
                part = slice(head * H // 2, (head + 1) * H // 2)
                pairs = [layer.key_value(seen[s]).split(H) for s in window]
                scores = [query[part] @ k[part] / math.sqrt(H / 2) for k, _ in pairs]
                scores = [x + layer.distance_bias[head, t - s] for x, s in zip(scores, window, strict=True)]
                weights = torch.stack(scores).softmax(0)
                answer.append(sum(w * v[part] for w, (_, v) in zip(weights, pairs, strict=True)))
            y = gated(layer.gates[0], row, layer.out(torch.cat(answer)).relu())
            after.append(gated(layer.gates[1], y, layer.mlp(torch.nn.functional.layer_norm(y, (H,))).relu()))
        rows = torch.stack(after)
    return rows


def gated(gate, x, y):
    (wr, wz, wg), (_, bz, _) = gate.added.weight.chunk(3), gate.added.bias.chunk(3)
    ur, uz = gate.stream.weight.chunk(2)
    r, z = torch.sigmoid(wr @ y + ur @ x), torch.sigmoid(wz @ y + uz @ x + bz)
    return (1 - z) * x + z * torch.tanh(wg @ y + gate.candidate.weight @ (r * x))


def test_an_episode_is_what_the_formulas_say():
    module, x = memory(), inputs()
    never = torch.zeros(T, B, dtype=torch.bool)
    y, _ = module(x, module.initial_state(B), never)
    assert_close(y[:, 1], plain(module, x[:, 1]))


def test_a_sequence_equals_its_rows_one_by_one():
    module, x = memory(), inputs()
    state = remembering(module)
    together, end = module(x, state, FIRST)
    for t in range(T):
        row, state = module(x[t : t + 1], state, FIRST[t : t + 1])
        assert_close(row[0], together[t])
    assert_close(state["seen"][:, :, -1], end["seen"][:, :, -1])
    assert torch.equal(state["length"], end["length"])
    assert end["length"].tolist() == [W, 1, W]


def test_an_episode_does_not_remember_the_one_before():
    module, x = memory(), inputs()
    y, _ = module(x, remembering(module), FIRST)
    x[:3, 0] += 1.0  # lane 0's first episode
    changed, _ = module(x, remembering(module), FIRST)
    assert torch.equal(changed[3:, 0], y[3:, 0])
    assert not torch.equal(changed[:3, 0], y[:3, 0])
    alone, _ = module(x[3:, :1], module.initial_state(1), torch.zeros(T - 3, 1, dtype=torch.bool))
    assert_close(changed[3:, :1], alone)
    # the mutant: without the resets it would remember
    never = torch.zeros_like(FIRST)
    assert not torch.equal(module(x, remembering(module), never)[0][3:, 0], y[3:, 0])


@pytest.mark.parametrize("layers", [1, 2])
def test_each_layer_reaches_one_window_back(layers):
    module, x = memory(layers), inputs().requires_grad_()
    y, _ = module(x, module.initial_state(B), torch.zeros(T, B, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(y[T - 1, 0].sum(), x)
    reached = T - 1 - layers * W
    assert not gradient[:reached].any()
    assert gradient[reached:, 0].any(-1).all()
    assert not gradient[:, 1:].any()  # other lanes


def test_a_memory_that_is_not_finite_ends_with_its_episode():
    module = memory()
    state = remembering(module).map(lambda leaf: leaf.fill_(torch.nan) if leaf.is_floating_point() else leaf)
    y, _ = module(inputs(), state, FIRST)
    assert y[:, :2].isfinite().all()
    assert not y[:, 2].isfinite().all()


def test_a_sequence_without_rows_keeps_the_memory():
    module = memory()
    state = remembering(module)
    y, after = module(torch.zeros(0, B, F), state, torch.zeros(0, B, dtype=torch.bool))
    assert y.shape == (0, B, H)
    assert torch.equal(after["seen"], state["seen"])


def test_shapes_that_do_not_fit_are_named():
    module = memory()
    with pytest.raises(ShapeError, match=r"x has shape \[9, 3, 2\], first \[8, 3\] .* and \[B, 2, 3, 8\]"):
        module(inputs(), module.initial_state(B), FIRST[1:])
    with pytest.raises(ShapeError, match=r"the state \[3, 5\]"):
        module(inputs(), Batch.of({"seen": torch.zeros(3, 5), "length": torch.zeros(3)}), FIRST)
