"""`NetworkConfig`: how the networks of an algorithm are built, with the user's own encoders."""

import copy
import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

from torch import nn

from palaestra.core import ACTION_MASK, AtLeastOne, Finite, SpecTree, import_maker, importable_name, require_ranges
from palaestra.core.errors import ConfigError, PalaestraError, did_you_mean, refuses
from palaestra.nn.blocks import Activation, Block, Initialisation, Layers
from palaestra.nn.core_model import CoreModel

__all__ = ["CNN", "EncoderOption", "NetworkConfig", "Recurrent", "encoder_name", "handed_over", "module_maker"]

Recurrent: TypeAlias = Literal["lstm", "gru", "attention", "own"]
"""Kinds of memory: recurrent cells, attention over the last steps, or that of a network of your own."""

CNN: TypeAlias = Literal["auto", "nature", "impala", "small", "minatar"]
"""Kinds of convolutional networks for pictures."""

EncoderOption: TypeAlias = str | dict[str, Any] | Callable[..., Any] | None
"""A network of your own: its name as `my_package:MyNet`, an `nn.Module` class, a function that makes one of an
observation spec, or a module; or one of these for each part of the algorithm. A module that an algorithm is given, as
`network`, is trained itself; of one in a configuration, from which many may be made, every network gets a copy."""

_LAZY = (nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d)  # no subclasses of those that they become
_MIXING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, *_LAZY)
_DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_ALSO_DROPPING = (nn.MultiheadAttention, nn.RNNBase)  # without a module for it


