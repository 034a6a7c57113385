"""The plot of an ablation: for each region, the share of its space that each adviser's order needs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ..report.sheet import GRID, INK, MUTED
from .result import WITHIN, Ablation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"none": "#999999", "heuristic": "#0072B2", "random": "#E69F00", "replay": "#D55E00"}
"""The colour of each known arm, from the colour-blind-safe palette of Okabe and Ito (2008)."""
_OTHERS = ("#009E73", "#CC79A7", "#56B4E9")
_ROW_IN, _WIDTH_IN, _DPI = 0.17, 8.0, 160


def draw(result: Ablation) -> tuple[bytes, str]:
    """Return the plot as PNG and SVG; the same result and matplotlib version give the same bytes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    look = {"svg.hashsalt": "agentcompile", "svg.fonttype": "none", "font.size": 8, "text.color": INK}
    with matplotlib.rc_context(look):  # type: ignore[arg-type] # its stubs list every key
        figure = _figure(result)
        png, svg = io.BytesIO(), io.StringIO()
        FigureCanvasAgg(figure).print_figure(png, format="png", dpi=_DPI, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return png.getvalue(), svg.getvalue()


def _figure(result: Ablation) -> Figure:
    from matplotlib.figure import Figure

    rows, arms = [(model.model, region) for model in result.models for region in model.regions], result.arms
    height = len(rows) * (len(arms) * _ROW_IN + 0.12) + 1.5
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure.subplots()
    spare = iter(_OTHERS * (len(arms) // len(_OTHERS) + 1))
    colours = {arm: _COLOURS.get(arm) or next(spare) for arm in arms}
    step = len(arms) + 0.8
    for at, (_, region) in enumerate(rows):
        for slot, arm in enumerate(arms):
            standing = region.standing(arm)
            if standing is None:
                continue
            y, all, colour = at * step + slot, region.points, colours[arm]
            ends = [standing.near_low / all, standing.near_high / all]
            axes.plot(ends, [y, y], color=colour, linewidth=1.4, alpha=0.5, solid_capstyle="butt")
            axes.scatter(standing.near_at / all, y, s=26, color=colour, label=arm if at == 0 else None, zorder=3)
            axes.scatter(standing.winner_at / all, y, s=26, marker="|", color=colour, linewidth=1.4, zorder=3)
    middle = (len(arms) - 1) / 2
    names = [f"{model}\n{region.name.partition('@')[0]}\n{_size(region.dims)}" for model, region in rows]
    axes.set_yticks([at * step + middle for at in range(len(rows))], names, fontsize=6.5)
    axes.set_ylim(len(rows) * step - 0.6, -1.0)
    axes.set_xscale("log")
    least = 1 / max(region.points for _, region in rows)
    axes.set_xlim(least * 0.8, 1.15)
    axes.set_xticks([0.003, 0.01, 0.03, 0.1, 0.3, 1.0], ["0.3 %", "1 %", "3 %", "10 %", "30 %", "100 %"])
    axes.minorticks_off()
    axes.axvline(WITHIN, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of the space tried until then, log scale; left is better")
    figure.suptitle("How much of a region's space an adviser's order needs", x=0.01, ha="left", fontsize=10)
    who = "".join(f"\n{arm}: {name}" for arm, name in result.answered_by.items())
    axes.set_title(
        f"{result.device}, {result.threads} threads. Dot: the first candidate within 5 % of the fastest "
        f"(line: over seeds). Bar: the winner.{who}",
        loc="left",
        fontsize=7.5,
        color=MUTED,
    )
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=len(arms), frameon=False)
    return figure


def _size(dims: dict[str, int]) -> str:
    if "head_dim" in dims:
        return f"{dims.get('q_heads')}/{dims.get('kv_heads')} heads of {dims['head_dim']}, {dims.get('context')} slots"
    return f"{dims.get('hidden')} → {dims.get('rows')}"
