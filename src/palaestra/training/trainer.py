"""`Trainer`: the one training loop."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from palaestra.algorithms import Algorithm
from palaestra.core import ConfigError, DataSource, OnPolicy, Replay
from palaestra.rollout import CollectInfo, Episode, Evaluation, episode_metrics
from palaestra.training.averages import Averages
from palaestra.training.checkpoints import CheckpointStore
from palaestra.training.loggers import Logger
from palaestra.training.signals import StopSignals

__all__ = ["Collect", "TrainResult", "Trainer", "TrainerConfig"]


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long to train, and how often to do what besides."""

    total_env_steps: int = 100_000
    """Env steps over all environments."""
    eval_every_steps: int | None = None
    """Env steps between evaluations; the default is a tenth of the run, 0 is only at the end."""
    eval_episodes: int = 20
    """Episodes of one evaluation."""
    checkpoint_every_steps: int | None = None
    """Env steps between checkpoints; the default is a tenth of the run, 0 is only at the end."""
    keep_checkpoints: int = 3
    """How many checkpoints are kept, at least 2."""
    log_every_steps: int | None = None
    """Env steps between rows of metrics; the default is a hundredth of the run."""

    def __post_init__(self) -> None:
        if self.total_env_steps <= 0:
            raise ConfigError(f"trainer.total_env_steps is {self.total_env_steps}; it must be greater than 0")
        for name in ("eval_every_steps", "checkpoint_every_steps", "log_every_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"trainer.{name} is {value}; it must be at least 0")
        for name, least in (("eval_episodes", 1), ("keep_checkpoints", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"trainer.{name} is {getattr(self, name)}; it must be at least {least}")

    def period(self, name: Literal["eval", "checkpoint", "log"]) -> int:
        """Env steps between two of something, with the default filled in.

        Args:
            name: of what.
        """
        value = getattr(self, f"{name}_every_steps")
        return max(1, self.total_env_steps // (100 if name == "log" else 10)) if value is None else value


class Source(DataSource, Protocol):
    """A data source that can be part of a checkpoint."""

    def state_tensors(self) -> dict[str, Any]:
        """What it holds, by name."""
        ...

    def load_state_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Puts back what `state_tensors` gave."""
        ...


class Collect(Protocol):
    """What a trainer collects with: a `Collector`, or a roll-out manager of a distributed run."""

    env_steps: int

    @property
    def num_lanes(self) -> int:
        """Streams that are collected side by side."""
        ...

    @property
    def buffer(self) -> Source:
        """Where what was collected can be drawn from."""
        ...

    def unroll(self, length: float) -> CollectInfo:
        """Collects for one training iteration."""
        ...

    def drain(self) -> list[Episode]:
        """Episodes that have ended and were not reported yet."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        ...


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    status: Literal["done", "interrupted"]
    """Whether the whole budget was used."""
    exit_code: int
    """0, or 130 after Ctrl-C, 143 after SIGTERM."""
    env_steps: int
    """Env steps taken in all."""
    train_s: float
    """Seconds of collecting and learning, without evaluation and checkpoints."""
    evaluation: Evaluation | None
    """The last one."""
    best_return: float | None = None
    """The best mean return of all of them."""


class Trainer:
    """Alternates unrolls and learning until the budget is used; evaluates, logs and saves on the way.

    Args:
        collect: acts and fills a buffer.
        update: the algorithm that learns from it.
        config: budget and periods.
        evaluate: gives an evaluation of the policy as it is now; `None` never evaluates.
        checkpoints: where to save; `None` never saves.
        loggers: take metrics.
        on_evaluation: called with every evaluation and whether it is the best so far.
    """

    def __init__(
        self,
        collect: Collect,
        update: Algorithm[Any],
        config: TrainerConfig | None = None,
        *,
        evaluate: Callable[[], Evaluation] | None = None,
        checkpoints: CheckpointStore | None = None,
        loggers: Sequence[Logger] = (),
        on_evaluation: Callable[[int, Evaluation, bool], None] | None = None,
    ) -> None:
        self.collect, self.update, self.config = collect, update, config or TrainerConfig()
        self._evaluate, self._checkpoints, self._loggers = evaluate, checkpoints, list(loggers)
        self._on_evaluation = on_evaluation
        self._averages = Averages()
        self._recent: deque[Episode] = deque(maxlen=100)
        self._rows_logged = self._episodes_ended = self._rows_trained = self._iterations = 0
        self._next = {name: self.config.period(name) for name in ("eval", "checkpoint", "log")}
        self._evaluation: Evaluation | None = None
        self._best: float | None = None
        self._train_s = self._env_s = self._update_s = 0.0
        self._saved_step = -1
        self._finished = False

    # -- the loop

    def run(self) -> TrainResult:
        """Trains to the end of the budget, or until Ctrl-C or SIGTERM; saves in either case.

        Raises:
            KeyboardInterrupt: at the second Ctrl-C; nothing more is saved.
            PalaestraError: an environment, a gradient or the disk failed.
        """
        total = self.config.total_env_steps
        self._tell("start", self._position())
        try:
            with StopSignals() as stop:
                while self.collect.env_steps < total and stop.received is None:
                    self.train_iter()
                    self._do_what_is_due()
                if stop.received is None and not self._finished:
                    self._finish()
                self.save()
        finally:
            self._tell("close")
        status = "interrupted" if stop.received is not None else "done"
        return TrainResult(status, stop.exit_code, self.collect.env_steps, self._train_s, self._evaluation, self._best)

    def train_iter(self) -> None:
        """One training iteration: an unroll, then learning by the algorithm's plan."""
        begin = time.perf_counter()
        plan = self.update.plan
        if isinstance(plan, OnPolicy | Replay):
            info = self.collect.unroll(plan.unroll_length)
            self._env_s += info.env_s
            if info.episodes:
                self._take_episodes(info.episodes)
        collected = time.perf_counter()
        env_steps = self.collect.env_steps
        if not isinstance(plan, Replay) or env_steps > self._first_update(plan):
            update = self.update.update(self.collect.buffer)
            self._averages.add(update.records)
            self._rows_trained += update.rows_trained
        self.update.set_progress(min(1.0, env_steps / self.config.total_env_steps))
        self._iterations += 1
        end = time.perf_counter()
        self._train_s += end - begin
        self._update_s += end - collected

    def _first_update(self, plan: Replay) -> int:
        """Env steps before the first update: as many as were asked for, and enough for one window in every lane."""
        return max(plan.initial_collect_steps, max(plan.n_step, plan.mini_batch_length) * self.collect.num_lanes)

    def _do_what_is_due(self) -> None:
        if self.collect.env_steps >= self.config.total_env_steps:
            return  # the end does all of it
        if self._is_due("log"):
            self._log()
        if self._evaluate is not None and self._is_due("eval"):
            self.evaluate()
        if self._is_due("checkpoint"):
            self.save()

    def _is_due(self, name: Literal["eval", "checkpoint", "log"]) -> bool:
        period = self.config.period(name)
        if not period or self.collect.env_steps < self._next[name]:
            return False
        self._next[name] = (self.collect.env_steps // period + 1) * period
        return True

    def _finish(self) -> None:
        self._take_episodes(self.collect.drain())
        if self._evaluate is not None:
            self.evaluate()
        self._log()
        self._finished = True

    # -- what happens besides

    def evaluate(self) -> Evaluation:
        """Evaluates the policy as it is now and notes whether it is the best so far.

        Raises:
            ConfigError: the trainer was made without `evaluate`.
        """
        if self._evaluate is None:
            raise ConfigError("this trainer was made without `evaluate`, so there is nothing to evaluate in")
        self._evaluation = self._evaluate()
        best = self._best is None or self._evaluation.return_mean >= self._best
        if best:
            self._best = self._evaluation.return_mean
        if self._on_evaluation is not None:
            self._on_evaluation(self.collect.env_steps, self._evaluation, best)
        return self._evaluation

    def _take_episodes(self, episodes: Sequence[Episode]) -> None:
        self._recent.extend(episodes)
        self._episodes_ended += len(episodes)
        self._tell("episodes", self.collect.env_steps, episodes)

    def _log(self) -> None:
        self._take_episodes(self.collect.drain())
        row: dict[str, float] = {
            "env_steps": self.collect.env_steps,
            "episodes": self._episodes_ended,
            "iterations": self._iterations,
            "policy_version": self.update.policy_version,
            "gradient_steps": self.update.num_gradient_steps,
            "rows_trained": self._rows_trained,
            **episode_metrics(self._recent),
            **{f"learning/{name}": value for name, value in self._averages.take().items()},
        }
        if self._evaluation is not None:
            row["eval/return_mean"] = self._evaluation.return_mean
        row |= {
            "time/train_s": self._train_s,
            "time/env_steps_per_s": self.collect.env_steps / max(self._train_s, 1e-9),
            "time/env_fraction": self._env_s / max(self._train_s, 1e-9),
            "time/update_fraction": self._update_s / max(self._train_s, 1e-9),
        }
        self._rows_logged += 1
        self._tell("metrics", row)

    def _tell(self, method: str, *arguments: Any) -> None:
        for logger in list(self._loggers):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:  # a logger of any make must not end a run
                self._loggers.remove(logger)
                warnings.warn(f"{type(logger).__name__}.{method} failed ({error!r}) and is switched off", stacklevel=2)

    # -- checkpoints

    def save(self) -> None:
        """Writes a checkpoint of everything the rest of the run depends on."""
        if self._checkpoints is not None and self._saved_step != self.collect.env_steps:
            self._checkpoints.save(self.collect.env_steps, self.state())
            self._saved_step = self.collect.env_steps

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, in parts."""
        trainer = {
            "position": self._position(),
            "averages": self._averages.state(),
            "recent": [list(episode) for episode in self._recent],
            "rows_trained": self._rows_trained,
            "iterations": self._iterations,
            "next": self._next,
            "best": self._best,
            "evaluation": None if self._evaluation is None else self._evaluation.to_json(),
            "finished": self._finished,
            "seconds": [self._train_s, self._env_s, self._update_s],
        }
        return {
            "trainer": trainer,
            "collect": self.collect.state(),
            "buffer": self.collect.buffer.state_tensors(),
            "algorithm": self.update.state_tensors(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave, into a trainer built from the same configuration.

        Args:
            state: from `state`.
        """
        self.update.load_state_tensors(state["algorithm"])
        self.collect.buffer.load_state_tensors(state["buffer"])
        self.collect.load_state(state["collect"])
        trainer = state["trainer"]
        self._rows_logged = trainer["position"]["metrics"]
        self._episodes_ended = trainer["position"]["episodes"]
        self._averages.load_state(trainer["averages"])
        self._recent = deque((Episode(*episode) for episode in trainer["recent"]), maxlen=100)
        self._rows_trained, self._iterations = trainer["rows_trained"], trainer["iterations"]
        self._next, self._best = dict(trainer["next"]), trainer["best"]
        if trainer["evaluation"] is not None:
            self._evaluation = Evaluation(**trainer["evaluation"])
        self._train_s, self._env_s, self._update_s = trainer["seconds"]
        self._finished = trainer["finished"]
        self._saved_step = self.collect.env_steps
        self.update.set_progress(min(1.0, self.collect.env_steps / self.config.total_env_steps))

    def _position(self) -> dict[str, int]:
        return {
            "env_steps": self.collect.env_steps,
            "metrics": self._rows_logged,
            "episodes": self._episodes_ended,
        }
