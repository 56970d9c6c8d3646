"""A world model that is learned: what is remembered of observations, what comes next, and what that would look like."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palaestra.core import Batch, ConfigError, SpecTree, TensorSpec, spec_leaves, tree_paths
from palaestra.nn.config import NetworkConfig
from palaestra.nn.encoder import Encoder, channels_first, encoder_of, integers_of, picture_shape, without_mask
from palaestra.nn.network import mlp_of
from palaestra.ops import symexp, symlog, two_hot

__all__ = ["Decoder", "LatentDynamics", "LatentOptions", "LatentSequence", "SymexpHead", "WorldModel"]

_UNIMIX = 0.01
"""The share of every distribution that is uniform, so that no divergence is infinite."""


class LatentOptions(NamedTuple):
    """Sizes of a latent state."""

    memory_size: int
    """D, units of the recurrent cell."""
    num_latents: int
    """S, categorical variables."""
    num_classes: int
    """C, values of each of them."""


class LatentSequence(NamedTuple):
    """What `LatentDynamics.observe` finds in sequences."""

    memory: Tensor
    """[T, N, D]."""
    latent: Tensor
    """[T, N, S * C] one-hot codes, one after another; their gradient is that of the probabilities."""
    posterior: Tensor
    """[T, N, S, C] probabilities of the latents, observations known."""

    @property
    def features(self) -> Tensor:
        """[T, N, D + S * C] what everything is predicted from."""
        return torch.cat((self.memory, self.latent), -1)


class LatentDynamics(nn.Module):
    """A recurrent state-space model with categorical latents.

        hₜ = f(hₜ₋₁, zₜ₋₁, aₜ₋₁),   zₜ ~ q(zₜ | hₜ, xₜ),   ẑₜ ~ p(ẑₜ | hₜ)

    Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2, "World model learning", with one cell, not blocks;
    the cell is that of Hafner et al. 2021, https://arxiv.org/abs/2010.02193: a GRU whose gates are normalised together,
    and whose update gate starts low. Probabilities are mixed with 1% of uniform ones; gradients go straight through the
    samples. The state before an episode is zeros.

    Args:
        code_size: E, numbers in the code of an observation.
        action_size: A, numbers in the code of an action.
        options: sizes of the state.
        config: `hidden_sizes[-1:]` is the hidden layer of each of the three networks around the cell.

    Examples:
        >>> dynamics = LatentDynamics(5, 2, LatentOptions(8, 3, 4), NetworkConfig())
        >>> memory = dynamics.advance(torch.zeros(6, 8), torch.zeros(6, 12), torch.zeros(6, 2))
        >>> dynamics.prior(memory).shape, dynamics.posterior(memory, torch.zeros(6, 5)).shape
        (torch.Size([6, 3, 4]), torch.Size([6, 3, 4]))
    """

    def __init__(self, code_size: int, action_size: int, options: LatentOptions, config: NetworkConfig) -> None:
        super().__init__()
        self.options = options
        size, units, codes = options.memory_size, config.hidden_sizes[-1:], options.num_latents * options.num_classes
        self.inputs = mlp_of(codes + action_size, units, None, config)
        self.gates = nn.Linear(self.inputs.out_size + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size)
        self.prior_head = mlp_of(size, units, codes, config)
        self.posterior_head = mlp_of(size + code_size, units, codes, config)

    def advance(self, memory: Tensor, latent: Tensor, action: Tensor) -> Tensor:
        """The memory after an action.

        Args:
            memory: [..., D].
            latent: [..., S * C].
            action: [..., A] encoded.

        Returns:
            [..., D].
        """
        x = self.inputs(torch.cat((latent, action), -1))
        reset, candidate, update = self.norm(self.gates(torch.cat((x, memory), -1)).float()).chunk(3, -1)
        candidate, update = (reset.sigmoid() * candidate).tanh(), (update - 1).sigmoid()
        return torch.lerp(memory, candidate, update)

    def prior(self, memory: Tensor) -> Tensor:
        """Probabilities [..., S, C] of the latents, the observation not known.

        Args:
            memory: [..., D].
        """
        return self._probs(self.prior_head(memory))

    def posterior(self, memory: Tensor, code: Tensor) -> Tensor:
        """Probabilities [..., S, C] of the latents, the observation known.

        Args:
            memory: [..., D].
            code: [..., E] of the observation.
        """
        return self._probs(self.posterior_head(torch.cat((memory, code), -1)))

    def _probs(self, logits: Tensor) -> Tensor:
        probs = logits.unflatten(-1, (self.options.num_latents, self.options.num_classes)).softmax(-1)
        return (1 - _UNIMIX) * probs + _UNIMIX / self.options.num_classes

    def sample(self, probs: Tensor, uniform: Tensor) -> Tensor:
        """One-hot codes of latents.

        Args:
            probs: [..., S, C].
            uniform: [..., S] random numbers in [0, 1).

        Returns:
            [..., S * C]; their gradient is that of the probabilities.
        """
        passed = probs.detach().cumsum(-1) <= uniform.unsqueeze(-1)
        index = passed.sum(-1).clamp(max=self.options.num_classes - 1)
        code = nn.functional.one_hot(index, self.options.num_classes).to(probs.dtype)
        return (code + probs - probs.detach()).flatten(-2)

    def most_probable(self, probs: Tensor) -> Tensor:
        """One-hot codes [..., S * C] of the most probable latents.

        Args:
            probs: [..., S, C].
        """
        return nn.functional.one_hot(probs.argmax(-1), self.options.num_classes).to(probs.dtype).flatten(-2)

    def observe(self, code: Tensor, action: Tensor, first: Tensor, state: Any, uniform: Tensor) -> LatentSequence:
        """Runs over sequences of observations.

        Args:
            code: [T, N, E] of observations.
            action: [T, N, A] encoded, the one before each of them.
            first: [T, N] bool, where episodes begin, and the state with them.
            state: before row 0, leaves [N, ...] `memory` and `latent`.
            uniform: [T, N, S] random numbers in [0, 1).
        """
        memory, latent = state["memory"], state["latent"]
        begins = first.unsqueeze(-1)
        action = action.masked_fill(begins, 0.0)
        steps: list[LatentSequence] = []
        for t in range(len(code)):
            memory, latent = memory.masked_fill(begins[t], 0.0), latent.masked_fill(begins[t], 0.0)
            memory = self.advance(memory, latent, action[t])
            probs = self.posterior(memory, code[t])
            latent = self.sample(probs, uniform[t])
            steps.append(LatentSequence(memory, latent, probs))
        return LatentSequence(*map(torch.stack, zip(*steps, strict=True)))


class WorldModel(nn.Module):
    """What an agent needs to know where it is: a code of observations, and `LatentDynamics`.

    Numbers of an observation are encoded as `symlog` of themselves, and pictures by the network that the config names.

    Args:
        observation_spec: of what it sees.
        action_size: A, numbers in the code of an action.
        options: sizes of the state.

    Raises:
        ConfigError: a size is impossible, or the config asks for another memory.
    """

    def __init__(
        self, observation_spec: SpecTree, action_size: int, options: LatentOptions, config: NetworkConfig
    ) -> None:
        super().__init__()
        if config.recurrent is not None or min(options.memory_size, options.num_latents, options.num_classes - 1) < 1:
            raise ConfigError(
                f"a world model was given network.recurrent={config.recurrent!r} and {options}; it has a memory of its "
                "own, so leave out network.recurrent, and give at least 1 unit of memory, 1 latent and 2 classes"
            )
        if config.dueling or config.noisy:
            raise ConfigError("world models are neither dueling nor noisy; leave network.dueling and network.noisy off")
        self.encoder = encoder_of(observation_spec, config)
        inner = config.on_features()
        self.embedding = mlp_of(self.encoder.out_size, inner.hidden_sizes, None, inner)
        self.dynamics = LatentDynamics(self.embedding.out_size, action_size, options, inner)
        codes = options.num_latents * options.num_classes
        sizes = {"memory": options.memory_size, "latent": codes, "action": action_size}
        self.state_spec = {name: TensorSpec((size,)) for name, size in sizes.items()}
        """The state of one lane: memory, latents, and the action that was taken last."""
        self.feature_size = options.memory_size + codes

    def initial_state(self, batch_size: int) -> Batch:
        """The state before an episode: zeros.

        Args:
            batch_size: B.
        """
        device = next(self.parameters()).device
        return Batch.of({name: spec.zeros(batch_size).to(device) for name, spec in self.state_spec.items()})

    def encode(self, observation: Any) -> Tensor:
        """Codes [..., E] of observations.

        Args:
            observation: leaves [..., *observation].
        """
        small = _symlog(observation) if isinstance(observation, Tensor) else observation.map(_symlog)
        return self.embedding(self.encoder(small))


def _symlog(leaf: Tensor) -> Tensor:
    return symlog(leaf) if leaf.dtype.is_floating_point else leaf


class Decoder(nn.Module):
    """Predicts observations from features: pictures by transposed convolutions, all else as `symlog` of its code.

    Args:
        observation_spec: of one observation; the mask of actions is not predicted.
        feature_size: F.
        config: the layers; a picture's convolutions have up to `image_size // 4` channels.
    """

    def __init__(self, observation_spec: SpecTree, feature_size: int, config: NetworkConfig) -> None:
        super().__init__()
        leaves = dict(spec_leaves(without_mask(observation_spec)))
        shapes = {path: picture_shape(leaf) for path, leaf in leaves.items()}
        self._specs, self._shapes = leaves, {path: shape for path, shape in shapes.items() if shape is not None}
        self.integers = nn.ModuleList([integers_of(leaves[path]) or nn.Identity() for path in self._shapes])
        self._numbers = [path for path, shape in shapes.items() if shape is None and leaves[path].size]
        encoders = [Encoder(leaves[path]) for path in self._numbers]
        self.codes = nn.ModuleList(encoders)
        size = sum(encoder.out_size for encoder in encoders)
        self.numbers = mlp_of(feature_size, config.hidden_sizes, size, config) if size else None
        pictures = [_Picture(feature_size, shape, config.image_size) for shape in self._shapes.values()]
        self.pictures = nn.ModuleList(pictures)

    def error(self, features: Tensor, observation: Any) -> Tensor:
        """Squared errors, summed over all numbers and pixels of an observation; pixels count from 0 to 1.

        Args:
            features: [..., F].
            observation: leaves [..., *observation].

        Returns:
            [...].
        """
        leaves = tree_paths(observation)
        error = torch.zeros(features.shape[:-1], device=features.device)
        if self.numbers is not None:
            codes = [code(leaves[path]) for path, code in zip(self._numbers, self.codes, strict=True)]
            error = error + (self.numbers(features) - symlog(torch.cat(codes, -1))).square().sum(-1)
        for path, seen, decode in zip(self._shapes, self.integers, self.pictures, strict=True):
            target = channels_first(seen(leaves[path]).float(), self._specs[path])
            error = error + (decode(features) - target).square().flatten(-3).sum(-1)
        return error


class _Picture(nn.Module):
    """Features to a picture that is doubled four times in height and width, and cut to its size."""

    def __init__(self, feature_size: int, shape: tuple[int, ...], image_size: int) -> None:
        super().__init__()
        channels, self._height, self._width = shape
        widths = [max(1, image_size // part) for part in (4, 8, 16, 32)]
        self._start = (widths[0], -(-self._height // 16), -(-self._width // 16))
        self.linear = nn.Linear(feature_size, widths[0] * self._start[1] * self._start[2])
        pairs = zip(widths, [*widths[1:], channels], strict=True)
        self.layers = nn.ModuleList([nn.ConvTranspose2d(n, m, 4, stride=2, padding=1) for n, m in pairs])

    def forward(self, features: Tensor) -> Tensor:
        leading = features.shape[:-1]
        x = self.linear(features).reshape(-1, *self._start)
        for layer in self.layers:
            x = layer(nn.functional.silu(x))
        x = x[..., : self._height, : self._width] + 0.5
        return x.reshape(*leading, *x.shape[-3:])


class SymexpHead(nn.Module):
    """A number as a distribution over bins whose spaces grow with their size, so that one scale fits all tasks.

        E = Σᵢ pᵢ bᵢ,   b = symexp(−m … m),   m = symlog(largest)

    Hafner et al. 2025, https://doi.org/10.1038/s41586-025-08744-2, section "Robust predictions". Outputs start at zero.

    Args:
        feature_size: F.
        num_bins: Q, at least 2.
        largest: the number of the last bin; the first one is its negative.

    Examples:
        >>> head = SymexpHead(4, 5, 100.0, NetworkConfig())
        >>> head.mean(head(torch.ones(2, 4)))
        tensor([0., 0.], grad_fn=<AddBackward0>)
    """

    bins: Tensor

    def __init__(self, feature_size: int, num_bins: int, largest: float, config: NetworkConfig) -> None:
        super().__init__()
        if config.layers == "simba2":  # whose own last weights are of length 1
            torso = mlp_of(feature_size, config.hidden_sizes, None, config)
            last = nn.Linear(torso.out_size, num_bins)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.network: nn.Module = nn.Sequential(torso, last)
        else:
            self.network = mlp_of(feature_size, config.hidden_sizes, num_bins, config, out_gain=0.0)
        bins = symexp(torch.linspace(-1, 1, num_bins) * symlog(torch.tensor(float(largest))))
        self.register_buffer("bins", bins, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [..., Q].

        Args:
            features: [..., F].
        """
        return self.network(features)

    def mean(self, logits: Tensor) -> Tensor:
        """Numbers [...] that logits stand for; bins are summed in pairs, so that large ones cancel exactly.

        Args:
            logits: [..., Q].
        """
        parts = logits.softmax(-1) * self.bins
        half = parts.shape[-1] // 2
        pairs = parts[..., :half] + parts[..., -half:].flip(-1)
        return pairs.sum(-1) + parts[..., half : parts.shape[-1] - half].sum(-1)

    def error(self, logits: Tensor, value: Tensor) -> Tensor:
        """Cross-entropies [...] of `two_hot` numbers, nats.

        Args:
            logits: [..., Q].
            value: [...].
        """
        return -(two_hot(value, self.bins) * logits.log_softmax(-1)).sum(-1)
