"""Tests of `palaestra.training.console`: a panel on a terminal, plain lines in a pipe."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.panel import Panel

from palaestra import preset
from palaestra.config.config import config_from_mapping
from palaestra.experiments import make_learner
from palaestra.runs.making import not_advised
from palaestra.training import ConsoleLogger, DrawnInPlace
from palaestra.training import console as console_module
from palaestra.training.console import PipedConsole, _Sparkline, advice
from tests.training.parts import Hooks, Recorder, trainer

START = {"env_steps": 0, "metrics": 0, "episodes": 0}
ROW = {
    "env_steps": 5_000,
    "episodes": 1_234,
    "policy_version": 17,
    "return_mean": 21.5,
    "time/train_s": 2.0,
    "time/env_steps_per_s": 2_500.0,
    "time/environment": 0.25,
    "time/inference": 0.15,
    "time/storing": 0.05,
    "time/learning": 0.5,
    "time/waiting": 0.05,
}


def shown(terminal: bool, rows: list[dict[str, float]], width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width, color_system=None)
    logger = ConsoleLogger("ppo on CartPole-v1", 10_000, console)
    logger.start(START)
    for row in rows:
        logger.metrics(row)
    logger.episodes(5_000, [])
    logger.close()
    return stream.getvalue()


def test_a_terminal_shows_a_panel():
    """Returns, speed, time left, the time split, episodes, the last evaluation."""
    text = shown(True, [ROW, {**ROW, "return_mean": 43.0, "eval/return_mean": 99.5}])
    for part in ("ppo on CartPole-v1", "5,000 of 10,000", "2,500/s", "43.0", "99.5", "1,234 episodes"):
        assert part in text
    assert "environment 25% · acting 20% · learning 50% · waiting 5%" in text
    assert "▁█" in text
    assert "╭" in text


def test_the_time_left_is_by_the_clock_and_by_what_was_done_last(monkeypatch):
    """Evaluations were left out of it; updates on data, which come first, are quicker than env steps."""
    clock, stream, steps = [0.0], io.StringIO(), 0
    monkeypatch.setattr(console_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    logger = ConsoleLogger("td3_bc", 10_000, Console(file=stream, force_terminal=True, width=100))
    logger.start(START)
    for seconds in [1.0] * 10 + [20.0] * 21:
        steps, clock[0] = steps + 100, clock[0] + seconds
        logger.metrics({**ROW, "env_steps": steps})
        if steps == 1_000:
            assert "1 min 30 s left" in stream.getvalue()
    logger.close()
    assert "23 min 00 s left" in stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_panel_shows_the_newest_returns(width):
    """All of them are low but for the last; where there is no room, the oldest are left out."""
    rows = [{**ROW, "return_mean": float(number == 99)} for number in range(100)]
    (*_, line) = [line for line in shown(True, rows, width).splitlines() if line.startswith("│ return")]
    bars = "".join(bar for bar in line if bar in "▁█")
    assert bars == "▁" * (len(bars) - 1) + "█"
    assert min(width - 60, 30) <= len(bars) <= 60


def test_returns_have_room_for_one_bar_at_least():
    """`rich` gives a column what is left, between these two."""
    console = Console(width=80)
    for count in (0, 1, 5):
        measured = Measurement.get(console, console.options, _Sparkline([1.0] * count))
        assert (measured.minimum, measured.maximum) == (min(1, count), count)


def test_a_terminal_shows_a_panel_before_the_first_episode():
    row = {name: value for name, value in ROW.items() if name != "return_mean"}
    assert "no episode yet" in shown(True, [row])


def test_a_run_with_workers_says_how_they_are():
    numbers = {"there": 4, "late": 1, "lag_max": 3, "restarts": 2, "dropped": 5}
    text = shown(True, [ROW | {f"workers/{name}": float(number) for name, number in numbers.items()}])
    for part in ("4 there, 1 late", "lag at most 3", "2 restarts, 5 fragments dropped"):
        assert part in text
    assert "workers" not in shown(True, [ROW])
    del numbers["late"]  # as in an asynchronous run
    text = shown(True, [ROW | {f"workers/{name}": float(number) for name, number in numbers.items()}])
    assert "4 there " in text and "late" not in text


def test_a_panel_has_no_thread_of_its_own():
    """It would take time from learning at any moment."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    logger, before = ConsoleLogger("title", 10_000, console), threading.active_count()
    logger.start(START)
    logger.metrics(ROW)
    assert threading.active_count() == before
    logger.close()


