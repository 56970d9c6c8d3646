"""`Preset`: what a family of environments says about one algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from palaestra.algorithms import AlgorithmConfig
from palaestra.envs import EnvConfig
from palaestra.experiments.config import ExperimentConfig, RunConfig
from palaestra.training import TrainerConfig

__all__ = ["Preset", "Presets"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings for an algorithm; the pair (algorithm, environment) they are filed under says the rest."""

    algorithm: AlgorithmConfig
    """Hyperparameters."""
    trainer: TrainerConfig
    """Budget and periods."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """How the environment is made and stepped; its name comes from the key."""
    run: RunConfig = field(default_factory=RunConfig)
    """What concerns the run as a whole."""

    def config(self, algorithm: str, env_name: str) -> ExperimentConfig:
        """The whole configuration.

        Args:
            algorithm: its name.
            env_name: as `EnvConfig.name`.
        """
        return ExperimentConfig(
            algorithm_name=algorithm,
            algorithm=self.algorithm,
            env=replace(self.env, name=env_name),
            trainer=self.trainer,
            run=self.run,
        )


Presets = dict[tuple[str, str], Preset]
"""Presets by algorithm and environment; the environment may be a pattern, such as `"ALE/*"`, for a whole family."""
