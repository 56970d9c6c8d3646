"""One transition, made by hand, for tests of targets and losses."""

from typing import Any

import numpy as np
import torch
from torch import nn

from palaestra.algorithms import ALGORITHMS, GradientAlgorithm
from palaestra.core import Batch, BoundedSpec, RunSeeds, TensorSpec
from palaestra.nn import NetworkConfig

BOX = BoundedSpec((1,), minimum=np.array([-1.0]), maximum=np.array([1.0]))
LINEAR = NetworkConfig(hidden_sizes=(), activation="relu")
ROWS = 3


def made(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """An algorithm for two numbers of observation and one of action."""
    kind: Any = ALGORITHMS[name]
    config = kind.config_class(**{"network": LINEAR, "mini_batch_size": ROWS, "gradient_steps": 1, **settings})
    return kind(TensorSpec((2,), dtype), BOX, config, RunSeeds(0))


def constant(network: nn.Module, value: Any) -> None:
    """Makes a linear network say `value`, a number or one for each member, whatever it is asked."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.zero_()
            if "bias" in name:
                parameter.copy_(torch.as_tensor(value, dtype=torch.float32).reshape(-1, *[1] * (parameter.ndim - 1)))


def windows(reward: float, discount: float, kind: int = 1) -> Batch:
    """Equal one-step windows, before `preprocess`."""
    return Batch.of(
        {
            "observation": torch.ones(ROWS, 2),
            "action": torch.full((ROWS, 1), 0.5),
            "next_observation": torch.ones(ROWS, 2),
            "reward": torch.tensor([[9.0], [reward]]).expand(2, ROWS),
            "discount": torch.tensor([[1.0], [discount]]).expand(2, ROWS),
            "step_type": torch.tensor([[1], [kind]]).expand(2, ROWS),
            "index": torch.arange(ROWS),
        }
    )


def prepared(algorithm: GradientAlgorithm, reward: float, discount: float, kind: int = 1) -> Any:
    """The minibatch that `losses` gets."""
    source: Any = None
    found = algorithm.preprocess(windows(reward, discount, kind), source)
    return algorithm.noise(found, torch.Generator().manual_seed(0))
