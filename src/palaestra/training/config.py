"""`TrainerConfig`: how long to train, and how often to do what besides."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from palaestra.core import AtLeastOne, Fraction, Limit, NotNegative, Positive, Range, require_ranges

__all__ = ["TrainerConfig"]

_OF_EVALUATIONS = ("stop_at_return", "eval_every_steps", "eval_every_s", "eval_at_steps", "eval_epsilon", "eval_async")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Budget of a run, and the periods of evaluations, logs and checkpoints."""

    total_env_steps: Positive[int] = 100_000
    """Env steps over all environments, or updates from data alone."""
    episodes_per_iteration: AtLeastOne[int | None] = None
    """Whole episodes that an iteration collects, instead of the algorithm's unroll_length: as many in each
    environment, so a multiple of env.num_envs."""
    time_limit_s: Annotated[Limit[float | None], "--time-limit", "duration"] = None
    """Stop after so many seconds (typed 90s, 30m or 2h), evaluated and saved; a resumed run has the full time again."""
    stop_at_return: Annotated[float | None, Range(infinite=True)] = None
    """Stop once the mean return of an evaluation reaches this."""
    eval_every_steps: NotNegative[int | None] = None
    """Env steps between evaluations; the default is a tenth of the run, 0 is only at the end."""
    eval_every_s: Limit[float | None] = None
    """Seconds between evaluations, instead of env steps."""
    eval_at_steps: tuple[int, ...] = ()
    """Env steps at which to evaluate, instead of a period: increasing numbers; 0 is before training."""
    eval_episodes: NotNegative[int] = 20
    """Episodes of one evaluation; with 0 there are none, and no environments besides those of training."""
    eval_time_limit_s: Limit[float | None] = 600.0
    """Seconds after which an evaluation goes without the episodes that have not ended, with a warning. A robot's agents
    are not cut off: their own control flow says when an episode is over."""
    eval_epsilon: Fraction[float] = 0.0
    """Probability of a random action in evaluations, for policies that explore epsilon-greedily: Mnih et al. 2015 have
    0.05, for games that always begin alike. What is saved, served and evaluated later is greedy."""
    eval_async: bool = False
    """Evaluate asynchronously: in another process, while training continues."""
    checkpoint_every_steps: NotNegative[int | None] = None
    """Env steps between checkpoints; the default is a tenth of the run, 0 is only at the end."""
    keep_checkpoints: Annotated[int, Range(ge=2)] = 3
    """Number of checkpoints that are kept, at least 2."""
    copied_segments: NotNegative[int] = 2
    """Checkpoints share the pieces (segments) of a replay buffer that have not changed. So many of those that were
    written last have a second copy; a buffer has at most 256, and that number copies all of it."""
    log_every_steps: NotNegative[int | None] = None
    """Env steps between rows of metrics; the default is a hundredth of the run."""
    max_skipped_updates: NotNegative[int] = 0
    """Updates in a row that are skipped because a gradient is not finite; with one more the run ends."""
    max_failed_saves: NotNegative[int] = 3
    """Checkpoints in a row that may fail to be written, on a full disk say; with one more the run ends."""
    grace_s: Limit[float] = 20.0
    """After SIGTERM, SIGHUP or Ctrl-C, seconds to finish the step and save; then the run stops at once."""

    def __post_init__(self) -> None:
        require_ranges(self, "trainer.", self._misfits())

    def _misfits(self) -> Iterator[str]:
        schedules = {"eval_every_s": None, "eval_every_steps": None, "eval_at_steps": ()}
        if len(given := [name for name, none in schedules.items() if getattr(self, name) != none]) > 1:
            yield f"{' and '.join(f'trainer.{name} is {getattr(self, name)}' for name in given)}; give one of them"
        given = [name for name in _OF_EVALUATIONS if getattr(self, name) not in (None, (), False)]
        if self.eval_episodes == 0 and given:
            what = f"trainer.{given[0]} is {getattr(self, given[0])}"
            yield f"{what}, but trainer.eval_episodes is 0, so that nothing is evaluated; leave out one of the two"
        if any(later <= earlier for earlier, later in itertools.pairwise((-1, *self.eval_at_steps))):
            yield f"trainer.eval_at_steps is {self.eval_at_steps}; give increasing numbers from 0 on"

    def period(self, name: Literal["eval", "checkpoint", "log"]) -> int:
        """Env steps between two of something, with the default filled in; 0 is never.

        Args:
            name: of what.
        """
        value = getattr(self, f"{name}_every_steps")
        if name == "eval" and (self.eval_every_s is not None or self.eval_at_steps):
            return 0
        return max(1, self.total_env_steps // (100 if name == "log" else 10)) if value is None else value

    def due_after(self, name: Literal["eval", "checkpoint", "log"], env_steps: int) -> int | None:
        """The env steps at which something is due next; `None` is never.

        Args:
            name: of what.
            env_steps: after which.
        """
        if name == "eval" and self.eval_at_steps:
            return next((step for step in self.eval_at_steps if step > env_steps), None)
        period = self.period(name)
        return (env_steps // period + 1) * period if period else None
