"""`CoreModel`: named network components, each with the optimizer that trains it.

It knows nothing of losses, data or policies, but which parameters a policy shares with it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from palaestra.core import CheckpointError, ConfigError, ShapeError, did_you_mean
from palaestra.nn.batch_norm import batch_norms
from palaestra.nn.fast import MovableModule, differentiate, follow_all, public_gradients
from palaestra.nn.optimizer import ComponentOptimizer, OptimizerOption, step_together
from palaestra.nn.rules import kept_lengths

__all__ = ["CoreModel", "combine_gradients"]


_Numbers = tuple[list[Tensor], list[Tensor]]


class _Sampler(Protocol):
    def sample(self, observation: Any) -> tuple[Tensor, Tensor]: ...


class CoreModel(MovableModule):
    """Network components with embedded optimizers, so that an algorithm knows nothing of either.

    A module whose attribute `unit_vectors` maps names of its own parameters to dimensions, such as `{"weight": 1}`, has
    them brought back to length 1 along these after each step of their optimizer; see `UnitLinear`. Those that an
    attribute `one_scale` names, such as `("gain", "shift")`, are brought back to one scale: the mean squares of all of
    them along their last dimension add up to 1.

    A component without an option is frozen: it gets no gradients (target networks). In the others, parameters whose
    `requires_grad` is off stay as they are. Subclass it and define `forward` for a model whose components call each
    other. Passing the same module, or the same model, to several users shares its parameters; `clone` gives new
    ones.

    Args:
        component: modules by name.
        optim_option: how each is trained, by the component's name; no entry, or `None`, freezes it.

    Raises:
        ConfigError: an option names no component, or two trained components share a parameter.

    Examples:
        >>> model = CoreModel({"q": nn.Linear(3, 1)}, {"q": OptimizerOption("sgd", {"lr": 0.1})})
        >>> before = model.component["q"].bias.clone()
        >>> model.step(model.component["q"](torch.zeros(1, 3)).sum())
        >>> round(float((before - model.component["q"].bias).detach()), 6)  # the gradient is 1
        0.1
    """

    def __init__(
        self, component: Mapping[str, nn.Module], optim_option: Mapping[str, OptimizerOption | None] | None = None
    ) -> None:
        super().__init__()
        self.component = nn.ModuleDict()
        self._trained: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[Tensor, ...]]] = {}
        self.optimizers: dict[str, ComponentOptimizer] = {}
        self.extend(component, optim_option)
        self._policy: list[_Sampler] = []
        self._pairs: dict[tuple[str, str], tuple[_Numbers, _Numbers]] = {}  # what polyak_update works on

    def extend(
        self, component: Mapping[str, nn.Module], optim_option: Mapping[str, OptimizerOption | None] | None = None
    ) -> None:
        """Adds components.

        Args:
            component: modules by name.
            optim_option: how each is trained, by the component's name; no entry, or `None`, freezes it.

        Raises:
            ConfigError: an option names no component, or two trained components share a parameter.
        """
        try:
            self.component.update(component)
        except KeyError as error:
            raise ConfigError(f"a component cannot have such a name, which modules need themselves: {error}") from None
        options = {name: option for name, option in (optim_option or {}).items() if option is not None}
        if unknown := sorted(set(options) - set(component)):
            raise ConfigError(f"optimizers are given for {unknown}, but the components are {sorted(component)}")
        trained = {id(parameter) for name in options for parameter in component[name].parameters()}
        for name in component.keys() - options.keys():
            for parameter in component[name].parameters():
                if id(parameter) not in trained:
                    parameter.requires_grad_(False)
        owner = {id(p): name for name, optimizer in self.optimizers.items() for p in optimizer.parameters}
        for name, option in options.items():
            parameters = {key: p for key, p in component[name].named_parameters() if p.requires_grad}
            for key, parameter in parameters.items():
                if other := owner.get(id(parameter)):
                    raise ConfigError(
                        f"the components {other!r} and {name!r} both train {key!r}; leave it to one of them. An "
                        f"encoder is given to one part of an algorithm by network={{{other!r}: module}}"
                    )
                owner[id(parameter)] = name
            named = {f"{name}.{key}": parameter for key, parameter in parameters.items()}
            self.optimizers[name] = ComponentOptimizer(named, option, kept_lengths(component[name], name))
        self._trained.clear()

    def replace_optimizers(self, options: Mapping[str, Any]) -> None:
        """Takes other optimizers for some components, or for parts of them, before anything is learned.

        A part is a module inside a component, by its path there, such as `value` or `policy.encoder` of an
        actor-critic; it gets an optimizer of its own, named `component/path/of/part`, with a gradient norm of its own.

        Args:
            options: what `OptimizerOption.of` takes, by the name of a component or part.

        Raises:
            ConfigError: no optimizer trains such a component or part, or an option is wrong.
        """
        for name in sorted(options, key=lambda name: -name.count(".")):  # an encoder before the network that it is in
            owner = name if name in self.optimizers else self._component_of(name)
            old = self.optimizers[owner]
            all_: Any = dict(zip(old.names, old.parameters, strict=True))
            mine, option = all_, OptimizerOption.of(options[name], old.option)
            if name != owner:
                inside = f"{owner}.{name}."
                mine = {key: parameter for key, parameter in all_.items() if key.startswith(inside)}
                rest = {key: parameter for key, parameter in all_.items() if key not in mine}
                self.optimizers[owner] = ComponentOptimizer(rest, old.option, old.lengths)
                owner = "/".join((owner, *name.split(".")))
            self.optimizers[owner] = ComponentOptimizer(mine, option, old.lengths)
        self._trained.clear()

    def _component_of(self, part: str) -> str:
        """The one trained component that has such a part."""
        inside = {
            component: {key.removeprefix(f"{component}.").rpartition(".")[0] for key in optimizer.names}
            for component, optimizer in self.optimizers.items()
        }
        found = [name for name, paths in inside.items() if any(f"{path}.".startswith(f"{part}.") for path in paths)]
        if len(found) != 1:
            parts = sorted({path.partition(".")[0] for paths in inside.values() for path in paths} - {""})
            raise ConfigError(
                f"an optimizer is given for {part!r}{did_you_mean(part, [*self.optimizers, *parts])}; trained "
                f"components are {', '.join(self.optimizers)}; their parts {', '.join(parts)}"
            )
        return found[0]

    # -- learning

    def step(self, loss: Tensor) -> None:
        """One gradient step through the optimizers of every component that the loss depends on.

        Args:
            loss: a scalar.
        """
        self.apply_gradients([self.get_gradients(loss)])

    def get_gradients(
        self, loss: Tensor, components: Sequence[str] | None = None, *, retain_graph: bool = False
    ) -> dict[str, Tensor]:
        """Gradients of a loss with respect to trained components, without touching `.grad`.

        Args:
            loss: a scalar.
            components: which to differentiate; `None` is every one with an optimizer.
            retain_graph: whether another loss shares this one's graph.

        Returns:
            A gradient by the parameter's full name (`"component.path.weight"`). A component that the loss does not
            depend on at all is left out.

        Raises:
            ConfigError: a component has no optimizer, or was frozen by another model that shares it.
            ShapeError: the loss is not one number.
        """
        components = tuple(self.optimizers) if components is None else tuple(components)
        names, parameters = self._trained.get(components) or self._looked_up(components)
        if loss.numel() != 1:
            raise ShapeError(f"a loss of shape {list(loss.shape)} was given; it must be one number, such as a mean")
        if not loss.requires_grad:
            return {}
        engine = public_gradients if torch.compiler.is_compiling() else differentiate
        one = torch.ones_like(loss)
        gradients = engine((loss,), (one,), retain_graph, False, parameters, True, accumulate_grad=False)
        found: dict[str, Tensor] = {}
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                found[name] = gradient
        return found

    def _looked_up(self, components: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """Names and parameters of trained components, which are looked at once."""
        for component in components:
            if component not in self.optimizers:
                raise ConfigError(f"no optimizer trains {component!r}{did_you_mean(component, self.optimizers)}")
        optimizers = [one for name, one in self.optimizers.items() if name.partition("/")[0] in components]
        names = tuple(name for optimizer in optimizers for name in optimizer.names)
        parameters = tuple(parameter for optimizer in optimizers for parameter in optimizer.parameters)
        if not parameters:
            raise ConfigError(
                f"no optimizer trains any of the components {list(self.component)}; give `optim_option`, and leave "
                "`requires_grad` on in what is trained"
            )
        if frozen := [name for name, p in zip(names, parameters, strict=True) if not p.requires_grad]:
            raise ConfigError(
                f"{frozen[:4]} were frozen after this model was built, by another model that shares them?"
            )
        if not torch.compiler.is_compiling():
            self._trained[components] = names, parameters
        return names, parameters

    def apply_vector(self, component: str, vector: Tensor) -> dict[str, Tensor]:
        """One step of a component's optimizer along a vector, with no other gradient.

        Args:
            component: that is trained.
            vector: [P], taken as the gradient of all its parameters, flattened and one after another.

        Returns:
            As `apply_gradients`.
        """
        parameters = self.optimizers[component].parameters
        parts = vector.split([parameter.numel() for parameter in parameters])
        named = zip(self.optimizers[component].names, parts, parameters, strict=True)
        return self.apply_gradients([{name: part.view_as(parameter) for name, part, parameter in named}])

    def apply_gradients(
        self, gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None
    ) -> dict[str, Tensor]:
        """Averages gradients from one or many sources, then steps the optimizer of every component they cover.

        Args:
            gradients: from `get_gradients`, here or in a gradient worker.
            weights: of the average, for shards of unequal size; `None` weighs all alike.

        Returns:
            The norm of each component's gradient before clipping, 0-dim. Where one is not finite, none was applied: all
            parameters and everything that optimizers remember stay as they were.

        Raises:
            ShapeError: a gradient belongs to no trained parameter, or no gradients were given.
        """
        combined = gradients[0] if len(gradients) == 1 else combine_gradients(gradients, weights)
        names: list[str] = []
        optimizers: list[ComponentOptimizer] = []
        covered: list[list[Tensor]] = []
        used = 0
        given = tuple(combined)
        for name, optimizer in self.optimizers.items():
            if given == optimizer.names:  # as `get_gradients` gives them
                found = list(combined.values())
            else:
                found = [combined[key] for key in optimizer.names if key in combined]
            used += len(found)
            if not found:
                continue
            if len(found) < len(optimizer.names):
                pairs = zip(optimizer.names, optimizer.parameters, strict=True)
                found = [combined[key] if key in combined else torch.zeros_like(p) for key, p in pairs]
            names.append(name)
            optimizers.append(optimizer)
            covered.append(found)
        if used < len(combined):
            known = [key for optimizer in self.optimizers.values() for key in optimizer.names]
            unknown = [key for key in combined if key not in known]
            raise ShapeError(f"the gradients {unknown[:4]} belong to no trained parameter; known are {known[:4]}, ...")
        return dict(zip(names, step_together(optimizers, covered), strict=True))

    def follow(self, moments: Mapping[str, Sequence[Tensor]]) -> None:
        """Moves running averages of batch normalisations towards a minibatch.

        Args:
            moments: by component, what a call of it put into its list `moments`.
        """
        for name, found in moments.items():
            for norm, mean, variance in zip(batch_norms(self.component[name]), found[::2], found[1::2], strict=True):
                norm.follow(mean, variance)

    @property
    def has_batch_norm(self) -> bool:
        """Whether any component normalises rows by the minibatch they are in."""
        return bool(batch_norms(self))

    def set_progress(self, progress: float) -> None:
        """Moves every learning rate along its schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        for optimizer in self.optimizers.values():
            optimizer.set_progress(progress)

    # -- copies

    def sync_to(self, other: CoreModel) -> None:
        """Copies every parameter and buffer into another model of the same structure.

        Args:
            other: changed in place.

        Raises:
            ConfigError: it is this very model, or of another class.
            ShapeError: its parameters differ.
        """
        if other is self:
            raise ConfigError("a model cannot be synchronised with itself; sharing is passing the same object")
        if type(other) is not type(self):
            raise ConfigError(f"{type(self).__name__} cannot be synchronised to {type(other).__name__}: classes differ")
        _copy(self, other)

    def sync(self, target: str, *, source: str) -> None:
        """Copies one component's parameters and buffers to another component.

        Args:
            target: name of the component that changes.
            source: name of the component that is copied.
        """
        _copy(self.component[source], self.component[target])

    def pair(self, target: str, *, source: str) -> None:
        """Prepares `polyak_update`, once: compiled code could not.

        Args:
            target: name of the component that will change.
            source: name of the component that will be followed.

        Raises:
            ShapeError: their parameters differ.
        """
        _require_equal(self.component[source].state_dict(), self.component[target].state_dict())
        self._pairs[target, source] = (_numbers(self.component[target]), _numbers(self.component[source]))

    def polyak_update(self, target: str, *, source: str, tau: float | Tensor) -> None:
        """Moves one component towards another: target = (1 - tau) target + tau source.

        Args:
            target: name of the component that changes.
            source: name of the component that is followed.
            tau: in [0, 1].
        """
        if (target, source) not in self._pairs:
            self.pair(target, source=source)
        (theirs, their_counts), (mine, my_counts) = self._pairs[target, source]
        with torch.no_grad():
            follow_all(theirs, mine, tau)
            for count, my_count in zip(their_counts, my_counts, strict=True):
                count.copy_(my_count)

    def moved(self) -> None:
        """Buffers are other tensors after a move to another device, and the state of optimizers goes along."""
        for target, source in self._pairs:
            self.pair(target, source=source)
        for optimizer in self.optimizers.values():
            optimizer.follow_parameters()

    def clone(self) -> Self:
        """A model of the same class with equal parameters and optimizer state that shares no storage with this one."""
        policy, self._policy = self._policy, []
        try:
            twin = copy.deepcopy(self)
        finally:
            self._policy = policy
        return twin

    # -- acting

    def attach_policy(self, policy: _Sampler) -> None:
        """Says which policy acts with this model.

        Args:
            policy: built on this model's components.
        """
        self._policy = [policy]

    def get_action(self, state: Any) -> tuple[Tensor, Tensor]:
        """Actions for a batch of observations, and their log-probabilities: a thin view of the policy.

        The models of all algorithms of this library have one; a model of your own may define this instead.

        Args:
            state: observations with a leading dimension.

        Raises:
            ConfigError: no policy acts with this model.
        """
        if not self._policy:
            raise ConfigError(
                "no policy acts with this model; call attach_policy, or define get_action in a class of your own"
            )
        return self._policy[0].sample(state)

    # -- checkpoints

    def state_tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and optimizer state by name."""
        tensors = {f"model.{name}": tensor for name, tensor in self.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            tensors |= {f"optimizer.{name}.{key}": tensor for key, tensor in optimizer.state_tensors().items()}
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state_tensors` gave, in place.

        Args:
            tensors: of a model with the same components.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        known = self.state_tensors()
        tensors = {key if key in known else _OLD_ENSEMBLE.sub(_layer_of, key): value for key, value in tensors.items()}
        model = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
        try:
            self.load_state_dict(model)
        except RuntimeError as error:
            kept = {key.split(".")[1] for key in model if key.startswith("component.")}
            if new := [name for name, part in self.component.items() if part.state_dict() and name not in kept]:
                raise CheckpointError(
                    f"an older version made this checkpoint, without {', '.join(new)}, so that learning cannot go on "
                    "as it did; go on with that version, or train anew"
                ) from error
            raise CheckpointError(f"the saved parameters do not fit this model: {error}") from error
        for name, optimizer in self.optimizers.items():
            prefix = f"optimizer.{name}."
            saved = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            optimizer.load_state_tensors(saved)


_OLD_ENSEMBLE = re.compile(r"\b(weights|biases)\.(\d+)$")  # as checkpoints named an ensemble's layers until 0.2


def _layer_of(match: re.Match[str]) -> str:
    return f"layers.{match[2]}.{'weight' if match[1] == 'weights' else 'bias'}"


def combine_gradients(
    gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None
) -> dict[str, Tensor]:
    """The average of gradients from several sources.

    Args:
        gradients: by parameter name; a missing name counts as zero.
        weights: of the average, for example numbers of valid rows; `None` weighs all alike.

    Raises:
        ShapeError: there are no gradients, or not as many weights as gradients.
    """
    if not gradients:
        raise ShapeError("no gradients were given; at least one source is needed")
    shares = [1.0] * len(gradients) if weights is None else list(weights)
    if len(shares) != len(gradients):
        raise ShapeError(f"{len(gradients)} gradients and {len(shares)} weights were given; one weight each is needed")
    total = sum(shares)
    combined: dict[str, Tensor] = {}
    for gradient, share in zip(gradients, shares, strict=True):
        for name, value in gradient.items():
            part = value * (share / total) if total else torch.zeros_like(value)
            combined[name] = combined[name].add_(part) if name in combined else part
    return combined


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    mine, theirs = source.state_dict(), target.state_dict()
    _require_equal(mine, theirs)
    for name, value in mine.items():
        theirs[name].copy_(value)


def _numbers(module: nn.Module) -> _Numbers:
    """Parameters and buffers: those that can be averaged, and the others."""
    tensors = [*module.parameters(), *module.buffers()]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]


def _require_equal(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    if mine.keys() != theirs.keys() or any(mine[name].shape != theirs[name].shape for name in mine):
        different = [n for n in mine.keys() | theirs.keys() if n not in mine or n not in theirs]
        different += [n for n in mine.keys() & theirs.keys() if mine[n].shape != theirs[n].shape]
        raise ShapeError(f"the parameters differ: {sorted(different)[:4]}; only equal structures can be synchronised")
