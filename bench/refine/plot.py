"""The plot of a study: for each arm the share of sessions whose kernel has at least a speed-up, fast_p over p."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..report.sheet import DPI, LOOK, MUTED, PALETTE, sheet
from .result import Row, Study
from .summary import BASELINE, curve, fast_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EAGER = "pytorch"
_HEIGHT_IN = 2.6
_STYLES = ("-", "--", "-.", ":", (0, (1, 1)))


def draw(study: Study) -> tuple[bytes, str]:
    """Return the plot as PNG and SVG; the same study and matplotlib version give the same bytes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(LOOK):  # type: ignore[arg-type] # its stubs list every key
        figure = _figure(study)
        png, svg = io.BytesIO(), io.StringIO()
        FigureCanvasAgg(figure).print_figure(png, format="png", dpi=DPI, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return png.getvalue(), svg.getvalue()


def _figure(study: Study) -> Figure:
    tasks, models = len(study.tasks), ", ".join(study.models) or "recorded answers"
    limits = f"at most {study.attempts} attempts" + (f" and {study.tokens:,} tokens" if study.tokens else "")
    under = f"{tasks} tasks, {len(study.seeds)} seeds, {limits} a session. {models}. {study.machine}."
    title = "Sessions whose kernel is at least p times as fast"
    figure, (left, right) = sheet(title, under, _HEIGHT_IN, 2, across=True)
    _panel(left, study, BASELINE, "speed-up p over PyTorch's fastest form")
    _panel(right, study, EAGER, "speed-up p over PyTorch eager")
    left.set_ylabel("share of sessions")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(study.arms))
    return figure


def _panel(axes: Axes, study: Study, over: str, label: str) -> None:
    high = max((p for arm in study.arms for p, _ in curve(study.of(arm), over)), default=1.0)
    low = min((p for arm in study.arms for p, _ in curve(study.of(arm), over)), default=1.0)
    ends = min(low, 1.0) / 1.25, max(high, 1.0) * 1.25
    for at, arm in enumerate(study.arms):
        if not study.of(arm):
            continue
        x, y = _steps(study.of(arm), over, ends)
        style = _STYLES[at % len(_STYLES)]
        axes.step(x, y, where="pre", color=PALETTE[at % len(PALETTE)], linestyle=style, linewidth=1.5, label=arm)
    axes.axvline(1.0, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(*ends)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.grid(axis="both")
    axes.set_xlabel(label)


def _steps(rows: Sequence[Row], over: str, ends: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Return the corners of a falling curve: each speed-up that some kernel has, with the share that reaches it."""
    points = [(ends[0], fast_share(rows, ends[0], over)), *curve(rows, over), (ends[1], 0.0)]
    return [p for p, _ in points], [share for _, share in points]
