"""Evaluation in the main process, or in one beside it while training goes on."""

from __future__ import annotations

import copy
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeAlias

import torch

from palaestra.policies import Policy
from palaestra.rollout import Evaluation
from palaestra.training.policy_manager import named_policies

__all__ = ["Evaluator"]

Acting: TypeAlias = Policy | torch.nn.ModuleDict

_log = logging.getLogger(__name__)


class Evaluator:
    """Makes evaluations one after another and hands them out in order.

    Args:
        evaluate: evaluates the policy it is given; beside, a function of a module or a `functools.partial` of one.
        beside: whether a process of its own does it. It gets a copy of the policy, so training goes on meanwhile.
    """

    def __init__(self, evaluate: Callable[[Any], Evaluation], *, beside: bool = False) -> None:
        self._evaluate, self._beside = evaluate, beside
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: list[tuple[int, Acting, Future[Evaluation]]] = []
        self._made: list[tuple[int, Evaluation, Acting]] = []

    def begin(self, env_steps: int, policy: Acting) -> None:
        """Starts an evaluation; in the main process it is over when this returns.

        Args:
            env_steps: of the run, for the record.
            policy: as it is now; all of them by name where there are several.
        """
        if not self._beside:
            self._made.append((env_steps, self._evaluate(policy), policy))
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn"), initializer=_one_thread
            )
        snapshot = _copied(policy)
        self._waiting.append((env_steps, snapshot, self._pool.submit(self._evaluate, snapshot)))

    def made(self, *, wait: bool = False) -> list[tuple[int, Evaluation, Acting]]:
        """Evaluations that are over since the last call: env steps, result, and the policy that was evaluated.

        Args:
            wait: for all of them.
        """
        while self._waiting and (wait or self._waiting[0][2].done()):
            env_steps, policy, future = self._waiting.pop(0)
            try:
                self._made.append((env_steps, future.result(), policy))
            except BrokenProcessPool as error:
                _log.warning("the process that evaluates died (%s); the main process does it from now on", error)
                self._beside, waiting = False, [(env_steps, policy, future), *self._waiting]
                self._waiting = []
                self._made += [(steps, self._evaluate(copied), copied) for steps, copied, _ in waiting]
        made, self._made = self._made, []
        return made

    def close(self) -> None:
        """Ends the process, with whatever it is doing."""
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            self._pool, self._waiting = None, []


def _one_thread() -> None:
    torch.set_num_threads(1)


def _copied(acting: Acting) -> Acting:
    """Policies of their own memory; generators cannot be copied, and an evaluation draws from one of its own."""
    policies = named_policies(acting).values()
    memo = {id(p.generator): torch.Generator(device=p.generator.device) for p in policies}
    explorations = [policy.exploration for policy in policies]
    for policy in policies:
        policy.exploration = None
    try:
        return copy.deepcopy(acting, memo)
    finally:
        for policy, exploration in zip(policies, explorations, strict=True):
            policy.exploration = exploration
