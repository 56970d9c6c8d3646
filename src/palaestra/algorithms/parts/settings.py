"""Settings of a constructor, and the plan of a replayed algorithm."""

import dataclasses
from typing import Any, TypeVar

from torch import Tensor

from palaestra.algorithms.algorithm import AlgorithmConfig
from palaestra.core import RunSeeds
from palaestra.core.errors import require_kind
from palaestra.nn import EncoderOption, PlanningOptions, handed_over

_ConfigT = TypeVar("_ConfigT", bound=AlgorithmConfig)


def settings(
    kind: type[_ConfigT], config: _ConfigT | None, seeds: RunSeeds | None, network: EncoderOption
) -> tuple[_ConfigT, RunSeeds]:
    """Resolves what a constructor was given: the first line of every algorithm's `__init__`.

    Args:
        kind: the algorithm's configuration, with a field `network`.
        config: hyperparameters; those of `kind` by default.
        seeds: of the run; seed 0 by default.
        network: the user's encoder, or a mapping with one for each part; goes into `config.network.encoder`. A module
            is not copied.

    Raises:
        ConfigError: settings of another algorithm, or something else than seeds.
    """
    config, seeds = kind() if config is None else config, RunSeeds(0) if seeds is None else seeds
    require_kind(config, kind, "an algorithm, as config,", f"a {kind.__name__}(...)")
    require_kind(seeds, RunSeeds, "an algorithm, as seeds,", "a RunSeeds(...)")
    if network is not None:
        own: Any = {"network": dataclasses.replace(config.network, encoder=handed_over(network))}  # pyright: ignore
        config = dataclasses.replace(config, **own)
    return config, seeds


def by_parameter(optimizer: Any, vector: Tensor) -> dict[str, Tensor]:
    """The parts of a vector by the names of the parameters that they belong to, as `CoreModel.apply_gradients` wants.

    Args:
        optimizer: of one component.
        vector: [P], all of its parameters, flattened and one after another.
    """
    numbers = vector.split([parameter.numel() for parameter in optimizer.parameters])
    shapes = [parameter.shape for parameter in optimizer.parameters]
    return {name: part.view(shape) for name, part, shape in zip(optimizer.names, numbers, shapes, strict=True)}


def replay_plan(config: Any) -> Any:
    """The data that off-policy settings ask for: rows, or for a memory sequences of as many rows together.

    Args:
        config: with `network`, `mini_batch_size`, `mini_batch_length` and `burn_in`.
    """
    if config.network.recurrent is None:
        return config.plan_with(mini_batch_length=1, burn_in=0)
    size = max(1, config.mini_batch_size // config.mini_batch_length)
    return config.plan_with(mini_batch_size=size, mini_batch_length=max(2, config.mini_batch_length))


def planning_options(config: Any, *, state_size: int = 0, simulator: str = "") -> PlanningOptions:
    """The options of a search and of its networks.

    Args:
        config: with the fields that AlphaZero and MuZero have.
        state_size: see `PlanningOptions`.
        simulator: see `PlanningOptions`.
    """
    least_range = config.least_value_range * config.max_return
    search = (config.num_simulations, config.num_considered, config.value_scale, least_range)
    discount = -config.gamma if config.alternating else config.gamma
    return PlanningOptions(discount, config.max_return, config.num_atoms, search, state_size, simulator)
