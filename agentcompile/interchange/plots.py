"""Plots of a run as SVG text: times of regions, candidates of one region, the best step over time.

In: numbers and names. Out: one ``<svg>`` element each, with no script, style sheet or reference; every text is escaped.
Colours are those of the page (CSS variables), and of Okabe and Ito (2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from agentcompile.runs.tables import duration

WIDTH = 860
_LEFT, _RIGHT, _ROW, _TOP = 270, 90, 22, 26
_OURS, _BASELINE, _FLOOR = "#D55E00", "#999999", "#0072B2"
_NAME = 42
"""Letters of a name that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBar:
    """One region: its times by site, of which `chosen_ns` is 0 where it runs in PyTorch."""

    name: str
    floor_ns: float
    baseline_ns: float
    chosen_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One measured candidate, in the order of the trials."""

    label: str
    time_ns: float
    confirmed: bool


def bars(rows: Sequence[RegionBar], title: str) -> str:
    """Return horizontal bars of each region's time in PyTorch and in its kernel, with a mark at its roofline."""
    most = max((max(row.baseline_ns, row.chosen_ns, row.floor_ns) for row in rows), default=1.0) or 1.0
    height = _TOP + 2 * _ROW * len(rows) + 8
    return _svg(title, height, [*_legend(), *(part for at, row in enumerate(rows) for part in _bar(row, at, most))])


def _bar(row: RegionBar, at: int, most: float) -> Iterator[str]:
    scale, top = (WIDTH - _LEFT - _RIGHT) / most, _TOP + 2 * _ROW * at
    yield _text(_LEFT - 8, top + _ROW, row.name, "end")
    for line, (time_ns, colour) in enumerate(((row.baseline_ns, _BASELINE), (row.chosen_ns, _OURS))):
        if time_ns:
            y, width = top + line * (_ROW - 6) + 4, max(time_ns * scale, 1)
            yield f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>'
            yield _text(_LEFT + width + 6, y + 11, duration(time_ns))
    x = _LEFT + row.floor_ns * scale
    yield f'<rect x="{x:.1f}" y="{top + 2}" width="2" height="{2 * _ROW - 12}" fill="{_FLOOR}"/>'


def _legend() -> Iterator[str]:
    for at, (name, colour) in enumerate((("PyTorch", _BASELINE), ("kernel", _OURS), ("roofline", _FLOOR))):
        x = _LEFT + 110 * at
        yield f'<rect x="{x}" y="6" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, 16, name)


def dots(found: Sequence[Dot], baseline_ns: float, floor_ns: float, title: str) -> str:
    """Return one region's candidates in the order of their trials against their time, on a logarithmic axis."""
    times = [dot.time_ns for dot in found if dot.time_ns > 0]
    marks = [line for line in (baseline_ns, floor_ns) if line > 0]
    if not times:
        return ""
    low, high = math.log(min(times + marks)), math.log(max(times + marks))
    height, left, right, base = 260, 70, WIDTH - 20, 230

    def y(time_ns: float) -> float:
        return base - (math.log(time_ns) - low) / (high - low or 1.0) * (base - 30)

    def x(at: int) -> float:
        return left + (at + 0.5) / len(found) * (right - left)

    parts = [_text(left - 6, y(value) + 4, duration(value), "end") for value in sorted({min(times), max(times)})]
    for value, colour, name in ((baseline_ns, _BASELINE, "PyTorch"), (floor_ns, _FLOOR, "roofline")):
        if value > 0:
            parts.append(f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{colour}"/>')
            parts.append(_text(right, y(value) - 4, f"{name} {duration(value)}", "end"))
    for at, dot in enumerate(found):
        if dot.time_ns > 0:
            fill = _OURS if dot.confirmed else "none"
            about = f"<title>{escape(f'{dot.label}: {duration(dot.time_ns)}')}</title>"
            circle = f'<circle cx="{x(at):.1f}" cy="{y(dot.time_ns):.1f}" r="3.5" fill="{fill}" stroke="{_OURS}">'
            parts.append(f"{circle}{about}</circle>")
    return _svg(title, height, [*parts, _text(left, height - 8, "trials in their order; filled: confirmed")])


def line(points: Sequence[tuple[float, float]], title: str) -> str:
    """Return the best step's time in nanoseconds over seconds, as steps; nothing for fewer than two points."""
    if len(points) < 2:
        return ""
    height, left, right, base = 220, 80, WIDTH - 20, 180
    last = max(seconds for seconds, _ in points) or 1.0
    low, high = min(ns for _, ns in points), max(ns for _, ns in points)

    def y(ns: float) -> float:
        return base - (ns - low) / (high - low or 1.0) * (base - 30)

    path, before = [], 0.0
    for at, (seconds, ns) in enumerate(points):
        x = left + seconds / last * (right - left)
        path.append(f"M{x:.1f},{y(ns):.1f}" if at == 0 else f"L{x:.1f},{y(before):.1f} L{x:.1f},{y(ns):.1f}")
        before = ns
    parts = [f'<path d="{" ".join(path)}" fill="none" stroke="{_OURS}" stroke-width="2"/>']
    parts += [_text(left - 6, y(value) + 4, duration(value), "end") for value in sorted({low, high})]
    parts += [_text(left, base + 24, "0 s"), _text(right, base + 24, f"{last:.0f} s", "end")]
    return _svg(title, height, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    shown = text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="var(--ink)">{escape(shown)}</text>'
