"""Tests of `palaestra.analysis.curves` and `report`: files, terminal, and the page about a run."""

import csv
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from palaestra.analysis.report import line_chart, one_run, round_ticks
from palaestra.core import CheckpointError, ConfigError, MissingExtraError
from palaestra.experiments import curves_of, save_plot, terminal_plot, write_report
from palaestra.ops import mean_interval
from palaestra.runs.records import FaultRecord, write_fault
from palaestra.training.console import acting_together
from tests.experiments.parts import rows_of, trained, written


@pytest.fixture
def curves(tmp_path):
    """One curve of two seeds that rises from 0 to 30."""
    returns = np.linspace(0, 30, 12)
    return curves_of([written(tmp_path, rows_of(returns + seed), f"s{seed}", run__seed=seed) for seed in (0, 1)])


def test_a_csv_has_a_row_for_every_point(curves, tmp_path):
    path = save_plot(curves, tmp_path / "deep" / "curve.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == len(curves[0].x)
    assert rows[0].keys() == {"label", "env_steps", "return_mean", "low95", "high95", "runs"}
    assert float(rows[-1]["return_mean"]) == pytest.approx(30.5)
    assert (float(rows[-1]["low95"]), float(rows[-1]["high95"])) == pytest.approx(mean_interval([30, 31]))
    assert rows[-1]["runs"] == "2"


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_picture_is_drawn_with_matplotlib(suffix, magic, curves, tmp_path):
    pytest.importorskip("matplotlib")
    path = save_plot(curves, tmp_path / f"curve{suffix}")
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 5_000


def test_without_matplotlib_the_extra_is_named(curves, tmp_path, monkeypatch):
    """F27: and a csv needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"drawing curve.svg needs .* pip install 'palaestra\[plot\]'"):
        save_plot(curves, tmp_path / "curve.svg")
    assert save_plot(curves, tmp_path / "curve.csv").exists()


def test_another_ending_is_refused(curves, tmp_path):
    """F27."""
    with pytest.raises(ConfigError, match=r"give a file that ends with \.png, \.svg or \.csv"):
        save_plot(curves, tmp_path / "curve.jpeg")


def test_the_terminal_shows_a_rising_line_and_its_interval(curves):
    text = terminal_plot(curves, width=60, height=8).plain
    lines = text.splitlines()
    assert lines[0] == "return mean"
    drawn = [[i for i, c in enumerate(line) if 0x2800 < ord(c) <= 0x28FF] for line in lines[1:9]]
    assert max(map(max, filter(None, drawn))) < 60
    tops = [min(columns) for columns in drawn if columns]
    assert tops == sorted(tops, reverse=True)  # the higher, the further to the right
    assert "30.5 at the end, 95% interval 24.15 to 36.85 (2 runs)" in text
    assert re.search(r"0 +env steps +120", text)
    assert len(lines[9]) == len(lines[10])  # the axis, and its last number under its end
    assert max(map(max, filter(None, drawn))) == len(lines[9]) - 1  # to where the line goes


def test_a_level_curve_can_be_drawn(tmp_path):
    text = terminal_plot(curves_of([written(tmp_path, rows_of([5, 5, 5]))])).plain
    assert "5 at the end (1 run)" in text
    axis = next(line for line in text.splitlines() if "└" in line)
    line = max(text.splitlines()[1:-2], key=lambda line: len(line.rstrip("\u2800 ")) if "┤" in line else 0)
    assert len(line) == len(axis)
    assert line[-1] == line[-2] > "\u2800"  # as high, and to the very end


class Page(HTMLParser):
    """What a page refers to outside itself, and whether its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.outside += [value for key, value in attrs if key in ("src", "href") and not value.startswith("data:")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """`<line/>` is closed."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_run_ends_with_a_page_that_needs_no_network(tmp_path):
    """Offline: nothing is loaded from elsewhere."""
    run = trained(tmp_path).directory
    text = (run / "report.html").read_text()
    page = Page(text)
    assert (page.outside, page.open) == ([], [])
    assert "<script" not in text
    for part in ("Evaluations", "Learning", "Time", "Configuration", "Origin", "total_env_steps: 96", ">done<"):
        assert part in text
    assert text.count("<svg") > 5


def test_films_faults_and_symptoms_are_on_the_page(tmp_path):
    learning = {"learning/kl": 0.4, "learning/clip_fraction": 0.5}
    run = written(tmp_path, [{**row, **learning} for row in rows_of([1, 2, 3])])
    (run.path / "videos" / "play.gif").write_bytes(b"GIF89a")
    write_fault(run.path, FaultRecord("EnvError", "environment 2 <died>", env_steps=7, action="restarted"))
    text = write_report([run.path], tmp_path / "page.html").read_text()
    assert "data:image/gif;base64,R0lGODlh" in text
    assert "environment 2 &lt;died&gt;" in text
    assert "restarted" in text
    assert "by KL 0.4" in text
    assert "clip_fraction is 0.5; at most 0.4 is usual" in text
    assert Page(text).open == []


def test_a_kl_that_the_findings_let_pass_is_not_called_unusual(tmp_path):
    run = written(tmp_path, [{**row, "learning/kl": 0.07} for row in rows_of([1, 2, 3])])
    text = write_report([run.path], tmp_path / "page.html").read_text()
    assert "KL 0.07" not in text and "is usual" not in text


def test_several_runs_share_a_page(tmp_path):
    runs = [written(tmp_path, rows_of([1, 2]), f"s{seed}", run__seed=seed).path for seed in (0, 1)]
    text = write_report(runs, tmp_path / "page.html").read_text()
    assert text.count("<details>") >= 2
    assert "polygon" in text  # the interval
    with pytest.raises(CheckpointError, match="at least one run"):
        write_report([], tmp_path / "none.html")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '"text"', "[" * 100_000, "{}", '{"return_mean": "high", "returns": [1]}', '{"returns": []}'],
)
def test_evaluations_that_are_none_are_left_out_by_name(tmp_path, caplog, content):
    """D12: the page is written with the rest; nothing raw."""
    run = written(tmp_path, rows_of([1, 2, 3]))
    good = {"return_mean": 1.0, "return_ci95": [0.5, 1.5], "episodes": 2, "length_mean": 3.0, "returns": [1.0, 1.0]}
    (run.path / "evals" / "10.json").write_text(json.dumps(good))
    (run.path / "evals" / "20.json").write_text(content)
    (run.path / "evals" / "notes.json").write_text("mine")
    assert "1.0 ± 0.5 (2 episodes)" in write_report([run.path], tmp_path / "report.html").read_text()
    assert "20.json is no evaluation" in caplog.text
    assert "notes.json" not in caplog.text


def test_each_evaluation_is_a_point_with_its_interval(tmp_path):
    """They were a curve through every logged row, flat and then a jump."""
    run = written(tmp_path, rows_of([1, 2, 3]))
    record = {"return_mean": 1.0, "return_ci95": [0.5, 1.5], "episodes": 2, "length_mean": 3.0, "returns": [1.0, 1.0]}
    for step in (10, 20):
        (run.path / "evals" / f"{step}.json").write_text(json.dumps(record))
    text = write_report([run.path], tmp_path / "report.html").read_text()
    assert text.count("<circle") == 2 and text.count("<path") == 2
    assert "returns of the last evaluation: all 2 are 1." in text, "equal returns have no histogram"
    assert text.index("best evaluation") < text.index("<svg"), "numbers come before pictures"


def test_choosing_actions_and_storing_rows_are_acting():
    shares = {"environment": 0.5, "inference": 0.2, "storing": 0.1, "learning": 0.2, "waiting": None}
    assert acting_together(shares) == pytest.approx({"environment": 0.5, "acting": 0.3, "learning": 0.2})


def test_rows_of_any_shape_are_left_out_of_curves(tmp_path):
    """D12: text, lists and numbers that cannot be drawn, between rows that can."""
    run = written(tmp_path, rows_of([1, 2, 3]))
    strange = ["3", "[1]", '{"env_steps": "x", "return_mean": 1}', '{"env_steps": 15, "return_mean": NaN}', '{"a": []}']
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write("\n".join(strange) + "\n")
    assert "Learning" in write_report([run.path], tmp_path / "report.html").read_text()
    (curve,) = curves_of([run])
    assert (curve.x[-1], curve.value[-1]) == (30, 3)


def test_text_where_a_number_belongs_ends_no_report(tmp_path, caplog):
    """It ended in a traceback; what is damaged is named, and the rest is shown."""
    run = written(tmp_path, [{**row, "time/learning": "x", "return_mean": "x"} for row in rows_of([1, 2, 3])])
    fault = write_fault(run.path, FaultRecord("EnvError", "died", env_steps=7))
    fault.write_text(re.sub(r'("env_steps": )7', r'\1"x"', fault.read_text()))
    run.write_info({"train_s": "long", "policy_lost_at": "x", "overrides": 3, "reason": 4})
    text = write_report([run.path], tmp_path / "report.html").read_text()
    assert "0001.json is no record of a fault: its env steps must be a number" in text
    assert "environment 60%" in text and "learning 40%" not in text
    for name in ("train_s", "policy_lost_at", "overrides", "reason"):
        assert f"run.json is damaged: its {name} is" in caplog.text and name not in run.info


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100_030, [0, 50_000, 100_000]),
        (-0.013, 0.021, [-0.01, 0, 0.01, 0.02]),
        (20, 487.3, [100, 200, 300, 400]),
        (0, 0.6, [0, 0.2, 0.4, 0.6]),
    ],
)
def test_axes_have_round_numbers(low, high, ticks):
    assert round_ticks(low, high, 5) == pytest.approx(ticks)


def test_labels_of_a_chart_are_short_and_lie_inside(tmp_path):
    """Also where numbers are large, in a small picture."""
    run = written(tmp_path, rows_of([1.0, 2.0, 3.0], step=40_000))
    chart = line_chart(curves_of([run]), title="x", size=(300, 150))
    labels = re.findall(r'<text x="([0-9.]+)" y="134" text-anchor="(\w+)">([^<]+)<', chart)
    assert [text for _, _, text in labels] == ["0", "50k", "100k"]
    assert all(len(text) <= 6 for text in re.findall(r'dy="0.32em">([^<]+)<', chart))
    assert all(float(x) <= 288 for x, _, _ in labels)


def test_a_notebook_shows_a_table_and_a_curve(tmp_path):
    """Issue: RunResult draws itself; its text is a line."""
    done = trained(tmp_path)
    html = done._repr_html_()
    assert "<table>" in html and "<polyline" in html and "return of evaluations" in html
    assert str(done.directory) in html
    assert len(repr(done)) < 250
    assert "done after 96 env steps" in repr(done)


def test_thousands_have_a_letter_from_ten_of_them_on_and_millions_from_one():
    curves = [one_run(np.array([[0, 0], [end, 1]]), "env steps") for end in (5e3, 5e4, 2e6)]
    charts = [line_chart([curve], title="x", size=(300, 150)) for curve in curves]
    assert ">4000</text>" in charts[0]
    assert ">40k</text>" in charts[1]
    assert ">1M</text>" in charts[2]
