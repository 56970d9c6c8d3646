"""Small data sets, and settings of runs that learn from them."""

from pathlib import Path
from typing import Any

from palaestra import EnvConfig, NetworkConfig
from palaestra.experiments import collect_data

PENDULUM = EnvConfig(name="Pendulum-v1", max_episode_steps=10)
SMALL: dict[str, Any] = {
    "env__max_episode_steps": 10,
    "algorithm__network": NetworkConfig(hidden_sizes=(8,)),
    "algorithm__mini_batch_size": 16,
    "trainer__total_env_steps": 60,
    "trainer__eval_every_steps": 30,
    "trainer__eval_episodes": 2,
    "run__tensorboard": False,
}
SEQUENCES = {"algorithm__mini_batch_sequences": 16, **SMALL}
del SEQUENCES["algorithm__mini_batch_size"]
"""For what draws sequences."""
HYBRID = {"algorithm__learning_starts": 20, "algorithm__capacity": 100, "algorithm__gradient_steps": 1}


def saved(folder: Path, env: EnvConfig = PENDULUM, *, steps: int = 60, seed: int = 1) -> str:
    """The path of a data set that chance has made."""
    collect_data(None, env, folder, steps=steps, seed=seed)
    return str(folder)
