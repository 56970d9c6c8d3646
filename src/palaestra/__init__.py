"""Palaestra: reinforcement learning on PyTorch and Gymnasium.

`palaestra.train("ppo", "CartPole-v1")` trains an agent; the parts it is made of are here to be put together by hand.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported when first used: `palaestra --help` and `palaestra list` wait for nothing
    from palaestra.algorithms import *
    from palaestra.analysis import diagnose, evaluate_run, evaluate_runs, film_run
    from palaestra.buffers import ReplayBuffer
    from palaestra.compat import ExperienceSet
    from palaestra.config import ExperimentConfig, RunConfig, load_config, preset
    from palaestra.core import Batch, Linear, OnPolicy, Replay, RunSeeds, StepType, TimeStep
    from palaestra.core.errors import CheckpointError, ConfigError, EnvError, PalaestraError
    from palaestra.core.spec import BoundedSpec, DiscreteSpec, TensorSpec
    from palaestra.deployment import export, serve, share
    from palaestra.envs import EnvConfig, create_environment
    from palaestra.experiments import GroupResult, resume_seeds, train_together, tune, verify, verify_run
    from palaestra.experiments.run import RunResult, resume, run, train
    from palaestra.nn import CoreModel, Network, NetworkConfig, OptimizerOption
    from palaestra.policies import Phase, Policy, load_policy, save_policy, stochastic_policy
    from palaestra.rollout import Collector, Evaluation, evaluate
    from palaestra.training import Callback, ConsoleLogger, Trainer, TrainerConfig

__version__ = "0.2.0.dev0"

__all__ = [
    "DQN", "PPO", "Algorithm", "AlgorithmConfig", "Batch", "BoundedSpec", "Callback", "CheckpointError", "Collector",
    "ConfigError", "ConsoleLogger", "CoreModel", "DQNConfig", "DiscreteSpec", "EnvConfig", "EnvError", "Evaluation",
    "ExperienceSet", "ExperimentConfig", "GradientAlgorithm", "GroupResult", "Linear", "Losses", "Network",
    "NetworkConfig", "OnPolicy", "OptimizerOption", "PPOConfig", "PalaestraError", "Phase", "Policy", "Reinforce",
    "ReinforceConfig", "Replay", "ReplayBuffer", "RunConfig", "RunResult", "RunSeeds", "StepType", "TensorSpec",
    "TimeStep", "Trainer", "TrainerConfig", "create_environment", "diagnose", "evaluate", "evaluate_run",
    "evaluate_runs", "export", "film_run", "load_config", "load_policy", "preset", "resume", "resume_seeds", "run",
    "save_policy", "serve", "share", "stochastic_policy", "train", "train_together", "tune", "verify", "verify_run",
]  # fmt: skip

_PACKAGES = (
    "deployment",
    "experiments",
    "training",
    "rollout",
    "buffers",
    "algorithms",
    "envs",
    "policies",
    "nn",
    "core",
    "compat",
)
"""Where the names above are looked for, in this order."""


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        for package in _PACKAGES if name in __all__ else ("algorithms",):  # all of which are here, as PPO is
            module = importlib.import_module(f"{__name__}.{package}")
            found = vars(module).get(name)
            if found is not None and not isinstance(found, ModuleType):
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
