"""`LSTM` and `GRU`: memory that starts anew where an episode does."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palaestra.core import ShapeError

__all__ = ["GRU", "LSTM", "LSTMState"]


class LSTMState(NamedTuple):
    """The memory of an `LSTM`."""

    hidden: Tensor
    """[B, H]; also the output of the last row."""
    cell: Tensor
    """[B, H]."""


class LSTM(nn.Module):
    """Long short-term memory over time-major sequences; the memory is 0 before every row where an episode begins.

    Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735, with forget gates as in
    `torch.nn.LSTM`. Orthogonal recurrent weights, biases 0.

    Args:
        in_size: F, features of each row.
        size: H, units.

    Examples:
        >>> lstm = LSTM(3, 8)
        >>> first = torch.tensor([[True, True], [False, True]])
        >>> y, state = lstm(torch.zeros(2, 2, 3), lstm.initial_state(2), first)
        >>> y.shape, state.hidden.shape
        (torch.Size([2, 2, 8]), torch.Size([2, 8]))
    """

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        self.in_size, self.out_size = in_size, size
        self.cells = nn.LSTM(in_size, size)
        _initialise(self.cells)

    def initial_state(self, batch_size: int) -> LSTMState:
        """The memory before an episode: zeros.

        Args:
            batch_size: B.
        """
        zeros = torch.zeros(batch_size, self.out_size, device=_device(self))
        return LSTMState(zeros, zeros.clone())

    def forward(self, x: Tensor, state: LSTMState, first: Tensor) -> tuple[Tensor, LSTMState]:
        """Runs over a sequence.

        Args:
            x: [T, B, F].
            state: the memory after the row before, leaves [B, H].
            first: [T, B] bool, where episodes begin.

        Returns:
            Outputs [T, B, H] and the memory after the last row.

        Raises:
            ShapeError: the arrays do not fit together.
        """
        y, (hidden, cell) = _run(self.cells, x, state, first)
        return y, LSTMState(hidden, cell)


class GRU(nn.Module):
    """Gated recurrent units over time-major sequences; the memory is 0 before every row where an episode begins.

    Cho et al. 2014, https://arxiv.org/abs/1406.1078, as in `torch.nn.GRU`. Orthogonal recurrent weights, biases 0.

    Args:
        in_size: F, features of each row.
        size: H, units.

    Examples:
        >>> gru = GRU(3, 8)
        >>> y, state = gru(torch.zeros(5, 2, 3), gru.initial_state(2), torch.zeros(5, 2, dtype=torch.bool))
        >>> y.shape, state.shape
        (torch.Size([5, 2, 8]), torch.Size([2, 8]))
    """

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        self.in_size, self.out_size = in_size, size
        self.cells = nn.GRU(in_size, size)
        _initialise(self.cells)

    def initial_state(self, batch_size: int) -> Tensor:
        """The memory before an episode: zeros [B, H].

        Args:
            batch_size: B.
        """
        return torch.zeros(batch_size, self.out_size, device=_device(self))

    def forward(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Runs over a sequence.

        Args:
            x: [T, B, F].
            state: [B, H], the memory after the row before.
            first: [T, B] bool, where episodes begin.

        Returns:
            Outputs [T, B, H] and the memory after the last row [B, H].

        Raises:
            ShapeError: the arrays do not fit together.
        """
        y, (hidden,) = _run(self.cells, x, (state,), first)
        return y, hidden


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _run(cells: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], first: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Whole stretches without a FIRST row go through the fused kernel at once."""
    sizes = (cells.input_size, cells.hidden_size)
    if x.ndim != 3 or first.shape != x.shape[:2] or x.shape[2] != sizes[0] or state[0].shape != (x.shape[1], sizes[1]):
        raise ShapeError(
            f"x has shape {list(x.shape)}, first {list(first.shape)} and the state {list(state[0].shape)}; "
            f"they must be [T, B, {sizes[0]}], [T, B] and [B, {sizes[1]}]"
        )
    outputs: list[Tensor] = []
    for start, end in itertools.pairwise([*_stretches(first), x.shape[0]]):
        reset = first[start].bool().unsqueeze(-1)
        # not a product: a memory that is not finite must end with its episode as well
        before = [leaf.masked_fill(reset, 0.0).unsqueeze(0) for leaf in state]  # [1, B, H]
        y, after = cells(x[start:end], tuple(before) if len(before) > 1 else before[0])
        state = tuple(leaf.squeeze(0) for leaf in (after if isinstance(after, tuple) else (after,)))
        outputs.append(y)
    if not outputs:
        return x.new_zeros(0, x.shape[1], sizes[1]), state
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0], state


def _stretches(first: Tensor) -> list[int]:
    """Row 0 and every later row where some lane begins an episode."""
    if torch.compiler.is_compiling():  # a graph cannot depend on values
        return list(range(first.shape[0]))
    rows: list[Any] = first.bool().any(1).tolist()
    return [row for row, begins in enumerate(rows) if begins or row == 0]


@torch.no_grad()
def _initialise(cells: nn.RNNBase) -> None:
    for name, parameter in cells.named_parameters():
        if name.startswith("weight_hh"):
            for gate in parameter.chunk(parameter.shape[0] // cells.hidden_size):
                nn.init.orthogonal_(gate)
        elif name.startswith("bias"):
            nn.init.zeros_(parameter)
