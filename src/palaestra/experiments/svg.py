"""Small pictures as inline SVG, for the report: it needs no library and no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from palaestra.experiments.curves import Curve, thinned

__all__ = ["bar", "histogram", "line_chart"]

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
