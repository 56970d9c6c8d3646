"""Encoders: one flat feature vector from any nest of observations, pictures by convolutional networks."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from palaestra.core import Batch, BoundedSpec, ConfigError, DiscreteSpec, MultiDiscreteSpec, TensorSpec, tree_leaves
from palaestra.core.spec import ACTION_MASK, SpecTree, dtype_limits, first_leaf, map_spec, numpy_dtype, spec_leaves
from palaestra.nn.cnn import ConvolutionalNetwork, cnn_of
from palaestra.nn.config import CNN, NetworkConfig, own_module
from palaestra.nn.fast import times_changed

__all__ = [
    "Encoder",
    "IntegerCode",
    "Integers",
    "OwnEncoder",
    "StepEncoder",
    "encoder_of",
    "has_pictures",
    "largest_picture",
    "picture_shape",
    "require_few_categories",
    "without_mask",
]


MOST_CATEGORIES = 2**24
"""That networks have a number for: a code of so many takes 64 MiB, and a layer of 256 units that reads it 16 GiB."""
LARGEST_RANGE = 2**31 - 4
"""Integers that may be larger in magnitude have no range: bounds near those of int32 and above mean "none"."""


class IntegerCode(NamedTuple):
    """What a network sees of integers x: `(x - low) * scale + start`, in [0, 1], or [-1, 1] if some are negative.

    Arrays are of the spec's shape, or () where they are the same everywhere.
    """

    low: np.ndarray
    """int64, 0 where there is no range."""
    scale: np.ndarray
    """float64."""
    start: np.ndarray
    """float64, 0 or -1."""
    text: str
    """The same in words."""

    @classmethod
    def of(cls, spec: TensorSpec) -> Self | None:
        """The code of a box of integers: its own range scaled, whatever the dtype; `None` for all else.

        Examples:
            >>> IntegerCode.of(TensorSpec((3,), torch.uint8)).text, IntegerCode.of(TensorSpec((3,), torch.int64)).text
            ('integers 0 to 255 as 0 to 1', 'integers of any size as they are')
        """
        dtype = numpy_dtype(spec.dtype)
        if dtype.kind not in "iu" or type(spec) not in (TensorSpec, BoundedSpec):
            return None
        low, high = spec.bounds or dtype_limits(dtype)
        low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
        if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
            low, high = low.flat[0], high.flat[0]
        known = np.maximum(np.abs(low), np.abs(high)) <= LARGEST_RANGE
        signed, span = known & (low < 0), np.where(known & (high > low), high - low, 1.0)
        if np.ndim(low):
            given = "in ranges of their own"
            seen = "0 to 1, or -1 to 1" if known.all() else "0 to 1 where they have one"
        else:
            given, seen = (f"{low:.0f} to {high:.0f}", f"{-1 if signed else 0} to 1") if known else ("of any size", "")
        text = f"integers {given} as {seen or 'they are'}"
        return cls(np.where(known, low, 0).astype(np.int64), np.where(signed, 2, 1) / span, -1.0 * signed, text)


class Encoder(nn.Module):
    """Maps a nest of observations to [..., out_size] float32.

    | spec | code |
    |---|---|
    | numbers | flattened |
    | integers with bounds | 0 to 1, or -1 to 1 if some are negative: see `IntegerCode` |
    | discrete, multi-discrete | one-hot |
    | multi-binary | 0.0 or 1.0 |
    | uint8 or bool image of 3 axes, at least 5 x 5 pixels | a convolutional network, see `NetworkConfig.cnn` |
    | dict, tuple | the children's codes, one after another; the key `action_mask` of the outermost dict is left out |

    The channels of an image are the last axis where that is the shortest, else the first; of images in a row, with one
    axis more in front, they are one after another. Batched nests are `core.Batch`; the children of a tuple have the
    names "0", "1", ... . A single vector of float32 is passed through as it is: `is_identity` says so, and callers may
    skip the call.

    Args:
        image_size: features of each image.
        cnn: the network for images, see `NetworkConfig.cnn`.
        layer_norm: whether its layers are normalised.

    Raises:
        ConfigError: there is nothing to encode, the images are too small for the network, or there are too many
            categories.

    Examples:
        >>> from palaestra.core import Batch
        >>> encoder = Encoder({"position": TensorSpec((2,)), "room": DiscreteSpec(num=3)})
        >>> encoder(Batch(position=torch.tensor([[0.5, 1.0]]), room=torch.tensor([2])))
        tensor([[0.5000, 1.0000, 0.0000, 0.0000, 1.0000]])
    """

    has_head = False

    def __init__(
        self, observation_spec: SpecTree, *, image_size: int = 512, cnn: CNN = "auto", layer_norm: bool = False
    ) -> None:
        super().__init__()
        observation_spec = without_mask(observation_spec)
        require_few_categories(observation_spec, "observation", ", or embed them in an encoder of your own")
        make = functools.partial(cnn_of, kind=cnn, out_size=image_size, layer_norm=layer_norm)
        self.root = _encoder_of(observation_spec, make)
        self.out_size: int = self.root.out_size  # pyright: ignore[reportAttributeAccessIssue]
        self.is_identity = isinstance(self.root, _Numbers) and self.root.is_identity
        if self.out_size < 1:
            raise ConfigError(
                f"the observation spec {observation_spec} has no numbers to encode; a network needs at least one"
            )

    def forward(self, observation: Any) -> Tensor:
        """The features of every row.

        Args:
            observation: a tensor, or a `Batch` with the fields of the spec, with any leading dimensions.

        Returns:
            [..., out_size] float32.
        """
        return observation if self.is_identity else self.root(observation)


class OwnEncoder(nn.Module):
    """The user's module instead of `Encoder`.

    The module is made from the observation's spec and called with one batch of observations: a tensor [N, ...], or a
    `Batch` with the fields of the spec (those of a tuple are "0", "1", ...), floating-point numbers in single
    precision, everything else as the spec says, without the key `action_mask`. It gives [N, features], of any number
    of features, which a call with zeros finds out.

    One with `has_head` gives what its network is to give, logits or values, and gets no layers on top.

    Args:
        option: see `EncoderOption`; not a mapping.

    Raises:
        ConfigError: the module cannot be made or called, or gives something else.

    Examples:
        >>> encoder = OwnEncoder(TensorSpec((2, 3)), lambda spec: nn.Flatten())
        >>> encoder(torch.zeros(5, 8, 2, 3)).shape  # [T, B, 2, 3]
        torch.Size([5, 8, 6])
    """

    is_identity = False
    _remembers: ClassVar[bool] = False

    def __init__(self, observation_spec: SpecTree, option: Any) -> None:
        super().__init__()
        spec = without_mask(observation_spec)
        self._first_leaf, leaf = first_leaf(spec)
        self._ndim = len(leaf.shape)
        self._keys = list(spec) if isinstance(spec, dict) else None  # what is given may hold others
        self.module: Any = own_module(option, spec)
        self.has_head = bool(getattr(self.module, "has_head", False))
        if self._remembers != hasattr(self.module, "initial_state"):
            raise ConfigError(
                f"the encoder {type(self.module).__name__} has {'no' if self._remembers else 'a memory,'} "
                "`initial_state`, which goes together with network.recurrent own, in an algorithm that has a memory"
            )
        self.out_size = self._num_features(spec)

    def forward(self, observation: Any) -> Tensor:
        """The features of every row.

        Args:
            observation: a tensor, or a `Batch` with the fields of the spec, with any leading dimensions.

        Returns:
            [..., out_size] float32.
        """
        rows, leading = self._rows(observation)
        features = self.module(rows)
        return features if len(leading) == 1 else features.reshape(*leading, self.out_size)

    def _rows(self, observation: Any) -> tuple[Any, torch.Size]:
        """The module's input, and the leading dimensions."""
        if self._keys is not None:
            observation = Batch.of({key: observation[key] for key in self._keys})
        leaf = observation
        for key in self._first_leaf:
            leaf = leaf[key]
        leading = leaf.shape[: leaf.ndim - self._ndim]

        def rows(leaf: Tensor) -> Tensor:
            leaf = _single(leaf)
            return leaf if len(leading) == 1 else leaf.reshape(-1, *leaf.shape[len(leading) :])

        return rows(observation) if isinstance(observation, Tensor) else observation.map(rows), leading

    @torch.no_grad()
    def _num_features(self, spec: SpecTree) -> int:
        """Materialises lazy modules with two zero rows, in evaluation mode: no single row is normalised by itself."""
        modes = {module: module.training for module in self.module.modules()}
        name, given = type(self.module).__name__, map_spec(_zeros, spec)
        before = times_changed([*tree_leaves(given)])
        try:
            features = self._called(given)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the encoder {name} was called with two observations of zeros, leaves [2, ...] of {spec}, and raised "
                f"{type(error).__name__}: {error}"
            ) from error
        for module, mode in modes.items():
            module.training = mode
        if before != times_changed([*tree_leaves(given)]):
            raise ConfigError(
                f"the encoder {name} changes what it is given in place, which lies in the replay buffer; make a new "
                "tensor (`x / 255`, not `x /= 255`)"
            )
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.shape[1]:
            shown = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"the encoder {name} gave {shown} for two observations; it must give one row of features for each: "
                "a tensor [N, features]"
            )
        if features.dtype != torch.float32:
            raise ConfigError(f"the encoder {name} gave {features.dtype}; it must give torch.float32")
        return features.shape[1]

    def _called(self, given: Any) -> Any:
        """Features of two rows, unless recurrent layers see one step of each row: they would begin anew."""
        steps = dict[nn.Module, int]()

        def note(part: Any, given: tuple[Any, ...]) -> None:
            # [N, F], of which a cell makes one step, and others take the rows for steps; or a sequence, maybe packed
            one = isinstance(given[0], Tensor) and (given[0].ndim < 3 or given[0].shape[int(part.batch_first)] == 1)
            steps[part] = steps.get(part, 0) + (1 if one else 2)

        parts = [part for part in self.module.modules() if isinstance(part, nn.RNNBase | nn.RNNCellBase)]
        handles = [part.register_forward_pre_hook(note) for part in parts]
        try:
            features = self.module.eval()(given)
        finally:
            for handle in handles:
                handle.remove()
        if forgetful := [type(part).__name__ for part, count in steps.items() if count == 1]:
            raise ConfigError(
                f"the encoder {type(self.module).__name__} has a {forgetful[0]} that sees one step at a time and "
                "begins anew at every observation, so that it remembers nothing; leave it out of the encoder and set "
                "network.recurrent to 'lstm', 'gru' or 'attention', whose memory runs, buffers and saved policies "
                "carry along, or to 'own' and give the encoder initial_state(batch_size) and "
                "forward(observation, state)"
            )
        return features