class HandedOver:
    """Makes the very module that an algorithm was given, which others may hold as well.

    Args:
        module: to be trained itself, not a copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.__qualname__ = module, type(module).__name__

    def __call__(self, observation_spec: SpecTree) -> nn.Module:
        return self.module

    def __repr__(self) -> str:
        return repr(self.module)


def handed_over(option: EncoderOption) -> EncoderOption:
    """An option whose modules are taken as they are.

    Args:
        option: of an algorithm, or one for each part.
    """
    if isinstance(option, Mapping):
        return {part: handed_over(one) for part, one in option.items()}
    return HandedOver(option) if isinstance(option, nn.Module) else option


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """How a network is built on top of the encoded observation.

    Raises:
        ConfigError: the encoder is nothing that could be one.
    """

    shorthand: ClassVar[str] = "encoder"
    """The field that is set by a text, where one is given instead of the whole configuration."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Function after each hidden layer."""
    layer_norm: bool = False
    """Whether the units of each hidden layer are normalised before its activation, row by row; for pictures, too."""
    batch_norm: bool = False
    """Whether the inputs of each layer are normalised by the minibatch; for algorithms that learn with it."""
    block: Block | None = None
    """Blocks instead of the hidden layers, one for each: simba, residual, all of one size; simba2, the same on a
    sphere, with weights of length 1; xqc, with such weights and batch normalisation; or flash, residual ones with both;
    the latter two where an algorithm has batch normalisation."""
    init: Initialisation = "auto"
    """How weights start: orthogonal, PyTorch's default, or auto (orthogonal for tanh)."""
    dueling: bool = False
    """Whether action values are split into a state value and advantages."""
    noisy: bool = False
    """Whether the layers of action values have learned noise, which explores instead of random actions."""
    initial_log_std: Finite[float] = 0.0
    """log σ at the start, in raw units, of normal policies that learn it apart from the mean; 0 is a σ of 1."""
    cnn: CNN = "auto"
    """Network for pictures: nature, impala (residual, 15 layers), small, minatar (one layer), or auto: nature from 36
    pixels, else small."""
    image_size: AtLeastOne[int] = 512
    """Features of each encoded image."""
    recurrent: Recurrent | None = None
    """Memory between the encoded observation and the hidden layers: lstm, gru, attention, or own, that of `encoder`;
    none by default."""
    recurrent_size: AtLeastOne[int] = 128
    """Units of the memory."""
    recurrent_span: AtLeastOne[int] = 1
    """Steps that units of an lstm or gru remember when training begins, each another number up to this one; at 1 all
    forget half in every step. About what the task needs is right: gradients reach as far back as memories do."""
    attention_window: AtLeastOne[int] = 64
    """Steps before the present one that a layer of attention sees."""
    attention_layers: AtLeastOne[int] = 1
    """Layers of attention."""
    attention_heads: AtLeastOne[int] = 4
    """Heads of each layer of attention; they share its units."""
    encoder: EncoderOption = None
    """Your own network from observations to features, as my_package:MyNet; or one for each part of the algorithm."""
    policy_sees: tuple[str, ...] = ()
    """Keys of a dict of observations that the policy sees, or patterns such as state*; a saved one asks for no others.
    All by default."""
    value_sees: tuple[str, ...] = ()
    """Keys that values see (critics), which learn beside the policy; all by default."""

    @refuses(ConfigError)
    def __post_init__(self) -> Iterator[str]:
        normal = [name for name in ("layer_norm", "batch_norm", "block") if getattr(self, name)]
        if len(normal) > 1:
            yield (
                f"{' and '.join(normal)} normalise the same units twice; turn all but one off, also one that the "
                "algorithm has by default"
            )
        require_ranges(self, "network.")
        for option in self.encoder.values() if isinstance(self.encoder, Mapping) else [self.encoder]:
            if isinstance(option, str) and option.count(":") != 1:
                yield f"the encoder {option!r} is not a name of the form my_package:MyNet"
            if not (option is None or isinstance(option, str) or callable(option)) or (
                isinstance(option, type) and not _is_module(option)
            ):
                yield (
                    f"the encoder is {option!r}; give an nn.Module class, a function that makes a module of an "
                    "observation spec, a module, or the name of one of them as my_package:MyNet"
                )

    def parts(self, *names: str, team: str | None = None) -> tuple[Self, ...]:
        """This configuration for each part of an algorithm, with the part's own encoder and what it sees.

        Where `encoder` is a mapping, each part gets the entry of its name, or the library's own encoder where there is
        none. Otherwise all parts get the same option, of which each builds a network of its own. `policy_sees` is for
        the first part, `value_sees` for the others.

        Args:
            names: of the parts, for example "policy" and "value"; first the one that acts.
            team: of one more part that sees a whole team, in other shapes than the others see it; only a mapping gives
                it an encoder.

        Raises:
            ConfigError: the mapping names other parts, or what is seen is said of a part that there is not.

        Examples:
            >>> policy, value = NetworkConfig(encoder={"value": "my_package:Central"}).parts("policy", "value")
            >>> policy.encoder, value.encoder
            (None, 'my_package:Central')
        """
        known = names if team is None else (*names, team)
        if team is not None and self.sees:
            raise ConfigError(
                "network.policy_sees and network.value_sees are not for teams, whose members see what each observes; "
                f"their {team} sees the whole team: leave them out"
            )
        if self.value_sees and len(known) == 1:
            raise ConfigError(
                f"network.value_sees is {', '.join(self.value_sees)}, but this algorithm has one network for all, "
                f"{known[0]}, and no value beside it; leave it out, or take one with a critic, such as ppo or sac"
            )
        own = self.encoder if isinstance(self.encoder, Mapping) else dict.fromkeys(names, self.encoder)
        if unknown := [name for name in own if name not in known]:
            raise ConfigError(
                f"there is an encoder for {unknown[0]!r}{did_you_mean(str(unknown[0]), known)}, but the algorithm's "
                f"networks are {', '.join(known)}"
            )
        others = ["policy_sees" if number else "value_sees" for number in range(len(known))]
        return tuple(
            dataclasses.replace(self, encoder=own.get(name), **{other: ()})
            for name, other in zip(known, others, strict=True)
        )

    @property
    def sees(self) -> tuple[str, ...]:
        """The keys that are named, or patterns; empty where all are seen."""
        return self.policy_sees or self.value_sees

    def seen(self, observation_spec: SpecTree) -> SpecTree:
        """What of an observation a network sees: the keys that are named here, and the key `action_mask`.

        Args:
            observation_spec: of a whole observation.

        Raises:
            ConfigError: there is no such key, there are none at all, or two networks are meant.

        Examples:
            >>> from palaestra.core import TensorSpec
            >>> spec = {"state": TensorSpec((2,)), "privileged_mass": TensorSpec((1,))}
            >>> NetworkConfig(policy_sees=("state",)).seen(spec)
            {'state': TensorSpec(shape=(2,), dtype=torch.float32)}
        """
        patterns = self.sees
        if not patterns:
            return observation_spec
        if self.policy_sees and self.value_sees:
            raise ConfigError(
                "network.policy_sees and network.value_sees are for two networks, and this is one; "
                "`NetworkConfig.parts` gives each its own"
            )
        name = "policy_sees" if self.policy_sees else "value_sees"
        if not isinstance(observation_spec, dict):
            raise ConfigError(
                f"network.{name} names keys, {', '.join(patterns)}, but observations are no dict; leave it out"
            )
        keys = [key for key in observation_spec if key != ACTION_MASK]
        for pattern in patterns:
            if pattern == ACTION_MASK in observation_spec:
                raise ConfigError(f"network.{name} has {pattern!r}, which every policy follows; leave it out")
            if not fnmatch.filter(keys, pattern):
                raise ConfigError(
                    f"network.{name} has {pattern!r}, which is no key of the observations{did_you_mean(pattern, keys)}"
                )
        found = {ACTION_MASK, *(key for pattern in patterns for key in fnmatch.filter(keys, pattern))}
        return {key: child for key, child in observation_spec.items() if key in found}

    def of_seen(self) -> Self:
        """This configuration for a network that is given what it sees, and nothing else."""
        return dataclasses.replace(self, policy_sees=(), value_sees=()) if self.sees else self

    @property
    def layers(self) -> Layers:
        """Kind of layers of an `MLP`."""
        return self.block or ("layer_norm" if self.layer_norm else "batch_norm" if self.batch_norm else "linear")

    @property
    def has_separate_encoders(self) -> bool:
        """Whether parts that can share an encoder must not: `encoder` names one for each, or they see other keys."""
        return isinstance(self.encoder, Mapping) or bool(self.sees)

    def on_features(self, *, has_head: bool = False) -> Self:
        """This configuration for a network that sees features: observations that were encoded already.

        Args:
            has_head: whether they are what the network is to give, as a module of the user's with `has_head` says.
        """
        return dataclasses.replace(self.of_seen(), encoder=_AsItIs() if has_head else None, recurrent=None)


