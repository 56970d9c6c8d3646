"""Many agents and many policies: worlds, the bridge to simulators, collection, evaluation."""

from palaestra.multiagent.collector import MultiAgentCollector
from palaestra.multiagent.config import AgentsConfig, create_worlds, is_world, load_world
from palaestra.multiagent.env_wrapper import EnvWrapper
from palaestra.multiagent.evaluation import evaluate_agents, play_worlds
from palaestra.multiagent.pettingzoo import (
    AECWorld,
    ParallelWorld,
    aec_env,
    load_pettingzoo,
    parallel_env,
    world_from_pettingzoo,
)
from palaestra.multiagent.roles import Role, assign_roles, team_specs
from palaestra.multiagent.tiny import Meeting
from palaestra.multiagent.world import AgentSpec, Moment, World
from palaestra.multiagent.worlds import Worlds

__all__ = [
    "AECWorld",
    "AgentSpec",
    "AgentsConfig",
    "EnvWrapper",
    "Meeting",
    "Moment",
    "MultiAgentCollector",
    "ParallelWorld",
    "Role",
    "World",
    "Worlds",
    "aec_env",
    "assign_roles",
    "create_worlds",
    "evaluate_agents",
    "is_world",
    "load_pettingzoo",
    "load_world",
    "parallel_env",
    "play_worlds",
    "team_specs",
    "world_from_pettingzoo",
]