def encoder_of(
    observation_spec: SpecTree, config: NetworkConfig, out_size: int | Literal["any"] | None = None
) -> Encoder | OwnEncoder:
    """The encoder that a configuration asks for: every network makes its own here.

    Args:
        config: of the network.
        out_size: how many numbers a module of the user's with `has_head` gives; `None` where it may have none.

    Raises:
        ConfigError: there is nothing to encode, or the user's encoder cannot be made.
    """
    observation_spec = config.seen(observation_spec)
    if config.encoder is None:
        return Encoder(observation_spec, image_size=config.image_size, cnn=config.cnn, layer_norm=config.layer_norm)
    own = OwnEncoder(observation_spec, config.encoder)
    follows = out_size is None or config.noisy or config.recurrent
    if own.has_head and (follows or out_size not in (own.out_size, "any")):
        needed = "layers of the algorithm follow" if follows else f"{out_size} are needed"
        raise ConfigError(
            f"the encoder {type(own.module).__name__} has_head and gives {own.out_size} numbers, but here {needed}; "
            "give each part of the algorithm its own, network={part: module}, or one without a head"
        )
    return own


class StepEncoder(nn.Module):
    """The code of a step of an episode: its observation, the return still to come, its number, the action before.

    Args:
        action_spec: of actions as they are sampled.
        config: of the network, for the code of observations.

    Raises:
        ConfigError: see `Encoder` and `OwnEncoder`.
    """

    return_scale: Tensor
    """0-dim, the return whose code is 1."""
    time_scale: Tensor
    """0-dim, the number of steps whose code is 1."""
    target_return: Tensor
    """0-dim, what is to come in an episode that begins, as far as the network is asked."""
    exploration_gain: Tensor
    """0-dim, how much more than that is asked for where a policy explores."""

    def __init__(self, observation_spec: SpecTree, action_spec: SpecTree, config: NetworkConfig) -> None:
        super().__init__()
        self.observation, self.action = encoder_of(observation_spec, config), Encoder(action_spec)
        self.out_size = self.observation.out_size + 2 + self.action.out_size
        for name in ("return_scale", "time_scale", "target_return", "exploration_gain"):
            self.register_buffer(name, torch.tensor(float(name.endswith("scale"))))

    def forward(self, step: Any) -> Tensor:
        """The features of every row.

        Args:
            step: `observation`; `return_to_go` [...], in units of `return_scale`; `time` [...], steps since the
                episode began, in units of `time_scale`; `prev_action` [..., A], as `action` encodes it, zeros where
                none is known.

        Returns:
            [..., out_size] float32.
        """
        numbers = torch.stack((step.return_to_go, step.time), -1)
        return torch.cat((self.observation(step.observation), numbers, step.prev_action), -1)


