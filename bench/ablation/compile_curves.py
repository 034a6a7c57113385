"""The figure of a study of compiles: the best step known by trials, a panel for each model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report.cells import short
from ..report.sheet import ACCENT, GRID, LOOK, PALETTE, Look, saved, sheet, ticks
from .compiles import Compile, Compiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_IN = 2.6
_COLOURS = (ACCENT, *PALETTE)


def draw(result: Compiles) -> tuple[bytes, str]:
    """Return the figure as PNG and SVG; the same result and matplotlib version give the same bytes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    looks = {arm: Look(name=arm, colour=_COLOURS[at % len(_COLOURS)], hatch="") for at, arm in enumerate(result.arms)}
    title = "The best decode step known by trials, in real compiles"
    under = "Lines: medians over seeds of what the search knew. Dots: the steps of the locks, timed beside one another."
    with matplotlib.rc_context(LOOK):  # type: ignore[arg-type] # its stubs list every key
        height = _PANEL_IN * max(len(result.models), 1)
        figure, panels = sheet(title, under, height, max(len(result.models), 1), legend=result.arms, looks=looks)
        for axes, model in zip(panels, result.models, strict=False):
            _panel(axes, result, model, looks)
        panels[-1].set_xlabel("distinct candidates that have a verdict")
        plot = saved("", "compiles", title, figure, set())
    return plot.png, plot.svg


def _panel(axes: Axes, result: Compiles, model: str, looks: dict[str, Look]) -> None:
    for arm in result.arms:
        found = result.of(model, arm)
        places, steps = curve(found)
        axes.step(places, [ns / 1e3 for ns in steps], where="post", color=looks[arm].colour, linewidth=1.4)
        for one in found:
            if one.step_ns is not None:
                axes.plot(one.trials, one.step_ns / 1e3, "o", markersize=4, color=looks[arm].colour, clip_on=False)
    ends = [ns for arm in result.arms for ns in curve(result.of(model, arm))[1]]
    if ends:
        ticks(axes, (min(ends) / 1e3, max(ends) / 1e3), log=True, upright=True)
    axes.set_xlim(left=0)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_title(short(model, 60))
    axes.set_ylabel("decode step, µs")


def curve(compiles: Sequence[Compile]) -> tuple[list[int], list[float]]:
    """Return numbers of trials, and after each the median over compiles of the best step known in ns."""
    places = sorted({step.trials for one in compiles for step in one.progress})
    known = [(place, statistics.median(one.step_after(place) for one in compiles)) for place in places]
    kept = [(place, ns) for place, ns in known if ns < math.inf]
    return [place for place, _ in kept], [ns for _, ns in kept]
