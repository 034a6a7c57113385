"""The parts that all figures share: their look, a sheet with a title and a legend, labels, and saving as PNG and SVG.

matplotlib is an extra (`agentcompile[bench]`), so it is imported when a figure is drawn. Colours are those of Okabe and
Ito (2008), which people with colour blindness can tell apart. Text in SVG stays text.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..harness.trial import OURS
from .cells import plain, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#626a75", "#d9dce1", "#ffffff"
"""Colours of text, secondary text, grid lines and background, and nothing else, as a page replaces them by its own."""
WIDTH_IN, DPI = 8.0, 200
ACCENT, PYTORCH = "#D55E00", "#999999"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
HATCHES = ("", "///", "...", "xxx")
ROW_IN, _LINE_IN, WIDEST_IN = 0.27, 0.17, 0.8
_LONGEST_NAME = 100
SPAN = 10
"""The largest ratio of values on a linear axis, beyond which small values would be hidden."""
LOOK = {
    # The first comes with matplotlib; a browser without it uses the second, which is as wide.
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"], "font.size": 8.5,
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.titlesize": 8.5, "axes.titlelocation": "left",
    "grid.color": GRID, "grid.linewidth": 0.7, "hatch.color": PAPER,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "agentcompile",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure as PNG and SVG."""

    model: str
    name: str
    """The name of its files without suffix, unique within the result."""
    title: str
    png: bytes
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The colour and the hatch of an arm in all figures."""

    name: str
    colour: str
    hatch: str


def sheet(
    title: str,
    under: str,
    height: float,
    panels: int,
    *,
    rows: Sequence[int] | None = None,
    across: bool = False,
    legend: Sequence[str] = (),
    looks: Mapping[str, Look] | None = None,
    line: str = "",
) -> tuple[Figure, list[Axes]]:
    """Make a figure with its title on top, a legend below, and `height` inches for the panels between them."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    title, under = wrapped(title, 72), wrapped(under, 122)
    top = 0.15 + 0.2 * (title.count("\n") + 1) + _LINE_IN * (under.count("\n") + 1) + 0.1
    names = [*([line] if line else []), *(short(name, 40) for name in legend)]
    columns = max(1, min(len(names), int(WIDTH_IN * 72 / (max(map(len, names), default=1) * 5.6 + 44))))
    whole = top + height + 0.22 * math.ceil(len(names) / columns)
    figure = Figure(figsize=(WIDTH_IN, round(whole, 2)), dpi=DPI, layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, 1 - top / whole), h_pad=0.06, w_pad=0.1)  # type: ignore[call-arg]
    figure.text(0.1 / WIDTH_IN, 1 - 0.12 / whole, title, fontsize=11, fontweight="bold", va="top")
    below = 0.16 + 0.2 * (title.count("\n") + 1)
    figure.text(0.1 / WIDTH_IN, 1 - below / whole, under, fontsize=8, color=MUTED, va="top", linespacing=1.3)
    grid = (1, panels) if across else (panels, 1)
    axes = figure.subplots(*grid, squeeze=False, height_ratios=rows)
    if looks and legend:
        marks: list[Line2D | Patch] = [Line2D([], [], color=INK, linewidth=1)] if line else []
        marks += [Patch(facecolor=looks[name].colour, hatch=looks[name].hatch, edgecolor=PAPER) for name in legend]
        figure.legend(marks, names, loc="outside lower center", ncols=columns, handlelength=1.1, columnspacing=1.6)
    return figure, list(axes.flat)


def saved(model: str, name: str, title: str, figure: Figure, names: set[str]) -> Plot:
    """Return a figure as a `Plot`, under a name made from `name` that is not in `names`, to which it is added."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:_LONGEST_NAME]
    same = itertools.chain([slug], (f"{slug}-{at}" for at in itertools.count(2)))
    unused = next(one for one in same if one not in names)
    names.add(unused)
    png, svg = io.BytesIO(), io.StringIO()
    # Without dates and versions, equal figures give equal bytes.
    FigureCanvasAgg(figure).print_figure(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Plot(model=model, name=unused, title=title, png=png.getvalue(), svg=svg.getvalue())


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows with `names`, the first on top and our own arm in bold."""
    axes.set_yticks(range(len(names)), [short(name, 36) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")


def label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    away: tuple[float, float],
    *,
    ours: bool = False,
    centred: Literal["top", "bottom"] | None = None,
    upright: bool = False,
    colour: str = INK,
) -> None:
    """Write a text `away` points from the data point `at`: right of it, or centred with its top or bottom there."""
    axes.annotate(
        text, at, away, textcoords="offset points", rotation=90 if upright else 0, ha="center" if centred else "left",
        va=centred or "center", fontsize=7.2, fontweight="bold" if ours else "normal", color=colour, bbox=ground(),
        zorder=5,
    )  # fmt: skip


def at_right(axes: Axes, row: float, text: str, *, ours: bool = False, colour: str = INK) -> None:
    """Write a text to the right of the panel, beside a row."""
    axes.annotate(
        text, (1, row), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        fontsize=7.2, fontweight="bold" if ours else "normal", color=colour, annotation_clip=False,
    )  # fmt: skip


def ground() -> dict[str, object]:
    """Return the box style that keeps lines behind a text from running through it."""
    return {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}


def wrapped(text: str, letters: int) -> str:
    """Return `text` in lines of at most `letters` characters."""
    return textwrap.fill(plain(text), letters)


def ticks(axes: Axes, ends: Sequence[float], *, log: bool, upright: bool = False) -> None:
    """Make the axis of values (x, or y when `upright`) a log one for values from least to most of `ends`, or plain."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.yaxis if upright else axes.xaxis
    if log:
        (axes.set_yscale if upright else axes.set_xscale)("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(ends) / min(ends) < 300 else (1,)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if log else f"{value:.10g}"))
