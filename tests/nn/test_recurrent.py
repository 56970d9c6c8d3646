"""Tests of `palaestra.nn.recurrent`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, ShapeError
from palaestra.nn import RecurrentCell, bfloat16_products

T, B, F, H = 7, 3, 2, 5
# Lane 0 begins twice, lane 1 at the first and last row, lane 2 never.
FIRST = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)


def inputs():
    return torch.randn(T, B, F, generator=torch.Generator().manual_seed(0))


def remembering(module):
    """A memory that is not zero."""
    state = module.initial_state(B)
    return Batch.of({name: torch.full_like(leaf, 0.3 + index) for index, (name, leaf) in enumerate(state.items())})


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_equals_its_rows_one_by_one(kind):
    module, x = RecurrentCell(kind, F, H), inputs()
    state = remembering(module)
    together, end = module(x, state, FIRST)
    for t in range(T):
        row, state = module(x[t : t + 1], state, FIRST[t : t + 1])
        assert_close(row[0], together[t])
    for ours, theirs in zip(state.values(), end.values(), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_span_lets_gradients_reach_back_that_far(kind):
    reached = {}
    for span in (1, 128):
        torch.manual_seed(0)
        module = RecurrentCell(kind, F, 64, span)
        x = torch.zeros(65, 1, F)
        x[0] = 1.0
        x.requires_grad_()
        y, _ = module(x, module.initial_state(1), torch.arange(65).unsqueeze(1) == 0)
        (gradient,) = torch.autograd.grad(y[-1].square().sum(), x)
        reached[span] = float(gradient[0].abs().max())
    assert reached[1] < 1e-10
    assert reached[128] > 1e-5


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_units_keep_from_half_to_the_whole_span_at_first(kind):
    torch.manual_seed(0)
    cells = RecurrentCell(kind, F, 1000, 64).cells
    bias = cells.bias_ih_l0.detach().view(-1, 1000)
    keep = torch.sigmoid(bias[1])
    assert 0.5 <= keep.min() < 0.9
    assert keep.max() == pytest.approx(1 - 1 / 64, abs=1e-3)
    assert_close((1 / (1 - keep) - 1).mean(), torch.tensor(32.0), atol=2.0, rtol=0)  # u, uniform in [1, 63]
    assert not bias[[0, *range(2, len(bias))]].any()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_an_episode_does_not_remember_the_one_before(kind):
    module, x = RecurrentCell(kind, F, H), inputs()
    y, _ = module(x, remembering(module), FIRST)
    x[:3, 0] += 1.0  # lane 0's first episode
    changed, _ = module(x, remembering(module), FIRST)
    assert torch.equal(changed[3:, 0], y[3:, 0])
    assert not torch.equal(changed[:3, 0], y[:3, 0])
    # the same rows as a sequence of their own
    alone, _ = module(x[3:, :1], module.initial_state(1), torch.zeros(T - 3, 1, dtype=torch.bool))
    assert_close(changed[3:, :1], alone)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_without_the_resets_it_would_remember(kind):
    # The mutant of the test above.
    module, x = RecurrentCell(kind, F, H), inputs()
    never = torch.zeros_like(FIRST)
    y, _ = module(x, remembering(module), never)
    x[:3, 0] += 1.0
    changed, _ = module(x, remembering(module), never)
    assert not torch.equal(changed[3:, 0], y[3:, 0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_that_is_not_finite_ends_with_its_episode(kind):
    module = RecurrentCell(kind, F, H)
    state = remembering(module)
    for leaf in state.values():
        leaf.fill_(torch.nan)
    y, _ = module(inputs(), state, FIRST)
    assert y[:, :2].isfinite().all()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_without_rows_keeps_the_memory(kind):
    module = RecurrentCell(kind, F, H)
    state = remembering(module)
    y, after = module(torch.zeros(0, B, F), state, torch.zeros(0, B, dtype=torch.bool))
    assert y.shape == (0, B, H)
    assert torch.equal(after.values()[0], state.values()[0])


def test_gradients_stop_at_the_beginning_of_an_episode():
    module, x = RecurrentCell("lstm", F, H), inputs().requires_grad_()
    y, _ = module(x, module.initial_state(B), FIRST)
    (gradient,) = torch.autograd.grad(y[5, 0].sum(), x)
    assert not gradient[:3, 0].any()
    assert gradient[3:6, 0].any()


def test_shapes_that_do_not_fit_are_named():
    module = RecurrentCell("lstm", F, H)
    with pytest.raises(ShapeError, match=r"x has shape \[7, 3, 2\], first \[6, 3\] .* must be \[T, B, 2\]"):
        module(inputs(), module.initial_state(B), FIRST[1:])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_cells_compute_in_single_precision_where_products_are_in_bfloat16(kind):
    """Near 1 an update gate has steps of 1/256 there, and a memory of 1,000 rows is lost."""
    module, x = RecurrentCell(kind, F, H, span=1000), inputs()
    expected, _ = module(x, remembering(module), FIRST)
    with bfloat16_products(torch.device("cpu")):
        found, state = module(x.bfloat16(), remembering(module), FIRST)
    assert found.dtype == state["hidden"].dtype == torch.float32
    assert_close(found, module(x.bfloat16().float(), remembering(module), FIRST)[0])
    assert_close(found, expected, atol=0.02, rtol=0)
