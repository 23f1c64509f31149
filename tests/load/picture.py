"""Pictures of load tests as plain SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from tests.load.knee import Knee

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 740, 360, 60, 45, 40, 120
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")

Line = tuple[str, Sequence[tuple[float, float]]]
"""A name, and points (x, y)."""


def latency_picture(title: str, knee: Knee) -> str:
    """p50 and p99 over the offered rate, with the knee as a vertical line."""
    known = [step for step in knee.steps if math.isfinite(step.p99)]
    lines = [
        ("p50", [(step.rate, 1000 * step.p50) for step in known]),
        ("p99", [(step.rate, 1000 * step.p99) for step in known]),
    ]
    return picture(title, "requests offered a second", "ms", lines, marked=[knee.rate])


def picture(title: str, x_name: str, y_name: str, lines: Sequence[Line], marked: Iterable[float] = ()) -> str:
    """Lines over a common x axis; both axes begin at zero."""
    most_x = max((x for _, points in lines for x, _ in points), default=1.0) or 1.0
    most_y = max((y for _, points in lines for _, y in points), default=1.0) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / most_x
        return round(across, 1), round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / most_y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>'
    ]
    for number in range(5):
        x, y = most_x * number / 4, most_y * number / 4
        (below, base), (side, level) = at(x, 0), at(0, y)
        parts.append(f'<text x="{below}" y="{base + 16}" text-anchor="middle">{_shown(x)}</text>')
        parts.append(f'<text x="{side - 6}" y="{level + 4}" text-anchor="end">{_shown(y)}</text>')
        parts.append(f'<line x1="{side}" x2="{WIDTH - RIGHT}" y1="{level}" y2="{level}" stroke="#ddd"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="8" y="{TOP - 6}">{escape(y_name)}</text>')
    for x in marked:
        across, _ = at(x, 0)
        parts.append(
            f'<line x1="{across}" x2="{across}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="4"/>'
        )
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 16 * number}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
