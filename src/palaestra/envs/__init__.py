"""Environments: one contract for everything that emits time steps.

`create_environment(EnvConfig(name="CartPole-v1", num_envs=8), lane_seeds=...)` is the usual way in.
"""

from palaestra.envs.chaos import ChaosEnv, ChaosRule, chaos_rules
from palaestra.envs.check import CheckReport, check
from palaestra.envs.check_ends import Finding
from palaestra.envs.create import (
    create_environment,
    create_evaluation_environment,
    load,
    load_lane,
    probe_specs,
)
from palaestra.envs.env_config import EnvConfig
from palaestra.envs.environment import Environment, SingleEnvironment
from palaestra.envs.environment_wrapper import EnvironmentWrapper
from palaestra.envs.faults import Fault, FaultPolicy
from palaestra.envs.first_ready import FirstReadyEnvironment
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.native_vector import NativeVectorEnvironment
from palaestra.envs.process import ProcessEnvironment
from palaestra.envs.serial import SerialEnvironment
from palaestra.envs.spaces import space_from_spec, spec_from_space
from palaestra.envs.tensor import TensorEnvironment
from palaestra.envs.thread import ThreadEnvironment
from palaestra.envs.wrap import Wrap
from palaestra.envs.wrappers import TimeLimit

__all__ = [
    "ChaosEnv",
    "ChaosRule",
    "CheckReport",
    "EnvConfig",
    "Environment",
    "EnvironmentWrapper",
    "Fault",
    "FaultPolicy",
    "Finding",
    "FirstReadyEnvironment",
    "GymEnvironment",
    "NativeVectorEnvironment",
    "ProcessEnvironment",
    "SerialEnvironment",
    "SingleEnvironment",
    "TensorEnvironment",
    "ThreadEnvironment",
    "TimeLimit",
    "Wrap",
    "chaos_rules",
    "check",
    "create_environment",
    "create_evaluation_environment",
    "load",
    "load_lane",
    "probe_specs",
    "space_from_spec",
    "spec_from_space",
]