def test_a_pipe_gets_plain_lines():
    """No control codes, one line a second at most, and always the last one."""
    last = {**ROW, "env_steps": 10_000, "eval/return_mean": 99.5}
    lines = shown(False, [ROW, ROW, ROW, last]).splitlines()
    assert lines == [
        "    5,000 / 10,000 env steps  return     21.5     2,500 steps/s",
        "   10,000 / 10,000 env steps  return     21.5     2,500 steps/s  eval 99.5",
    ]


def test_a_run_on_data_makes_updates_and_has_no_returns():
    stream = io.StringIO()
    logger = ConsoleLogger("td3_bc", 10_000, Console(file=stream, width=100), offline=True)
    logger.metrics({name: value for name, value in ROW.items() if name != "return_mean"})
    assert stream.getvalue() == "    5,000 / 10,000 updates     2,500 updates/s\n"
    text = io.StringIO()
    Console(file=text, width=100).print(logger._panel(ROW))
    assert "│ updates " in text.getvalue() and "return" not in text.getvalue()


def test_a_reader_that_leaves_ends_no_run():
    """`palaestra train ... | head` has what it wants; what is trained is kept."""
    program = (
        "import sys; from palaestra.training import ConsoleLogger\n"
        "logger = ConsoleLogger('ppo', 10)\n"
        "sys.stdin.readline()\n"
        "for steps in (10, 10):\n"
        f"    logger.metrics({ROW!r} | {{'env_steps': steps}})\n"
        "print('goes on', file=sys.stderr)"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        said = process.stderr.read()
    assert process.returncode == 0
    assert said.count("nobody reads what is printed any more") == 1 and said.endswith("goes on\n")


def test_a_terminal_that_is_closed_ends_no_run(monkeypatch):
    """F22: what draws in place writes there, too."""
    silenced, (terminal, seen_there) = [], pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(seen_there, "w") as stream, open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(
            console_module, "silence_stdout", lambda: silenced.append(os.dup2(nowhere.fileno(), seen_there))
        )
        place = DrawnInPlace(PipedConsole(file=stream))
        assert place.possible
        place.draw(Panel("before"))
        os.close(terminal)
        place.draw(Panel("after"))
        place.draw(Panel("after"))
        place.close()
    assert silenced == [seen_there]


@pytest.mark.parametrize("terminal", [True, False])
def test_it_takes_the_rows_of_a_real_run(terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    trainer("ppo", total=150, loggers=[ConsoleLogger("title", 150, console)]).run()
    assert "150" in stream.getvalue()


@pytest.mark.parametrize(
    ("part", "without", "text"),
    [
        ("learning", (), "learning takes 90%: compile it (--compile) or use larger minibatches or fewer updates"),
        ("learning", ("--compile",), "learning takes 90%: use larger minibatches or fewer updates"),
        ("environment", ("env.vectorization",), "the environments take 90%: use more of them"),
        ("waiting", ("trainer.eval_async",), "evaluation and saving take 90%: do so less often"),
        ("storing", ("env.num_envs", "store smaller rows"), "storing takes 90%"),
    ],
)
def test_advice_is_what_a_run_can_do_and_does_not_yet(part, without, text):
    assert advice({f"time/{part}": 0.9}, without) == text


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "without"),
    [
        ("ppo", "CartPole-v1", {"run__compile": False}, []),
        ("ppo", "CartPole-v1", {"algorithm__network__recurrent": "lstm"}, ["--compile"]),
        ("trpo", "palaestra.envs.tiny:TensorCartPole", {}, ["--compile", "env.vectorization"]),
    ],
)
def test_what_a_run_cannot_have_is_not_advised(algorithm, env, settings, without):
    base = preset(algorithm, env)
    learner = make_learner(config_from_mapping(type(base), {"run__compile": False} | settings, base=base))
    assert not_advised(learner.config, learner.algorithms.values()) == without


