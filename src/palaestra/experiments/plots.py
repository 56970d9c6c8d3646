"""Pictures of learning curves: png, svg, csv, in a terminal, and inside the report."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from palaestra.core import ConfigError, MissingExtraError
from palaestra.experiments.curves import Axis, Curve, thinned

__all__ = ["save_plot", "terminal_plot"]

COLORS = ("#2563eb", "#d97706", "#9333ea", "#059669", "#dc2626", "#0891b2")


def line_chart(
    curves: Sequence[Curve], *, title: str, x_label: str = "env steps", size: tuple[int, int] = (720, 300)
) -> str:
    """Curves with their intervals.

    Args:
        curves: to draw.
        title: above the picture.
        x_label: under it.
        size: width and height in pixels.
    """
    curves = [thinned(curve, 240) for curve in curves]
    width, height = size
    left, right, top, bottom = 56, 12, 26, 34
    x_max = max(float(curve.x[-1]) for curve in curves) or 1.0
    low = min(float(np.nanmin(curve.low)) for curve in curves)
    high = max(float(np.nanmax(curve.high)) for curve in curves)
    if high == low:
        low, high = low - 0.5, high + 0.5

    def place(x: np.ndarray, y: np.ndarray) -> list[str]:
        across = left + x / x_max * (width - left - right)
        up = top + (high - y) / (high - low) * (height - top - bottom)
        return [f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True)]

    parts = []
    for tick in np.linspace(low, high, 5):
        (point,) = place(np.zeros(1), np.full(1, tick))
        y = point.split(",")[1]
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{left - 6}" y="{y}" text-anchor="end" dy="0.32em">{tick:.4g}</text>')
    for tick in np.linspace(0, x_max, 5):
        (point,) = place(np.full(1, tick), np.full(1, low))
        anchor = "end" if tick == x_max else "middle"
        parts.append(f'<text x="{point.split(",")[0]}" y="{height - 16}" text-anchor="{anchor}">{tick:,.6g}</text>')
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        if (curve.num_runs > 1).any():
            area = " ".join([*place(curve.x, curve.high), *place(curve.x, curve.low)[::-1]])
            parts.append(f'<polygon points="{area}" fill="{color}" opacity="0.18"/>')
        line = " ".join(place(curve.x, curve.value))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        label = f'<tspan fill="{color}">— {escape(curve.label)}</tspan>'
        if len(curves) > 1:
            parts.append(f'<text x="{left + 10}" y="{top + 14 + 15 * number}">{label}</text>')
    parts.append(f'<text x="{left}" y="15" class="title">{escape(title)}</text>')
    parts.append(f'<text x="{width - right}" y="{height - 3}" text-anchor="end">{escape(x_label)}</text>')
    return _svg(width, height, title, parts)


def histogram(values: Sequence[float], *, title: str, size: tuple[int, int] = (340, 180)) -> str:
    """How values are spread.

    Args:
        values: at least one.
        title: above the picture.
        size: width and height in pixels.
    """
    counts, edges = np.histogram(values, bins=min(20, max(5, len(values) // 3)))
    width, height = size
    step = (width - 20) / len(counts)
    scale = (height - 60) / max(1, counts.max())
    parts = [f'<text x="10" y="15" class="title">{escape(title)}</text>']
    for number, count in enumerate(counts):
        x, tall = 10 + number * step, count * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{height - 28 - tall:.1f}" width="{step - 1:.1f}" height="{tall:.1f}" '
            f'fill="{COLORS[0]}"><title>{edges[number]:.4g} to {edges[number + 1]:.4g}: {count}</title></rect>'
        )
    parts.append(f'<text x="10" y="{height - 10}">{edges[0]:.4g}</text>')
    parts.append(f'<text x="{width - 10}" y="{height - 10}" text-anchor="end">{edges[-1]:.4g}</text>')
    return _svg(width, height, title, parts)


def bar(shares: dict[str, float], *, title: str, size: tuple[int, int] = (720, 64)) -> str:
    """Parts of a whole as one bar.

    Args:
        shares: by name, together about 1.
        title: above the picture.
        size: width and height in pixels.
    """
    width, height = size
    parts, x = [f'<text x="0" y="15" class="title">{escape(title)}</text>'], 0.0
    for number, (name, share) in enumerate(shares.items()):
        wide = max(0.0, share) * width
        color = COLORS[number % len(COLORS)]
        parts.append(
            f'<rect x="{x:.1f}" y="24" width="{wide:.1f}" height="18" fill="{color}"><title>{escape(name)} '
            f"{share:.0%}</title></rect>"
        )
        parts.append(
            f'<text x="{number * width / len(shares):.0f}" y="{height - 6}" fill="{color}">■ {escape(name)} '
            f"{share:.0%}</text>"
        )
        x += wide
    return _svg(width, height, title, parts)


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


_X_LABELS = {"steps": "env steps", "time": "training time (s)", "episodes": "episodes"}
_COLORS = ("cyan", "yellow", "magenta", "green", "red", "blue")
# Dots of a braille character by column and row, the lowest row last.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def save_plot(curves: Sequence[Curve], path: str | Path, *, x: Axis = "steps", metric: str = "return_mean") -> Path:
    """Writes curves with their 95% intervals into a file.

    Args:
        curves: from `curves_of`.
        path: ends with .png, .svg or .csv.
        x: what the curves have on the x axis.
        metric: what they have on the y axis.

    Returns:
        The file.

    Raises:
        ConfigError: another ending.
        MissingExtraError: a picture needs matplotlib.
    """
    path = require_plot_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        _write_csv(curves, path, x, metric)
    else:
        _draw(curves, path, x, metric)
    return path


def require_plot_name(path: str | Path) -> Path:
    """A file name that a plot can be written to.

    Args:
        path: of the file.

    Raises:
        ConfigError: it ends with something else than .png, .svg or .csv.
    """
    if Path(path).suffix not in (".png", ".svg", ".csv"):
        raise ConfigError(f"--output is {str(path)!r}; give a file that ends with .png, .svg or .csv")
    return Path(path)


def _write_csv(curves: Sequence[Curve], path: Path, x: Axis, metric: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["label", _X_LABELS[x].replace(" ", "_"), metric, "low95", "high95", "runs"])
        for curve in curves:
            for row in zip(curve.x, curve.value, curve.low, curve.high, curve.num_runs, strict=True):
                writer.writerow([curve.label, *(f"{number:.10g}" for number in row)])


def _draw(curves: Sequence[Curve], path: Path, x: Axis, metric: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", f"drawing {path.name}") from error
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes: Any = figure.subplots()
    for curve in curves:
        (line,) = axes.plot(curve.x, curve.value, label=f"{curve.label} ({_count(curve)})", linewidth=1.6)
        axes.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _count(curve: Curve) -> str:
    most, least = int(curve.num_runs.max()), int(curve.num_runs.min())
    runs = f"{most} run{'s' if most > 1 else ''}"
    return runs if least == most else f"{runs}, {least} at the end"


def terminal_plot(
    curves: Sequence[Curve], *, x: Axis = "steps", metric: str = "return_mean", width: int = 80, height: int = 14
) -> Text:
    """Curves drawn with braille characters, a colour for each; intervals are in the legend.

    Args:
        curves: from `curves_of`.
        x: what the curves have on the x axis.
        metric: what they have on the y axis.
        width: of the whole, in characters.
        height: of the picture, in lines.
    """
    low = min(float(curve.value.min()) for curve in curves)
    high = max(float(curve.value.max()) for curve in curves)
    last = max(float(curve.x[-1]) for curve in curves)
    ticks = [_number(high), _number((low + high) / 2), _number(low)]
    margin = max(map(len, ticks)) + 1
    columns = max(10, width - margin - 2)
    cells = np.zeros((height, columns), int)
    colors = np.zeros((height, columns), int)
    for number, curve in enumerate(curves):
        places = np.linspace(0, last, 2 * columns)
        inside = (places >= curve.x[0]) & (places <= curve.x[-1])
        share = (np.interp(places, curve.x, curve.value) - low) / ((high - low) or 1.0)
        rows = ((1 - share) * (4 * height - 1)).round().astype(int)
        for place in np.flatnonzero(inside):
            before = rows[place - 1] if place and inside[place - 1] else rows[place]
            for row in range(min(before, rows[place]), max(before, rows[place]) + 1):
                cells[row // 4, place // 2] |= _DOTS[place % 2][row % 4]
                colors[row // 4, place // 2] = number
    text = Text(f"{metric.replace('_', ' ')}\n", no_wrap=True)
    for row in range(height):
        tick = {0: ticks[0], height // 2: ticks[1], height - 1: ticks[2]}.get(row, "")
        text.append(f"{tick:>{margin}} ┤")
        for column in range(columns):
            text.append(chr(0x2800 + cells[row, column]), style=_COLORS[colors[row, column] % len(_COLORS)])
        text.append("\n")
    end = _number(last)
    text.append(f"{'':>{margin}} └{'─' * columns}\n{'':>{margin}}  0{_X_LABELS[x]:^{columns - 1 - len(end)}}{end}\n")
    for number, curve in enumerate(curves):
        text.append("  ━ ", style=_COLORS[number % len(_COLORS)])
        text.append(f"{curve.label}: {_legend(curve)}\n")
    return text


def _legend(curve: Curve) -> str:
    end = f"{curve.value[-1]:.4g} at the end"
    several = curve.num_runs[-1] > 1
    interval = f", 95% interval {curve.low[-1]:.4g} to {curve.high[-1]:.4g}" if several else ""
    return f"{end}{interval} ({_count(curve)})"


def _number(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.4g}"
