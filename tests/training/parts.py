"""Trainers and loggers for tests."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra import Collector, Evaluation, Policy, Trainer, TrainerConfig, evaluate
from palaestra.rollout import Episode
from palaestra.training import Callback
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


def timeless(recorder: Recorder) -> list[dict[str, float]]:
    """The rows without what depends on the clock."""
    return [{k: v for k, v in row.items() if not k.startswith("time/") and "per_s" not in k} for row in recorder.rows]


def kept(made: Trainer) -> dict[str, Any]:
    """What a checkpoint of now would say about the training itself."""
    state: dict[str, Any] = made.state()["trainer"]
    return state


def rows_trained(made: Trainer) -> int:
    """Rows that the one policy of a run has learned from, each as often as it was."""
    return int(kept(made)["learning"]["policies"]["policy"]["rows_trained"])


def trainer(
    name: str, kind: str = "discrete", *, total: int = 120, seed: int = 3, num_envs: int = 3, **settings: Any
) -> Trainer:
    """A trainer of a small algorithm; settings go to `TrainerConfig`, `Trainer` or the algorithm, where they fit."""
    env = environment(kind, num_envs, seed)
    own = {key: settings.pop(key) for key in list(settings) if key in TrainerConfig.__dataclass_fields__}
    parts = {
        key: settings.pop(key) for key in list(settings) if key in ("evaluate", "checkpoints", "loggers", "callbacks")
    }
    algorithm = make(name, env, seed, **settings)
    config = TrainerConfig(total_env_steps=total, **own)
    return Trainer(Collector.of(env, algorithm), algorithm, config, **parts)


def evaluation_in(kind: str = "discrete") -> Callable[[Policy], Evaluation]:
    """An evaluation in environments of its own; can be sent to another process."""
    return functools.partial(_evaluated, kind)


def _evaluated(kind: str, policy: Policy) -> Evaluation:
    with environment(kind, 2, seed=77) as env:
        return evaluate(policy, env, episodes=4)


class Hooks(Callback):
    """A callback of plain functions: `Hooks(evaluated=lambda trainer, result: ...)`."""

    def __init__(self, **hooks: Callable[..., None]) -> None:
        for name, hook in hooks.items():
            setattr(self, name, hook)
