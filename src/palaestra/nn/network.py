"""Networks that algorithms are built from: observation in, numbers out; alone or many at once."""

from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError, SpecTree
from palaestra.nn.batch_norm import batch_norms
from palaestra.nn.blocks import ACTIVATIONS, MLP, NoisyMLP
from palaestra.nn.config import NetworkConfig
from palaestra.nn.encoder import encoder_of
from palaestra.nn.ensemble import ensemble_of
from palaestra.nn.fast import call
from palaestra.nn.precision import has_bfloat16_products, in_full_precision

__all__ = ["CompositeNetwork", "EnsembleNetwork", "GaussianNetwork", "Network", "QNetwork", "mlp_of"]


_PLAIN = NetworkConfig()


class Network(nn.Module):
    """An encoder and fully connected layers: a policy's logits, a state value, or anything of fixed size.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        out_size: numbers for each observation.
        out_gain: scale of the last layer's initial weights.

    Raises:
        ConfigError: a size or name in the config is impossible, or the config asks for dueling, noisy layers or a
            memory.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> Network(TensorSpec((4,)), 2)(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """

    def __init__(
        self, observation_spec: SpecTree, out_size: int, config: NetworkConfig = _PLAIN, *, out_gain: float = 1.0
    ) -> None:
        super().__init__()
        _refuse_streams(config)
        self.out_size = out_size
        self.encoder = encoder_of(observation_spec, config, out_size)
        self.mlp: Any = _OwnHead()
        if not self.encoder.has_head:
            self.mlp = mlp_of(self.encoder.out_size, config.hidden_sizes, out_size, config, out_gain=out_gain)
        self._encodes = not self.encoder.is_identity

    def forward(self, observation: Any, moments: list[Tensor] | None = None) -> Tensor:
        """The output for every observation.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            moments: see `BatchNorm`; observations are a minibatch [N, ...] then.

        Returns:
            [..., out_size].
        """
        x = self.encoder(observation) if self._encodes else observation
        return call(self, "mlp", x) if moments is None else self.mlp(x, moments)

    @property
    def hidden_size(self) -> int:
        """Features that `hidden` gives."""
        if self.encoder.has_head:
            raise ConfigError("the encoder has_head, so that there are no features for another one; leave out its head")
        return self.mlp.layers[-1].in_features

    def hidden(self, observation: Any) -> Tensor:
        """What the last layer sees, for another head on the same features.

        Args:
            observation: as for a call.

        Returns:
            [..., hidden_size].
        """
        return self.mlp.hidden(self.encoder(observation))


