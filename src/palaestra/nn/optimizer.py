"""The optimizer of one model component, usable inside and outside compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from palaestra.core import CheckpointError, ConfigError, Schedule, did_you_mean, schedule_value

__all__ = ["ComponentOptimizer", "OptimizerOption"]

_foreach_norm: Any = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]

_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "rmsprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
}
_STATE: dict[str, dict[str, str | None]] = {
    "adam": {"step": None, "exp_avg": None, "exp_avg_sq": None},
    "adamw": {"step": None, "exp_avg": None, "exp_avg_sq": None},
    "rmsprop": {"step": None, "square_avg": None, "grad_avg": "centered", "momentum_buffer": "momentum"},
    "sgd": {"momentum_buffer": "momentum"},
}
"""What each optimizer remembers, and the setting without which it does not."""


@dataclass(frozen=True)
class OptimizerOption:
    """How one component of a model is optimised.

    Raises:
        ConfigError: a parameter is unknown to that optimizer.

    Example:
        >>> OptimizerOption("adam", {"lr": 3e-4}).params["lr"]
        0.0003
    """

    cls: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Which of torch's optimizers."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Its parameters under torch's names; `lr` may be a schedule over the run."""
    max_grad_norm: float | None = None
    """The component's gradient is scaled down to this Euclidean norm where it is longer."""

    def __post_init__(self) -> None:
        if self.cls not in _DEFAULTS:
            raise ConfigError(f"unknown optimizer {self.cls!r}{did_you_mean(self.cls, _DEFAULTS)}")
        for name in self.params:
            if name not in _DEFAULTS[self.cls]:
                raise ConfigError(f"{self.cls} has no parameter {name!r}{did_you_mean(name, _DEFAULTS[self.cls])}")


class ComponentOptimizer:
    """Applies gradients to the parameters of one component with torch's own optimizer functions.

    The functions are called directly (fused kernels outside compiled code, plain operations inside) on state that is
    created at once, so that a step can be part of a compiled graph and a checkpoint needs no lazy initialisation.

    Args:
        parameters: by full name; all of one device.
        option: which optimizer, with which parameters.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], option: OptimizerOption) -> None:
        self.names = tuple(parameters)
        self.parameters: list[Tensor] = list(parameters.values())
        self.option = option
        self._settings = {**_DEFAULTS[option.cls], **option.params}
        self._schedule: Schedule = self._settings.pop("lr")
        self._apply: Callable[[list[Tensor]], None] = getattr(self, f"_{option.cls}")
        self.learning_rate = torch.tensor(schedule_value(self._schedule, 0.0), dtype=torch.float64)
        """0-dim float64 tensor, so that a compiled step sees its changes."""
        self.state: dict[str, list[Tensor]] = {
            name: [torch.tensor(0.0) if name == "step" else torch.zeros_like(p) for p in self.parameters]
            for name, setting in _STATE[option.cls].items()
            if setting is None or self._settings[setting]
        }

    def set_progress(self, progress: float) -> None:
        """Moves the learning rate along its schedule.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """
        self.learning_rate.fill_(schedule_value(self._schedule, progress))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> Tensor:
        """One optimizer step.

        Args:
            gradients: one per parameter, in the parameters' order; scaled in place where they are too long.

        Returns:
            The Euclidean norm of the whole gradient before it was scaled, 0-dim.
        """
        grads = list(gradients)
        norm = torch.linalg.vector_norm(torch.stack(_foreach_norm(grads)))
        limit = self.option.max_grad_norm
        if limit is not None:
            # outside compiled code a look at the norm costs less than a multiplication by 1
            if torch.compiler.is_compiling():
                scale = (limit / (norm + 1e-6)).clamp(max=1.0)
                grads = [grad * scale for grad in grads]
            elif norm > limit:
                _foreach_mul_(grads, limit / (norm + 1e-6))
        self._apply(grads)
        return norm

    def _adam(self, grads: list[Tensor], function: Any = adam) -> None:
        settings = self._settings
        function(
            self.parameters,
            grads,
            self.state["exp_avg"],
            self.state["exp_avg_sq"],
            [],
            self.state["step"],
            foreach=False,
            fused=not torch.compiler.is_compiling(),
            grad_scale=None,
            found_inf=None,
            amsgrad=False,
            beta1=settings["betas"][0],
            beta2=settings["betas"][1],
            lr=self.learning_rate,
            weight_decay=settings["weight_decay"],
            eps=settings["eps"],
            maximize=False,
        )

    def _adamw(self, grads: list[Tensor]) -> None:
        self._adam(grads, adamw)

    def _rmsprop(self, grads: list[Tensor]) -> None:
        settings, state = self._settings, self.state
        rmsprop(
            self.parameters,
            grads,
            state["square_avg"],
            state.get("grad_avg", []),
            state.get("momentum_buffer", []),
            state["step"],
            foreach=False,
            lr=self._number(),
            alpha=settings["alpha"],
            eps=settings["eps"],
            weight_decay=settings["weight_decay"],
            momentum=settings["momentum"],
            centered=settings["centered"],
        )

    def _sgd(self, grads: list[Tensor]) -> None:
        settings = self._settings
        buffers: list[Tensor | None] = [*self.state.get("momentum_buffer", [None] * len(grads))]
        sgd(
            self.parameters,
            grads,
            buffers,
            foreach=False,
            fused=False,
            weight_decay=settings["weight_decay"],
            momentum=settings["momentum"],
            lr=self._number(),
            dampening=0.0,
            nesterov=settings["nesterov"],
            maximize=False,
        )

    def _number(self) -> Any:
        """The learning rate as the functions without a tensor form take it; compiled code keeps it a tensor."""
        return self.learning_rate if torch.compiler.is_compiling() else self.learning_rate.item()

    def state_tensors(self) -> dict[str, Tensor]:
        """The state by name, for a checkpoint."""
        return {
            f"{kind}.{name}": tensor
            for kind, tensors in self.state.items()
            for name, tensor in zip(self.names, tensors, strict=True)
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts a saved state back, in place.

        Args:
            tensors: from `state_tensors` of an optimizer with the same option and parameters.

        Raises:
            CheckpointError: names or shapes differ.
        """
        mine = self.state_tensors()
        if mine.keys() != tensors.keys():
            different = sorted(mine.keys() ^ tensors.keys())
            raise CheckpointError(f"the saved optimizer state does not fit {self.option.cls}: {different[:4]}")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])
