"""`RobotConfig`: how a robot's agents are served."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.core import ConfigError
from palaestra.robots.wrapper import ServingConfig

__all__ = ["RobotConfig"]


@dataclass(frozen=True, kw_only=True)
class RobotConfig(ServingConfig):
    """How a robot's agents are served; there are as many agents as environments."""

    steps_per_iteration: int = 100
    """Env steps of every agent between two moments at which the run is logged, evaluated and saved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_per_iteration < 1:
            raise ConfigError(f"robot.steps_per_iteration is {self.steps_per_iteration}; it must be at least 1")
