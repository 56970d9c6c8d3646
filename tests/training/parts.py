"""Trainers and loggers for tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra import Collector, Evaluation, Trainer, TrainerConfig, evaluate
from palaestra.rollout import Episode
from tests.algorithms.parts import environment, make


class Recorder:
    """Keeps what a logger is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[dict[str, float]] = []
        self.ended: list[Episode] = []

    def start(self, position: Mapping[str, int]) -> None:
        self.calls.append("start")

    def metrics(self, row: Mapping[str, float]) -> None:
        self.rows.append(dict(row))

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        self.ended += episodes

    def close(self) -> None:
        self.calls.append("close")


def trainer(
    name: str, kind: str = "discrete", *, total: int = 120, seed: int = 3, num_envs: int = 3, **settings: Any
) -> Trainer:
    """A trainer of a small algorithm; settings go to `TrainerConfig`, `Trainer` or the algorithm, where they fit."""
    env = environment(kind, num_envs, seed)
    own = {key: settings.pop(key) for key in list(settings) if key in TrainerConfig.__dataclass_fields__}
    parts = {
        key: settings.pop(key)
        for key in list(settings)
        if key in ("evaluate", "checkpoints", "loggers", "on_evaluation")
    }
    algorithm = make(name, env, seed, **settings)
    config = TrainerConfig(total_env_steps=total, **own)
    return Trainer(Collector.of(env, algorithm), algorithm, config, **parts)


def evaluation_of(made: Callable[[], Trainer], kind: str = "discrete") -> Callable[[], Evaluation]:
    """An evaluation of the policy of a trainer that is made later."""

    def run() -> Evaluation:
        with environment(kind, 2, seed=77) as env:
            return evaluate(made().update.policy, env, episodes=4)

    return run
