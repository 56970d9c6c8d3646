"""The optimizer of one model component, usable inside and outside compiled code."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palaestra.core import CheckpointError, ConfigError, did_you_mean, import_object, refuses
from palaestra.core.schedule import Linear, Piecewise, Schedule, parse_schedule, schedule_range, schedule_value
from palaestra.nn import rules
from palaestra.nn.fast import ADAM, Recorded, flatten, norms_of, recording, scaled

__all__ = ["OptimizerOption"]

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "rmsprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
}
# What each remembers of every parameter, and the setting without which it does not.
_STATE: dict[str, dict[str, str | None]] = {
    "adam": {"exp_avg": None, "exp_avg_sq": None},
    "adamw": {"exp_avg": None, "exp_avg_sq": None},
    "rmsprop": {"square_avg": None, "grad_avg": "centered", "momentum_buffer": "momentum"},
    "sgd": {"momentum_buffer": "momentum"},
}
_SMALL = 1 << 15  # elements up to which one copy into a vector is quicker than work on each tensor


@dataclass(frozen=True)
class OptimizerOption:
    """How one component of a model is optimised.

    Raises:
        ConfigError: a parameter is unknown to that optimizer, or out of its range.

    Examples:
        >>> OptimizerOption("adam", {"lr": 3e-4}).params["lr"]
        0.0003
    """

    cls: str | type[torch.optim.Optimizer] = "adam"
    """Which of torch's optimizers: adam, adamw, rmsprop, sgd, the name of a class of `torch.optim`, or a class."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Its parameters under torch's names; `lr` may be a schedule over the run."""
    max_grad_norm: float | None = None
    """The component's gradient is scaled down to this Euclidean norm where it is longer."""

    @refuses(ConfigError)
    def __post_init__(self) -> Iterator[str]:
        own = self.torch_class
        known = _DEFAULTS[str(self.cls)] if own is None else inspect.signature(own).parameters
        for name in self.params:
            if name not in known:
                yield f"{self.cls} has no parameter {name!r}{did_you_mean(name, known)}"
        for name, value in {**self.params, "max_grad_norm": self.max_grad_norm}.items():
            ends = schedule_range(value) if isinstance(value, Linear | Piecewise) else [value]
            numbers = value if isinstance(value, tuple | list) else ends
            if own is None and any(isinstance(number, int | float) and not number >= 0 for number in numbers):
                yield f"{self.cls} was given {name} = {value}; it must not be negative"
        if not all(0 <= beta < 1 for beta in self.params.get("betas", ())):
            yield f"{self.cls} was given betas = {self.params['betas']}; they must lie in [0, 1)"
        if self.params.get("nesterov") and not self.params.get("momentum"):
            yield "Nesterov's method needs a momentum above 0"

    @property
    def torch_class(self) -> type[torch.optim.Optimizer] | None:
        """The class that makes the steps; `None` for the four that the library makes itself."""
        if self.cls in _DEFAULTS:
            return None
        found: Any = self.cls
        if isinstance(found, str):
            classes = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
            found = import_object(found) if ":" in found else classes.get(found.lower().rpartition(".")[2])
            if found is None:
                hint = did_you_mean(str(self.cls), _DEFAULTS) or did_you_mean(str(self.cls), classes)
                raise ConfigError(f"unknown optimizer {self.cls!r}{hint}")
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)) or found is torch.optim.LBFGS:
            raise ConfigError(
                f"the optimizer {self.cls!r} is {found!r}; a class of torch.optim is needed whose steps take gradients "
                "alone, which those of LBFGS do not"
            )
        return found

    @classmethod
    def of(cls, value: Any, default: OptimizerOption) -> OptimizerOption:
        """What a user set for a component, on top of what the algorithm has.

        Args:
            value: an option, a class, a name such as `"sgd"`, or a mapping of `cls`, `params` and `max_grad_norm`.
            default: the algorithm's, whose learning rate and longest gradient stay unless the value has others, and
                whose other parameters stay with the same class.

        Raises:
            ConfigError: it is nothing of the kind.
        """
        if isinstance(value, str | type):
            value = {"cls": value}
        elif isinstance(value, OptimizerOption):
            value = {"cls": value.cls, "params": value.params, "max_grad_norm": value.max_grad_norm}
        if not isinstance(value, Mapping) or value.keys() - {"cls", "params", "max_grad_norm"}:
            raise ConfigError(f"an optimizer is {value!r}; give a name, or a mapping of cls, params and max_grad_norm")
        kind, limit = value.get("cls", default.cls), value.get("max_grad_norm")
        kept = {name: given for name, given in default.params.items() if name == "lr" or kind == default.cls}
        given = {
            name: parse_schedule(one) if name == "lr" and isinstance(one, str) else one
            for name, one in (value.get("params") or {}).items()
        }
        return cls(kind, {**kept, **given}, default.max_grad_norm if limit is None else limit)


