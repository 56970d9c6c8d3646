"""What a person sees of a run: a live panel on a terminal, plain lines elsewhere; and where the time goes."""

import io
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rich.console import Console, ConsoleOptions, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from palaestra.core import readable
from palaestra.rollout import CollectInfo, Episode

__all__ = ["ConsoleLogger", "DrawnInPlace", "TimeSplit", "advice"]

PARTS = ("environment", "inference", "storing", "learning", "waiting")
_log = logging.getLogger(__name__)


def acting_together(shares: Mapping[str, float | None]) -> dict[str, float]:
    """How time splits, for readers: choosing actions and storing rows are one part, acting.

    Args:
        shares: of `PARTS`; what is not known is `None`.
    """
    found: dict[str, float] = {}
    for part, share in shares.items():
        if share is not None:
            name = "acting" if part in ("inference", "storing") else part
            found[name] = found.get(name, 0.0) + share
    return found


def silence_stdout() -> None:
    """What is still in the buffer of stdout, or is printed later, goes nowhere: nobody can take it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class PipedConsole(Console):
    """A console whose reader may leave (`| head`, a closed terminal), or whose disk may be full; it is quiet then."""

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # writes what was printed, or drawn in place
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence_stdout()
        _log.warning("nobody reads what is printed any more; training goes on")


@runtime_checkable
class HasWorkers(Protocol):
    """A collector whose workers act in other processes."""

    acts_meanwhile: bool
    """Whether they act while the run evaluates and saves, too."""

    def begin(self) -> None:
        """Starts them, if there are none yet, and waits until they are there."""


class TimeSplit:
    """Seconds of a run by what was done in them; the parts add up to all of them. Starting workers comes before.

    | part | is |
    |---|---|
    | environment | in the environments, or waiting for their processes |
    | inference | choosing actions |
    | storing | the rest of collecting: writing rows, counting episodes, waiting for workers |
    | learning | updates |
    | waiting | evaluation, checkpoints, loggers and callbacks: neither collecting nor learning |
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        """By part."""
        self._since, self._acts_meanwhile, self._evaluated_s = time.perf_counter(), False, 0.0

    def start(self, collector: object = None, *, collects: bool = True) -> None:
        """The run begins or resumes: what came before is not counted, nor how long workers take to be there.

        Args:
            collector: of the run.
            collects: whether it is about to; its workers, if it has any, are started.
        """
        if isinstance(collector, HasWorkers):
            self._acts_meanwhile = collector.acts_meanwhile
            if collects:
                collector.begin()
        self._since = time.perf_counter()

    def spent(self, part: str) -> None:
        """Everything since the last call was this.

        Args:
            part: one of the table's.
        """
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now

    def collected(self, info: CollectInfo) -> None:
        """Everything since the last call was this collection.

        Args:
            info: with the seconds of its parts.
        """
        self.spent("storing")
        self.seconds["storing"] -= info.env_s + info.inference_s
        self.seconds["environment"] += info.env_s
        self.seconds["inference"] += info.inference_s

    def evaluated(self) -> None:
        """An evaluation is over, or was handed to another process."""
        self._evaluated_s += self.since_evaluation_s()

    def since_evaluation_s(self) -> float:
        """Seconds of the run since the last evaluation was over, those of other sessions included."""
        self.spent("waiting")
        return sum(self.seconds.values()) - self._evaluated_s

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {**self.seconds, "evaluated": self._evaluated_s}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Goes on from there.

        Args:
            state: from `state`; older versions did not say when the last evaluation was.
        """
        self.seconds |= {part: state[part] for part in PARTS if part in state}
        self._evaluated_s = state.get("evaluated", sum(self.seconds.values()))

    @property
    def train_s(self) -> float:
        """Seconds of collecting and learning."""
        return sum(self.seconds.values()) - self.seconds["waiting"]

    def metrics(self, env_steps: int) -> dict[str, float]:
        """For a row of metrics: fractions that add up to 1, training seconds, env steps per second of them.

        Where workers act while the run waits, too, env steps are per second of all time.

        Args:
            env_steps: of the run so far.
        """
        whole = max(sum(self.seconds.values()), 1e-9)
        acting_s = whole if self._acts_meanwhile else self.train_s
        return {
            "time/train_s": self.train_s,
            "time/env_steps_per_s": env_steps / max(acting_s, 1e-9),
            **{f"time/{part}": seconds / whole for part, seconds in self.seconds.items()},
        }


_FASTER = {
    "environment": ("step them in processes (env.vectorization)", "use more of them"),
    "inference": ("step more environments at once (env.num_envs)",),
    "storing": ("step more environments at once (env.num_envs)", "store smaller rows"),
    "learning": ("compile it (--compile)", "use larger minibatches or fewer updates"),
    "waiting": ("do so less often", "use trainer.eval_async"),
}
_TAKES = {
    "environment": "the environments take",
    "inference": "choosing actions takes",
    "waiting": "evaluation and saving take",
}


def advice(row: Mapping[str, float], without: Collection[str] = ()) -> str:
    """One line about what would make a run faster.

    Args:
        row: of metrics.
        without: settings that the run has or cannot have, such as `--compile`.

    Examples:
        >>> parts = dict.fromkeys(("inference", "storing", "waiting"), 0.02)
        >>> advice({f"time/{part}": x for part, x in parts.items()} | {"time/environment": 0.9, "time/learning": 0.04})
        'the environments take 90%: step them in processes (env.vectorization) or use more of them'
    """
    share = {part: row.get(f"time/{part}", 0.0) for part in PARTS}
    most = "waiting" if share["waiting"] > 0.25 else max(share, key=lambda part: share[part])
    if most != "waiting" and share[most] < 0.5:
        return "time is spread evenly: nothing stands out"
    ways = [way for way in _FASTER[most] if not any(setting in way for setting in without)]
    return f"{_TAKES.get(most, f'{most} takes')} {share[most]:.0%}{': ' * bool(ways)}{' or '.join(ways)}"


class DrawnInPlace:
    """A panel that is drawn again and again in one place: on a terminal, or in the cell of a notebook.

    Args:
        console: where to draw; `possible` says whether it has such a place.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._cell: Any = None  # a handle of IPython's

    @property
    def possible(self) -> bool:
        """Whether there is one. A pipe and a file have none."""
        return self._console.is_terminal or self._console.is_jupyter

    def draw(self, panel: Panel) -> None:
        """Puts a panel into the place of the one before.

        Args:
            panel: what to see now.
        """
        if self._console.is_jupyter:
            from IPython.display import DisplayHandle  # a notebook has it

            if self._cell is None:
                self._cell = DisplayHandle()
                self._cell.display(_html(panel), raw=True)
            else:
                self._cell.update(_html(panel), raw=True)
            return
        if self._live is None:
            # a thread that draws would take time from learning at any moment, four times a second, to show the same row
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        # what a terminal shows of Ctrl-C, ^C, has room behind the last line: one that began a line would move the place
        self._live.update(Constrain(panel, self._console.width - len("^C")), refresh=True)

    def close(self) -> None:
        """Leaves the last panel where it is; one that is drawn later has a place of its own."""
        if self._live is not None:
            self._live.stop()
        self._live = self._cell = None