def without_mask(spec: SpecTree) -> SpecTree:
    """What networks see of an observation: all but the key `action_mask` of the outermost dict.

    Args:
        spec: of an observation.
    """
    return {key: child for key, child in spec.items() if key != ACTION_MASK} if isinstance(spec, dict) else spec


def require_few_categories(spec: SpecTree, what: str, more: str = "") -> None:
    """Refuses discrete leaves of so many categories that no network can have a number for each.

    Args:
        spec: of an observation or an action.
        what: which of them, for the message.
        more: what else can be done, for the message.

    Raises:
        ConfigError: there is one.
    """
    for path, leaf in spec_leaves(spec).items():
        if isinstance(leaf, DiscreteSpec | MultiDiscreteSpec) and leaf.encoded_size > MOST_CATEGORIES:
            raise ConfigError(
                f"the {what}{f' {path!r}' if path else ''} has {leaf.encoded_size:,} categories, and a network needs a "
                f"number for each, at most {MOST_CATEGORIES:,}: hash them to fewer, or give them as numbers or digits "
                f"(Box, MultiDiscrete), in a wrapper{more}"
            )


def _zeros(spec: TensorSpec) -> Tensor:
    zeros = _single(spec.zeros(2))
    return zeros + spec.start if isinstance(spec, DiscreteSpec) else zeros