class QNetwork(nn.Module):
    """A value for every action; with `config.dueling`, from a state value and advantages.

        Q(s, a) = V(s) + A(s, a) − mean over a' of A(s, a')

    Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation (9). The last hidden layer is doubled, one for each
    stream; the ones before are shared. With `config.noisy` all layers after the encoder are `NoisyMLP`.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        num_actions: A.
        num_outputs: Q numbers for every action instead of one.

    Raises:
        ConfigError: a size or name in the config is impossible.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> QNetwork(TensorSpec((4,)), 2, NetworkConfig(dueling=True))(torch.zeros(8, 4)).shape
        torch.Size([8, 2])
    """

    def __init__(
        self,
        observation_spec: SpecTree,
        num_actions: int,
        config: NetworkConfig = _PLAIN,
        *,
        num_outputs: int | None = None,
    ) -> None:
        super().__init__()
        self.num_actions, self._num_outputs = num_actions, num_outputs
        size = num_outputs or 1
        self.encoder = encoder_of(observation_spec, config, num_actions * size)
        self._encodes = not self.encoder.is_identity
        self._dueling = config.dueling and not self.encoder.has_head
        make = _noisy_mlp if config.noisy else mlp_of
        if self.encoder.has_head:
            self.mlp = _OwnHead()
        elif config.dueling:
            shared, stream = config.hidden_sizes[:-1], config.hidden_sizes[-1:]
            self.mlp = make(self.encoder.out_size, shared, None, config)
            self.value = make(self.mlp.out_size, stream, size, config)
            self.advantage = make(self.mlp.out_size, stream, num_actions * size, config)
        else:
            self.mlp = make(self.encoder.out_size, config.hidden_sizes, num_actions * size, config)
        self._parts = [part.noise_size for part in self.children() if isinstance(part, NoisyMLP)]
        self.noise_size = sum(self._parts)
        """Random numbers that one row needs; 0 without noisy layers."""

    def forward(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        """Action values for every observation.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            noise: [..., noise_size] standard normal, for noisy layers; `None` takes their mean weights.

        Returns:
            [..., A] units of return; [..., A, Q] where `num_outputs` was given.
        """
        if self._encodes:
            observation = self.encoder(observation)
        if noise is not None or self._dueling:
            return self._streams(observation, noise)
        out = call(self, "mlp", observation)
        return out if self._num_outputs is None else out.unflatten(-1, (self.num_actions, self._num_outputs))

    def _streams(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """With dueling or noisy layers."""
        noises = [()] * 3 if noise is None else [(part,) for part in noise.split(self._parts, -1)]
        out, count = self.mlp(x, *noises[0]), self._num_outputs or 1
        if self._dueling:
            value = self.value(out, *noises[1]).unsqueeze(-2)  # [..., 1, Q]
            advantage = self.advantage(out, *noises[2]).unflatten(-1, (self.num_actions, count))
            out = value + advantage - advantage.mean(-2, keepdim=True)
        else:
            out = out.unflatten(-1, (self.num_actions, count))
        return out.squeeze(-1) if self._num_outputs is None else out


class GaussianNetwork(nn.Module):
    """The mean of a normal distribution for every observation, and a standard deviation that is learned apart.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        action_size: A.
        out_gain: scale of the last layer's initial weights.

    Raises:
        ConfigError: a size or name in the config is impossible.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> mean, log_std = GaussianNetwork(TensorSpec((4,)), 2)(torch.zeros(8, 4))
        >>> mean.shape, log_std.shape
        (torch.Size([8, 2]), torch.Size([2]))
    """

    def __init__(
        self,
        observation_spec: SpecTree,
        action_size: int,
        config: NetworkConfig = _PLAIN,
        *,
        out_gain: float = 0.01,
    ) -> None:
        super().__init__()
        self.mean = Network(observation_spec, action_size, config, out_gain=out_gain)
        self.log_std = nn.Parameter(torch.full((action_size,), float(config.initial_log_std)))

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation for every observation.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.

        Returns:
            Mean [..., A], and log σ [A], the same for all rows: `ops.DiagonalGaussian` takes the two as they are.
        """
        return call(self, "mean", observation), self.log_std


class CompositeNetwork(nn.Module):
    """Numbers for every observation, and standard deviations that are learned apart: what `CompositePolicy` needs.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        out_size: D, numbers for each observation.
        num_std: S, standard deviations; may be 0.

    Raises:
        ConfigError: a size or name in the config is impossible.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> numbers, log_std = CompositeNetwork(TensorSpec((4,)), 7, 2)(torch.zeros(8, 4))
        >>> numbers.shape, log_std
        (torch.Size([8, 7]), Parameter containing:
        tensor([0., 0.], requires_grad=True))
    """

    def __init__(self, observation_spec: SpecTree, out_size: int, num_std: int, config: NetworkConfig = _PLAIN) -> None:
        super().__init__()
        self.numbers = Network(observation_spec, out_size, config, out_gain=0.01)
        self.log_std = nn.Parameter(torch.full((num_std,), float(config.initial_log_std))) if num_std else None

    def forward(self, observation: Any) -> tuple[Tensor, Tensor | None]:
        """Numbers and log standard deviations for every observation.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.

        Returns:
            Numbers [..., D], and log σ [S], the same for all rows, or `None` where S is 0.
        """
        return self.numbers(observation), self.log_std


def _refuse_streams(config: NetworkConfig) -> None:
    for option in ("dueling", "noisy"):
        if getattr(config, option):
            raise ConfigError(
                f"network.{option} is for action values, which this network has not; use it with QNetwork only"
            )


class _OwnHead(nn.Module):
    """Instead of layers on top of a module that has a head."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return x.float()  # of products in bfloat16


def mlp_of(
    in_size: int, hidden_sizes: tuple[int, ...], out_size: int | None, config: NetworkConfig, *, out_gain: float = 1.0
) -> MLP:
    """The fully connected layers that a config describes.

    Args:
        in_size: features of the input.
        hidden_sizes: units of each hidden layer.
        out_size: features of the output; `None` ends with the last hidden layer.
        config: the activation and how weights start.
        out_gain: scale of the last layer's initial weights.

    Raises:
        ConfigError: the config asks for a memory.
    """
    if config.recurrent:
        raise ConfigError(
            f"network.recurrent is {config.recurrent!r}, but this network cannot have a memory; leave it out (networks "
            "of your own get one by nn.with_memory, as in PPO, REINFORCE and R2D2)"
        )
    made: Any = {"activation": config.activation, "init": config.init, "layers": config.layers}
    return MLP(in_size, hidden_sizes, out_size, **made, out_gain=out_gain)


def _noisy_mlp(in_size: int, hidden_sizes: tuple[int, ...], out_size: int | None, config: NetworkConfig) -> NoisyMLP:
    if config.layers != "linear":
        raise ConfigError(
            f"noisy=True and {config.layers}: layers with noise are linear, and not normalised; leave out one of them"
        )
    return NoisyMLP(in_size, hidden_sizes, out_size, activation=config.activation)


class EnsembleNetwork(nn.Module):
    """K fully connected networks on one encoded observation, and on an action where `action_size` says so.

    Member k is the network that `MLP` would be; its weights are entry k of `[K, in, out]` parameters, so K critics cost
    one call per layer instead of K. Members start from draws of their own. An encoder of images is shared by all.

    Args:
        observation_spec: what an observation looks like, without leading dimensions.
        out_size: numbers for each input, of each member.
        num_members: K.
        action_size: A numbers that follow the encoded observation; 0 for networks of the observation alone.

    Raises:
        ConfigError: a size or name in the config is impossible, or the config asks for dueling or noisy layers, or
            for a memory.

    Examples:
        >>> from palaestra.core import TensorSpec
        >>> critics = EnsembleNetwork(TensorSpec((4,)), 1, 2, action_size=3)
        >>> critics(torch.zeros(8, 4), torch.zeros(8, 3)).shape
        torch.Size([2, 8, 1])
    """

    def __init__(
        self,
        observation_spec: SpecTree,
        out_size: int,
        num_members: int,
        config: NetworkConfig = _PLAIN,
        *,
        action_size: int = 0,
    ) -> None:
        super().__init__()
        _refuse_streams(config)
        if num_members < 1:
            raise ConfigError(f"an ensemble was given num_members={num_members}; it needs at least 1")
        self.out_size = out_size
        self.encoder = encoder_of(observation_spec, config)
        self._encodes = not self.encoder.is_identity
        in_size = self.encoder.out_size + action_size
        members = [mlp_of(in_size, config.hidden_sizes, out_size, config) for _ in range(num_members)]
        self.layers = nn.ModuleList(map(ensemble_of, zip(*(member.layers for member in members), strict=True)))
        self._num_activations, self._last = members[0].num_activations, len(self.layers) - 1
        self._function, self._last_mixes = ACTIVATIONS[config.activation], bool(batch_norms(self.layers[-1]))

    def forward(
        self,
        observation: Any,
        action: Tensor | None = None,
        *,
        members: Any = None,
        moments: list[Tensor] | None = None,
        rows: slice = slice(None),
    ) -> Tensor:
        """Outputs of the members.

        Args:
            observation: a tensor or `Batch` as the spec says, with any leading dimensions.
            action: [..., A], where the networks take one.
            members: which to ask: [M] int64, or a slice; default all K.
            moments: see `BatchNorm`; observations are a minibatch [N, ...] then, and all members are asked.
            rows: of a minibatch, for which they answer; moments are those of all rows.

        Returns:
            [K, ..., out_size], or [M, ..., out_size].
        """
        x = self.encoder(observation) if self._encodes else observation
        if action is not None:
            x = torch.cat((x, action), -1)
        leading, num_activations = x.shape[:-1], self._num_activations
        if len(leading) != 1:
            x = x.reshape(-1, x.shape[-1])  # [N, in]
        for index, layer in enumerate(self.layers):
            if index == self._last and not self._last_mixes:
                x, rows = x[..., rows, :], slice(None)
            if index == self._last and has_bfloat16_products(x):
                x = in_full_precision(layer, x, members, moments)
                break
            x = layer(x, members, moments)  # [K, N, out]
            if index < num_activations:
                x = self._function(x)
        return x[:, rows] if len(leading) == 1 else x.reshape(x.shape[0], *leading, self.out_size)
