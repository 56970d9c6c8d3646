"""Many agents and many policies: worlds, the bridge to simulators, collection, evaluation."""

from palaestra.multiagent.env_wrapper import EnvWrapper
from palaestra.multiagent.pettingzoo import (
    AECWorld,
    ParallelWorld,
    aec_env,
    load_pettingzoo,
    parallel_env,
    world_from_pettingzoo,
)
from palaestra.multiagent.tiny import Meeting
from palaestra.multiagent.world import AgentSpec, Moment, World
from palaestra.multiagent.worlds import Worlds

__all__ = [
    "AECWorld",
    "AgentSpec",
    "EnvWrapper",
    "Meeting",
    "Moment",
    "ParallelWorld",
    "World",
    "Worlds",
    "aec_env",
    "load_pettingzoo",
    "parallel_env",
    "world_from_pettingzoo",
]
