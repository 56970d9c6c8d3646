"""`SamplesPerInsert`: how much is learned from how much data, where both happen at the same time."""

import threading
from collections.abc import Callable
from typing import final

from palaestra.core import ConfigError

__all__ = ["SamplesPerInsert"]


@final
class SamplesPerInsert:
    """Keeps drawn rows near `ratio` times the written ones: the side that is ahead waits for the other.

    As soon as `first_rows` rows are there,  |ratio * written since - drawn|  is at most `slack`. Before,
    writers do not wait and nothing is drawn. For threads of one process.

    Args:
        ratio: rows drawn for each row written.
        first_rows: before so many rows are written, at least 1, nothing is drawn.
        slack: rows drawn that either side may be ahead.

    Raises:
        ConfigError: the ratio or the slack is not above 0.

    Examples:
        >>> limiter = SamplesPerInsert(ratio=8, first_rows=100, slack=512)
        >>> limiter.may_draw(256), limiter.may_write(8)
        (False, True)
    """

    def __init__(self, *, ratio: float, first_rows: int = 0, slack: float) -> None:
        if not (ratio > 0 and slack > 0 and first_rows >= 0):
            raise ConfigError(
                f"SamplesPerInsert(ratio={ratio}, first_rows={first_rows}, slack={slack}): give numbers above 0"
            )
        self.ratio, self.first_rows, self.slack = ratio, first_rows, slack
        self.written = self.drawn = 0
        """Rows so far."""
        self._begun_at: int | None = None  # rows written when drawing could begin
        self._most_written = self._most_drawn = 0
        self._changed = threading.Condition()

    @property
    def ahead(self) -> float:
        """Rows that the writers are ahead, in drawn rows; negative where the learner is."""
        return 0.0 if self._begun_at is None else self.ratio * (self.written - self._begun_at) - self.drawn

    def may_write(self, rows: int) -> bool:
        """Whether so many rows can be written without waiting.

        Args:
            rows: of one `wrote`.
        """
        return self._begun_at is None or self.ahead + self.ratio * rows <= self.slack

    def may_draw(self, rows: int) -> bool:
        """Whether so many rows can be drawn without waiting.

        Args:
            rows: of one `drew`.
        """
        return self._begun_at is not None and self.ahead - rows >= -self.slack

    def wrote(self, rows: int, *, timeout_s: float) -> None:
        """Waits until rows may be written, and counts them.

        Args:
            rows: that will be written.
            timeout_s: longest wait, seconds.

        Raises:
            TimeoutError: the learner has drawn too little by then; nothing is counted.
            ConfigError: with this slack both sides would wait for ever.
        """
        with self._changed:
            self._most_written = max(self._most_written, rows)
            self._wait(lambda: self.may_write(rows), timeout_s, f"write {rows} rows", "drawn")
            self.written += rows
            if self._begun_at is None and self.written >= max(1, self.first_rows):
                self._begun_at = self.written
            self._changed.notify_all()

    def drew(self, rows: int, *, timeout_s: float) -> None:
        """Waits until rows may be drawn, and counts them.

        Args:
            rows: that will be drawn.
            timeout_s: longest wait, seconds.

        Raises:
            TimeoutError: too little was written by then; nothing is counted.
            ConfigError: with this slack both sides would wait for ever.
        """
        with self._changed:
            self._most_drawn = max(self._most_drawn, rows)
            self._wait(lambda: self.may_draw(rows), timeout_s, f"draw {rows} rows", "written")
            self.drawn += rows
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout_s: float, what: str, needed: str) -> None:
        least = (self.ratio * self._most_written + self._most_drawn) / 2
        if self.slack < least:
            raise ConfigError(
                f"with a slack of {self.slack} writers of {self._most_written} rows and a learner of "
                f"{self._most_drawn} could wait for each other for ever; give at least {least:g}"
            )
        if not self._changed.wait_for(ready, timeout_s):
            raise TimeoutError(
                f"waited {timeout_s:g} s to {what}: {self.written} rows are written and {self.drawn} drawn, "
                f"and at {self.ratio:g} draws for each row more must be {needed} first"
            )
