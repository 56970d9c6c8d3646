"""`RecurrentNetwork` and `EncodedNetwork`: any network behind a memory, or behind an encoder that others share."""

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, ShapeError, SpecTree, TensorSpec, did_you_mean
from palaestra.nn.config import NetworkConfig, Recurrent
from palaestra.nn.encoder import encoder_of, has_pictures
from palaestra.nn.recurrent import GRU, LSTM, LSTMState

__all__ = ["EncodedNetwork", "RecurrentNetwork", "with_memory", "with_shared_features"]

_CELLS = {"lstm": LSTM, "gru": GRU}


class RecurrentNetwork(nn.Module):
    """An encoder, a memory, and a network that sees the memory's output instead of the observation.

    The memory of B lanes is a `Batch` of leaves [B, H]: `hidden`, and for an LSTM `cell`.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        config: `recurrent` and `recurrent_size` are the memory, the rest is for `make`.
        make: the network on top, of the spec of its input and a config without memory.

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
        self, observation_spec: SpecTree, config: NetworkConfig, make: Callable[[SpecTree, NetworkConfig], nn.Module]
    ) -> None:
        super().__init__()
        if config.recurrent not in _CELLS:
            hint = did_you_mean(str(config.recurrent), get_args(Recurrent))
            raise ConfigError(f"unknown memory {config.recurrent!r}{hint}; known are {list(_CELLS)}")
        if config.recurrent_size < 1:
            raise ConfigError(f"recurrent_size is {config.recurrent_size}; it must be at least 1")
        if config.noisy:
            raise ConfigError("noisy=True and a memory do not go together; leave out one of them")
        self.encoder = encoder_of(observation_spec, config)
        self.memory = _CELLS[config.recurrent](self.encoder.out_size, config.recurrent_size)
        self.feature_spec = TensorSpec((config.recurrent_size,))
        self.head = make(self.feature_spec, config.on_features())

    @property
    def state_spec(self) -> dict[str, TensorSpec]:
        """What the memory of one lane looks like."""
        names = ("hidden", "cell") if isinstance(self.memory, LSTM) else ("hidden",)
        return dict.fromkeys(names, self.feature_spec)

    def initial_state(self, batch_size: int) -> Batch:
        """The memory before an episode: zeros.

        Args:
            batch_size: B.
        """
        return _batch(self.memory.initial_state(batch_size))

    def remember(self, observation: Any, state: Any, first: Tensor | None = None) -> tuple[Tensor, Batch]:
        """Takes observations into memory.

        Args:
            observation: leaves [T, B, ...], or [B, ...] for one row of every lane.
            state: the memory before the first row, leaves [B, H].
            first: [T, B] bool, where episodes begin and the memory with them; `None` stands for one row where none
                does.

        Returns:
            What the network on top sees, [T, B, H] or [B, H], and the memory after the last row.

        Raises:
            ShapeError: there is no state, or the arrays do not fit together.
        """
        if isinstance(state, tuple):
            raise ShapeError(
                "this network has a memory and was given none: hand over initial_state(batch_size) at the start, and "
                "the state that came back after that"
            )
        before = LSTMState(state.hidden, state.cell) if isinstance(self.memory, LSTM) else state.hidden
        code = self.encoder(observation)
        if first is None:
            never = torch.zeros(1, code.shape[0], dtype=torch.bool, device=code.device)
            y, after = self.memory(code.unsqueeze(0), before, never)
            return y.squeeze(0), _batch(after)
        y, after = self.memory(code, before, first)
        return y, _batch(after)

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
        config: of the whole.
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

    def __init__(
        self, observation_spec: SpecTree, config: NetworkConfig, make: Callable[[SpecTree, NetworkConfig], nn.Module]
    ) -> None:
        super().__init__()
        self.encoder = encoder_of(observation_spec, config)
        self.feature_spec = TensorSpec((self.encoder.out_size,))
        self.head = make(self.feature_spec, config.on_features())

    def forward(self, observation: Any) -> Any:
        """The outputs of the network on top.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
        """
        return self.head(self.encoder(observation))


def with_shared_features(
    observation_spec: SpecTree, config: NetworkConfig, make: Callable[[SpecTree, NetworkConfig], nn.Module]
) -> nn.Module:
    """The network that a config asks for, apart from what costs most and others can share: a memory, or pictures' code.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        config: of the whole.
        make: the network, of the spec of its input and a config without memory.

    Raises:
        ConfigError: the config is impossible.
    """
    if config.recurrent is None and (config.encoder is not None or has_pictures(observation_spec)):
        return EncodedNetwork(observation_spec, config, make)
    return with_memory(observation_spec, config, make)


def with_memory(
    observation_spec: SpecTree, config: NetworkConfig, make: Callable[[SpecTree, NetworkConfig], nn.Module]
) -> nn.Module:
    """The network that a config asks for: as `make` gives it, or behind a memory.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        config: of the whole.
        make: the network, of the spec of its input and a config without memory.

    Raises:
        ConfigError: the config is impossible.
    """
    if config.recurrent is None:
        return make(observation_spec, config)
    return RecurrentNetwork(observation_spec, config, make)


def _batch(state: LSTMState | Tensor) -> Batch:
    return Batch.of(state._asdict() if isinstance(state, LSTMState) else {"hidden": state})
