"""`train_together`: trainers of a population in turns, whose unrolls and updates are made together."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from typing import Any, final

from palaestra.algorithms import Together, UpdateInfo
from palaestra.core import POLICY, NonFiniteError, PalaestraError
from palaestra.rollout import UnrollTogether
from palaestra.training.learning import TrainResult, computing_at_speed
from palaestra.training.parts import Ask, SimplePolicyManager
from palaestra.training.signals import StopSignals
from palaestra.training.trainer import Trainer

__all__ = ["Member", "run_together"]


@final
class Member(SimplePolicyManager):
    """A policy that learns beside others: its update was made by the time it is asked for."""

    population: int = 1
    """How many runs learn in its graph."""
    made: UpdateInfo | NonFiniteError | None = None
    """What the update did that is asked for next."""

    def update(self, sources: Any) -> dict[str, UpdateInfo | NonFiniteError]:
        """See `PolicyManager.update`.

        Args:
            sources: what it learned from.
        """
        assert self.made is not None
        return dict.fromkeys(sources, self.made)


def _steps(trainer: Trainer, trainers: Sequence[Trainer], stop: StopSignals) -> Generator[Ask]:
    """What `Trainer.run` does, in steps, the first of which lies between two iterations.

    All save after the same iterations, from which they can go on together: their env steps differ.
    """
    with closing(trainer.running(stop)) as iterations:
        for _ in iterations:
            yield Ask()
            if stop.received is not None or any(other.saved[1] > trainer.saved[1] for other in trainers):
                trainer.save()
            yield from trainer.iteration()


def run_together(
    trainers: Sequence[Trainer],
    together: Together,
    unroll: UnrollTogether,
    before_unroll: Callable[[Sequence[int]], None] = lambda _: None,
) -> list[TrainResult | PalaestraError]:
    """Runs trainers to their ends, an iteration of each at a time; one that fails leaves the others.

    Args:
        trainers: of members, each with a `Member` as learner.
        together: makes their updates.
        unroll: makes their unrolls.
        before_unroll: called with the places of those that are about to act.

    Returns:
        How each ended.

    Raises:
        StoppedError: see `Trainer.run`.
    """
    ends: dict[int, Any] = {}

    def stop_all() -> None:
        for trainer in trainers:
            trainer.asked_to_stop()

    def go_on(place: int, *, waited: bool = False) -> Ask | None:
        """On to where its next unroll or update is due; `None` at its end."""
        try:
            if waited:  # for what others do by themselves
                trainers[place].time.spent("waiting")
            return next(runs[place])
        except StopIteration:
            ends[place] = trainers[place].result
        except PalaestraError as error:
            ends[place] = error
        return None

    runs: list[Any] = []
    with computing_at_speed(), StopSignals(stop_all, grace_s=trainers[0].config.grace_s) as stop, ExitStack() as opened:
        runs += [_steps(trainer, trainers, stop) for trainer in trainers]
        for run in runs:
            opened.callback(run.close)
        while left := [place for place in range(len(trainers)) if place not in ends]:
            left = [place for place in left if go_on(place, waited=True) is not None]
            asked = {place: one for place in left if (one := go_on(place)) is not None}
            for place in asked:
                trainers[place].time.spent("waiting")
            before_unroll(list(asked))
            unroll.expect([place for place, one in asked.items() if not one.random])
            asked = {place: one for place in asked if (one := go_on(place)) is not None}
            sources = {place: one.sources[POLICY] for place, one in asked.items() if one.sources}
            for place, made in (together.update(sources) if sources else {}).items():
                learner: Any = trainers[place].learner
                learner.made = made
            for place in asked:
                trainers[place].time.spent("learning")  # together, as the unroll was
    return [ends[place] for place in range(len(trainers))]
