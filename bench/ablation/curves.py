"""The figure of a study of recorded spaces: the best so far by evaluations, a panel for each space."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report.cells import short
from ..report.sheet import ACCENT, GRID, LOOK, MUTED, PALETTE, Look, saved, sheet, ticks
from .simulate import Curve
from .study import SpaceFacts, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_IN = 2.2
_COLOURS = (ACCENT, *PALETTE)
_DASHES = ("-", "--", ":", "-.")
"""The lines of arms that share a colour, when there are more of them than colours."""


def draw(study: Study) -> tuple[bytes, str]:
    """Return the figure as PNG and SVG; the same study and matplotlib version give the same bytes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    # Where the colours come round again lines are dashed; the legend has no lines, and hatches these.
    looks = {
        arm: Look(name=arm, colour=_COLOURS[at % len(_COLOURS)], hatch="//////" if at >= len(_COLOURS) else "")
        for at, arm in enumerate(study.arms)
    }
    title = "The best so far by evaluations, in recorded tuning spaces"
    dashed = f"{study.percents[0]:g} % slower than the optimum"
    under = f"Median of {study.seeds} seeds, band: the middle half. Dashed grey: {dashed}. Hatched: dashed lines."
    with matplotlib.rc_context(LOOK):  # type: ignore[arg-type] # its stubs list every key
        height = _PANEL_IN * len(study.spaces)
        figure, panels = sheet(title, under, height, len(study.spaces), legend=study.arms, looks=looks)
        for axes, facts in zip(panels, study.spaces, strict=True):
            _panel(axes, study, facts, looks)
        panels[-1].set_xlabel("evaluations, failed ones included, log scale")
        plot = saved("", "curves", title, figure, set())
    return plot.png, plot.svg


def _panel(axes: Axes, study: Study, facts: SpaceFacts, looks: dict[str, Look]) -> None:
    last = min(study.budget, facts.points)
    places = marks_of(last)
    for at, arm in enumerate(study.arms):
        low, middle, high = quartiles(study.of(facts.name, arm), places)
        colour, dashes = looks[arm].colour, _DASHES[at // len(_COLOURS) % len(_DASHES)]
        axes.fill_between(places, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.step(places, middle, where="post", color=colour, linestyle=dashes, linewidth=1.4)
    axes.axhline(100 / (1 + study.percents[0] / 100), color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ticks(axes, (1, last), log=True)
    axes.set_xlim(1, max(last, 2))
    axes.set_ylim(0, 103)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_title(f"{short(facts.name, 60)}, {facts.points:,} points")
    axes.set_ylabel("% of the optimum's speed")


def marks_of(last: int) -> list[int]:
    """Return about 200 evaluations from 1 to `last`, evenly on a log scale, each once."""
    return sorted({round(last ** (at / 200)) for at in range(201)})


def quartiles(curves: Sequence[Curve], places: Sequence[int]) -> tuple[list[float], list[float], list[float]]:
    """Return the first quartile, median and third quartile over seeds of the best's speed, in % of the optimum's."""
    low, middle, high = list[float](), list[float](), list[float]()
    for place in places:
        speeds = sorted(100 * curve.speed_after(place) for curve in curves)
        quarter = len(speeds) // 4
        low.append(speeds[quarter])
        middle.append(statistics.median(speeds))
        high.append(speeds[-1 - quarter])
    return low, middle, high
