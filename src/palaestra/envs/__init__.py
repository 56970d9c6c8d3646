"""Environments: one contract for everything that emits time steps.

`create_environment(EnvConfig(name="CartPole-v1", num_envs=8), lane_seeds=...)` is the usual way in.
"""

from palaestra.envs.check import CheckReport, Finding, check
from palaestra.envs.create import EnvConfig, create_environment, load, probe_specs
from palaestra.envs.environment import Environment, EnvironmentWrapper, SingleEnvironment
from palaestra.envs.gym_environment import GymEnvironment
from palaestra.envs.importing import import_object
from palaestra.envs.native_vector import NativeVectorEnvironment
from palaestra.envs.process import ProcessEnvironment
from palaestra.envs.serial import SerialEnvironment
from palaestra.envs.spaces import space_from_spec, spec_from_space
from palaestra.envs.wrap import Wrap
from palaestra.envs.wrappers import TimeLimit

__all__ = [
    "CheckReport",
    "EnvConfig",
    "Environment",
    "EnvironmentWrapper",
    "Finding",
    "GymEnvironment",
    "NativeVectorEnvironment",
    "ProcessEnvironment",
    "SerialEnvironment",
    "SingleEnvironment",
    "TimeLimit",
    "Wrap",
    "check",
    "create_environment",
    "import_object",
    "load",
    "probe_specs",
    "space_from_spec",
    "spec_from_space",
]
