"""What a person sees of several seeds: a line for each, and their joint curve at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from palaestra.core import CheckpointError
from palaestra.experiments.config import ExperimentConfig
from palaestra.experiments.curves import curves_of
from palaestra.experiments.plots import terminal_plot
from palaestra.experiments.run_directory import RunDirectory

__all__ = ["SeedRow", "SeedsPanel"]

_TAIL_BYTES = 16_384


class SeedRow:
    """The newest row of metrics of a run, read from its file.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.seed = directory.config.run.seed
        self.metrics: dict[str, Any] = {}
        self._size = -1

    def refresh(self) -> None:
        """Looks whether there is a newer row."""
        path = self.directory.path / "metrics.jsonl"
        try:
            size = path.stat().st_size
            if size == self._size:
                return
            with path.open("rb") as file:
                file.seek(max(0, size - _TAIL_BYTES))
                lines = file.read().split(b"\n")
            self.metrics, self._size = json.loads(lines[-2]), size
        except (OSError, ValueError, IndexError):
            return

    @property
    def env_steps(self) -> int:
        """Env steps at the newest row."""
        return int(self.metrics.get("env_steps", 0))


class SeedsPanel:
    """A live table on a terminal, a line whenever a seed's state changes elsewhere, and the joint curve at the end.

    Args:
        title: of the panel.
        config: of the runs.
        enabled: whether to show anything.
        console: where to write.
    """

    def __init__(
        self, title: str, config: ExperimentConfig, *, enabled: bool = True, console: Console | None = None
    ) -> None:
        self._title, self._total, self._enabled = title, config.trainer.total_env_steps, enabled
        self._console = console or Console()
        self._live: Live | None = None
        self._states: dict[int, str] = {}
        self._rows: Sequence[SeedRow] = ()
        self._last_line_s = float("-inf")

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._enabled and self._rows:
            try:
                curves = curves_of([row.directory for row in self._rows])
                self._console.print(terminal_plot(curves, width=min(100, self._console.width)))
            except CheckpointError:
                return  # none has logged an episode

    def show(self, rows: Sequence[SeedRow], states: Mapping[int, str]) -> None:
        """Shows how the seeds are doing.

        Args:
            rows: of all seeds, in order.
            states: what each is doing, by seed.
        """
        for row in rows:
            row.refresh()
        self._rows = rows
        if not self._enabled:
            return
        if self._live is not None:
            self._live.update(self._panel(rows, states))
            return
        tick = time.monotonic() - self._last_line_s > 5.0
        for row in rows:
            if self._states.get(row.seed) != states[row.seed] or (tick and states[row.seed] == "running"):
                self._console.print(_line(row, states[row.seed], self._total), highlight=False, soft_wrap=True)
        self._states = dict(states)
        self._last_line_s = time.monotonic() if tick else self._last_line_s

    def _panel(self, rows: Sequence[SeedRow], states: Mapping[int, str]) -> Panel:
        table = Table("seed", "", "env steps", "return", "evaluation", "steps/s", box=None, padding=(0, 2))
        for row in rows:
            state, metrics = states[row.seed], row.metrics
            style = {"running": "cyan", "done": "green", "failed": "red", "killed": "red"}.get(state, "dim")
            table.add_row(
                str(row.seed),
                f"[{style}]{state}[/]",
                f"{row.env_steps:,} of {self._total:,}",
                _number(metrics.get("return_mean")),
                _number(metrics.get("eval/return_mean")),
                _number(metrics.get("time/env_steps_per_s"), "{:,.0f}"),
            )
        return Panel(table, title=self._title, expand=False)


def _line(row: SeedRow, state: str, total: int) -> str:
    returns = _number(row.metrics.get("return_mean"))
    return f"seed {row.seed:<4} {state:<11} {row.env_steps:>9,} / {total:,} env steps  return {returns}"


def _number(value: float | None, form: str = "{:.1f}") -> str:
    return "–" if value is None else form.format(value)
