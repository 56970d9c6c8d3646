"""What data an algorithm wants: `Plan`, and where it comes from: `DataSource`.

It says what is wanted, not how it is stored, sampled or collected.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import torch

from palaestra.core.errors import ConfigError
from palaestra.core.schedule import Linear, Schedule
from palaestra.core.settings import Fraction, NotNegative, Positive, require_ranges

if TYPE_CHECKING:
    from palaestra.core.batch import Batch

__all__ = ["POLICY", "DataSource", "Offline", "OnPolicy", "Plan", "Prioritized", "Replay"]

POLICY = "policy"
"""Name of the policy of a run that has only one."""


def _require_burn_in(plan: Replay | Offline) -> None:
    if plan.burn_in and plan.mini_batch_length == 1:
        raise ConfigError(
            f"{type(plan).__name__}(burn_in={plan.burn_in}, mini_batch_length={plan.mini_batch_length}): burn-in needs "
            "sequences; give at least 0 steps, and a mini_batch_length above 1"
        )


def _window(plan: Replay | Offline) -> int:
    return plan.n_step if plan.mini_batch_length == 1 else plan.burn_in + plan.mini_batch_length


@dataclass(frozen=True, kw_only=True)
class OnPolicy:
    """Learn from each unroll, then discard it; or, with `clear=False`, from the newest rows again and again.

    With the defaults one gradient step is made on the whole unroll (A2C). With a minibatch size the unroll is cut into
    sequences, shuffled keeping time order inside each, and every minibatch gets one gradient step, `num_epochs` times
    (PPO; ALF's `whole_replay_buffer_training=True`).
    """

    data: ClassVar[Literal["on-policy"]] = "on-policy"
    """What it learns from."""
    unroll_length: Positive[float]
    """Time steps from every environment in one unroll. A fraction is met on average."""
    num_epochs: Positive[int] = 1
    """How often the whole unroll is gone through."""
    mini_batch_size: Positive[int | None] = None
    """Sequences in a minibatch, as ALF counts; `None` is one sequence from every environment."""
    mini_batch_length: Positive[int | None] = None
    """Time steps in a sequence; `None` is the whole unroll. Surplus steps are cut off."""
    clear: bool = True
    """Whether an unroll is discarded once it was learned from; else `capacity` rows are kept and gone through again."""
    capacity: Positive[int | None] = None
    """With `clear=False`: rows to keep, over all environments."""

    def __post_init__(self) -> None:
        require_ranges(self, "OnPolicy.")
        if self.clear != (self.capacity is None):
            raise ConfigError(
                f"OnPolicy(clear={self.clear}, capacity={self.capacity}): clear=False needs a capacity, and clear=True "
                "has none"
            )

    @functools.cached_property
    def window(self) -> int:
        """Rows of a lane that one draw needs, besides the open one."""
        return 1

    def capacity_for(self, num_lanes: int) -> int | None:
        """Rows that a buffer keeps, over all lanes; `None` where it grows with the unroll.

        Args:
            num_lanes: environments (or agents) that write to it.
        """
        return self.capacity

    def may_learn(self, *, env_steps: int, new_rows: int, num_lanes: int) -> bool:
        """Whether there is data for an update.

        Args:
            env_steps: taken so far.
            new_rows: collected since the last update.
            num_lanes: environments (or agents) that collect.
        """
        return new_rows > 0


@dataclass(frozen=True, kw_only=True)
class Prioritized:
    """Draw rows in proportion to a power of their priority, which learning writes back."""

    alpha: NotNegative[float] = 0.6
    """Power of the priority, at least 0; 0 draws every row equally often."""
    beta: Fraction[Schedule] = field(default_factory=lambda: Linear(0.4, 1.0))
    """How far the importance weights correct for that, in [0, 1]; 1 is completely."""

    def __post_init__(self) -> None:
        require_ranges(self, "Prioritized.")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Learn from a replay buffer: one draw of `gradient_steps * mini_batch_size` sequences an iteration.

    With `num_epochs` nothing is sampled: each iteration goes through the whole buffer (ALF's
    `whole_replay_buffer_training=True`), in minibatches that are shuffled anew in every pass.
    """

    data: ClassVar[Literal["replay"]] = "replay"
    """What it learns from."""
    unroll_length: Positive[float]
    """Time steps from every environment between two learning phases."""
    capacity: Positive[int] = 100_000
    """Rows the buffer keeps, over all environments."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one iteration."""
    num_epochs: Positive[int | None] = None
    """How often the whole buffer is gone through in one iteration, instead of `gradient_steps` minibatches."""
    mini_batch_size: Positive[int] = 32
    """Sequences in a minibatch, as ALF counts: with a length of 1, rows."""
    mini_batch_length: Positive[int] = 1
    """Time steps in a sequence; 1 gives flat transitions."""
    sequence_period: Positive[int | None] = None
    """Rows from one sequence to the next where the whole buffer is gone through; its length by default."""
    learning_starts: NotNegative[int] = 0
    """Env steps before the first gradient step."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping; windows end with their episode."""
    burn_in: NotNegative[int] = 0
    """Time steps in front of each sequence that only bring a recurrent memory up to date; `valid` is 0 there."""
    prioritized: Prioritized | None = None
    """How rows are drawn by priority; `None` draws all equally often."""
    returns: bool = False
    """Whether sequences come with what was still to come in their episodes."""
    all_actions: bool = False
    """Whether windows come with every action that was taken in them."""

    def __post_init__(self) -> None:
        require_ranges(self, "Replay.")
        _require_burn_in(self)
        if self.num_epochs is not None and (self.gradient_steps != 1 or self.prioritized is not None):
            raise ConfigError(
                f"Replay(num_epochs={self.num_epochs}) goes through the whole buffer, so that nothing is drawn: set "
                f"gradient_steps, here {self.gradient_steps}, to 1, and leave out priorities, here {self.prioritized}"
            )

    @functools.cached_property
    def window(self) -> int:
        """Rows of a lane that one draw needs, besides the open one: n steps, or a sequence with its burn-in."""
        return _window(self)

    def capacity_for(self, num_lanes: int) -> int:
        """Rows that a buffer keeps, over all lanes: `capacity`, and at least those of one draw in every lane.

        Args:
            num_lanes: environments (or agents) that write to it.
        """
        return max(self.capacity, num_lanes * (self.window + self.mini_batch_length))

    def learns_after(self, num_lanes: int) -> int:
        """Env steps after which learning begins: then at least one lane has the rows of a draw.

        Args:
            num_lanes: environments (or agents) that collect.
        """
        return max(self.learning_starts, num_lanes * self.window)

    def may_learn(self, *, env_steps: int, new_rows: int, num_lanes: int) -> bool:
        """Whether there is data for an update.

        Args:
            env_steps: taken so far.
            new_rows: collected since the last update.
            num_lanes: environments (or agents) that collect.
        """
        return env_steps > self.learns_after(num_lanes)


@dataclass(frozen=True, kw_only=True)
class Offline:
    """Learn from a fixed data set; nothing is collected."""

    data: ClassVar[Literal["offline"]] = "offline"
    """What it learns from."""
    gradient_steps: Positive[int] = 1
    """Gradient steps in one iteration."""
    mini_batch_size: Positive[int] = 256
    """Sequences in a minibatch, as ALF counts: with a length of 1, rows."""
    mini_batch_length: Positive[int] = 1
    """Time steps in a sequence; 1 gives flat transitions."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping."""
    burn_in: NotNegative[int] = 0
    """Time steps in front of each sequence that only bring a recurrent memory up to date; `valid` is 0 there."""
    returns: bool = False
    """Whether sequences come with what was still to come in their episodes."""
    all_actions: bool = False
    """Whether windows come with every action that was taken in them."""

    def __post_init__(self) -> None:
        require_ranges(self, "Offline.")
        _require_burn_in(self)

    @functools.cached_property
    def window(self) -> int:
        """Rows of a lane that one draw needs, besides the open one: n steps, or a sequence with its burn-in."""
        return _window(self)

    def online(self) -> Replay:
        """The plan to go on with when steps of its own join the data: a step from every environment between updates."""
        return Replay(unroll_length=1, **{field.name: getattr(self, field.name) for field in fields(self)})

    def capacity_for(self, num_lanes: int) -> int:
        """Refused: a fixed data set is a loaded buffer.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("an offline plan learns from a loaded buffer and collects nothing")

    def may_learn(self, *, env_steps: int, new_rows: int, num_lanes: int) -> bool:
        """Whether there is data for an update: always."""
        return True


Plan: TypeAlias = OnPolicy | Replay | Offline
"""The data an algorithm learns from in one training iteration."""


@runtime_checkable
class DataSource(Protocol):
    """Whatever an algorithm can learn from: a replay buffer, an unroll, requests packed by a robot."""

    def draw(self, plan: Plan, generator: torch.Generator) -> Batch:
        """The data of one update.

        Args:
            plan: what the algorithm wants.
            generator: source of every random choice.
        """
        ...

    def write_back(self, indices: torch.Tensor, priority: torch.Tensor) -> None:
        """Takes priorities of drawn rows; sources without priorities ignore them.

        Args:
            indices: the batch's `index` field, on the device where the algorithm learns.
            priority: non-negative, one per row, there too.
        """
        ...