def _single(leaf: Tensor) -> Tensor:
    """Floating-point numbers in single precision, others as they are."""
    return leaf.float() if leaf.is_floating_point() else leaf


def has_pictures(observation_spec: SpecTree) -> bool:
    """Whether anything in an observation is encoded by a convolutional network.

    Examples:
        >>> has_pictures(TensorSpec((3, 64, 64), torch.uint8)), has_pictures(TensorSpec((2, 2, 2)))
        (True, False)
    """
    return bool(largest_picture(observation_spec))


def largest_picture(observation_spec: SpecTree) -> tuple[int, ...]:
    """[C, H, W] of the largest picture in an observation; empty without any."""
    leaves = [leaf for leaf in spec_leaves(observation_spec).values() if type(leaf) in (TensorSpec, BoundedSpec)]
    return max((picture_shape(leaf) or () for leaf in leaves), key=math.prod, default=())


def channels_first(picture: Tensor, spec: TensorSpec) -> Tensor:
    """Pictures as networks see them, those in a row with their channels one after another.

    Args:
        picture: [..., *spec_shape].
        spec: of one leaf of an observation.

    Returns:
        [..., C, H, W].
    """
    picture = picture.movedim(-1, -3) if _channels_are_last(spec) else picture
    return picture.flatten(-4, -3) if len(spec.shape) == 4 else picture


def _encoder_of(spec: SpecTree, make: Callable[[Sequence[int]], ConvolutionalNetwork]) -> nn.Module:
    if isinstance(spec, dict | tuple):
        items = spec.items() if isinstance(spec, dict) else enumerate(spec)
        return _Children({str(name): _encoder_of(child, make) for name, child in items})
    if isinstance(spec, DiscreteSpec):
        return _OneHot((spec.num,), spec.start, ndim=0)
    if isinstance(spec, MultiDiscreteSpec):
        return _OneHot(spec.nvec, 0, ndim=1)
    channels_first = picture_shape(spec)
    return _Numbers(spec) if channels_first is None else _Image(spec, make(channels_first))


def picture_shape(spec: TensorSpec) -> tuple[int, ...] | None:
    """[C, H, W] where the spec is an image, else `None`.

    Two axes beside each other that are equally long are its pixels, the first two where all three are; else channels
    are last where that axis is the shortest. Of images in a row, which have one axis more in front, the channels are
    one after another.

    Args:
        spec: of one leaf of an observation.
    """
    if spec.dtype not in (torch.uint8, torch.bool) or len(spec.shape) not in (3, 4):
        return None
    *frames, first, middle, last = spec.shape
    channels, height, width = (last, first, middle) if _channels_are_last(spec) else (first, middle, last)
    shape = (math.prod(frames) * channels, height, width)
    return shape if shape[0] and ConvolutionalNetwork.fits(shape) else None


def _channels_are_last(spec: TensorSpec) -> bool:
    first, middle, last = spec.shape[-3:]
    if spec.stacked > 1 and len(spec.shape) == 3:  # frames are first
        return False
    return first == middle or (middle != last and last < min(first, middle))


