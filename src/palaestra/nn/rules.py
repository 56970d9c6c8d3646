"""The rules of Adam, RMSProp and SGD in plain operations, which compiled code can fuse; and what PyTorch's own keep."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palaestra.core import ConfigError

__all__ = []

_State = dict[str, Tensor]


def correction(beta: float, steps: Tensor, power: float) -> Tensor:
    """(1 - beta^steps)^-power, as exponentials: compiled code computes those once, and other powers in inner loops."""
    if not beta:
        return torch.ones_like(steps)
    return torch.exp(torch.log1p(-torch.exp(steps * math.log(beta))) * -power)


def adam(p: Tensor, g: Tensor, old: _State, settings: dict[str, Any]) -> tuple[Tensor, _State]:
    """Kingma and Ba 2015, algorithm 1; with `decoupled`, the weight decay of Loshchilov and Hutter 2019."""
    (beta1, beta2), (correction1, correction2) = settings["betas"], settings["corrections"]
    if settings["weight_decay"] and not settings["decoupled"]:
        g = g + settings["weight_decay"] * p
    mean, square = old["exp_avg"].lerp(g, 1 - beta1), old["exp_avg_sq"].lerp(g * g, 1 - beta2)
    deviation = square.sqrt() * correction2 + settings["eps"]
    return mean * correction1 / deviation, {"exp_avg": mean, "exp_avg_sq": square}


def rmsprop(p: Tensor, g: Tensor, old: _State, settings: dict[str, Any]) -> tuple[Tensor, _State]:
    """Tieleman and Hinton 2012, lecture 6.5; centred as in Graves 2013, equations (38) to (41)."""
    if settings["weight_decay"]:
        g = g + settings["weight_decay"] * p
    new = {"square_avg": old["square_avg"].lerp(g * g, 1 - settings["alpha"])}
    variance = new["square_avg"]
    if settings["centered"]:
        new["grad_avg"] = old["grad_avg"].lerp(g, 1 - settings["alpha"])
        variance = (variance - new["grad_avg"] ** 2).clamp(min=0)  # rounding may leave less than nothing
    change = g / (variance.sqrt() + settings["eps"])
    if settings["momentum"]:
        change = new["momentum_buffer"] = settings["momentum"] * old["momentum_buffer"] + change
    return change, new


def sgd(p: Tensor, g: Tensor, old: _State, settings: dict[str, Any]) -> tuple[Tensor, _State]:
    """Sutskever et al. 2013, section 2, in torch's form: the learning rate is outside the momentum."""
    if settings["weight_decay"]:
        g = g + settings["weight_decay"] * p
    if not settings["momentum"]:
        return g, {}
    buffer = g.add(old["momentum_buffer"], alpha=settings["momentum"])
    return g.add(buffer, alpha=settings["momentum"]) if settings["nesterov"] else buffer, {"momentum_buffer": buffer}


RULES = {"adam": adam, "adamw": adam, "rmsprop": rmsprop, "sgd": sgd}
"""By the name of an optimizer."""


def changes(
    kind: Any,
    settings: Mapping[str, Any],
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    state: Mapping[str, Sequence[Tensor]],
    steps: Tensor,
) -> list[tuple[Tensor, _State]]:
    """Of each parameter, what the learning rate is a factor of, and what is remembered then.

    Args:
        kind: name of the optimizer.
        settings: of it.
        parameters: before the step.
        grads: one for each.
        state: what is remembered of each, by name.
        steps: 0-dim, with this one.
    """
    settings = {**settings, "decoupled": kind == "adamw"}
    if "betas" in settings:
        steps = steps.double()  # 1 - 0.999 loses half of its digits in float32
        beta1, beta2 = settings["betas"]
        settings["corrections"] = correction(beta1, steps, 1.0), correction(beta2, steps, 0.5)
    pairs: list[tuple[Tensor, _State]] = []
    for i, (parameter, grad) in enumerate(zip(parameters, grads, strict=True)):
        change, new = RULES[str(kind)](parameter, grad, {name: one[i] for name, one in state.items()}, settings)
        pairs.append((change + settings["weight_decay"] * parameter if settings["decoupled"] else change, new))
    return pairs


def kept_by(kind: Any, parameters: Sequence[Tensor], settings: Mapping[str, Any]) -> list[set[str]]:
    """What an optimizer of PyTorch keeps of each parameter, found by a step of another one.

    Args:
        kind: its class.
        parameters: of the optimizer.
        settings: that it was made with.

    Raises:
        ConfigError: it takes no such parameters or settings.
    """
    copies = [torch.zeros_like(parameter, requires_grad=True) for parameter in parameters]
    for copied in copies:
        copied.grad = torch.zeros_like(copied)
    try:
        optimizer = kind(copies, **settings)
        optimizer.step()
    except Exception as error:
        shapes = sorted({tuple(one.shape) for one in copies})
        raise ConfigError(
            f"{kind.__name__} cannot train parameters of the shapes {shapes} with {dict(settings)}: {error}; take "
            "another optimizer, or other settings of it"
        ) from error
    return [{name for name, value in optimizer.state.get(one, {}).items() if value is not None} for one in copies]


class KeptLength(NamedTuple):
    """Parameters of one layer that keep their length from step to step."""

    names: tuple[str, ...]
    """In full."""
    dim: int | None
    """Along which the one that is named has length 1; `None`: the squares of all of them together have a mean of 1."""


def kept_lengths(module: nn.Module, name: str) -> list[KeptLength]:
    """What the parts of a module keep, as their `unit_vectors` and `one_scale` say; see `CoreModel`.

    Args:
        module: a component.
        name: of the component.
    """
    found: list[KeptLength] = []
    for path, part in module.named_modules(prefix=name):
        vectors: Mapping[str, int] = getattr(part, "unit_vectors", {})
        together: Sequence[str] = getattr(part, "one_scale", ())
        found += [KeptLength((f"{path}.{one}",), dim) for one, dim in vectors.items()]
        found += [KeptLength(tuple(f"{path}.{one}" for one in together), None)] if together else []
    return found


def of_one_scale(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors whose mean squares along the last dimension add up to 1, of the same directions together.

    Args:
        tensors: of one shape.
    """
    squares = torch.stack([tensor.square().mean(-1, keepdim=True) for tensor in tensors]).sum(0)
    scale = (squares + 1e-8).rsqrt()
    return [tensor * scale for tensor in tensors]
