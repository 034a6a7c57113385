"""Charts of time: the best so far by the clock, latencies beside one another, and the step region by region. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agentcompile.ir.trial import Kernel, Measurement
from agentcompile.runs.progress import State
from agentcompile.runs.tables import duration

from .decided import Change, changes
from .dots import Dots
from .ink import BLANK, SPARKS, Ink, Line, Span, line
from .scene import Reached, Scene
from .trials import decode_plans, latest, measured, named, times

LABEL = 9
"""Cells of the labels at the left of a curve."""
NAMED = 36
"""Cells of a candidate's or a region's name, at most."""
FEW_TIMES = 3
"""Below these there is no spread, and a bar from the median to the 95th percentile stands in its place."""
_FAR = 4.0
"""Of the slowest median: how far the axis of latencies reaches at most."""
_STEP = ""
"""The name under which events of the whole step are kept."""


def _region(one: Reached) -> str:
    return one.region


def best_by_time(scene: Scene, region: str, width: int, height: int, ink: Ink) -> list[Line]:
    """Return two curves over the run's clock: the region's best ratio so far, and the best step that was known."""
    own, step = scene.course.of(_region, region), scene.course.of(_region, _STEP)
    if not own and not step:
        return [line(("No candidate was measured yet.", "dim"))]
    end = max(one.at_s for one in (*own, *step)) or 1.0
    tall = max((height - 5) // 2, 3) if own and step else max(height - 3, 3)
    lines: list[Line] = []
    if own:
        lines += [line((f"best ratio of the region so far, {len(own)} measurements", "head"))]
        lines += _curve(_running(own), end, width, tall, ink, times)
    if step:
        lines += [line(("best step that was known", "head"))]
        lines += _curve(_running(step, falls=True), end, width, tall, ink, duration)
    clock = f"{'0 s':<6}{duration(end * 1e9):>{max(width - LABEL - 8, 1)}}"
    return [*lines, line((" " * (LABEL + 1) + clock, "dim"))]


def _running(found: Sequence[Reached], *, falls: bool = False) -> list[tuple[float, float]]:
    """Return the best value so far at each time: the highest, or where it `falls` the lowest."""
    course: list[tuple[float, float]] = []
    for one in found:
        best = course[-1][1] if course else one.value
        course.append((one.at_s, min(best, one.value) if falls else max(best, one.value)))
    return course


def _curve(
    course: Sequence[tuple[float, float]], end: float, width: int, height: int, ink: Ink, text: Callable[[float], str]
) -> list[Line]:
    field = Dots(max(width - LABEL - 2, 8), height)
    low, high = min(value for _, value in course), max(value for _, value in course)

    def at(x: int) -> int | None:
        now = x / (field.across - 1) * end
        known = [value for when, value in course if when <= now]
        if not known:
            return None
        return round((high - known[-1]) / (high - low) * (field.down - 1)) if high > low else field.down // 2

    field.line(at, "accent")
    lines = []
    for y, one in enumerate(field.lines(ink)):
        label = text(high) if y == 0 else text(low) if y == height - 1 and low < high else ""
        lines.append(line((ink.fit(label, LABEL - 1, right=True) + " ", "dim"), (ink.text("│"), "rule"), *one.spans))
    return lines


def distributions(state: State, region: str, width: int, height: int, ink: Ink) -> list[Line]:
    """Return the times of a region's fastest candidates beside one another, on one logarithmic axis."""
    found = [(one.candidate, m) for one in latest(state, region).values() if (m := measured(one)) is not None]
    if not found:
        return [line(("No candidate was measured yet.", "dim"))]
    found.sort(key=lambda pair: pair[1].median_ns)
    shown = found[: max(height - 4, 1)]
    name = min(NAMED, width // 3)
    room = max(width - name - 12, 10)
    low = min(min((*m.times_ns, m.median_ns)) for _, m in shown)
    # One round that something held up must not squeeze all others into a corner.
    high = min(
        max(max(*m.times_ns, m.p95_ns) if m.times_ns else m.p95_ns for _, m in shown), _FAR * shown[-1][1].median_ns
    )
    fastest = f"the fastest {len(shown)} of " if len(found) > len(shown) else ""
    lines = [line((f"times of a launch of {fastest}{len(found)} candidates", "head"))]
    for candidate, m in shown:
        cells = _spread(m, low, high, room)
        label = f"{ink.middle(named(candidate, name), name)} {ink.fit(duration(m.median_ns), 9, right=True)} "
        drawn: list[Span] = [(ink.text(glyph), style) for glyph, style in cells]
        lines.append(line(label, *drawn))
    axis = f"{duration(low)}{duration(high):>{max(room - len(duration(low)), 1)}}"
    indent = " " * (name + 11)
    return [*lines, line((indent + axis, "dim")), line((f"{indent}│ is the median; the axis is logarithmic", "dim"))]


def _spread(m: Measurement, low: float, high: float, room: int) -> list[Span]:
    """Return the cells of one distribution: blocks where times lie, a rule at the median."""

    def cell(ns: float) -> int:
        return max(0, min(room - 1, round(math.log(max(ns, 1) / low) / math.log(max(high / low, 1.0001)) * (room - 1))))

    counts = [0] * room
    if len(m.times_ns) >= FEW_TIMES:
        for ns in m.times_ns:
            counts[cell(ns)] += 1
        most = max(counts)
        cells: list[Span] = [
            (SPARKS[round(count / most * (len(SPARKS) - 1))] if count else " ", "accent") for count in counts
        ]
    else:
        first, last = cell(m.median_ns), cell(m.p95_ns)
        cells = [("─" if first <= at <= last else " ", "dim") for at in range(room)]
    cells[cell(m.median_ns)] = ("│", "good")
    return cells


def timeline(state: State, width: int, height: int, ink: Ink) -> list[Line]:
    """Return the regions of a step in the order in which they run first, each a bar from where those before it end."""
    found = _in_order(changes(state))
    if not found:
        return [line(("No plan yet: the regions of a step are known when it is made.", "dim"))]
    whole = sum(change.expected_ns for change in found) or 1.0
    captured = sum(change.expected_ns + change.saved_ns for change in found)
    name, lines = min(NAMED, width // 3), [_step(state, whole, captured)]
    room = max(width - name - 33, 10)
    head = f"{'':<{name}} {'count':>5} {'PyTorch':>9} {'plan':>9}  "
    lines.append(line((head, "head"), ("share of the plan's step", "head")))
    before = 0.0
    for change in found[: max(height - 4, 1)]:
        start, stop = (round(ns / whole * room) for ns in (before, before + change.expected_ns))
        before += change.expected_ns
        kernel = isinstance(change.choice, Kernel)
        bar: Span = (("█" if kernel else "░") * max(stop - start, 1), "accent" if kernel else "dim")
        spent = [
            ink.fit(duration(ns), 9, right=True) for ns in (change.expected_ns + change.saved_ns, change.expected_ns)
        ]
        text = f"{ink.middle(change.row.name, name)} {change.sites:>5} {' '.join(spent)}  "
        share = f" {change.expected_ns / whole:.0%}"
        lines.append(line(text, " " * min(start, room - 1), (ink.text(bar[0]), bar[1]), (share, "dim")))
    if len(found) > height - 4:
        lines.append(line((f"… {len(found) - height + 4} more", "dim")))
    return [*lines, BLANK, line(("█ a kernel  ", "accent"), ("░ PyTorch, as captured", "dim"))]


def _in_order(found: Sequence[Change]) -> list[Change]:
    """Return the regions by the place in the graph of their first operator; as they come where that is not recorded."""
    return sorted(found, key=lambda change: min(change.row.covers, default=0))


def _step(state: State, whole: float, captured: float) -> Line:
    plans = [plan for plan in decode_plans(state) if plan.step_ns]
    step = f"; the step as a whole {duration(plans[0].step_ns)}" if plans else ""
    return line(
        (f"{duration(captured)} → {duration(whole)}", "title"),
        (f", the sum of regions that were timed one by one{step}", "dim"),
    )
