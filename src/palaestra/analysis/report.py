"""`report.html`: everything about a run, or several, in one file that needs neither server nor network."""

import base64
import itertools
import json
import logging
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.analysis.curves import Curve, curves_of, short_number, thinned_metrics, x_label, y_range
from palaestra.analysis.diagnosis import logged_symptoms
from palaestra.analysis.labels import names_of, shown_labels
from palaestra.core import CheckpointError, ConfigError, readable
from palaestra.core.files import replace_text
from palaestra.core.reading import read_bytes, read_text
from palaestra.runs.records import is_number, read_evaluations, read_faults
from palaestra.runs.run_directory import RunDirectory
from palaestra.training import Histogram
from palaestra.training.console import PARTS, acting_together

__all__ = ["write_report"]

_log = logging.getLogger(__name__)
_MOST_CLIPPED = 0.4  # above it the chart says so; of other metrics the findings do, which know more
_TIMES = ("env_steps", "time/train_s", "time/env_steps_per_s")
_LARGEST_VIDEO_BYTES, _MOST_POINTS = 8_000_000, 200
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:1rem auto;max-width:75rem;padding:0 1rem;color:#1f2937;background:#fff}
.facts{display:flex;flex-wrap:wrap;gap:.4rem 2rem;margin:0}.facts dt{font-size:.8rem;color:#4b5563}
.facts dd{margin:0;font-size:1.2rem;overflow-wrap:anywhere}
.pair svg text{font-size:13px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22rem,100%),1fr));gap:.6rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}code,pre{font-size:.85rem}
table{border-collapse:collapse;font-size:.9rem;display:block;overflow-x:auto}
td,th{padding:.2rem .8rem .2rem 0;text-align:right}
td:first-child,th:first-child{text-align:left}tr+tr{border-top:1px solid #e5e7eb}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif}svg text:not([fill]){fill:#4b5563}
svg .title{font-weight:600;fill:#1f2937}.grid{stroke:#e5e7eb}h3{font-size:.8rem;margin:1rem 0 .3rem}
.bar,.histogram,.ends{display:flex;max-width:45rem}.bar{height:18px}.histogram{height:7rem;align-items:flex-end}
.histogram,.ends{width:20rem;max-width:100%}.histogram div{flex:1;margin-right:1px;background:#2563eb}
.ends{justify-content:space-between;font-size:.75rem}
.strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.6rem}.warn{color:#b91c1c;font-weight:600;font-size:.8rem;line-height:1.2}pre{background:#f3f4f6;padding:.8rem;
overflow-x:auto}video{max-width:100%}summary{cursor:pointer}
"""


def write_report(runs: Sequence[str | Path], path: str | Path) -> Path:
    """Writes one HTML file: curve, evaluations, health, time, films, faults, configuration and origin.

    Args:
        runs: run directories; several are drawn as curves with intervals over seeds.

    Returns:
        The file.

    Raises:
        CheckpointError: there are no runs.
    """
    directories = [RunDirectory(run) for run in runs]
    if not directories:
        raise CheckpointError("a report needs at least one run")
    labels = dict.fromkeys(shown_labels(directories))
    title = " · ".join(labels) if len(labels) <= 3 else f"{len(directories)} runs"
    first = _facts(directories[0]) if len(directories) == 1 else _summary(directories)
    parts = [f"<h1>{escape(title)}</h1>", first, f'<div class="pair">{"".join(_curves(directories))}</div>']
    for run, name in zip(directories, names_of([run.path for run in directories]), strict=True):
        one = [
            *_evaluation(run),
            *_findings(run),
            *_health(run),
            *_time(run),
            *_videos(run),
            *_faults(run),
            *_origin(run),
        ]
        if len(directories) > 1:
            one = [f"<details><summary>{escape(name)}</summary>", *one, "</details>"]
        parts += one
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    replace_text(path, f'<!doctype html><html lang="en">{head}<body>{"".join(parts)}</body></html>\n')
    return path


def _heads(runs: Sequence[RunDirectory]) -> list[str]:
    done = " or ".join(dict.fromkeys(run.config.unit for run in runs))
    return ["best evaluation", "last evaluation", "status", done, "training", "seed", "run"]


def _said(run: RunDirectory) -> list[str]:
    """The main facts of a run, in the order of `_heads`."""
    evaluations, best, train_s = read_evaluations(run.path), run.kept_return, run.info.get("train_s")
    trained = "–" if train_s is None else f"{train_s:.1f} s"
    reached = ["–" if best is None else readable(best), _mean(evaluations[-1][1] if evaluations else None)]
    done = [escape(run.status), f"{run.steps_done:,}", trained, str(run.config.run.seed)]
    return [*reached, *done, escape(run.path.name)]


def _facts(run: RunDirectory) -> str:
    pairs = zip(_heads([run]), _said(run), strict=True)
    return f'<dl class="facts">{"".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in pairs)}</dl>'


def _summary(runs: Sequence[RunDirectory]) -> str:
    names = names_of([run.path for run in runs])
    rows = [[escape(name), *_said(run)[:-1]] for name, run in zip(names, runs, strict=True)]
    return _table(["run", *_heads(runs)[:-1]], rows)


def _mean(evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        return "–"
    (low, high), episodes = evaluation["return_ci95"], evaluation["episodes"]
    half = "" if episodes == 1 else f" ± {readable((high - low) / 2)}"
    return f"{readable(evaluation['return_mean'])}{half} ({episodes} episode{'s' * (episodes != 1)})"


def _curves(runs: Sequence[RunDirectory]) -> Iterable[str]:
    evaluated = _evaluated(runs)
    title = "return of evaluations" + (", with 95% intervals" if evaluated else "")
    yield line_chart(evaluated, title=title, points=True) if evaluated else f"<p>There is no {title} yet.</p>"
    title = "return of training episodes (they explore)"
    try:
        yield line_chart(curves_of(runs), title=title)
    except (CheckpointError, ConfigError):  # none has been logged
        yield f"<p>There is no {title} yet.</p>"


def _evaluated(runs: Sequence[RunDirectory]) -> list[Curve]:
    """The evaluations of each run that has some."""
    found = []
    for run, label in zip(runs, shown_labels(runs), strict=True):
        if evaluations := read_evaluations(run.path):
            rows = [(step, record["return_mean"], *record["return_ci95"]) for step, record in evaluations]
            x, value, low, high = np.array(rows, np.float64).T
            found.append(Curve(label, x, value, low, high, np.ones(len(x), int), run.config.unit))
    return found


def _evaluation(run: RunDirectory) -> Iterable[str]:
    evaluations = read_evaluations(run.path)
    if not evaluations:
        return
    policies = dict.fromkeys(name for _, record in evaluations for name in record.get("policies", {}))
    rows = [
        [f"{step:,}", _mean(record), f"{record['length_mean']:.1f}", *_earned(record, [*policies])]
        for step, record in evaluations
    ]
    yield "<h2>Evaluations</h2>"
    of_each = [escape(f"each agent of {name}") for name in policies]
    yield _table([run.config.unit, "return, 95% interval of the mean", "length", *of_each], rows)
    yield histogram(evaluations[-1][1]["returns"], title="returns of the last evaluation")


def _earned(evaluation: dict[str, Any], policies: Sequence[str]) -> list[str]:
    values = [evaluation.get("policies", {}).get(name) for name in policies]
    return [readable(value) if is_number(value) else "–" for value in values]


def _findings(run: RunDirectory) -> Iterable[str]:
    """What the log says against learning; `palaestra diagnose` says more, for it lets the policy play."""
    rows = [
        [escape(part) for part in (one.name, one.evidence, one.threshold, ", or ".join(one.advice))]
        for one in logged_symptoms(run)
    ]
    if rows:
        yield "<h2>Findings</h2>" + _table(["", "found", "threshold", "try"], rows)


def _health(run: RunDirectory) -> Iterable[str]:
    rows = [row for row in thinned_metrics(run.path) if is_number(row.get("env_steps"))]
    names = sorted({name for row in rows for name in row if name.startswith("learning/")})
    charts = []
    for name in names:
        points = np.array([(row["env_steps"], row[name]) for row in rows if is_number(row.get(name))], np.float64)
        if len(points) < 2:
            continue
        label, last = name.removeprefix("learning/"), points[-1, 1]
        much = name.split("/")[-1] == "clip_fraction" and last > _MOST_CLIPPED
        chart = line_chart([one_run(points, run.config.unit)], title=label, size=(300, 150))
        note = f"{escape(label)} is {last:.3g}; at most {_MOST_CLIPPED} is usual" if much else ""
        note = f'<div class="warn">{note}</div>' if note else ""
        charts.append(f"<div>{chart}{note}</div>")
    if charts:
        yield f'<h2>Learning</h2><div class="strip">{"".join(charts)}</div>'


def _time(run: RunDirectory) -> Iterable[str]:
    rows, unit = thinned_metrics(run.path), run.config.unit
    rows = [row for row in rows if all(is_number(row.get(name)) for name in _TIMES)]
    if not rows:
        return
    parts = {part: rows[-1].get(f"time/{part}") for part in PARTS}
    shares = acting_together({part: share for part, share in parts.items() if is_number(share)})
    yield "<h2>Time</h2>"
    if shares:
        total_s = rows[-1]["time/train_s"] / max(1e-9, 1 - shares.get("waiting", 0.0))  # which is no training
        yield bar(shares, title=f"where it went, of {total_s:.1f} s")
    points = np.array([(row["env_steps"], row["time/env_steps_per_s"]) for row in rows], np.float64)
    yield line_chart([one_run(points, unit)], title=f"{unit} per second, from the start", size=(440, 150))


def _videos(run: RunDirectory) -> Iterable[str]:
    films = sorted((run.path / "videos").glob("*.mp4")) + sorted((run.path / "videos").glob("*.gif"))
    for film in [film for film in films if not film.is_symlink()][:4]:  # a link may lead to any file of the reader
        if film.stat().st_size > _LARGEST_VIDEO_BYTES:
            yield f"<p>{escape(film.name)} is too large for this page: {escape(str(film))}</p>"
            continue
        data = base64.b64encode(read_bytes(film, _LARGEST_VIDEO_BYTES)).decode()
        if film.suffix == ".mp4":
            yield f'<h2>{escape(film.name)}</h2><video controls loop src="data:video/mp4;base64,{data}"></video>'
        else:
            yield f'<h2>{escape(film.name)}</h2><img alt="" src="data:image/gif;base64,{data}">'


def _faults(run: RunDirectory) -> Iterable[str]:
    try:
        faults = read_faults(run.path)
    except CheckpointError as error:
        yield f'<p class="warn">{escape(str(error))}</p>'
        return
    if faults:
        rows = [[escape(f.kind), "–" if f.env_steps is None else f"{f.env_steps:,}", escape(f.action)] for f in faults]
        yield "<h2>Faults</h2>" + _table(["what", run.config.unit, "the run"], rows)
        yield "".join(f"<pre>{escape(fault.message)}</pre>" for fault in faults[-5:])


_ORIGIN = ["command", "started", "versions", "hardware", "git", "lineage", "overrides", "resume", "error", "not_logged"]


def _origin(run: RunDirectory) -> Iterable[str]:
    info = {key: value for key, value in run.info.items() if key in _ORIGIN and value}
    config = escape(read_text(run.path / "config.yaml"))
    yield f"<h2>Configuration</h2><details><summary>config.yaml</summary><pre>{config}</pre></details>"
    origin = escape(json.dumps(info, indent=2))
    yield f"<h2>Origin</h2><details><summary>run.json</summary><pre>{origin}</pre></details>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


_COLORS = ("#2563eb", "#d97706", "#9333ea", "#059669", "#dc2626", "#0891b2")


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two others: steps of 1, 2 or 5 times a power of ten.

    Args:
        low: the least.
        high: the largest.
        most: how many numbers there may be.

    Examples:
        >>> round_ticks(0, 100_030, 5), round_ticks(-0.013, 0.021, 5)
        ([0.0, 50000.0, 100000.0], [-0.01, 0.0, 0.01, 0.02])
    """
    smallest = (high - low) / most
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= smallest)
    return [round(k * step, 12) + 0.0 for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def run_html(run: RunDirectory) -> str:
    """What a notebook shows of a run: a row of facts and the curve of its evaluations.

    Args:
        run: its directory.
    """
    curves = _evaluated([run])
    chart = line_chart(curves, title="return of evaluations", size=(560, 220), points=True) if curves else ""
    return f"<div>{_summary([run])}{chart}<div><code>{escape(str(run.path))}</code></div></div>"


def one_run(points: np.ndarray, unit: str) -> Curve:
    """The curve of a single run, thinned where it has more points than a picture can show.

    Args:
        points: [n, 2], each (x, value); the first and the last stay.
        unit: what x counts.
    """
    index = np.linspace(0, len(points) - 1, min(_MOST_POINTS, len(points))).round().astype(int)
    x, y = points[index].T
    return Curve("", x, y, y, y, np.ones(len(x), int), unit)


def line_chart(curves: Sequence[Curve], *, title: str, size: tuple[int, int] = (440, 240), points: bool = False) -> str:
    """Curves over env steps or updates, with their intervals, as SVG.

    Args:
        curves: to draw; those of one label have one colour.
        title: above the picture.
        size: width and height in pixels.
        points: whether each point was measured by itself: it is marked, and so is its interval.
    """
    width, height = size
    left, right, top, bottom = 56, width - 12, 26, height - 34
    x_max = max(float(curve.x[-1]) for curve in curves) or 1.0
    low, high = y_range(curves)
    if not high - low > 1e-12 * abs(high):  # less than ticks could tell apart
        half = 0.5 * max(1.0, abs(high))
        low, high = low - half, high + half

    def across(x: Any) -> Any:
        return left + x / x_max * (right - left)

    def down(y: Any) -> Any:
        return top + (high - np.clip(y, low, high)) / (high - low) * (bottom - top)

    def line_of(x: np.ndarray, y: np.ndarray) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across(x), down(y), strict=True))

    parts = [f'<text x="{left}" y="15" class="title">{escape(title)}</text>']
    for tick in round_ticks(low, high, max(3, height // 60)):
        y = f"{down(tick):.1f}"
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{left - 6}" y="{y}" text-anchor="end" dy="0.32em">{short_number(tick)}</text>')
    for tick in round_ticks(0.0, x_max, max(3, width // 140)):
        anchor = "end" if across(tick) > right - 12 else "middle"
        label = short_number(tick)
        parts.append(f'<text x="{across(tick):.1f}" y="{height - 16}" text-anchor="{anchor}">{label}</text>')
    labels = list(dict.fromkeys(curve.label for curve in curves))
    colors = dict(zip(labels, itertools.cycle(_COLORS), strict=False))
    for curve in curves:
        color = colors[curve.label]
        if (curve.num_runs > 1).any():
            area = f"{line_of(curve.x, curve.high)} {line_of(curve.x[::-1], curve.low[::-1])}"
            parts.append(f'<polygon points="{area}" fill="{color}" opacity="0.18"/>')
        stroke = 0.6 if points else 1.6
        line = line_of(curve.x, curve.value)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{stroke}"/>')
        if points:
            for x, y, *ends in zip(across(curve.x), *map(down, (curve.value, curve.low, curve.high)), strict=True):
                parts.append(f'<path d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{color}" stroke-width="1.6"/>')
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
    legend = labels if len(labels) > 1 else []
    for number, label in enumerate(legend, start=1):
        parts.append(f'<text x="4" y="{height + 15 * number}" fill="{colors[label]}">— {escape(label)}</text>')
    parts.append(f'<text x="{right}" y="{height - 3}" text-anchor="end">{x_label(curves)}</text>')
    label, height = escape(title), height + 15 * len(legend) + 5 * bool(legend)
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def histogram(values: Sequence[float], *, title: str) -> str:
    """A histogram of values.

    Args:
        values: at least one.
        title: above the picture.
    """
    if min(values) == max(values):
        return f"<p>{escape(title)}: all {len(values)} are {values[0]:.4g}.</p>"
    found = Histogram.of(values, bins=min(20, max(5, len(values) // 3)))
    counts, edges = found.counts, found.edges
    columns = "".join(
        f'<div style="height:{count / max(counts):.1%}" title="{low:.4g} to {high:.4g}: {count}"></div>'
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    )
    ends = f"<div>{edges[0]:.4g}</div><div>{edges[-1]:.4g}</div>"
    return f'<h3>{escape(title)}</h3><div class="histogram">{columns}</div><div class="ends">{ends}</div>'


def bar(shares: dict[str, float], *, title: str) -> str:
    """Parts of a whole as one bar.

    Args:
        shares: by name, together about 1.
        title: above the picture.
    """
    boxes = names = ""
    for (name, share), color in zip(shares.items(), itertools.cycle(_COLORS), strict=False):
        said = f"{escape(name)} {share:.0%}"
        boxes += f'<div style="width:{max(0.0, share):.1%};background:{color}" title="{said}"></div>'
        names += f'<div style="color:{color}">■ {said}</div>'
    return f'<h3>{escape(title)}</h3><div class="bar">{boxes}</div><div class="strip">{names}</div>'
