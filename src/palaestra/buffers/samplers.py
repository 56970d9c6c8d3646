"""Samplers choose the rows of a draw: `Sampler`, and those that need no priorities."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from palaestra.buffers.reader import StreamReader
from palaestra.core import Batch, CheckpointError, ConfigError, ShapeError

__all__ = ["BalancedSampler", "EpisodeSampler", "Sampler", "UniformSampler", "WholeSampler"]


class Sampler(ABC):
    """Chooses rows; everything else about a draw is the buffer's. A sampler of your own defines `starts`.

    Examples:
        >>> class Newest(Sampler):
        ...     def starts(self, buffer, count, length, generator):
        ...         return buffer.starts(length)[-count:]
    """

    @abstractmethod
    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        """Row numbers at which what is drawn begins.

        Args:
            buffer: what is drawn from; `buffer.starts(length)` has all rows that may be chosen.
            count: how many are wanted.
            length: so many rows must follow each in its lane; see `StreamReader.usable`.
            generator: source of every random choice.

        Returns:
            [count] int64, in random order, or as many as there are where the sampler says so. Not checked: from rows
            that may not be chosen, what follows is no transition.

        Raises:
            ShapeError: there is nothing to choose from.
        """

    def every(self, buffer: StreamReader, length: int) -> np.ndarray:
        """All row numbers that `starts` chooses from, for plans that go through the whole buffer.

        Args:
            buffer: what is gone through.
            length: so many rows must follow each in its lane.

        Returns:
            [N] int64, those of a lane in time order.

        Raises:
            ConfigError: some rows are drawn more often than others, or a sampler of your own does not define this.
            ShapeError: there is none.
        """
        raise ConfigError(
            f"the plan goes through the whole buffer (num_epochs), and the buffer's {type(self).__name__} draws some "
            "rows more often than others, or does not say which it draws; leave out num_epochs, give the buffer a "
            "UniformSampler(), or define every(buffer, length) in a sampler of your own"
        )

    def finish(self, buffer: StreamReader, batch: Batch, generator: torch.Generator) -> Batch:
        """What is handed out, for samplers that add or change fields; by default the batch as it is.

        Args:
            buffer: what was drawn from.
            batch: `Windows`, or an `Unroll` of sequences, with the chosen rows as `index`, which is on the CPU whatever
                device the rows are on.
            generator: source of every random choice.
        """
        return batch

    def on_put(self, experiences: Batch, index: np.ndarray) -> None:  # noqa: B027
        """Told by an `ExperienceMemory` what was put into it; by default nothing is done.

        Args:
            experiences: the set.
            index: [N] the row numbers of its transitions.
        """

    def weight(self) -> torch.Tensor | None:
        """[N] float32 importance weights of the rows chosen last; by default none, for all are equally likely."""
        return None

    def largest_weight(self) -> float:
        """What the weights of the rows chosen last were divided by, for those who join them to others; by default 1."""
        return 1.0

    def write_back(self, buffer: StreamReader, index: np.ndarray, priority: np.ndarray) -> None:  # noqa: B027
        """Takes priorities of rows, drawn or not; by default they are ignored.

        Args:
            buffer: what was drawn from last.
            index: [N] row numbers.
            priority: [N], at least 0.

        Raises:
            ShapeError: there is nothing to choose from.
        """

    def set_progress(self, progress: float) -> None:  # noqa: B027
        """Moves what follows a schedule; by default nothing does.

        Args:
            progress: env steps taken divided by the run's total, in [0, 1].
        """

    def state(self) -> dict[str, Any]:
        """What the next draws depend on besides buffer and generator, by name, for a checkpoint; by default nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Puts back what `state` gave.

        Args:
            state: of a sampler with the same settings on a buffer of the same shape.

        Raises:
            CheckpointError: something is missing or does not fit.
        """


@final
class UniformSampler(Sampler):
    """Draws rows, all with the same probability.

    Args:
        replace: whether they are drawn independently of each other; else all rows of a draw are different ones.
    """

    def __init__(self, *, replace: bool = True) -> None:
        self.replace = replace

    def every(self, buffer: StreamReader, length: int) -> np.ndarray:
        return buffer.starts(length)

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        if not self.replace:
            starts = buffer.starts(length)
            if len(starts) < count:
                raise ShapeError(
                    f"{count} different rows were asked for, and {len(starts)} can be drawn; write more before "
                    "learning, or draw with replacement"
                )
            return starts[torch.randperm(len(starts), generator=generator)[:count].numpy()]
        total, pick = buffer.candidates(length)
        found: list[np.ndarray] = []
        missing = count
        for _ in range(100):
            number = torch.randint(total, (missing + missing // 4 + 8,), generator=generator).numpy()
            drawn = pick(number)
            drawn = drawn[buffer.may_begin(drawn, length)][:missing]
            if len(drawn) == count:
                return drawn
            found.append(drawn)
            missing -= len(drawn)
            if not missing:
                return np.concatenate(found)
        raise ShapeError(
            f"hardly any row can be learned from: episodes end at once, or few stacks are whole; {buffer.held()}"
        )


@final
class WholeSampler(Sampler):
    """Goes through the whole buffer without repetition, then shuffles again: epochs over data that stay.

    A pass begins anew when rows are written. Time order inside a sequence is kept.

    Args:
        stride: rows between two starts of a lane; with the length of a sequence each row is in at most one of them, and
            in none where its sequence would begin with the end of an episode.

    Raises:
        ConfigError: the stride is less than 1.
    """

    def __init__(self, stride: int = 1) -> None:
        if stride < 1:
            raise ConfigError(f"WholeSampler(stride={stride}): give at least 1 row")
        self.stride = stride
        self._left = np.empty(0, np.int64)  # of the present pass
        self._stamp: tuple[int, ...] = ()

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        stamp = buffer.stamp(length)
        if stamp != self._stamp:
            self._stamp, self._left = stamp, self._pass(buffer, length, generator)
        parts, missing = [], count
        while missing > len(self._left):
            parts.append(self._left)
            missing -= len(self._left)
            self._left = self._pass(buffer, length, generator)
        parts.append(self._left[:missing])
        self._left = self._left[missing:]
        return np.concatenate(parts)

    def every(self, buffer: StreamReader, length: int) -> np.ndarray:
        starts = buffer.starts(length)
        if self.stride > 1:
            starts = starts[buffer.ages(starts) % self.stride == 0]
            if not len(starts):
                raise ShapeError(f"no row is a multiple of stride={self.stride} rows from the oldest; {buffer.held()}")
        return starts

    def _pass(self, buffer: StreamReader, length: int, generator: torch.Generator) -> np.ndarray:
        starts = self.every(buffer, length)
        return starts[torch.randperm(len(starts), generator=generator).numpy()]

    def state(self) -> dict[str, Any]:
        return {"left": self._left, "stamp": np.array(self._stamp, np.int64)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        try:
            self._left, self._stamp = np.array(state["left"]), tuple(int(part) for part in state["stamp"])
        except KeyError as error:
            raise CheckpointError(f"the saved sampler has no {error}") from None


@final
class EpisodeSampler(Sampler):
    """Draws with equal probability among the rows of complete episodes; running and overwritten ones stay out.

    After rows were written the whole buffer is looked through again, some milliseconds for a million rows.
    """

    def __init__(self) -> None:
        self._stamp: tuple[int, ...] = ()
        self._rows = np.empty(0, np.int64)

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        rows = self.every(buffer, length)
        return rows[torch.randint(len(rows), (count,), generator=generator).numpy()]

    def every(self, buffer: StreamReader, length: int) -> np.ndarray:
        stamp = buffer.stamp(length)
        if stamp != self._stamp:
            complete = np.zeros(buffer.positions.ring_size * buffer.num_lanes, bool)
            for episode in buffer.episodes():
                complete[episode] = True
            starts = buffer.starts(length)
            follows = buffer.after(starts, 1)  # a sequence that begins at the end of an episode is of the next one
            self._rows, self._stamp = starts[complete[starts] & complete[follows]], stamp
        if not len(self._rows):
            raise ShapeError(f"no episode lies in the buffer from its first to its last step; {buffer.held()}")
        return self._rows


@final
class BalancedSampler(Sampler):
    """Draws ends of episodes, which are rare and often carry all of the reward, as often as is asked for.

    Inside both groups, transitions that end their episode and those that do not, all are equally likely. As long as one
    group is empty the other is drawn from.

    Args:
        share: probability of an end, in [0, 1].

    Raises:
        ConfigError: the share is no probability.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"BalancedSampler(share={share}): give a probability in [0, 1]")
        self.share = share
        self._stamp: tuple[int, ...] = ()
        self._ends = self._others = np.empty(0, np.int64)

    def starts(self, buffer: StreamReader, count: int, length: int, generator: torch.Generator) -> np.ndarray:
        stamp = buffer.stamp(length)
        if stamp != self._stamp:
            starts = buffer.starts(length)
            ends = buffer.ends_with_next(starts)
            self._ends, self._others, self._stamp = starts[ends], starts[~ends], stamp
        uniform = torch.rand(2, count, generator=generator, dtype=torch.float64).numpy()
        chosen = uniform[0] < self.share if len(self._others) else np.ones(count, bool)
        chosen &= len(self._ends) > 0
        number = (uniform[1] * np.where(chosen, len(self._ends), len(self._others))).astype(np.int64)
        rows = np.empty(count, np.int64)
        rows[chosen], rows[~chosen] = self._ends[number[chosen]], self._others[number[~chosen]]
        return rows