def test_a_notebook_has_one_panel_that_is_drawn_again(monkeypatch):
    """Without control codes: a cell that shows them would be flooded."""
    from IPython.core import displaypub
    from IPython.core.interactiveshell import InteractiveShell

    published: list[dict[str, object]] = []

    def publish(self, data, metadata=None, **how):
        published.append({**data, "update": how.get("update", False), "id": how["transient"]["display_id"]})

    monkeypatch.setattr(displaypub.DisplayPublisher, "publish", publish)
    monkeypatch.setattr(InteractiveShell, "_instance", None)
    InteractiveShell.instance()
    stream = io.StringIO()
    logger = ConsoleLogger("ppo on CartPole-v1", 10_000, Console(file=stream, force_jupyter=True))
    try:
        logger.start(START)
        logger.metrics(ROW)
        logger.metrics({**ROW, "env_steps": 10_000, "eval/return_mean": 99.5})
        logger.close()
    finally:
        InteractiveShell.clear_instance()
    assert [shown["update"] for shown in published] == [False, True, True]
    assert len({shown["id"] for shown in published}) == 1
    assert "99.5" in str(published[-1]["text/html"])
    assert "99.5" in str(published[-1]["text/plain"])
    assert "color: #" in str(published[-1]["text/html"])  # by itself: a notebook keeps no style sheet of it
    assert "\x1b" not in str(published)
    assert stream.getvalue() == ""


def test_a_panel_leaves_room_for_what_a_terminal_shows_of_ctrl_c():
    """`^C` behind a last line that fills the width began a new one, and the first border stayed above the panel."""
    stream = io.StringIO()
    logger = ConsoleLogger("title", 10_000, Console(file=stream, force_terminal=True, width=80))
    logger.metrics(ROW)
    logger.close()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).splitlines()
    assert any("╰" in line for line in lines)
    assert max(len(line.split("\r")[-1]) for line in lines) <= 80 - len("^C")


class Workers:
    """A collector whose workers take an hour to start; an unroll takes a second."""

    def __init__(self, collector, clock, *, acts_meanwhile):
        self._collector, self._clock, self._begun, self.acts_meanwhile = collector, clock, False, acts_meanwhile

    def __getattr__(self, name):
        return getattr(self._collector, name)

    def begin(self):
        self._clock.append(0.0 if self._begun else 3600.0)
        self._begun = True

    def unroll(self, length, **settings):
        self.begin()
        self._clock.append(1.0)
        return self._collector.unroll(length, **settings)


@pytest.mark.parametrize(("acts_meanwhile", "seconds"), [(False, 1), (True, 4)])
def test_starting_workers_is_no_training_and_env_steps_are_per_second_of_acting(acts_meanwhile, seconds, monkeypatch):
    """Start-up was collecting; what actors did during an evaluation took no time, so that they did the impossible."""
    clock, recorder = list[float](), Recorder()
    monkeypatch.setattr(console_module, "time", SimpleNamespace(perf_counter=lambda: sum(clock)))
    waits = Hooks(iteration_ended=lambda *_: clock.append(3.0))
    made = trainer("ppo", loggers=[recorder], callbacks=[waits], log_every_steps=1)
    made.collector = Workers(made.collector, clock, acts_meanwhile=acts_meanwhile)
    made.run()
    row = recorder.rows[-1]
    unrolls = row["iterations"]
    assert (made.time.seconds["waiting"], row["time/train_s"]) == (3 * unrolls, pytest.approx(unrolls))
    assert row["time/env_steps_per_s"] == pytest.approx(row["env_steps"] / (seconds * unrolls))
