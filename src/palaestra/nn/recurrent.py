"""Recurrent cells over sequences, and any network behind them or behind an encoder that others share."""

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, ShapeError, SpecTree, TensorSpec, tree_map, tree_select
from palaestra.nn.attention import AttentionMemory, require_sequence
from palaestra.nn.config import NetworkConfig
from palaestra.nn.encoder import OwnEncoder, StepEncoder, encoder_of, has_pictures
from palaestra.nn.precision import in_full_precision

__all__ = [
    "EncodedNetwork",
    "OwnMemory",
    "RecurrentCell",
    "RecurrentNetwork",
    "begun",
    "require_memory",
    "with_memory",
    "with_shared_features",
]


Make: TypeAlias = Callable[[SpecTree, NetworkConfig], nn.Module]
"""Makes a network, of the spec of its input and a config without a recurrent cell."""


class RecurrentCell(nn.Module):
    """Recurrent cells over time-major sequences; the state is 0 before every row where an episode begins.

    `lstm`: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735, with forget gates as in
    `torch.nn.LSTM`. `gru`: Cho et al. 2014, https://arxiv.org/abs/1406.1078, as in `torch.nn.GRU`. Orthogonal recurrent
    weights, biases 0. The state of B lanes is a `Batch` of leaves [B, H]: `hidden`, which is also the output of the
    last row, and for an LSTM `cell`.

    With a span T > 1, biases of the gates that keep start at log u, u uniform in [1, T - 1], so that units forget a
    1 / (1 + u) of what they hold in each step: Tallec and Ollivier 2018, https://arxiv.org/abs/1804.11188, section 3.
    Departure: biases of an LSTM's input gates stay 0, for what is seen once would come in by as little.

    Args:
        kind: "lstm" or "gru".
        in_size: F, features of each row.
        size: H, units.
        span: T, the most steps that a unit remembers at first.

    Raises:
        ConfigError: the kind is unknown.

    Examples:
        >>> lstm = RecurrentCell("lstm", 3, 8)
        >>> first = torch.tensor([[True, True], [False, True]])
        >>> y, state = lstm(torch.zeros(2, 2, 3), lstm.initial_state(2), first)
        >>> y.shape, state.hidden.shape, state.cell.shape
        (torch.Size([2, 2, 8]), torch.Size([2, 8]), torch.Size([2, 8]))
    """

    def __init__(self, kind: str, in_size: int, size: int, span: int = 1) -> None:
        super().__init__()
        if kind not in ("lstm", "gru"):
            raise ConfigError(f"unknown recurrent cell {kind!r}; known are lstm and gru")
        self.in_size, self.out_size = in_size, size
        self.cells = nn.LSTM(in_size, size) if kind == "lstm" else nn.GRU(in_size, size)
        self.leaves = ("hidden", "cell") if kind == "lstm" else ("hidden",)
        """Names of what it remembers."""
        for name, parameter in self.cells.named_parameters():
            if name.startswith("weight_hh"):
                for gate in parameter.detach().chunk(parameter.shape[0] // size):
                    nn.init.orthogonal_(gate)
            elif name.startswith("bias"):
                nn.init.zeros_(parameter)
                if name.startswith("bias_ih") and span > 1:
                    # the second gate: "forget" of an LSTM, "update" of a GRU
                    parameter.detach()[size : 2 * size].uniform_(1, span - 1).log_()

    @property
    def state_spec(self) -> dict[str, TensorSpec]:
        """Spec of one lane's memory."""
        return dict.fromkeys(self.leaves, TensorSpec((self.out_size,)))

    def initial_state(self, batch_size: int) -> Batch:
        """The memory before an episode: zeros.

        Args:
            batch_size: B.
        """
        device = next(self.parameters()).device
        return Batch.of({name: spec.zeros(batch_size).to(device) for name, spec in self.state_spec.items()})

    def forward(self, x: Tensor, state: Batch, first: Tensor) -> tuple[Tensor, Batch]:
        """Runs over a sequence; whole stretches without a FIRST row go through the fused kernel at once.

        Args:
            x: [T, B, F].
            state: the memory after the row before, leaves [B, H].
            first: [T, B] bool, where episodes begin.

        Returns:
            Outputs [T, B, H] and the memory after the last row.

        Raises:
            ShapeError: the arrays do not fit together.
        """
        leaves = [state[name] for name in self.leaves]
        require_sequence(x, first, leaves[0], self.in_size, (self.out_size,))
        outputs: list[Tensor] = []
        for start, end in itertools.pairwise([*_stretches(first), x.shape[0]]):
            reset = first[start].bool().unsqueeze(-1)
            # not a product: a memory that is not finite must end with its episode as well
            before = [leaf.masked_fill(reset, 0.0).unsqueeze(0) for leaf in leaves]  # [1, B, H]
            y, after = in_full_precision(self.cells, x[start:end], tuple(before) if len(before) > 1 else before[0])
            leaves = [leaf.squeeze(0) for leaf in (after if isinstance(after, tuple) else (after,))]
            outputs.append(y)
        if not outputs:
            return x.new_zeros(0, x.shape[1], self.out_size), state
        y = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return y, Batch.of(dict(zip(self.leaves, leaves, strict=True)))


def _stretches(first: Tensor) -> list[int]:
    """Row 0 and every later row where some lane begins an episode."""
    if torch.compiler.is_compiling():  # a graph cannot depend on values
        return list(range(first.shape[0]))
    rows: list[Any] = first.bool().any(1).tolist()
    return [row for row, begins in enumerate(rows) if begins or row == 0]


class OwnMemory(OwnEncoder):
    """The user's module with a memory of its own, over time-major sequences.

    It is made as that of `OwnEncoder` is, and has `initial_state(batch_size)`, a dict of tensors [N, ...]. It is called
    with one step of N lanes and their state, `module(observation, state)`, and gives features and the new state.
    """

    state_spec: dict[str, TensorSpec]
    """Spec of one lane's memory."""
    _remembers = True

    @torch.no_grad()
    def initial_state(self, batch_size: int) -> Batch:
        """The memory before an episode, on the module's device.

        Args:
            batch_size: B.
        """
        return self._initial(batch_size)

    def _initial(self, batch_size: int) -> Batch:
        device = next((parameter.device for parameter in self.module.parameters()), None)
        return Batch.of({name: leaf.to(device) for name, leaf in self.module.initial_state(batch_size).items()})

    def forward(self, observation: Any, state: Batch, first: Tensor) -> tuple[Tensor, Batch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Runs over a sequence, step by step.

        Args:
            observation: leaves [T, B, ...].
            state: the memory after the row before, leaves [B, ...].
            first: [T, B] bool, where episodes begin.

        Returns:
            Outputs [T, B, F] and the memory after the last row.
        """
        outputs: list[Tensor] = []
        for row, begins in enumerate(first.bool()):
            state = begun(state, self._initial(begins.shape[0]), begins)
            y, after = self.module(self._rows(tree_select(observation, row))[0], state)
            state = Batch.of(dict(after.items()))
            outputs.append(y)
        return torch.stack(outputs), state

    def _called(self, given: Any) -> Any:
        state: Any = self.module.initial_state(2)
        leaves = list(state.values()) if isinstance(state, dict) else []
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (2,) for leaf in leaves):
            raise ConfigError(
                f"{type(self.module).__name__}.initial_state(2) is {state!r}; it must be a dict of tensors [2, ...]"
            )
        self.state_spec = _leaf_specs(state)
        gave = self.module.eval()(given, Batch.of(state))
        if not (isinstance(gave, tuple | list) and len(gave) == 2 and isinstance(gave[1], dict | Batch)):
            raise ConfigError(
                f"{type(self.module).__name__} was called with an observation and its state, and gave "
                f"{type(gave).__name__}; it must give (features, state), and the state as initial_state does, a dict"
            )
        features, after = gave
        if _leaf_specs(after) != self.state_spec:
            raise ConfigError(
                f"{type(self.module).__name__}.initial_state gives {self.state_spec}, but a call gave the state "
                f"{_leaf_specs(after)}; one step must give as many numbers as it takes"
            )
        return features


def _leaf_specs(state: Any) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(leaf.shape[1:]), leaf.dtype) for name, leaf in state.items()}


def begun(state: Batch, initial: Batch, first: Tensor) -> Batch:
    """A state with the initial one in rows where an episode begins.

    Args:
        state: leaves [B, ...].
        initial: leaves [B, ...].
        first: [B] bool.
    """
    return state.map(lambda old, new: torch.where(first.reshape(-1, *(1,) * (old.ndim - 1)), new, old), initial)


class RecurrentNetwork(nn.Module):
    """An encoder, a memory, and a network that sees the memory's output instead of the observation.

    The memory is a `RecurrentCell`, an `AttentionMemory` or an `OwnMemory`, whose pages say what its state looks like.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        config: `recurrent` and `recurrent_size` are the memory, the rest is for `make`.
        make: the network on top, of the spec of its input and a config without memory.
        encoder: instead of the one that the config asks for, where the memory sees more than observations.

    Raises:
        ConfigError: the config names no memory, a size is impossible, or layers are noisy.

    Examples:
        >>> from palaestra.nn import QNetwork
        >>> config = NetworkConfig(recurrent="gru", recurrent_size=16)
        >>> network = RecurrentNetwork(TensorSpec((4,)), config, lambda spec, config: QNetwork(spec, 2, config))
        >>> features, memory = network.remember(torch.zeros(8, 4), network.initial_state(8))
        >>> features.shape, memory.hidden.shape, network.head(features).shape
        (torch.Size([8, 16]), torch.Size([8, 16]), torch.Size([8, 2]))
    """

    def __init__(
        self, observation_spec: SpecTree, config: NetworkConfig, make: Make, encoder: StepEncoder | None = None
    ) -> None:
        super().__init__()
        if config.noisy:
            raise ConfigError("noisy=True and a memory do not go together; leave out one of them")
        if config.recurrent == "own" and config.encoder is None:
            raise ConfigError(
                "network.recurrent is 'own', so give network.encoder, a network of your own with a memory"
            )
        own = OwnMemory(observation_spec, config.encoder) if config.recurrent == "own" else None
        self.has_head = own is not None and own.has_head
        self.encoder: Any = nn.Identity() if own else encoder or encoder_of(observation_spec, config)
        if own:
            self.memory = own
        elif config.recurrent == "attention":
            self.memory = AttentionMemory(self.encoder.out_size, config)
        else:
            size, span = config.recurrent_size, config.recurrent_span
            self.memory = RecurrentCell(str(config.recurrent), self.encoder.out_size, size, span)
        self.feature_spec = TensorSpec((self.memory.out_size,))
        self.head = make(self.feature_spec, config.on_features(has_head=self.has_head))

    @property
    def state_spec(self) -> dict[str, TensorSpec]:
        """Spec of one lane's memory."""
        return self.memory.state_spec

    def initial_state(self, batch_size: int) -> Batch:
        """The memory before an episode: zeros.

        Args:
            batch_size: B.
        """
        return self.memory.initial_state(batch_size)

    def remember(self, observation: Any, state: Any, first: Tensor | None = None) -> tuple[Tensor, Batch]:
        """Takes observations into memory.

        Args:
            observation: leaves [T, B, ...], or [B, ...] for one row of every lane.
            state: the memory before the first row, leaves [B, ...].
            first: [T, B] bool, where episodes begin and the memory with them; `None` stands for one row where none
                does.

        Returns:
            What the network on top sees, [T, B, H] or [B, H], and the memory after the last row.

        Raises:
            ShapeError: there is no state, or the arrays do not fit together.
        """
        require_memory(state)
        code = self.encoder(observation)
        if first is None:
            leaf = next(iter(state.values()))
            never = torch.zeros(1, leaf.shape[0], dtype=torch.bool, device=leaf.device)
            y, after = self.memory(tree_map(lambda rows: rows.unsqueeze(0), code), state, never)
            return y.squeeze(0), after
        return self.memory(code, state, first)

    def forward(self, observation: Any, state: Any, first: Tensor | None = None) -> tuple[Any, Batch]:
        """The outputs of the network on top, and the memory after the last row.

        Args:
            observation: see `remember`.
            state: see `remember`.
            first: see `remember`.
        """
        features, state = self.remember(observation, state, first)
        return self.head(features), state


class EncodedNetwork(nn.Module):
    """An encoder, and a network that sees its code instead of the observation, as other networks may as well.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        make: the network on top, of the spec of its input and the config.

    Raises:
        ConfigError: the config is impossible.

    Examples:
        >>> from palaestra.nn import Network
        >>> picture = TensorSpec((4, 84, 84), torch.uint8)
        >>> network = EncodedNetwork(picture, NetworkConfig(), lambda spec, config: Network(spec, 2, config))
        >>> network.feature_spec.shape, network(torch.zeros(8, 4, 84, 84, dtype=torch.uint8)).shape
        ((512,), torch.Size([8, 2]))
    """

    def __init__(self, observation_spec: SpecTree, config: NetworkConfig, make: Make) -> None:
        super().__init__()
        self.encoder = encoder_of(observation_spec, config, "any")
        self.has_head = self.encoder.has_head
        self.feature_spec = TensorSpec((self.encoder.out_size,))
        self.head = make(self.feature_spec, config.on_features(has_head=self.has_head))

    def forward(self, observation: Any) -> Any:
        """The outputs of the network on top.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
        """
        return self.head(self.encoder(observation))


def with_shared_features(observation_spec: SpecTree, config: NetworkConfig, make: Make) -> nn.Module:
    """The network that a config asks for, apart from what costs most and others can share: a memory, or pictures' code.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        make: the network, of the spec of its input and a config without memory.

    Raises:
        ConfigError: the config is impossible.
    """
    if config.recurrent is None and (config.encoder is not None or has_pictures(observation_spec)):
        return EncodedNetwork(observation_spec, config, make)
    return with_memory(observation_spec, config, make)


def require_memory(state: Any) -> None:
    """Refuses `()`, the state of what has no memory.

    Args:
        state: that a network or policy with a memory was given.

    Raises:
        ShapeError: says what to hand over.
    """
    if isinstance(state, tuple):
        raise ShapeError(
            "what has a memory was given none: hand over initial_state(batch_size) at the start, and the state that "
            "came back after that"
        )


def with_memory(observation_spec: SpecTree, config: NetworkConfig, make: Make) -> nn.Module:
    """The network that a config asks for: as `make` gives it, or behind a memory.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        make: the network, of the spec of its input and a config without memory.

    Raises:
        ConfigError: the config is impossible.
    """
    if config.recurrent is None:
        return make(observation_spec, config)
    return RecurrentNetwork(observation_spec, config, make)
