"""What an algorithm holds, to be compared before and after."""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.algorithms import Algorithm


def whole_state(algorithm: Algorithm) -> dict[str, Any]:
    """Everything that an algorithm and its policy hold, copied."""
    state = {**algorithm.state_tensors(), **{f"policy.{k}": v for k, v in algorithm.policy.state_dict().items()}}
    return copy.deepcopy(state)


def global_generators() -> list[Any]:
    numbers = np.random.get_state()  # the legacy generator is the global one
    return [torch.get_rng_state().tolist(), numbers[1].tolist(), numbers[2], random.getstate()]


def different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names whose values are not bit-equal."""
    assert a.keys() == b.keys()

    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else x == y

    return [name for name in a if not equal(a[name], b[name])]


def parameters(algorithm: Algorithm) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in algorithm.model.state_dict().items()}
