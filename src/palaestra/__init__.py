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
    from palaestra.buffers import *
    from palaestra.compat import *
    from palaestra.core import *
    from palaestra.deployment import *
    from palaestra.envs import *
    from palaestra.experiments import *
    from palaestra.experiments.run import run  # the documentation takes the star's for the file
    from palaestra.nn import *
    from palaestra.policies import *
    from palaestra.rollout import *
    from palaestra.training import *

__version__ = "0.2.0.dev0"

__all__ = [
    "DQN",
    "PPO",
    "Algorithm",
    "AlgorithmConfig",
    "Batch",
    "Callback",
    "Collector",
    "ConsoleLogger",
    "CoreModel",
    "DQNConfig",
    "EnvConfig",
    "Evaluation",
    "ExperienceSet",
    "ExperimentConfig",
    "GradientAlgorithm",
    "Linear",
    "Losses",
    "Network",
    "NetworkConfig",
    "OnPolicy",
    "OptimizerOption",
    "PPOConfig",
    "Phase",
    "Policy",
    "Reinforce",
    "ReinforceConfig",
    "Replay",
    "ReplayBuffer",
    "RunConfig",
    "RunResult",
    "RunSeeds",
    "StepType",
    "TimeStep",
    "Trainer",
    "TrainerConfig",
    "create_environment",
    "diagnose",
    "evaluate",
    "evaluate_run",
    "export",
    "load_config",
    "load_policy",
    "preset",
    "resume",
    "run",
    "save_policy",
    "serve",
    "share",
    "stochastic_policy",
    "train",
    "train_together",
    "tune",
    "verify",
]

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
