"""Memory by attention over the last steps: a gated, causal transformer instead of recurrent cells."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu, scaled_dot_product_attention

from palaestra.core import Batch, ConfigError, ShapeError, TensorSpec
from palaestra.nn.config import NetworkConfig

__all__ = ["AttentionMemory"]


class AttentionMemory(nn.Module):
    """A causal transformer over time-major sequences, that sees nothing from before the beginning of an episode.

    Gated Transformer-XL: Parisotto et al. 2019, https://arxiv.org/abs/1910.06764, figure 1 (right) and section 3.2
    with the gates of a GRU. Each step attends to itself and to the W steps before it in its episode; a layer keeps what
    it saw of them, so that L layers reach back L·W steps. Departure: the distance between two steps counts by a learned
    number for each head, as in https://arxiv.org/abs/1910.10683, instead of an encoding of positions.

    The state of B lanes is a `Batch`: `seen` [B, L, W, H], what each layer saw in the last W steps, the latest last;
    and `length` [B], how many of them belong to the episode. A sequence of T steps is one masked attention a layer.

    Args:
        in_size: F, features of each row.
        config: `recurrent_size` is H; `attention_window`, `attention_layers` and `attention_heads` are W, L and heads.

    Raises:
        ConfigError: the heads do not divide the units.

    Examples:
        >>> memory = AttentionMemory(3, NetworkConfig(recurrent_size=8, attention_window=16))
        >>> first = torch.tensor([[True, True], [False, True]])
        >>> y, state = memory(torch.zeros(2, 2, 3), memory.initial_state(2), first)
        >>> y.shape, state.seen.shape, state.length
        (torch.Size([2, 2, 8]), torch.Size([2, 1, 16, 8]), tensor([2, 1]))
    """

    def __init__(self, in_size: int, config: NetworkConfig) -> None:
        super().__init__()
        size, heads = config.recurrent_size, config.attention_heads
        if size % heads:
            raise ConfigError(f"recurrent_size is {size} and attention_heads {heads}, which does not divide it")
        self.in_size, self.out_size, self.window = in_size, size, config.attention_window
        self.embedding = nn.Linear(in_size, size)
        self.layers = nn.ModuleList(_Layer(size, heads, self.window) for _ in range(config.attention_layers))

    @property
    def state_spec(self) -> dict[str, TensorSpec]:
        """Spec of one lane's memory."""
        seen = TensorSpec((len(self.layers), self.window, self.out_size))
        return {"seen": seen, "length": TensorSpec((), torch.int64)}

    def initial_state(self, batch_size: int) -> Batch:
        """The memory before an episode: nothing was seen.

        Args:
            batch_size: B.
        """
        device = self.embedding.weight.device
        return Batch.of({name: spec.zeros(batch_size).to(device) for name, spec in self.state_spec.items()})

    def forward(self, x: Tensor, state: Batch, first: Tensor) -> tuple[Tensor, Batch]:
        """Runs over a sequence at once.

        Args:
            x: [T, B, F].
            state: the memory after the row before.
            first: [T, B] bool, where episodes begin.

        Returns:
            Outputs [T, B, H] and the memory after the last row.

        Raises:
            ShapeError: the arrays do not fit together.
        """
        seen, shape = state["seen"], self.state_spec["seen"].shape
        require_sequence(x, first, seen, self.in_size, shape)
        if not len(x):
            return x.new_zeros(0, x.shape[1], self.out_size), state
        steps = torch.arange(self.window + x.shape[0], device=x.device)  # those in memory, then the rows
        held = steps[: self.window] >= self.window - state["length"].unsqueeze(-1)  # [B, W]
        held = held & ~first[0].bool().unsqueeze(-1)
        row_episode = first[1:].long().cumsum(0).transpose(0, 1)
        row_episode = pad(row_episode, (1, 0))  # [B, T], counted from that of the first row
        episode = torch.cat((held.long() - 1, row_episode), 1)  # [B, W + T]; -1 for what is not to be seen
        distance = steps[self.window :].unsqueeze(-1) - steps  # [T, W + T]
        near = (distance >= 0) & (distance <= self.window)
        visible = near & (row_episode.unsqueeze(-1) == episode.unsqueeze(-2))  # [B, T, W + T]
        distance = distance.clamp(0, self.window)
        # not a product: a memory that is not finite must end with its episode as well (rows of x have to be finite)
        seen = seen.masked_fill(~held[:, None, :, None], 0.0)
        y, kept = self.embedding(x).transpose(0, 1), []
        for index, layer in enumerate(self.layers):
            context = torch.cat((seen[:, index], y), 1)  # [B, W + T, H]
            kept.append(context[:, -self.window :])
            y = layer(y, context, visible, distance)
        length = (episode == row_episode[:, -1:]).sum(1).clamp(max=self.window)
        return y.transpose(0, 1), Batch.of({"seen": torch.stack(kept, 1), "length": length})


def require_sequence(x: Tensor, first: Tensor, leaf: Tensor, in_size: int, shape: tuple[int, ...]) -> None:
    """Refuses arrays that do not fit together.

    Args:
        x: of a sequence.
        first: where episodes begin.
        leaf: of the state.
        in_size: F, features of each row.
        shape: of the leaf of one lane.

    Raises:
        ShapeError: says what shapes there are, and which are needed.
    """
    if tuple(x.shape) != (*first.shape, in_size) or x.ndim != 3 or tuple(leaf.shape) != (x.shape[1], *shape):
        raise ShapeError(
            f"x has shape {list(x.shape)}, first {list(first.shape)} and the state {list(leaf.shape)}; "
            f"they must be [T, B, {in_size}], [T, B] and [B, {', '.join(map(str, shape))}]"
        )


class _Layer(nn.Module):
    """Attention and two linear layers, each behind a normalisation, and gates instead of residual sums."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self._heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.query, self.key_value = nn.Linear(size, size), nn.Linear(size, 2 * size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        self.gates = nn.ModuleList(_Gate(size) for _ in range(2))
        self.distance_bias = nn.Parameter(torch.zeros(heads, window + 1))

    def forward(self, x: Tensor, context: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        """The rows [B, T, H] after attending to the context [B, S, H], of which [B, T, S] is visible."""
        seen = self.norms[0](context)
        query = self.query(seen[:, -x.shape[1] :])
        key, value = self.key_value(seen).chunk(2, -1)
        query, key, value = (part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in (query, key, value))
        bias = self.distance_bias[:, distance].masked_fill(~visible.unsqueeze(1), -torch.inf)  # [B, heads, T, S]
        attended = scaled_dot_product_attention(query, key, value, bias).transpose(1, 2).flatten(2)
        x = self.gates[0](x, relu(self.out(attended)))
        return self.gates[1](x, relu(self.mlp(self.norms[1](x))))


class _Gate(nn.Module):
    """The gate of a GRU between a residual stream and what is to be added; at first it lets little through."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.added = nn.Linear(size, 3 * size)
        self.stream = nn.Linear(size, 2 * size, bias=False)
        self.candidate = nn.Linear(size, size, bias=False)
        with torch.no_grad():
            self.added.bias.zero_()
            self.added.bias[size : 2 * size] = -2.0  # b_g of section 3.2

    def forward(self, stream: Tensor, added: Tensor) -> Tensor:
        reset, update, new = self.added(added).chunk(3, -1)
        stream_reset, stream_update = self.stream(stream).chunk(2, -1)
        update = torch.sigmoid(update + stream_update)
        candidate = torch.tanh(new + self.candidate(torch.sigmoid(reset + stream_reset) * stream))
        return torch.lerp(stream, candidate, update)