def _html(panel: Panel) -> dict[str, str]:
    """A panel as notebooks take it; the text that they keep beside the picture has no control codes."""
    console = Console(file=io.StringIO(), record=True, width=100, emoji=False, force_terminal=True, force_jupyter=False)
    console.print(panel)
    style = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace"
    html = console.export_html(inline_styles=True, clear=False, code_format=f'<pre style="{style}">{{code}}</pre>')
    return {"text/html": html, "text/plain": console.export_text()}


_BARS = "▁▂▃▄▅▆▇█"
_MARKS = 21  # rows by which the time left is told, a fifth of a run: with two of ten evaluations
_PANEL_S, _LINE_S = 0.5, 1.0  # least time between two looks of the panel, and between two lines


class ConsoleLogger:
    """Shows returns, speed, the time split and the last evaluation.

    Args:
        title: of the panel.
        total_env_steps: of the run.
        console: where to write.
        head: lines to begin with.
        offline: whether the run learns from data, so that its steps are updates, and no episode ends.
        without: settings that it need not advise.
    """

    def __init__(
        self,
        title: str,
        total_env_steps: int,
        console: Console | None = None,
        *,
        head: Sequence[str] = (),
        offline: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self._without = without
        self._title, self._total, self._offline = title, total_env_steps, offline
        self._console = console or PipedConsole(emoji=False)  # a run may be called :tada:
        self._place = DrawnInPlace(self._console)
        self._head = head
        self._returns: deque[float] = deque(maxlen=60)
        self._shown_s = float("-inf")
        self._row: Mapping[str, float] = {}  # the newest
        self._marks: deque[tuple[float, float]] = deque(maxlen=_MARKS)  # seconds and env steps of the newest rows

    def start(self, position: Mapping[str, int]) -> None:
        """See `Logger.start`."""
        self._marks.append((time.monotonic(), position["env_steps"]))
        for line in self._head:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def metrics(self, row: Mapping[str, float]) -> None:
        """See `Logger.metrics`."""
        self._row = row
        if "return_mean" in row:
            self._returns.append(row["return_mean"])
        now, period_s = time.monotonic(), _PANEL_S if self._place.possible else _LINE_S
        self._marks.append((now, row["env_steps"]))
        if now - self._shown_s < period_s and row["env_steps"] < self._total:
            return
        self._shown_s = now
        if self._place.possible:
            self._place.draw(self._panel(row))
        else:
            self._console.print(_line(row, self._total, self._offline), highlight=False, soft_wrap=True)

    def episodes(self, env_steps: int, episodes: Sequence[Episode]) -> None:
        """Episodes are in the metrics as averages."""

    def close(self) -> None:
        """See `Logger.close`."""
        if self._row and self._place.possible:
            self._place.draw(self._panel(self._row))
        self._place.close()

    def _panel(self, row: Mapping[str, float]) -> Panel:
        done = int(row["env_steps"])
        marks = self._marks or [(0.0, 0.0)]
        (since_s, since), (now, at) = marks[0], marks[-1]  # with evaluations and whatever else takes time
        left_s = max(0, self._total - done) * (now - since_s) / (at - since) if at > since else None
        left = "" if left_s is None else f"{duration(left_s)} left"
        table = Table.grid(padding=(0, 2))
        unit = "updates" if self._offline else "env steps"
        table.add_row(unit, f"{done:,} of {self._total:,}", f"{row['time/env_steps_per_s']:,.0f}/s", left)
        if not self._offline:
            mean = readable(row["return_mean"]) if "return_mean" in row else "no episode yet"
            table.add_row("return", mean, _Sparkline(self._returns), f"{int(row['episodes']):,} episodes")
        evaluation = readable(row["eval/return_mean"]) if "eval/return_mean" in row else "–"
        table.add_row("evaluation", evaluation, "", f"policy version {int(row['policy_version']):,}")
        if "workers/there" in row:
            names = ("there", "lag_max", "restarts", "dropped")
            there, lag, restarts, dropped = (int(row[f"workers/{name}"]) for name in names)
            late = f", {int(row['workers/late'])} late" if "workers/late" in row else ""  # actors never are
            lost = f"{restarts} restarts, {dropped} fragments dropped"
            table.add_row("workers", f"{there} there{late}", f"lag at most {lag}", lost)
        shares = acting_together({part: row[f"time/{part}"] for part in PARTS})
        split = Text(f"{'time':<12}" + " · ".join(f"{part} {share:.0%}" for part, share in shares.items()))
        hint = Text(advice(row, self._without), style="dim")
        bar = ProgressBar(total=self._total, completed=min(done, self._total))
        return Panel(Group(table, split, hint, bar), title=Text(self._title), expand=False)


def _line(row: Mapping[str, float], total: int, offline: bool) -> str:
    returns = f"{readable(row['return_mean']):>8}" if "return_mean" in row else "       –"
    done, per_s = f"{int(row['env_steps']):>9,} / {total:,}", f"{row['time/env_steps_per_s']:>8,.0f}"
    evaluation = f"  eval {readable(row['eval/return_mean'])}" if "eval/return_mean" in row else ""
    if offline:
        return f"{done} updates  {per_s} updates/s{evaluation}"
    return f"{done} env steps  return {returns}  {per_s} steps/s{evaluation}"


class _Sparkline:
    """The newest values as bars, as many as there is room for.

    Args:
        values: the oldest first.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._values = list(values)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(1, len(self._values)), len(self._values))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_bars(self._values[-options.max_width :]), style="cyan")


def _bars(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def duration(seconds: float) -> str:
    """A time for people, such as `2 h 05 min`.

    Args:
        seconds: how long.
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.3g} s"
