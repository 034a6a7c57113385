"""The roofline plot (Williams et al. 2009): FLOP/s over FLOP/B of a region's candidates, below the roof. Pure.

The roof is what the run's floors imply: the highest bytes per floor is the read bandwidth, and a region whose floor is
longer than its bytes need is bound by arithmetic and shows the multiply-add rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.tables import amount

from .dots import Dots
from .ink import Ink, Line, Span, line
from .trials import latest, measured

LABEL = 13
"""Cells of the labels at the left."""
_BELOW = 4
"""Lines below the field: its axis, its scale, what the marks mean."""
_BOUND = 0.99
"""Share of the read bandwidth below which a floor is one of arithmetic."""
_ROOM = 1.3
"""What is left free around the outermost points, as a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The limits that a run's floors imply, per nanosecond; `flops` is 0 where no region is bound by arithmetic."""

    bytes: float
    flops: float = 0.0

    def at(self, intensity: float) -> float:
        """Return the highest FLOP per nanosecond at so many FLOP a byte."""
        reads = self.bytes * intensity
        return min(reads, self.flops) if self.flops else reads


def roof_of(state: State) -> Roof | None:
    """Return the roof; None where no floor is known."""
    rows = [row for row in state.rows if row.floor_ns and row.bytes]
    if not rows:
        return None
    bandwidth = max(row.bytes / row.floor_ns for row in rows)
    bound = [row.flops / row.floor_ns for row in rows if row.bytes / row.floor_ns < _BOUND * bandwidth]
    return Roof(bytes=bandwidth, flops=max(bound, default=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One time on the plot: FLOP a byte, FLOP per nanosecond, and what it is."""

    intensity: float
    rate: float
    mark: Span


def points_of(state: State, region: str) -> list[Point]:
    """Return the best of each other region, then this region's PyTorch and candidates, its best last."""
    found = [
        _point(other, other.best.measurement.median_ns, ("◆", "dim"))
        for other in state.rows
        if other.region != region and other.best is not None and other.flops
    ]
    row = state.row(region)
    if row is None or not row.flops:
        return found
    if row.best is not None:
        found.append(_point(row, row.best.measurement.baseline_ns, ("○", "warn")))
    for trial in latest(state, region).values():
        if (m := measured(trial)) is not None:
            found.append(_point(row, m.median_ns, ("", "accent")))
    if row.best is not None:
        found.append(_point(row, row.best.measurement.median_ns, ("●", "good")))
    return found


def _point(row: RegionProgress, ns: int, mark: Span) -> Point:
    return Point(intensity=row.flops / max(row.bytes, 1), rate=row.flops / max(ns, 1), mark=mark)


def roofline(state: State, region: str, width: int, height: int, ink: Ink) -> list[Line]:
    """Return the plot in at most `height` lines; a sentence where nothing was measured."""
    roof, found = roof_of(state), points_of(state, region)
    row = state.row(region)
    if roof is None or row is None or not found:
        return [line(("Nothing with arithmetic was measured in this region yet.", "dim"))]
    field = Dots(max(width - LABEL - 2, 8), max(height - _BELOW, 4))
    xs = [point.intensity for point in found]
    left, right = min(xs) / _ROOM, max(xs) * _ROOM
    top = max(roof.at(right), *(point.rate for point in found)) * _ROOM
    bottom = min(point.rate for point in found) / _ROOM

    def across(intensity: float) -> int:
        return round(math.log(intensity / left) / math.log(right / left) * (field.across - 1))

    def down(rate: float) -> int:
        return round(math.log(top / rate) / math.log(top / bottom) * (field.down - 1))

    field.line(lambda x: down(roof.at(left * (right / left) ** (x / (field.across - 1)))), "rule")
    for point in found:
        glyph, style = point.mark
        x, y = across(point.intensity), down(point.rate)
        if glyph:
            field.glyph(x, y, glyph, style)
        else:
            field.dot(x, y, style)
    lines = []
    for at, one in enumerate(field.lines(ink)):
        label = _rate(top) if at == 0 else _rate(bottom) if at == field.height - 1 else ""
        lines.append(line((ink.fit(label, LABEL - 1, right=True) + " ", "dim"), (ink.text("│"), "rule"), *one.spans))
    scale = f"{left:.2g}{f'{right:.2g} FLOP/B':>{max(field.width - len(f'{left:.2g}'), 0)}}"
    lines.append(line((" " * LABEL + ink.text("└" + "─" * field.width), "rule")))
    lines.append(line((" " * (LABEL + 1) + scale, "dim")))
    named: list[Span] = [("● best  ", "good"), ("○ PyTorch  ", "warn"), ("dots: candidates  ", "accent")]
    named.append(("◆ other regions", "dim"))
    limits = f"roof: {amount(roof.bytes * 1e9, 'B/s')}{f', {_rate(roof.flops)}' if roof.flops else ''}"
    indent: Span = (" " * (LABEL + 1), "")
    return [*lines, line(indent, *named), line(indent, (limits, "dim"))]


def _rate(flops_per_ns: float) -> str:
    return amount(flops_per_ns * 1e9, "FLOP/s")
