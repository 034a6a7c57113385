"""A suite's result as figures, PNG and SVG each, with the same bytes for the same result and matplotlib.

matplotlib is an extra (`agentcompile[bench]`), so it is imported when a figure is drawn; `lacking` says whether it is
there. Colours are those of Okabe and Ito (2008), which people with colour blindness tell apart; an arm has the same one
in every figure, and vermilion is our own arm's alone. Text in SVG stays text.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from ..figures.trial import OURS
from .markdown import Waits, arm_names, device, measured, models, number, plain, shares, short, token_times, waits_of
from .result import ArmResult, Case, Compiled, SuiteResult
from .ticks import log_ticks, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#626a75", "#d9dce1", "#ffffff"
"""Text, text that steps back, lines behind the data, the ground. Nothing else has them: a page themes them."""
WIDTH_IN, DPI = 8.0, 200
_ACCENT, _PYTORCH = "#D55E00", "#999999"
_PEERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_HATCHES = ("", "///", "...", "xxx")
_ROW_IN, _LINE_IN, _WIDEST_IN = 0.27, 0.17, 0.8
_LARGEST_REGIONS = 40
_LONGEST_NAME = 100
_SPAN = 10
"""From the smallest to the largest: beyond it a linear axis hides the small ones."""
_LOOK = {
    # The first comes with matplotlib; a browser without it has the second, which is as wide.
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"], "font.size": 8.5,
    "text.parse_math": False,  # a name with two dollars is no formula
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
    """One figure in both formats."""

    model: str
    name: str
    """Of its files, without what they end in; unlike any other's of the result."""
    title: str
    png: bytes
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """How an arm looks everywhere."""

    name: str
    colour: str
    hatch: str


def lacking() -> str:
    """Empty where figures can be drawn; else what is missing and how to install it."""
    try:
        import matplotlib.figure  # noqa: F401 - a part that needs what matplotlib itself needs
    except ImportError as error:
        return f"{error}; pip install 'agentcompile[bench]'"
    return ""


def draw(result: SuiteResult) -> tuple[Plot, ...]:
    """Every figure that the result has something for. Raises ImportError without matplotlib."""
    import warnings

    import matplotlib

    names: set[str] = set()
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is shown as boxes, and the tables have it.
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)  # type: ignore[arg-type]
        return tuple(_saved(*found, names) for model in models(result) for found in _of_model(result, model))


def _of_model(result: SuiteResult, model: str) -> Iterator[tuple[str, str, str, Figure]]:
    """Model, name, title and figure."""
    cases = [case for case in result.cases if case.model == model]
    looks = _looks(result)
    for mode in dict.fromkeys(case.mode for case in cases):
        those = [case for case in cases if case.mode == mode]
        under = f"{model}, {mode}, on {device(result)}"
        baselines = sorted({case.baseline for case in those})
        over = baselines[0] if len(baselines) == 1 else "each workload's baseline"
        if any(arm.speedup for case in those for arm in measured(case)):
            title = f"Decode speed-up over {over}, by workload"
            yield model, f"speedup-{model}-{mode}", title, _speedups(title, under, those, looks)
        if timed := [case for case in those if any(token_times(case).values())]:
            title = "Time per output token, by workload and arm"
            yield model, f"latency-{model}-{mode}", title, _latencies(title, under, timed, looks)
    under = f"{model}, on {device(result)}"
    if (compiled := result.compiled.get(model)) is not None and compiled.regions:
        title = "Time over the roofline floor, by region of the decode step"
        yield model, f"regions-{model}", title, _regions(title, under, compiled)
    loads = {name: waits_of(cases, name, result.compiled.get(model)) for name in arm_names(cases)}
    if any(load or build for load, build in loads.values()):
        title = "Time to load and to compile, by arm"
        yield model, f"waits-{model}", title, _wait_bars(title, under, loads, cases, looks)