class _AsItIs(nn.Identity):
    has_head = True


def own_module(option: Any, observation_spec: SpecTree) -> nn.Module:
    """The user's module for one network.

    Args:
        option: see `EncoderOption`; not a mapping.
        observation_spec: what it is made from.

    Raises:
        ConfigError: there is no such thing, it cannot be made, or it is no module.
    """
    if isinstance(option, Mapping):
        raise ConfigError(
            f"encoders are given for the parts {', '.join(option)}, but this network is a single part: "
            "give its entry alone, see NetworkConfig.parts"
        )
    made = module_maker(option) if isinstance(option, str) else option
    name = repr(option) if isinstance(option, str) else getattr(made, "__qualname__", type(made).__name__)
    if isinstance(made, nn.Module):
        return repeatable(copy.deepcopy(made).cpu(), f"the encoder {name}")
    if not callable(made) or (isinstance(made, type) and not _is_module(made)):
        raise ConfigError(f"the encoder {name} is {made!r}; an nn.Module, or a function that makes one, is needed")
    try:
        module = made(observation_spec)
    except PalaestraError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the encoder {name} is made from the observation spec alone, here {observation_spec}; making it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the encoder {name} made a {type(module).__name__}; an nn.Module is needed")
    return repeatable(module, f"the encoder {name}")


def repeatable(module: nn.Module, what: str) -> nn.Module:
    """The module, unless it trains with parts that depend on other rows, or on numbers that no run can draw again.

    Or by optimizers of its own, which no algorithm would use.

    Args:
        what: it is, for the message.

    Raises:
        ConfigError: it does.
    """
    for part in module.modules():
        if isinstance(part, CoreModel) and part.optimizers:
            raise ConfigError(
                f"{what} has a {type(part).__name__}, a CoreModel with optimizers of its own for "
                f"{', '.join(part.optimizers)}, but an algorithm trains its networks by its own, set by `optimizers` "
                "in its config; give a plain nn.Module, or a CoreModel without optimizers"
            )
    was_training = module.training
    for path, part in module.train().named_modules():
        mixes = isinstance(part, _MIXING)
        share = part.p if isinstance(part, _DROPPING) else part.dropout if isinstance(part, _ALSO_DROPPING) else 0.0
        if part.training and (mixes or share):
            why = "mixes the rows of a minibatch" if mixes else "draws from PyTorch's global generator"
            raise ConfigError(
                f"{what} has a {type(part).__name__}, {path or 'itself'}, which {why} while it trains, so "
                "that no run could be repeated or continued; leave it out, take LayerNorm for BatchNorm, or let the "
                "module's `train` keep it in evaluation mode"
            )
    return module.train(was_training)


def module_maker(name: str) -> Any:
    """The encoder that a name means: a module, its class, or a function that says that it makes one.

    Code that does not say so is not called, for a saved policy may name it.

    Args:
        name: as my_package:MyNet.

    Raises:
        ConfigError: there is no such thing, or it is anything else.
    """
    made = import_maker(name, "an nn.Module", _is_module)
    says = isinstance(made, type | nn.Module) or "return" in getattr(made, "__annotations__", {})
    if not says:
        raise ConfigError(
            f"the encoder {name!r} is a {type(made).__name__} that does not say that it makes a module, so a saved "
            "policy could not be loaded again; annotate it: def ...(observation_spec) -> nn.Module"
        )
    return made


def encoder_name(option: EncoderOption) -> str | None:
    """The name by which another process finds an encoder; `None` for a module, a lambda, or what a script defines.

    Args:
        option: of a network; not a mapping.
    """
    return option if isinstance(option, str) else None if isinstance(option, nn.Module) else importable_name(option)


def _is_module(kind: type) -> bool:
    return issubclass(kind, nn.Module)
