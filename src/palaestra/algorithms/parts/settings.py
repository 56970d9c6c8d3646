"""Settings of a constructor, and the plan of a replayed algorithm."""

from typing import Any

from torch import Tensor

from palaestra.nn import PlanningOptions


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