class ComponentOptimizer:
    """Applies gradients to the parameters of one component as torch's optimizers do.

    The state is created at once, so that a step can be part of a compiled graph and a checkpoint needs no lazy
    initialisation. Outside compiled code Adam runs as torch's fused kernel; inside, and for the others, as plain
    operations.

    Args:
        parameters: by full name.
        option: which optimizer, with which parameters.
        lengths: of parameters that keep their length.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        option: OptimizerOption,
        lengths: Sequence[rules.KeptLength] = (),
    ) -> None:
        self.names = tuple(parameters)
        self.lengths = [one for one in lengths if set(one.names) <= parameters.keys()]
        self._lengths_of = [([parameters[name] for name in one.names], one.dim) for one in self.lengths]
        self.parameters: list[Tensor] = list(parameters.values())
        self.option = option
        own: Any = option.torch_class
        defaults = _DEFAULTS[str(option.cls)] if own is None else {"lr": 1e-3}
        self._settings: dict[str, Any] = {**defaults, **option.params}
        self.schedule: Schedule = self._settings.pop("lr")
        """The learning rate over the run."""
        self._rate = schedule_value(self.schedule, 0.0)
        self.learning_rate = torch.tensor(self._rate, dtype=torch.float32)
        """0-dim tensor, so that a compiled step sees its changes."""
        self.state: dict[str, list[Tensor]] = {
            name: [torch.zeros_like(parameter) for parameter in self.parameters]
            for name, setting in (_STATE[str(option.cls)] if own is None else {}).items()
            if setting is None or self._settings[setting]
        }
        """Moments of every parameter, by name."""
        self._own: Any = None
        if own is not None and self.parameters:
            rules.kept_by(own, self.parameters, {"lr": self._rate, **self._settings})  # says what it cannot do
            self._own = own(self.parameters, lr=self._rate, **self._settings)
        self._kernel: Any = ADAM.get(str(option.cls))
        beta1, beta2 = self._settings.get("betas", (0.0, 0.0))
        rest = {name: self._settings.get(name) for name in ("weight_decay", "eps")}
        self._kept = {"beta1": beta1, "beta2": beta2, "amsgrad": False, "maximize": False, **rest}
        self.steps = torch.zeros(())
        """0-dim, gradient steps made."""
        self.follow_parameters()

    def follow_parameters(self) -> None:
        """Keeps the state where the parameters are, and chooses the quickest way to work on them."""
        for tensors in self.state.values():
            tensors[:] = [tensor.to(p.device, p.dtype) for tensor, p in zip(tensors, self.parameters, strict=True)]
        for parameter, own in self._own.state.items() if self._own is not None else ():
            own |= {name: _beside(value, parameter) for name, value in own.items()}
        self._device = self.parameters[0].device if self.parameters else self.steps.device
        self.steps, self.learning_rate = self.steps.to(self._device), self.learning_rate.to(self._device)
        self._one = torch.ones_like(self.steps)  # adding a number converts it into a tensor first, every time
        self._counts = [self.steps] * len(self.parameters)
        kinds = {(parameter.device, parameter.dtype) for parameter in self.parameters}
        self._mixed = len(kinds) > 1
        self._fused = self.option.cls in ("adam", "adamw") and not self._mixed
        sizes = [parameter.numel() for parameter in self.parameters]
        in_order = all(parameter.is_contiguous() and parameter.is_cpu for parameter in self.parameters)
        self._vector_sizes = sizes if in_order and not self._mixed and sum(sizes) <= _SMALL else None

    def require_compilable(self) -> None:
        """Refuses to be part of compiled code.

        Raises:
            ConfigError: it is a class of `torch.optim`.
        """
        if self._own is not None:
            raise ConfigError(f"steps of {self.option.cls} cannot be compiled; leave out --compile, or use adam")

    def set_progress(self, progress: float) -> None:
        """Moves the learning rate along its schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        if isinstance(self.schedule, Linear | Piecewise):
            self._rate = schedule_value(self.schedule, progress)
            self.learning_rate.fill_(self._rate)

    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        """One optimizer step. A gradient that is not finite changes nothing.

        Args:
            gradients: one per parameter, in the parameters' order.

        Returns:
            The Euclidean norm of the whole gradient before it was scaled, 0-dim.
        """
        return step_together((self,), (gradients,))[0]

    def norm_in_graph(self, grads: Sequence[Tensor]) -> Tensor:
        """The norm of a whole gradient, as part of a graph.

        Args:
            grads: one for each parameter.
        """
        if not grads:
            return torch.zeros(())
        return torch.linalg.vector_norm(torch.stack(norms_of(grads)))

    def _step_in_graph(self, grads: list[Tensor], norm: Tensor, finite: Tensor) -> None:
        """A step as part of compiled code."""
        if self._fused and recording():
            self._update_fused(self._shortened(grads, norm), self.learning_rate, finite)
        else:
            steps = self.steps + 1
            after, state = self.stepped(self.parameters, grads, self.state, steps, self.learning_rate, norm)
            for old, new in zip((self.parameters, *self.state.values()), (after, *state.values()), strict=True):
                for mine, changed in zip(old, new, strict=True):
                    _write(mine, changed, finite)
            _write(self.steps, steps, finite)
        self.keep_lengths(finite)

    def _shortened(self, grads: Sequence[Tensor], norm: Tensor) -> list[Tensor]:
        if self.option.max_grad_norm is None:
            return list(grads)
        return scaled(grads, (self.option.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))

    def _measure(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """The norm of the whole gradient, and the gradient as `_step_by` takes it: in one vector, or one by one."""
        if not self.parameters:
            return torch.zeros(()), []
        if self.parameters[0].device != self._device:
            self.follow_parameters()
        if self._vector_sizes:
            vector = flatten(gradients)
            return torch.linalg.vector_norm(vector), vector
        grads = [_in_order_of(parameter, grad) for parameter, grad in zip(self.parameters, gradients, strict=True)]
        norms = [torch.linalg.vector_norm(grad) for grad in grads]
        if self._mixed:
            norms = [norm.to(grads[0].device, torch.float32) for norm in norms]
        return torch.linalg.vector_norm(torch.stack(norms)), grads

    def _step_by(self, gradients: Sequence[Tensor], measured: Any, norm: float) -> None:
        """A step on a gradient of this length."""
        if not self.parameters:
            return
        limit = self.option.max_grad_norm
        scale = 1.0 if limit is None or norm <= limit else limit / (norm + 1e-6)
        if self._vector_sizes:
            if scale < 1:
                measured = measured * scale  # of one gradient it is that itself
            if self._fused:
                grads = measured.split_with_sizes(self._vector_sizes)
            else:
                parts = measured.split_with_sizes(self._vector_sizes)
                grads = [part.view_as(grad) for part, grad in zip(parts, gradients, strict=True)]
        else:
            grads = [grad * scale for grad in measured] if scale < 1 else measured
        if self._own is not None:
            self._step_own(grads)
        elif self._fused:  # `_update_fused`, without the way there
            self.steps += self._one
            self._kernel(self.parameters, grads, *self.state.values(), [], self._counts, lr=self._rate, **self._kept)
        else:
            self._update(grads, self._rate)
        if self.lengths:
            self.keep_lengths()

    def keep_lengths(self, finite: Tensor | None = None) -> None:
        """Rescales the vectors that keep their length, as each step does.

        Args:
            finite: 0-dim bool, whether to; always by default.
        """
        for parameters, dim in self._lengths_of:
            kept = [unit(parameters[0], dim)] if dim is not None else rules.of_one_scale(parameters)
            for parameter, value in zip(parameters, kept, strict=True):
                _write(parameter, value, finite)

    def _step_own(self, grads: Sequence[Tensor]) -> None:
        """By an optimizer of PyTorch, or of the user."""
        self.steps += self._one
        for group in self._own.param_groups:
            group["lr"] = self._rate
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        self._own.step()
        self._own.zero_grad()

    def _update_fused(self, grads: Sequence[Tensor], rate: Any, finite: Tensor | None) -> None:
        """The step in one operation; where `finite` is false, everything keeps its value."""
        self.steps += self._one if finite is None else finite
        kept = self._kept if finite is None else {**self._kept, "found_inf": (~finite).float()}
        self._kernel(self.parameters, grads, *self.state.values(), [], self._counts, lr=rate, **kept)

    def _update(self, grads: Sequence[Tensor], rate: float) -> None:
        """The step in plain operations."""
        self.steps += self._one
        changes = rules.changes(self.option.cls, self._settings, self.parameters, grads, self.state, self.steps)
        for i, (parameter, (change, new)) in enumerate(zip(self.parameters, changes, strict=True)):
            parameter.sub_(change, alpha=rate)
            for name, value in new.items():
                self.state[name][i].copy_(value)

    def stepped(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], state: Any, steps: Tensor, rate: Tensor, norm: Any
    ) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
        """`step` as a pure function, of other parameters of these shapes; for `torch.func.vmap`.

        Args:
            parameters: instead of the own.
            grads: one for each.
            state: as the attribute is.
            steps: 0-dim, with this one.
            rate: 0-dim, the learning rate.
            norm: 0-dim, of the whole gradient.

        Returns:
            Parameters and state after the step.
        """
        grads = self._shortened(grads, norm)
        pairs = rules.changes(self.option.cls, self._settings, parameters, grads, state, steps)
        after = [parameter - rate * change for parameter, (change, _) in zip(parameters, pairs, strict=True)]
        return after, {name: [new[name] for _, new in pairs] for name in state}

    def state_tensors(self) -> dict[str, Tensor]:
        """The state by name, for a checkpoint."""
        tensors = {
            f"{kind}.{name}": tensor
            for kind, tensors in self.state.items()
            for name, tensor in zip(self.names, tensors, strict=True)
        }
        if self._own is not None:
            for name, parameter in zip(self.names, self.parameters, strict=True):
                kept = self._own.state.get(parameter, {}).items()
                tensors |= {f"{kind}.{name}": torch.as_tensor(value) for kind, value in kept if value is not None}
        return {"steps": self.steps, **tensors}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts a saved state back, in place.

        Args:
            tensors: from `state_tensors` of an optimizer with the same option and parameters.

        Raises:
            CheckpointError: names or shapes differ.
        """
        if self._own is not None:
            self._load_own(tensors)
            return
        mine = self.state_tensors()
        different = mine.keys() ^ tensors.keys()
        different |= {name for name in mine.keys() & tensors.keys() if mine[name].shape != tensors[name].shape}
        if different:
            raise CheckpointError(f"the saved optimizer state does not fit {self.option.cls}: {sorted(different)[:4]}")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])

    def _load_own(self, tensors: Mapping[str, Tensor]) -> None:
        """An optimizer of PyTorch makes its state in its first step, so there may be none yet to compare with."""
        rest, what = set(tensors) - {"steps"}, f"the saved optimizer state does not fit {self.option.cls}"
        kept_of_all = rules.kept_by(type(self._own), self.parameters, {"lr": self._rate, **self._settings})
        for name, parameter, kept in zip(self.names, self.parameters, kept_of_all, strict=True):
            mine = [key for key in rest if key.endswith(f".{name}") and "." not in key.removesuffix(f".{name}")]
            rest -= set(mine)
            state = {key.removesuffix(f".{name}"): _beside(tensors[key].clone(), parameter) for key in mine}
            if (state and state.keys() != kept) or not all(_fits(value, parameter) for value in state.values()):
                raise CheckpointError(f"{what}: {sorted(mine)[:4]}")
            self._own.state[parameter] = state
        if rest or "steps" not in tensors:
            raise CheckpointError(f"{what}: {sorted(rest)[:4]}")
        self.steps.copy_(tensors["steps"])


def step_together(optimizers: Sequence[ComponentOptimizer], gradients: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """One step of each optimizer; where any gradient is not finite, none changes anything.

    Args:
        optimizers: of different components.
        gradients: of each, one per parameter, in the parameters' order.

    Returns:
        The Euclidean norm of each whole gradient before it was scaled, 0-dim.
    """
    if torch.compiler.is_compiling() or Recorded.is_running:
        return _step_in_graph(optimizers, gradients)
    recording = torch.is_grad_enabled()
    torch.set_grad_enabled(False)  # `torch.no_grad` takes as long as the norm of a small gradient
    try:
        if len(optimizers) == 1:  # what lists take is a hundredth of a small gradient step
            norm, arranged = optimizers[0]._measure(gradients[0])
            length = float(norm)
            if math.isfinite(length):
                optimizers[0]._step_by(gradients[0], arranged, length)
            return (norm,)
        measured = [optimizer._measure(grads) for optimizer, grads in zip(optimizers, gradients, strict=True)]
        norms = [float(norm) for norm, _ in measured]
        if all(map(math.isfinite, norms)):
            for optimizer, grads, (_, arranged), norm in zip(optimizers, gradients, measured, norms, strict=True):
                optimizer._step_by(grads, arranged, norm)
        return [norm for norm, _ in measured]
    finally:
        torch.set_grad_enabled(recording)


@torch.no_grad()
def _step_in_graph(optimizers: Sequence[ComponentOptimizer], gradients: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    norms = [optimizer.norm_in_graph(grads) for optimizer, grads in zip(optimizers, gradients, strict=True)]
    finite = functools.reduce(torch.logical_and, [torch.isfinite(norm) for norm in norms])
    for optimizer, grads, norm in zip(optimizers, gradients, norms, strict=True):
        optimizer._step_in_graph(list(grads), norm, finite)
    return norms


def unit(vectors: Tensor, dim: int) -> Tensor:
    """Vectors of length 1 in the same directions.

    Args:
        vectors: any shape; those of length 0 stay as they are.
        dim: along which their entries lie.
    """
    return nn.functional.normalize(vectors, dim=dim)


def _in_order_of(parameter: Tensor, grad: Tensor) -> Tensor:
    """A gradient laid out as its parameter is: fused kernels walk through memory, and autograd gives views."""
    if grad.is_contiguous() and parameter.is_contiguous():
        return grad
    return torch.empty_like(parameter).copy_(grad)


def _write(old: Tensor, new: Tensor, finite: Tensor | None) -> None:
    old.copy_(new if finite is None else torch.where(finite, new, old))


def _beside(value: Any, parameter: Tensor) -> Any:
    """State of an optimizer of PyTorch where the parameter is; single numbers stay where it wants them."""
    return value.to(parameter.device) if isinstance(value, Tensor) and value.ndim else value


def _fits(value: Any, parameter: Tensor) -> bool:
    """Whether state can be that of a parameter: a number, or of its shape, or as Adafactor's 1 along an axis."""
    sizes = tuple(value.shape)
    same = len(sizes) == parameter.ndim
    return not sizes or (same and all(a in (1, b) for a, b in zip(sizes, parameter.shape, strict=True)))
