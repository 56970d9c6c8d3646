"""`Trainer`: the one training loop.

It knows no algorithm, no environment and no number of agents or machines: it calls a `DataCollector` and a
`PolicyManager`.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from palaestra.algorithms import Algorithm
from palaestra.core import CheckpointError, ConfigError, readable
from palaestra.core.errors import names_what_lacks
from palaestra.policies import Policy
from palaestra.rollout import Episode, Evaluation, Metric, OfflineFirst, default_metrics, reported
from palaestra.training.async_evaluation import Evaluator, Made
from palaestra.training.callbacks import Callback, Evaluated, attach_steps, callback_states, load_callback_states
from palaestra.training.checkpoints import CheckpointStore, LoadedData
from palaestra.training.config import TrainerConfig
from palaestra.training.console import TimeSplit
from palaestra.training.learning import LearningRecord, TrainResult, ask_for_episodes, computing_at_speed, is_best
from palaestra.training.loggers import Logger, LoggerGroup, plain_row
from palaestra.training.parts import Ask, DataCollector, PolicyManager, acting_policy, manager_of, part_name
from palaestra.training.signals import StopSignals

__all__ = ["Trainer"]

_log = logging.getLogger(__name__)
_PERIODIC: tuple[Literal["eval", "checkpoint", "log"], ...] = ("eval", "checkpoint", "log")


class Trainer:
    """Alternates unrolls and learning until the budget is used; evaluates, logs and saves on the way.

    Args:
        collector: acts and fills a buffer; or `OfflineData`.
        learner: the algorithm that learns from it; or a policy manager, which has several, by name.
        config: budget and periods.
        evaluate: evaluates the policy that it is given (a `ModuleDict` of several); `None` never evaluates.
        checkpoints: where to save; `None` never saves. What a fault leaves goes into `faults/` beside them.
        loggers: take metrics.
        callbacks: hooks of your own.

    Raises:
        ConfigError: a part is of another kind, or the collector acts with a policy that does not learn here.
        ShapeError: actions of loaded data are not as the policy samples them.
    """

    def __init__(
        self,
        collector: DataCollector,
        learner: Algorithm[Any, Any] | PolicyManager,
        config: TrainerConfig | None = None,
        *,
        evaluate: Callable[[Any], Evaluation] | None = None,
        checkpoints: CheckpointStore | None = None,
        loggers: Sequence[Logger] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.collector, self.config = collector, config or TrainerConfig()
        self.learner = manager_of(learner, collector, self.config.eval_epsilon)
        """The policies' learners."""
        self.algorithms: Mapping[str, Algorithm[Any, Any]] = self.learner.algorithms
        """What learns, by policy name."""
        self.callbacks: list[Callback] = list(callbacks)
        self.metrics: list[Metric] = default_metrics()
        """What rows of metrics say about episodes; append your own."""
        self._checkpoints, self._loggers = checkpoints, LoggerGroup(loggers)
        self._evaluator = Evaluator.of(self.config, evaluate)
        faults = None if checkpoints is None else checkpoints.directory.parent / "faults"
        ask_for_episodes(collector, self.config.episodes_per_iteration)
        self._learning = LearningRecord(self.learner, self.config.max_skipped_updates, faults)
        self.time, self._loaded = TimeSplit(), LoadedData(collector, self.algorithms.values())
        """Where its seconds went."""
        self._rows_logged = self._episodes_ended = self._iterations = 0
        self._next = {name: self.config.due_after(name, 0) for name in _PERIODIC}
        self._schedules_at = 0.0  # progress; a checkpoint in an unroll is beyond it
        self._evaluation: Evaluation | None = None
        self._evaluation_broken_off = evaluate is not None and 0 in self.config.eval_at_steps  # or due before training
        self.best_return: float | None = None
        """The best mean return of all evaluations so far."""
        self.result: Any = None
        """How it ended."""
        # saved: env steps, and iterations, of which some take none; outdated: whether that lacks what was made since
        self.saved, self._failed_saves, self._outdated = (-1, 0), 0, False
        # the last: env steps of the best evaluation, if it is of this session
        self._finished, self._stopping, self._stop_reason, self._best_at = False, False, "", None

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """What learns in a run of one policy.

        Raises:
            ConfigError: there are several.
        """
        if len(self.algorithms) > 1:
            raise ConfigError(f"this run has several policies ({', '.join(self.algorithms)}); use `algorithms`")
        return next(iter(self.algorithms.values()))

    # -- the loop

    def run(self) -> TrainResult:
        """Trains to the end of the budget, or until something stops it; saves in either case.

        Raises:
            StoppedError: at the second signal (Ctrl-C, SIGTERM), or `grace_s` after the first; nothing more is saved.
            PalaestraError: an environment, a gradient or the disk failed.
        """
        stopping = StopSignals(self.asked_to_stop, grace_s=self.config.grace_s)
        with computing_at_speed(), stopping as stop, contextlib.closing(self.running(stop)) as iterations:
            for _ in iterations:
                self.train_iter()
        return self.result

    def running(self, stop: StopSignals) -> Generator[None]:
        """`run` but for the iterations: it halts where one is to be made.

        Args:
            stop: entered outside, with `asked_to_stop`.
        """
        attach_steps(self.callbacks, self)
        self._loggers.start(self._position())
        began, limit_s = time.monotonic(), self.config.time_limit_s
        self._finished &= self._used_up() or bool(self._stop_reason)  # else it goes on, perhaps to a larger budget
        try:
            self.time.start(self.collector, collects=stop.received is None and not self._used_up())
            if self._evaluation_broken_off and stop.received is None:
                self._begin_evaluation()
                self.time.evaluated()
                if not (self._evaluation_broken_off or self.collector.unfinished):
                    self._do_what_is_due()
            while not self._used_up() and stop.received is None and not self._stop_reason:
                yield
                if limit_s is not None and time.monotonic() - began >= limit_s:
                    self.stop(f"time limit of {limit_s:g} s")
                if not self.collector.unfinished:
                    self._do_what_is_due()
            if stop.received is None and not self._finished:
                self._finish()
            for callback in self.callbacks:
                callback.ended(self)
            interrupted, reason = stop.received is not None, self._stop_reason
            self._stop_reason = reason if interrupted else ""  # for which the resumed run ends
            self.save(final=True)
        finally:
            self._stopping = False
            evaluator = contextlib.closing(self._evaluator) if self._evaluator else contextlib.nullcontext()
            with evaluator, contextlib.closing(self.learner):  # whatever raises, such as a second signal
                not_logged = self._loggers.close()
        status = "interrupted" if interrupted else "done" if self._used_up() else "stopped"
        reason = reason if status == "stopped" else ""
        outcome = status, stop.exit_code, self.collector.env_steps, self.time.train_s
        self.result = TrainResult(*outcome, self._evaluation, self.best_return, reason, tuple(not_logged))

    def train_iter(self) -> None:
        """One training iteration: an unroll, then learning by the plans of the algorithms."""
        for _ in self.iteration():
            pass

    def iteration(self) -> Iterator[Ask]:
        """`train_iter` in steps, for several trainers in turns: it halts before the unroll, and before the update."""
        if not self.collector.unfinished:
            for callback in self.callbacks:
                callback.iteration_began(self)
            if self._stopping:  # meanwhile, which the unroll would not know
                return
        self.time.spent("waiting")
        random = self._learning.acts_randomly(self.collector.env_steps, goes_on=self.collector.unfinished)
        yield Ask(random=random)
        info = self.collector.unroll(self._learning.unroll_length, random=random)
        self.time.collected(info)
        try:
            if self.collector.unfinished:  # a signal came; a resumed run continues in the middle of the unroll
                return
            progress = self.progress
            sources = self._learning.sources(self.collector, info, self._schedules_at)
            yield Ask(sources=sources)
            results = self.learner.update(sources) if sources or self._learning.self_paced else {}
        finally:
            if info.episodes:  # a GPU learns meanwhile
                self._take_episodes(info.episodes)
        updates = self._learning.add(results, self.collector.env_steps)
        self._set_progress(progress)
        self._iterations += 1
        self.time.spent("learning")
        for callback in self.callbacks:
            callback.iteration_ended(self, updates)

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in [0, 1]; schedules follow it."""
        return min(1.0, self.collector.env_steps / self.config.total_env_steps)

    def _set_progress(self, progress: float) -> None:
        """Moves everything that follows a schedule."""
        self._schedules_at = progress
        self.learner.set_progress(progress)

    def stop(self, reason: str) -> None:
        """Ends the run after this iteration, evaluated and saved; if a signal comes first, the resumed run does that.

        Args:
            reason: for people.
        """
        self._stop_reason, self._outdated = self._stop_reason or reason, True

    def asked_to_stop(self) -> None:
        """What a signal calls: an unroll, or an evaluation, ends as soon as it can."""
        self._stopping = True
        self.collector.pause()
        if self._evaluator:
            self._evaluator.break_off()

    def _used_up(self) -> bool:
        return self.collector.env_steps >= self.config.total_env_steps and not self.collector.unfinished

    def _do_what_is_due(self) -> None:
        if self._evaluator is not None:
            self._take(self._evaluator.made())
            if not self._used_up() and self._evaluation_is_due():
                self._begin_evaluation()
                self.time.evaluated()
        if self._used_up() or self._evaluation_broken_off:
            return  # the end, or the resumed run, does the rest
        if self._is_due("log") and not self._stop_reason:  # else the last row says it
            self._log()
        if self._is_due("checkpoint"):
            self.save()

    def _is_due(self, name: Literal["eval", "checkpoint", "log"]) -> bool:
        if (due := self._next[name]) is None or self.collector.env_steps < due:
            return False
        self._next[name] = self.config.due_after(name, self.collector.env_steps)
        return True

    def _evaluation_is_due(self) -> bool:
        every_s = self.config.eval_every_s
        return self._is_due("eval") if every_s is None else self.time.since_evaluation_s() >= every_s

    def _finish(self) -> None:
        self._take_episodes(self.collector.drain())
        if self._evaluator is not None and self._evaluator.begun_at != self.collector.env_steps:
            self._begin_evaluation(wait=True)
        elif self._evaluator is not None:
            self._take(self._evaluator.made(wait=True))
        if not self._evaluation_broken_off:
            self._log()
            self._finished = self._outdated = True

    # -- what happens besides

    def _begin_evaluation(self, *, wait: bool = False) -> None:
        """Evaluates, unless a signal comes meanwhile; then it is made when the run resumes."""
        assert self._evaluator is not None
        for callback in self.callbacks:
            callback.evaluation_began(self)
        self._take(self._evaluator.make(self.collector.env_steps, acting_policy(self.algorithms), wait=wait))

    def _take(self, made: Sequence[Made] | None) -> None:
        self._evaluation_broken_off = made is None
        for one in made or ():
            self._take_evaluation(*one)

    def evaluate(self) -> Evaluation:
        """Evaluates the policy as it is now and notes whether it is the best so far.

        Raises:
            ConfigError: the trainer was made without `evaluate`, or no episode ended in time.
        """
        if self._evaluator is None:
            raise ConfigError("this trainer was made without `evaluate`, so there is nothing to evaluate in")
        before, self._evaluation = self._evaluation, None
        self._begin_evaluation(wait=True)
        made, self._evaluation = self._evaluation, self._evaluation or before
        if made is None:
            raise ConfigError("no evaluation episode ended in time, so there is nothing to return")
        return made

    def _take_evaluation(self, env_steps: int, evaluation: Evaluation, policy: Policy | torch.nn.ModuleDict) -> None:
        self._evaluation, before = evaluation, (self.best_return, self._best_at)
        best, mean = is_best(evaluation, *before, self.algorithms), evaluation.return_mean
        self.best_return, self._best_at = (mean, env_steps) if best else before
        for callback in self.callbacks:
            try:
                callback.evaluated(self, Evaluated(env_steps, evaluation, best, policy))
            except CheckpointError as error:
                self.best_return, self._best_at = before  # what is kept is still the policy of that one
                self._save_failed(error)
        if (goal := self.config.stop_at_return) is not None and mean >= goal and not self._used_up():
            self.stop(f"an evaluation reached a mean return of {readable(mean)}, the goal was {goal:g}")

    def _take_episodes(self, episodes: Sequence[Episode]) -> None:
        self._episodes_ended += len(episodes)
        for metric in self.metrics:
            metric.add(self.collector.env_steps, episodes)
        self._loggers.episodes(self.collector.env_steps, episodes)
        for hook in [hook for callback in self.callbacks if (hook := callback.episode_ended) is not None]:
            for episode in episodes:
                hook(self, episode)

    def _log(self) -> None:
        self._take_episodes(self.collector.drain())
        row = {name: value for metric in self.metrics for name, value in metric.result().items()}
        row |= {"iterations": self._iterations, **self._learning.metrics(self._schedules_at)}
        if (made := self._evaluation) is not None:
            row |= {"eval/return_mean": made.return_mean, **{f"eval/{n}": x for n, x in reported(made.parts).items()}}
            row |= {} if made.against_best is None else {"eval/against_best": made.against_best}
        self.time.spent("waiting")
        row |= self.time.metrics(self.collector.env_steps)
        for callback in self.callbacks:
            callback.logged(self, row)
        self._rows_logged += 1
        self._loggers.metrics(plain_row(row))

    # -- checkpoints

    def save(self, *, final: bool = False) -> None:
        """Writes a checkpoint of everything the rest of the run depends on.

        Args:
            final: whether there will be no other; a failure is then an error at once.

        Raises:
            CheckpointError: it cannot be written, for more than `max_failed_saves` times in a row.
        """
        now = self.collector.env_steps, self._iterations
        if self._checkpoints is None or (self.saved == now and not self._outdated):
            return
        try:
            self._checkpoints.save(now[0], self.state(), replace=self._outdated or self.saved[0] == now[0])
        except CheckpointError as error:
            self._save_failed(error, final=final)
            return
        self.saved, self._failed_saves, self._outdated = now, 0, False

    def _save_failed(self, error: CheckpointError, *, final: bool = False) -> None:
        self._failed_saves += 1
        if final or self._failed_saves > self.config.max_failed_saves:
            raise error
        _log.warning(
            "%s. Training continues unsaved; failure %d in a row of at most %d",
            *(error, self._failed_saves, self.config.max_failed_saves),
        )

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, in parts."""
        trainer = {
            "position": self._position(),
            "metrics": [metric.state() for metric in self.metrics],
            "iterations": self._iterations,
            "learning": {"progress": self._schedules_at, "policies": self._learning.state()},
            "total": self.config.total_env_steps,
            "next": self._next,
            "best": self.best_return,
            "evaluation": None if self._evaluation is None else self._evaluation.to_json(),
            "evaluation_broken_off": self._evaluation_broken_off,
            "evaluations": self._evaluator.state() if self._evaluator else [],
            "finished": self._finished,
            "stopping": self._stop_reason,
            "seconds": self.time.state(),
            "callbacks": callback_states(self.callbacks),
        }
        state = {"trainer": trainer, "collect": self.collector.state()}
        state |= {part_name("algorithm", name): one for name, one in self.learner.state().items()}
        state |= {part_name("buffer", name): one.state_tensors() for name, one in self.collector.buffers.items()}
        loaded = self._loaded.state()
        return state | ({"loaded": loaded} if loaded else {})

    @names_what_lacks
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave, into a trainer built from the same configuration.

        Args:
            state: from `state`.

        Raises:
            CheckpointError: it is of a trainer with other metrics, or an older version made it.
            ConfigError: it is of a trainer that learned from other loaded data.
        """
        self._loaded.load_state(state.get("loaded", []))
        self.learner.load_state({name: state[part_name("algorithm", name)] for name in self.algorithms})
        goes_online = isinstance(self.collector, OfflineFirst) and OfflineFirst.is_of_offline_run(state["collect"])
        for name, buffer in () if goes_online else self.collector.buffers.items():
            buffer.load_state_tensors(state[part_name("buffer", name)])
        self.collector.load_state(state["collect"])
        trainer = state["trainer"]
        self._rows_logged, self._episodes_ended = trainer["position"]["metrics"], trainer["position"]["episodes"]
        if len(trainer["metrics"]) != len(self.metrics):
            raise CheckpointError(
                f"the checkpoint has {len(trainer['metrics'])} metrics and this trainer {len(self.metrics)}; "
                "resume with the same `trainer.metrics`"
            )
        for metric, saved in zip(self.metrics, trainer["metrics"], strict=True):
            metric.load_state(saved)
        self._learning.load_state(trainer["learning"]["policies"])
        total = self.config.total_env_steps  # of a longer run than was saved, less is over
        self._set_progress(min(1.0, trainer["learning"]["progress"] * trainer.get("total", total) / total))
        # what is overdue stays so, but for what the end of a shorter run has made
        now, known = self.collector.env_steps, {} if trainer["finished"] else trainer["next"]
        overdue = {name: due for name, due in known.items() if due and due <= now}
        self._next = {name: overdue.get(name) or self.config.due_after(name, now) for name in _PERIODIC}
        self.best_return, self._iterations = trainer["best"], trainer["iterations"]
        self._evaluation = Evaluation(**trainer["evaluation"]) if trainer["evaluation"] else None
        self.time.load_state(trainer["seconds"])
        load_callback_states(self.callbacks, trainer["callbacks"])
        if (evaluator := self._evaluator) is not None:
            evaluator.load_state(trainer["evaluations"], acting_policy(self.algorithms))
        self._evaluation_broken_off = trainer["evaluation_broken_off"] and getattr(evaluator, "begun_at", now) != now
        self._stop_reason, self._finished = trainer.get("stopping", ""), trainer["finished"]
        self.saved = now, self._iterations
        self._outdated = bool(self._evaluation_broken_off or trainer["evaluations"] or self._stop_reason)

    def _position(self) -> dict[str, int]:
        return {"env_steps": self.collector.env_steps, "metrics": self._rows_logged, "episodes": self._episodes_ended}
