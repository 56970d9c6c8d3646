"""Evaluation in the main process, or asynchronously in another while training continues."""

import copy
import functools
import logging
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import torch

from palaestra.core import ConfigError
from palaestra.core.computing import prefer_onednn, prefers_onednn
from palaestra.policies import Policy
from palaestra.rollout import BrokenOffError, Evaluation, NoEpisodeError, breakable, continue_evaluation
from palaestra.runtime import Parcel, WorkerDiedError, entitle
from palaestra.runtime.supervision import end_with_parent
from palaestra.training.config import TrainerConfig
from palaestra.training.parts import named_policies

__all__ = ["Evaluator"]

Acting: TypeAlias = Policy | torch.nn.ModuleDict
ActingT = TypeVar("ActingT", bound=Acting)
Made: TypeAlias = tuple[int, Evaluation, Acting]

_log = logging.getLogger(__name__)
_POLL_S, _SLICE_S = 0.05, 1.0
_MOST_WAITING = 8


class Patience:
    """How long an answer may take; only time in which somebody asks for it counts.

    Args:
        most_s: seconds.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s, self._waited_s, self._asked_s = most_s, 0.0, time.monotonic()

    def is_over(self) -> bool:
        """Whether the answer is late; to be asked once a second or more often."""
        now = time.monotonic()
        self._waited_s, self._asked_s = self._waited_s + min(now - self._asked_s, _SLICE_S), now
        return self._waited_s > self.most_s


class Work:
    """An evaluation of a policy, with everything as it is when this is made; to be made later, elsewhere or again.

    Args:
        evaluate: evaluates the policy it is given.
        policy: to evaluate; it must not change until that is over.
    """

    def __init__(self, evaluate: Callable[[Any], Evaluation], policy: Acting) -> None:
        self._both = Parcel((evaluate, policy))

    def __call__(self) -> Evaluation:
        """Makes it."""
        evaluate, policy = self._both.open()
        return evaluate(policy)


class Pending(Protocol):
    """An evaluation that is being made elsewhere."""

    def done(self) -> bool:
        """Whether it is over."""
        ...

    def result(self) -> Evaluation:
        """What came of it; waits for it."""
        ...


class Evaluator:
    """Makes evaluations one after another and hands them out in order.

    Args:
        evaluate: evaluates the policy it is given. For asynchronous evaluation it is a function of a module or a
            `functools.partial` of one, or has a method `submit` that is given a `Work` and returns a future of the
            evaluation, and `sent`, which such a work is made of. It may have a method `close`, and `timeout_s`: another
            process that takes longer is ended, and of that evaluation nothing comes.
        asynchronous: evaluate a copy of the policy where `submit` does so, or in another process, while training
            continues.
    """

    def __init__(self, evaluate: Callable[[Any], Evaluation], *, asynchronous: bool = False) -> None:
        self.begun_at = -1
        """Env steps of the newest evaluation that was begun."""
        self._evaluate, self._asynchronous = evaluate, asynchronous
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: list[tuple[int, Acting, Work, Pending]] = []
        self._to_begin: list[tuple[int, Acting, Work | None]] = []  # without one that is of a checkpoint
        self._made: list[Made] = []
        self._broken_off = self._has_waited = False

    @classmethod
    def of(cls, config: TrainerConfig, evaluate: Callable[[Any], Evaluation] | None) -> Self | None:
        """That of a run; `None` where nothing evaluates.

        Args:
            config: says when and how.
            evaluate: see `Evaluator`.

        Raises:
            ConfigError: the run is to end by an evaluation.
        """
        if evaluate is not None:
            return cls(evaluate, asynchronous=config.eval_async)
        if config.stop_at_return is not None:
            raise ConfigError(
                f"trainer.stop_at_return is {config.stop_at_return:g}, which evaluations decide, but this trainer was "
                "made without `evaluate`"
            )
        return None

    def make(self, env_steps: int, policy: Acting, *, wait: bool = False) -> list[Made] | None:
        """Begins an evaluation, which is over when this returns if it is made here, and hands out those that are over.

        Args:
            env_steps: of the run, for the record.
            policy: as it is now; all of them by name where there are several.
            wait: for all of them.

        Returns:
            As `made`.
        """
        self.begun_at = env_steps
        return self._hand_out(wait, (env_steps, policy))

    def made(self, *, wait: bool = False) -> list[Made] | None:
        """Evaluations that are over and were not handed out yet.

        Args:
            wait: for all of them.

        Returns:
            Env steps, result, and the policy that was evaluated, of each; `None` if a signal broke one off.
        """
        return self._hand_out(wait) if self._waiting or self._to_begin else []

    def state(self) -> list[dict[str, Any]]:
        """Env steps and weights of policies whose evaluation was not handed out yet."""
        made = [(env_steps, policy) for env_steps, _, policy in self._made]
        under_way = [*made, *(one[:2] for one in (*self._to_begin, *self._waiting))]
        return [{"env_steps": env_steps, "policy": policy.state_dict()} for env_steps, policy in under_way]

    def load_state(self, state: Sequence[Mapping[str, Any]], policy: Acting) -> None:
        """Evaluates them from the start.

        Args:
            state: what it gave.
            policy: like those; all of them by name where there are several.
        """
        for one in state:
            snapshot = copied(policy).to("cpu")
            snapshot.load_state_dict(one["policy"])
            self.begun_at = one["env_steps"]
            self._to_begin.append((self.begun_at, snapshot, None))

    def break_off(self) -> None:
        """Ends evaluations of this process before their next step, until `close`; for the handler of a signal."""
        self._broken_off = True

    def _hand_out(self, wait: bool, *begun: tuple[int, Acting]) -> list[Made] | None:
        try:
            with breakable(lambda: self._broken_off):
                self._begin_those_left()
                for one in begun:
                    self._make_room()
                    if not self._begun_elsewhere(*one):
                        self._begin_those_left()  # that waited for a process that died
                        self._made += self._over(*one)
                while self._waiting and (wait or self._waiting[0][-1].done()):
                    self._take_next()
        except BrokenOffError:
            return None
        made, self._made = self._made, []
        return made

    def _make_room(self) -> None:
        """Each that waits is a policy in memory and in checkpoints."""
        while len(self._waiting) >= _MOST_WAITING:
            if not self._has_waited:
                _log.warning(
                    "training waits for the first of %d evaluations: they take longer than the time between them; "
                    "evaluate less often, or fewer episodes",
                    _MOST_WAITING,
                )
            self._has_waited = True
            self._take_next()

    def _begin_those_left(self) -> None:
        while self._to_begin:
            one = self._to_begin[0]
            if not self._begun_elsewhere(*one):
                if self._to_begin[0] is not one:
                    continue  # those that waited for a process that died are older
                self._made += self._over(*one)
            del self._to_begin[0]

    def _begun_elsewhere(self, env_steps: int, policy: Acting, work: Work | None = None) -> bool:
        if not self._asynchronous:
            return False
        snapshot = copied(policy).to("cpu")  # other processes evaluate on the CPU
        work = work or Work(getattr(self._evaluate, "sent", self._evaluate), snapshot)
        try:
            self._waiting.append((env_steps, snapshot, work, self._submit(work)))
        except (BrokenProcessPool, WorkerDiedError) as error:
            self._go_on_here(error)
        return self._asynchronous

    def _submit(self, work: Work) -> Pending:
        if (submit := getattr(self._evaluate, "submit", None)) is not None:
            return submit(work)
        if self._pool is None:
            spawn, begin = multiprocessing.get_context("spawn"), functools.partial(_begin, onednn=prefers_onednn())
            self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=begin)
        patience = Patience(getattr(self._evaluate, "timeout_s", math.inf))
        return _InProcess(self._pool.submit(work), patience)

    def _take_next(self) -> None:
        env_steps, policy, work, future = self._waiting[0]
        while not future.done():
            continue_evaluation()
            time.sleep(_POLL_S)
        try:
            self._made += self._over(env_steps, policy, work, future)
        except (BrokenProcessPool, WorkerDiedError) as error:
            self._go_on_here(error)
            self._begin_those_left()
        except _LateError as error:
            _log.warning("there is no evaluation at %d env steps: %s", env_steps, error)
            del self._waiting[0]
            self._end_process()
            self._begin_those_left()
        else:
            del self._waiting[0]

    def _go_on_here(self, error: Exception) -> None:
        _log.warning(
            "the process that evaluates died (%s); the main process does it from now on. If its own output shows that "
            'it ran your script again, put the script\'s code under `if __name__ == "__main__":`',
            error,
        )
        self._asynchronous = False
        self._begin_again()

    def _begin_again(self) -> None:
        self._to_begin = [*(waiting[:3] for waiting in self._waiting), *self._to_begin]
        self._waiting = []

    def _over(
        self, env_steps: int, policy: Acting, work: Work | None = None, future: Pending | None = None
    ) -> list[Made]:
        """An evaluation, made elsewhere or now; none, which ends no run, where no episode ended in time."""
        try:
            here = functools.partial(self._evaluate, policy) if work is None else work
            evaluation = here() if future is None else future.result()
        except NoEpisodeError as error:
            _log.warning("there is no evaluation at %d env steps: %s", env_steps, error)
            return []
        return [(env_steps, evaluation, policy)]

    def close(self) -> None:
        """Ends the process, with whatever it is doing, and closes what `evaluate` has kept if it has a `close`."""
        if (close := getattr(self._evaluate, "close", None)) is not None:
            close()
        self._end_process()
        self._broken_off = False

    def _end_process(self) -> None:
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            self._pool = None
            self._begin_again()


class _LateError(Exception):
    """The other process does not answer."""


class _InProcess:
    """An evaluation in the other process."""

    def __init__(self, future: Future[Evaluation], patience: Patience) -> None:
        self._future, self._patience = future, patience

    def done(self) -> bool:
        return self._future.done() or self._patience.is_over()

    def result(self) -> Evaluation:
        if not self._future.done():
            raise _LateError(f"the process that evaluates did not answer within {self._patience.most_s:g} s")
        return self._future.result()


def _begin(*, onednn: bool) -> None:
    """In the other process: by one thread, and by the library that this one prefers; terminals talk to the trainer."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    entitle("evaluation")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as training does, so that an evaluation gives equal numbers here and there
    prefer_onednn(onednn)


def copied(acting: ActingT) -> ActingT:
    """Policies of their own memory, which do not explore; generators cannot be copied, and theirs begin anew.

    Args:
        acting: one policy, or several by name.
    """
    memo: dict[int, Any] = {}
    for policy in named_policies(acting).values():
        memo |= {id(policy.generator): torch.Generator(device=policy.generator.device), id(policy.exploration): None}
    return copy.deepcopy(acting, memo)
