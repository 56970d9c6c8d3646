"""A window of a few seconds, after a warm-up; it begins and ends between two iterations."""

import time
from collections.abc import Callable, Mapping


class Window:
    """Call `tick` between iterations until it says that the window is over.

    Args:
        counters: gives `env_steps`, `updates` (optimizer steps) and `iterations` so far.
        warmup_s: dropped, counted from the first optimizer step on, so that no compilation falls into the window.
        window_s: length of the window.
        clock: in seconds.
    """

    def __init__(
        self,
        counters: Callable[[], Mapping[str, int]],
        warmup_s: float,
        window_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._counters, self._warmup_s, self._window_s, self._clock = counters, warmup_s, window_s, clock
        self._learning_since: float | None = None
        self._begin: tuple[float, Mapping[str, int]] | None = None
        self.result: dict[str, float] = {}

    @property
    def is_open(self) -> bool:
        return self._begin is not None

    def tick(self) -> bool:
        now = self._clock()
        if self._learning_since is None:
            if self._counters()["updates"] > 0:
                self._learning_since = now
        elif self._begin is None:
            if now - self._learning_since >= self._warmup_s:
                self._begin = (now, dict(self._counters()))
        elif now - self._begin[0] >= self._window_s:
            begin, before = self._begin
            done = {name: value - before[name] for name, value in self._counters().items()}
            seconds = now - begin
            rates = {f"{name}_per_s": done[name] / seconds for name in ("env_steps", "updates")}
            self.result = {"window_s": seconds, **done, **rates}
            return True
        return False