class Integers(nn.Module):
    """Integers as a network sees them, float32; floats, which are normalised ones, pass unchanged.

    The code is saved with the weights unless it is that of bytes, or changes nothing. Weights without it were learned
    with bytes divided by 255, whatever their bounds, and all other integers as they are, and go on so.

    Args:
        spec: a box of integers.
        code: of that.

    Examples:
        >>> spec = BoundedSpec((2,), torch.int64, minimum=np.array(0), maximum=np.array(10))
        >>> Integers(spec, IntegerCode.of(spec))(torch.tensor([0, 5]))
        tensor([0.0000, 0.5000])
    """

    low: Tensor
    scale: Tensor
    start: Tensor

    def __init__(self, spec: TensorSpec, code: IntegerCode) -> None:
        super().__init__()
        self.text, self.out_size = code.text, spec.size
        self.scale_before = 1 / 255 if spec.dtype == torch.uint8 else 1.0
        shifts = bool(np.any(code.low)) and not (np.all(code.scale == 1) and np.all(code.low == code.start))
        self.as_before = not shifts and bool(np.all(code.scale == self.scale_before))
        for name, array in zip(("low", "scale", "start"), code, strict=False):
            dtype = torch.int64 if name == "low" else torch.float32
            self.register_buffer(name, torch.tensor(array, dtype=dtype), persistent=not self.as_before)
        self.register_load_state_dict_pre_hook(_complete)

    def forward(self, value: Tensor) -> Tensor:
        """The code of every integer.

        Args:
            value: [..., *shape].
        """
        if value.is_floating_point():
            return value
        if self.as_before:
            return value.float() if self.scale_before == 1 else value.float() * self.scale_before
        wide = torch.float64 if value.dtype == torch.uint64 else torch.int64  # which cannot hold all of uint64
        return (value.to(wide) - self.low).float() * self.scale + self.start


def _complete(module: Integers, weights: dict[str, Any], prefix: str, _: Any, whole: bool, *found: Any) -> None:
    """Completes weights that were learned before there was a code, where these are all weights."""
    if whole and not module.as_before and f"{prefix}scale" not in weights:
        before = {"low": 0, "scale": module.scale_before, "start": 0}
        weights |= {f"{prefix}{name}": torch.full_like(getattr(module, name), before[name]) for name in before}


class _Numbers(nn.Module):
    def __init__(self, spec: TensorSpec) -> None:
        super().__init__()
        self.ndim, self.out_size = len(spec.shape), spec.size
        self.is_identity = spec.dtype == torch.float32 and len(spec.shape) == 1
        self.integers = integers_of(spec)

    def forward(self, value: Tensor) -> Tensor:
        if self.integers is not None:
            value = self.integers(value)
        if self.ndim == 1:
            return value.float()
        return value.reshape(*value.shape[: value.ndim - self.ndim], self.out_size).float()


def integers_of(spec: TensorSpec) -> Integers | None:
    """Scaling of a box of integers; `None` for all else.

    Args:
        spec: of one leaf.
    """
    return None if (code := IntegerCode.of(spec)) is None else Integers(spec, code)


class _OneHot(nn.Module):
    choice: Tensor
    category: Tensor

    def __init__(self, nvec: Sequence[int], start: int, *, ndim: int) -> None:
        super().__init__()
        self.ndim, self.out_size = ndim, sum(nvec)
        # entry j of the code is 1 where the value number choice[j] equals category[j]
        counts = torch.tensor(nvec, dtype=torch.int64)
        choice = torch.arange(len(nvec)).repeat_interleave(counts, output_size=self.out_size)
        category = torch.arange(self.out_size) - (counts.cumsum(0) - counts)[choice] + start
        self.register_buffer("choice", choice, persistent=False)
        self.register_buffer("category", category, persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        value = value.unsqueeze(-1) if self.ndim == 0 else value.index_select(-1, self.choice)
        return (value == self.category).float()


class _Image(nn.Module):
    def __init__(self, spec: TensorSpec, network: ConvolutionalNetwork) -> None:
        super().__init__()
        self.spec = spec
        integers = integers_of(spec)  # the network itself divides bytes by 255, a part at a time
        self.integers = None if integers is None or integers.as_before else integers
        self.network = network
        self.out_size = network.out_size

    def forward(self, value: Tensor) -> Tensor:
        value = value if self.integers is None else self.integers(value)
        return self.network(channels_first(value, self.spec))


class _Children(nn.Module):
    def __init__(self, children: dict[str, Any]) -> None:
        super().__init__()
        coded = {name: child for name, child in children.items() if child.out_size}  # not those of an empty dict
        self.names, self.encoders = list(coded), nn.ModuleList(coded.values())
        self.out_size = sum(child.out_size for child in coded.values())

    def forward(self, value: Any) -> Tensor:
        codes = [encoder(value[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        return codes[0] if len(codes) == 1 else torch.cat(codes, -1)
