"""Robots: several computation tasks under one control flow, with batched inference for many agents."""

from palaestra.robots.agent import Agent, AgentEnvironment, AgentError, AgentStopped
from palaestra.robots.building import AgentFactory
from palaestra.robots.collector import RobotCollector
from palaestra.robots.communicator import Communicator
from palaestra.robots.config import RobotConfig
from palaestra.robots.evaluation import evaluate_robot
from palaestra.robots.helpers import AgentHelper, OffPolicyHelper, OnPolicyHelper
from palaestra.robots.robot import Robot, task_seeds
from palaestra.robots.task import ComputationTask, TaskSpec
from palaestra.robots.wrapper import ComputationWrapper, ServingConfig

__all__ = [
    "Agent",
    "AgentEnvironment",
    "AgentError",
    "AgentFactory",
    "AgentHelper",
    "AgentStopped",
    "Communicator",
    "ComputationTask",
    "ComputationWrapper",
    "OffPolicyHelper",
    "OnPolicyHelper",
    "Robot",
    "RobotCollector",
    "RobotConfig",
    "ServingConfig",
    "TaskSpec",
    "evaluate_robot",
    "task_seeds",
]
