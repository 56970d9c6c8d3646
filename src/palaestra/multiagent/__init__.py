"""Many agents and many policies: worlds, the bridge to simulators, collection, evaluation."""

from palaestra.multiagent.env_wrapper import EnvWrapper
from palaestra.multiagent.tiny import Meeting
from palaestra.multiagent.world import AgentSpec, Moment, World

__all__ = ["AgentSpec", "EnvWrapper", "Meeting", "Moment", "World"]
