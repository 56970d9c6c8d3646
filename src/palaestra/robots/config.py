"""`RobotConfig`: how a robot's agents are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from palaestra.core import ConfigError
from palaestra.robots.wrapper import ServingConfig

__all__ = ["RobotConfig"]


@dataclass(frozen=True, kw_only=True)
class RobotConfig(ServingConfig):
    """How a robot's agents are run; there are as many as environments."""

    agents: Literal["thread", "process", "ray"] = "thread"
    """Where agents live: threads of this process, worker processes, or Ray actors."""
    agents_per_worker: int = 1
    """Agents that share a worker process or Ray actor."""
    steps_per_iteration: int = 100
    """Env steps of every agent between two moments at which the run is logged, evaluated and saved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("agents_per_worker", "steps_per_iteration"):
            if getattr(self, name) < 1:
                raise ConfigError(f"robot.{name} is {getattr(self, name)}; it must be at least 1")