def _looks(result: SuiteResult) -> Mapping[str, _Arm]:
    peers = [name for name in arm_names(result.cases) if name != OURS]
    hatched = [(name, *divmod(at, len(_PEERS))) for at, name in enumerate(peers)]
    looks = {
        name: _Arm(name=name, colour=_PEERS[at], hatch=_HATCHES[turn % len(_HATCHES)]) for name, turn, at in hatched
    }
    return {**looks, OURS: _Arm(name=OURS, colour=_ACCENT, hatch="")}


def _speedups(title: str, under: str, cases: Sequence[Case], looks: Mapping[str, _Arm]) -> Figure:
    names = [name for name in arm_names(cases) if any(case.baseline != name and case.arm(name) for case in cases)]
    found = [arm.speedup for case in cases for arm in measured(case) if arm.speedup]
    ends = [end for one in found for end in (one.low, one.high, 1.0)]
    log = min(ends) > 0 and max(ends) / min(ends) > _SPAN
    sole = cases[0].baseline if len({case.baseline for case in cases}) == 1 else ""
    under = f"{under}; whiskers: 95% interval, paired by round"
    figure, (axes,) = _sheet(
        title, under, 3.1, 1, legend=names, looks=looks, line=f"{short(sole, 40)} = 1" if sole else ""
    )
    across = WIDTH_IN * 0.9 / len(cases)
    width = min(0.84 / len(names), _WIDEST_IN / across)
    for at, case in enumerate(cases):
        for slot, name in enumerate(names):
            arm, x = case.arm(name), at + (slot - (len(names) - 1) / 2) * width
            if arm is None or name == case.baseline:
                continue
            _speedup(axes, x, width * 0.9, arm, looks[name], from_one=log, across=across * width > 0.42)
    axes.axhline(1, color=INK, linewidth=1, zorder=3)
    letters = max(8, int(across * 72 / 5.6))
    beside = ["" if sole else f"\nover {short(case.baseline, letters)}" for case in cases]
    labels = [_wrapped(case.workload, letters) + over for case, over in zip(cases, beside, strict=True)]
    axes.set_xticks(range(len(cases)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.set_ylabel("× as fast" + (", log scale" if log else ""))
    if log:
        log_ticks(axes.yaxis, axes.set_yscale, max(ends) / min(ends))
        low, high = math.log(min(ends)), math.log(max(ends))
        room = (high - low) * 0.16
        axes.set_ylim(math.exp(low - (room if low < 0 else room / 4)), math.exp(high + room))
    else:
        axes.set_ylim(0, max(ends) * 1.2)
    axes.grid(axis="y")
    return figure


def _speedup(axes: Axes, x: float, width: float, arm: ArmResult, look: _Arm, *, from_one: bool, across: bool) -> None:
    """One bar with its whisker and its number, or why there is none. On a log axis bars start at 1: no gain."""
    if arm.state != "measured" or arm.speedup is None:
        state = "no ratio" if arm.state == "measured" else arm.state
        _label(axes, state, (x, 1 if from_one else 0), (0, 4), centred="bottom", upright=True, colour=MUTED)
        return
    found, bottom = arm.speedup, 1.0 if from_one else 0.0
    axes.bar(
        x, found.value - bottom, width, bottom=bottom, color=look.colour, hatch=look.hatch, edgecolor=PAPER, linewidth=0
    )
    reach = ([max(found.value - found.low, 0)], [max(found.high - found.value, 0)])
    axes.errorbar(x, found.value, yerr=reach, color=INK, linewidth=0.9, capsize=2, capthick=0.9, zorder=4)
    down = from_one and found.value < 1
    end, away = (min(found.low, found.value), -3) if down else (max(found.high, found.value), 3)
    text = number(found.value, 3) + ("×" if across else "")
    sits: Literal["top", "bottom"] = "top" if down else "bottom"
    _label(axes, text, (x, end), (0, away), ours=look.name == OURS, centred=sits, upright=not across)


def _latencies(title: str, under: str, cases: Sequence[Case], looks: Mapping[str, _Arm]) -> Figure:
    spans = [time for case in cases for times in token_times(case).values() for time in times]
    log = max(spans) / min(spans) > _SPAN
    rows = [len(case.arms) for case in cases]
    under = f"{under}; dots: kept rounds; line: median generation"
    height = sum(rows) * _ROW_IN + 0.4 * len(cases) + 0.3
    figure, panels = _sheet(title, under, height, len(cases), rows=rows)
    for axes, case in zip(panels, cases, strict=True):
        for at, arm in enumerate(case.arms):
            times, look = token_times(case).get(arm.name, []), looks[arm.name]
            # Later rounds lie lower: a machine that slowed down shows as a slant.
            lanes = [at + 0.5 * (lane / max(len(times) - 1, 1) - 0.5) for lane in range(len(times))]
            axes.scatter(times, lanes, s=13, color=look.colour, alpha=0.75, linewidth=0, zorder=3)
            if arm.state == "measured" and arm.token_s is not None:
                middle = arm.token_s.median * 1e3
                axes.vlines(middle, at - 0.36, at + 0.36, color=INK, linewidth=1.1, zorder=4)
                _at_right(axes, at, f"{number(middle)} ms", ours=arm.name == OURS)
            elif arm.state != "measured":
                _missing(axes, at, arm)
        _name_rows(axes, [arm.name for arm in case.arms])
        axes.set_title(f"{short(case.workload, 36)}: {case.prompt_tokens} tokens of prompt, {case.new_tokens} new")
        axes.grid(axis="x")
        if log:
            log_ticks(axes.xaxis, axes.set_xscale, max(spans) / min(spans))
        else:
            plain_ticks(axes.xaxis)
    for axes in panels:
        if axes is not panels[0]:
            axes.sharex(panels[0])
        axes.tick_params(axis="x", labelbottom=axes is panels[-1])
    margin = (max(spans) - min(spans)) * 0.05 or max(spans) * 0.05
    panels[0].set_xlim((min(spans) / 1.15, max(spans) * 1.15) if log else (min(spans) - margin, max(spans) + margin))
    panels[-1].set_xlabel("ms per output token, less is better" + (", log scale" if log else ""))
    return figure


def _regions(title: str, under: str, compiled: Compiled) -> Figure:
    found = shares(compiled)[:_LARGEST_REGIONS]
    left = len(compiled.regions) - len(found)
    under += "; largest share of the step first" + (f"; {left} smaller regions are in the table" if left else "")
    key = {"a template": _ACCENT, "PyTorch": _PYTORCH}
    marks = {name: _Arm(name=name, colour=colour, hatch="") for name, colour in key.items()}
    height = max(len(found), 2) * _ROW_IN + 0.6
    figure, (axes,) = _sheet(title, under, height, 1, legend=list(marks), looks=marks)
    ratios = [region.ns / region.floor_ns if region.floor_ns else math.nan for region, _ in found]
    ends = [1.0, *(ratio for ratio in ratios if math.isfinite(ratio))]
    first = 1 if max(ends) / min(ends) > _SPAN else 0  # where bars begin: at the roofline on a log axis
    for at, ((region, share), ratio) in enumerate(zip(found, ratios, strict=True)):
        theirs = region.choice.lower().startswith("pytorch")
        end = ratio if math.isfinite(ratio) else first
        axes.barh(at, end - first, 0.72, first, color=_PYTORCH if theirs else _ACCENT)
        _label(axes, f"{number(ratio, 3)}×" if math.isfinite(ratio) else "no floor", (end, at), (3, 0))
        _at_right(axes, at, f"{share:.1%}")
    _at_right(axes, -0.85, "of the step", colour=MUTED)
    axes.axvline(1, color=INK, linewidth=1, zorder=3)
    _name_rows(axes, [f"{short(region.name, 30)} × {region.sites}" for region, _ in found])
    if first:
        log_ticks(axes.xaxis, axes.set_xscale, max(ends) / min(ends))
    else:
        plain_ticks(axes.xaxis)
    axes.set_xlim(min(ends) / 1.1 if first else 0, max(ends) ** (1.08 if first else 1) * 1.1)
    axes.set_xlabel("× the time of the floor, 1 is the roofline" + (", log scale" if first else ""))
    axes.grid(axis="x")
    return figure


def _wait_bars(
    title: str,
    under: str,
    waits: Mapping[str, Waits],
    cases: Sequence[Case],
    looks: Mapping[str, _Arm],
) -> Figure:
    kinds = [at for at in (0, 1) if any(pair[at] for pair in waits.values())]
    under += "; bars: median; lines: least to most"
    figure, panels = _sheet(title, under, max(len(waits), 2) * _ROW_IN + 0.7, len(kinds), across=True)
    for axes, kind in zip(panels, kinds, strict=True):
        for at, (name, pair) in enumerate(waits.items()):
            seconds, look = pair[kind], looks[name]
            states = [arm for case in cases if (arm := case.arm(name))]
            if not seconds:
                if all(arm.state != "measured" for arm in states):
                    _missing(axes, at, states[0], letters=36)
                continue
            axes.barh(at, median(seconds), 0.72, color=look.colour, hatch=look.hatch, edgecolor=PAPER, linewidth=0)
            if len(seconds) > 1:
                axes.hlines(at, min(seconds), max(seconds), color=INK, linewidth=1.1, zorder=4)
            _label(axes, f"{number(median(seconds), 3)} s", (max(seconds), at), (4, 0), ours=name == OURS)
        most = max(second for pair in waits.values() for second in pair[kind])
        axes.set_xlim(0, (most or 1) * 1.22)
        _name_rows(axes, list(waits) if axes is panels[0] else [""] * len(waits))
        axes.set_title(("Load alone", "Compile")[kind])
        axes.set_xlabel("s")
        plain_ticks(axes.xaxis)
        axes.grid(axis="x")
    return figure


def _sheet(
    title: str,
    under: str,
    height: float,
    panels: int,
    *,
    rows: Sequence[int] | None = None,
    across: bool = False,
    legend: Sequence[str] = (),
    looks: Mapping[str, _Arm] | None = None,
    line: str = "",
) -> tuple[Figure, list[Axes]]:
    """A figure with its title on top, a legend below, and between them `height` inches for the panels."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    title, under = _wrapped(title, 72), _wrapped(under, 122)
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


def _saved(model: str, name: str, title: str, figure: Figure, names: set[str]) -> Plot:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:_LONGEST_NAME]
    same = itertools.chain([slug], (f"{slug}-{at}" for at in itertools.count(2)))
    unused = next(one for one in same if one not in names)
    names.add(unused)
    png, svg = io.BytesIO(), io.StringIO()
    # Dates and versions would make every file a new one.
    FigureCanvasAgg(figure).print_figure(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Plot(model=model, name=unused, title=title, png=png.getvalue(), svg=svg.getvalue())


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One row a name, the first on top; our own arm's in bold."""
    axes.set_yticks(range(len(names)), [short(name, 36) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")


def _label(
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
    """A text `away` points from a place in the data: right of it, or centred with its top or bottom there."""
    axes.annotate(
        text, at, away, textcoords="offset points", rotation=90 if upright else 0, ha="center" if centred else "left",
        va=centred or "center", fontsize=7.2, fontweight="bold" if ours else "normal", color=colour, bbox=_ground(),
        zorder=5,
    )  # fmt: skip


def _at_right(axes: Axes, row: float, text: str, *, ours: bool = False, colour: str = INK) -> None:
    axes.annotate(
        text, (1, row), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        fontsize=7.2, fontweight="bold" if ours else "normal", color=colour, annotation_clip=False,
    )  # fmt: skip


def _missing(axes: Axes, row: int, arm: ArmResult, letters: int = 64) -> None:
    text = short(f"{arm.state}: {arm.reason}" if arm.reason else arm.state, letters)
    axes.text(
        0.01, row, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED, fontsize=7.5, bbox=_ground()
    )


def _ground() -> dict[str, object]:
    """Keeps lines behind a text from running through it."""
    return {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}


def _wrapped(text: str, letters: int) -> str:
    return textwrap.fill(plain(text), letters)
