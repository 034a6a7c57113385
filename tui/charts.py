"""Charts over the body: one for each question that people ask of a run, and the key that shows them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from . import spreads
from .ink import BLANK, Ink, Line, Span, line
from .roofline import roofline
from .scene import Chart, Scene, Step, View
from .screen import Act, ScreenSpec
from .trials import ordered, region_of

_HEAD = 2
"""Lines above a chart: the names of all charts, and what this one is of."""


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """A chart: its name, whether it is of one region, and how it is drawn in a width and a height."""

    name: str
    of_region: bool
    draw: Callable[[Scene, str, int, int, Ink], list[Line]]


CHARTS = (
    ChartSpec("roofline", True, lambda scene, region, *size: roofline(scene.state, region, *size)),
    ChartSpec("best by time", True, spreads.best_by_time),
    ChartSpec("latencies", True, lambda scene, region, *size: spreads.distributions(scene.state, region, *size)),
    ChartSpec("step", False, lambda scene, region, *size: spreads.timeline(scene.state, *size)),
)
"""In the order of their number keys."""


def chart_lines(chart: Chart, scene: Scene, view: View, width: int, height: int, ink: Ink) -> list[Line]:
    """Return the names of the charts, then the one that is shown."""
    spec, region = CHARTS[chart.which], region_of(scene, view)
    spans: list[Span] = [(" ", "")]
    for number, one in enumerate(CHARTS, 1):
        spans.append((f" {number} {one.name} ", "bar" if one is spec else "dim"))
    row = scene.state.row(region)
    what = f"{row.name}   J K another region   " if spec.of_region and row is not None else ""
    about = line(("  ", ""), (what, "title"), ("p next chart, escape leaves", "dim"))
    drawn = spec.draw(scene, region, width - 4, height - _HEAD - 1, ink)
    return [line(*spans), about, BLANK, *(Line((("  ", ""), *one.spans)) for one in drawn)]


def pressed(scene: Scene, view: View, chart: Chart, key: str) -> Step:
    """Return what a key does while a chart is shown."""
    count = len(CHARTS)
    match key:
        case "escape" | "q" | "enter":
            return Step(view=replace(view, overlay=None))
        case "p" | "tab" | "l" | "right" | "down":
            return _to(view, (chart.which + 1) % count)
        case "h" | "left" | "up":
            return _to(view, (chart.which - 1) % count)
        case "J" | "K" | "j" | "k":
            return Step(view=_region(scene, view, 1 if key in "jJ" else -1))
        case _ if key.isdecimal() and 1 <= int(key) <= count:
            return _to(view, int(key) - 1)
        case _:
            return Step(view=view)


def name_at(x: int) -> str:
    """Return the number key of the chart whose name is drawn at cell `x`; empty for none."""
    left = 1
    for number, one in enumerate(CHARTS, 1):
        left += len(f" {number} {one.name} ")
        if 1 <= x < left:
            return str(number)
    return ""


def _to(view: View, which: int) -> Step:
    return Step(view=replace(view, overlay=Chart(which=which)))


def _region(scene: Scene, view: View, by: int) -> View:
    keys = [row.region for row in ordered(scene.state) if row.best is not None] or [region_of(scene, view)]
    now = region_of(scene, view)
    at = keys.index(now) + by if now in keys else 0
    return replace(view, region=keys[at % len(keys)], candidate="", top=0)


def _none(scene: Scene, view: View, screen: ScreenSpec) -> str:
    return "" if scene.state.rows else "No region is known yet."


def _opened(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    return _to(view, 0)


PLOTS = Act("plots", ("p",), "charts: roofline, best by time, latencies, the step", _opened, _none, word="charts")
