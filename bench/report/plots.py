"""A suite's result as figures, each as PNG and SVG; one result and one matplotlib always give the same bytes.

An arm has the same colour in every figure, and only our own arm is vermilion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

from ..harness.result import ArmResult, Case, Compiled, Interval, SuiteResult
from ..harness.trial import OURS
from .cells import number, short
from .markdown import Waits, arm_names, device, measured, models, shares, token_times, waits_of
from .sheet import (
    ACCENT,
    GRID,
    HATCHES,
    INK,
    LOOK,
    MUTED,
    PALETTE,
    PAPER,
    PYTORCH,
    ROW_IN,
    SPAN,
    WIDEST_IN,
    WIDTH_IN,
    Look,
    Plot,
    at_right,
    ground,
    label,
    name_rows,
    saved,
    sheet,
    ticks,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LARGEST_REGIONS = 40
_REST, _OTHERS = "between the regions", "other kinds"
_KINDS = 11
"""The most kinds of region that get a colour of their own; the table has all."""
_LEAST = 0.02
"""The share of the time per token that a kind must reach on some rung to get a colour of its own."""


def lacking() -> str:
    """Return what is missing to draw figures and how to install it; empty when nothing is."""
    try:
        import matplotlib.figure  # noqa: F401 - a part that needs what matplotlib itself needs
    except ImportError as error:
        return f"{error}; pip install 'agentcompile[bench]'"
    return ""


def draw(result: SuiteResult) -> tuple[Plot, ...]:
    """Draw every figure for which the result has data.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import warnings

    import matplotlib

    names: set[str] = set()
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the tables show it.
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)  # type: ignore[arg-type]
        return tuple(saved(*found, names) for model in models(result) for found in _of_model(result, model))


def _of_model(result: SuiteResult, model: str) -> Iterator[tuple[str, str, str, Figure]]:
    cases = [case for case in result.cases if case.model == model]
    looks = _looks(result)
    for mode in dict.fromkeys(case.mode for case in cases):
        those = [case for case in cases if case.mode == mode]
        under = f"{model}, {mode}, on {device(result)}"
        baselines = sorted({case.baseline for case in those})
        over = baselines[0] if len(baselines) == 1 else "each workload's baseline"
        for name, what, of in _RATIOS:
            if any(of(arm) for case in those for arm in measured(case)):
                title = f"{what} over {over}, by workload"
                yield model, f"{name}-{model}-{mode}", title, _speedups(title, under, those, looks, of)
        if timed := [case for case in those if any(token_times(case).values())]:
            title = "Time per output token, by workload and arm"
            yield model, f"latency-{model}-{mode}", title, _latencies(title, under, timed, looks)
    under = f"{model}, on {device(result)}"
    for case in cases:
        if case.rungs and measured(case):
            title = f"From {case.rungs[0].name} to {case.rungs[-1].name}, a rung at a time"
            about = f"{model}, {case.workload}, on {device(result)}"
            yield model, f"ladder-{model}-{case.workload}", title, _climb(title, about, case)
    if (compiled := result.compiled.get(model)) is not None and compiled.regions:
        title = "Time over the roofline, by region of the decode step"
        yield model, f"regions-{model}", title, _regions(title, under, compiled)
    loads = {name: waits_of(cases, name, result.compiled.get(model)) for name in arm_names(cases)}
    if any(load or build for load, build in loads.values()):
        title = "Time to load and to compile, by arm"
        yield model, f"waits-{model}", title, _wait_bars(title, under, loads, cases, looks)


Ratio = Callable[[ArmResult], Interval | None]
_RATIOS: tuple[tuple[str, str, Ratio], ...] = (
    ("requests", "Speed-up of whole requests", lambda arm: arm.total_speedup),
    ("speedup", "Decode speed-up", lambda arm: arm.speedup),
)
"""The ratios that are drawn: the name of the plot's file, its title, and the ratio of an arm."""


def _looks(result: SuiteResult) -> Mapping[str, Look]:
    peers = [name for name in arm_names(result.cases) if name != OURS]
    return {**_coloured(peers), OURS: Look(name=OURS, colour=ACCENT, hatch="")}


def _coloured(names: Sequence[str]) -> dict[str, Look]:
    found = {}
    for at, name in enumerate(names):
        turn, place = divmod(at, len(PALETTE))
        found[name] = Look(name=name, colour=PALETTE[place], hatch=HATCHES[turn % len(HATCHES)])
    return found


def _speedups(title: str, under: str, cases: Sequence[Case], looks: Mapping[str, Look], of: Ratio) -> Figure:
    names = [name for name in arm_names(cases) if any(case.baseline != name and case.arm(name) for case in cases)]
    found = [one for case in cases for arm in measured(case) if (one := of(arm))]
    ends = [end for one in found for end in (one.low, one.high, 1.0)]
    log = min(ends) > 0 and max(ends) / min(ends) > SPAN
    sole = cases[0].baseline if len({case.baseline for case in cases}) == 1 else ""
    under = f"{under}; whiskers: 95% interval, paired by round"
    figure, (axes,) = sheet(
        title, under, 3.1, 1, legend=names, looks=looks, line=f"{short(sole, 40)} = 1" if sole else ""
    )
    across = WIDTH_IN * 0.9 / len(cases)
    width = min(0.84 / len(names), WIDEST_IN / across)
    for at, case in enumerate(cases):
        for slot, name in enumerate(names):
            arm, x = case.arm(name), at + (slot - (len(names) - 1) / 2) * width
            if arm is None or name == case.baseline:
                continue
            _speedup(axes, x, width * 0.9, arm, of(arm), looks[name], from_one=log, across=across * width > 0.42)
    axes.axhline(1, color=INK, linewidth=1, zorder=3)
    letters = max(8, int(across * 72 / 5.6))
    beside = ["" if sole else f"\nover {short(case.baseline, letters)}" for case in cases]
    labels = [wrapped(case.workload, letters) + over for case, over in zip(cases, beside, strict=True)]
    axes.set_xticks(range(len(cases)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.set_ylabel("× as fast" + (", log scale" if log else ""))
    if log:
        ticks(axes, ends, log=True, upright=True)
        low, high = math.log(min(ends)), math.log(max(ends))
        room = (high - low) * 0.16
        axes.set_ylim(math.exp(low - (room if low < 0 else room / 4)), math.exp(high + room))
    else:
        axes.set_ylim(0, max(ends) * 1.2)
    axes.grid(axis="y")
    return figure


def _speedup(
    axes: Axes,
    x: float,
    width: float,
    arm: ArmResult,
    found: Interval | None,
    look: Look,
    *,
    from_one: bool,
    across: bool,
) -> None:
    """Draw one bar with whisker and number, or say why there is none; on a log axis bars start at 1, no gain."""
    if arm.state != "measured" or found is None:
        state = "no ratio" if arm.state == "measured" else arm.state
        label(axes, state, (x, 1 if from_one else 0), (0, 4), centred="bottom", upright=True, colour=MUTED)
        return
    bottom = 1.0 if from_one else 0.0
    axes.bar(
        x, found.value - bottom, width, bottom=bottom, color=look.colour, hatch=look.hatch, edgecolor=PAPER, linewidth=0
    )
    reach = ([max(found.value - found.low, 0)], [max(found.high - found.value, 0)])
    axes.errorbar(x, found.value, yerr=reach, color=INK, linewidth=0.9, capsize=2, capthick=0.9, zorder=4)
    down = from_one and found.value < 1
    end, away = (min(found.low, found.value), -3) if down else (max(found.high, found.value), 3)
    text = number(found.value, 3) + ("×" if across else "")
    sits: Literal["top", "bottom"] = "top" if down else "bottom"
    label(axes, text, (x, end), (0, away), ours=look.name == OURS, centred=sits, upright=not across)


def _latencies(title: str, under: str, cases: Sequence[Case], looks: Mapping[str, Look]) -> Figure:
    spans = [time for case in cases for times in token_times(case).values() for time in times]
    log = max(spans) / min(spans) > SPAN
    rows = [len(case.arms) for case in cases]
    under = f"{under}; dots: kept rounds; line: median generation"
    height = sum(rows) * ROW_IN + 0.4 * len(cases) + 0.3
    figure, panels = sheet(title, under, height, len(cases), rows=rows)
    for axes, case in zip(panels, cases, strict=True):
        for at, arm in enumerate(case.arms):
            times, look = token_times(case).get(arm.name, []), looks[arm.name]
            # Later rounds lie lower: a machine that slowed down shows as a slant.
            lanes = [at + 0.5 * (lane / max(len(times) - 1, 1) - 0.5) for lane in range(len(times))]
            axes.scatter(times, lanes, s=13, color=look.colour, alpha=0.75, linewidth=0, zorder=3)
            if arm.state == "measured" and arm.token_s is not None:
                middle = arm.token_s.median * 1e3
                axes.vlines(middle, at - 0.36, at + 0.36, color=INK, linewidth=1.1, zorder=4)
                at_right(axes, at, f"{number(middle)} ms", ours=arm.name == OURS)
            elif arm.state != "measured":
                _missing(axes, at, arm)
        name_rows(axes, [arm.name for arm in case.arms])
        axes.set_title(f"{short(case.workload, 36)}: {case.prompt_tokens} tokens of prompt, {case.new_tokens} new")
        axes.grid(axis="x")
        ticks(axes, spans, log=log)
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
    key = {"a template": ACCENT, "PyTorch": PYTORCH}
    marks = {name: Look(name=name, colour=colour, hatch="") for name, colour in key.items()}
    height = max(len(found), 2) * ROW_IN + 0.6
    figure, (axes,) = sheet(title, under, height, 1, legend=list(marks), looks=marks)
    ratios = [region.ns / region.floor_ns if region.floor_ns else math.nan for region, _ in found]
    ends = [1.0, *(ratio for ratio in ratios if math.isfinite(ratio))]
    first = 1 if max(ends) / min(ends) > SPAN else 0  # where bars begin: at the roofline on a log axis
    for at, ((region, share), ratio) in enumerate(zip(found, ratios, strict=True)):
        theirs = region.choice.lower().startswith("pytorch")
        end = ratio if math.isfinite(ratio) else first
        axes.barh(at, end - first, 0.72, first, color=PYTORCH if theirs else ACCENT)
        label(axes, f"{number(ratio, 3)}×" if math.isfinite(ratio) else "no roofline", (end, at), (3, 0))
        at_right(axes, at, f"{share:.1%}")
    at_right(axes, -0.85, "of the step", colour=MUTED)
    axes.axvline(1, color=INK, linewidth=1, zorder=3)
    name_rows(axes, [f"{short(region.name, 30)} × {region.sites}" for region, _ in found])
    ticks(axes, ends, log=bool(first))
    axes.set_xlim(min(ends) / 1.1 if first else 0, max(ends) ** (1.08 if first else 1) * 1.1)
    axes.set_xlabel("× the roofline's time" + (", log scale" if first else ""))
    axes.grid(axis="x")
    return figure


def _wait_bars(
    title: str, under: str, waits: Mapping[str, Waits], cases: Sequence[Case], looks: Mapping[str, Look]
) -> Figure:
    kinds = [at for at in (0, 1) if any(pair[at] for pair in waits.values())]
    under += "; bars: median; lines: least to most"
    figure, panels = sheet(title, under, max(len(waits), 2) * ROW_IN + 0.7, len(kinds), across=True)
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
            label(axes, f"{number(median(seconds), 3)} s", (max(seconds), at), (4, 0), ours=name == OURS)
        most = max(second for pair in waits.values() for second in pair[kind])
        axes.set_xlim(0, (most or 1) * 1.22)
        name_rows(axes, list(waits) if axes is panels[0] else [""] * len(waits))
        axes.set_title(("Load alone", "Compile")[kind])
        axes.set_xlabel("s")
        ticks(axes, (), log=False)
        axes.grid(axis="x")
    return figure


def _missing(axes: Axes, row: int, arm: ArmResult, letters: int = 64) -> None:
    text = short(f"{arm.state}: {arm.reason}" if arm.reason else arm.state, letters)
    axes.text(
        0.01, row, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED, fontsize=7.5, bbox=ground()
    )


def _climb(title: str, under: str, case: Case) -> Figure:
    kinds = _kinds(case)
    rest = {name: Look(name=name, colour=colour, hatch="") for name, colour in ((_OTHERS, PYTORCH), (_REST, GRID))}
    looks = {**_coloured(kinds), **rest}
    under = f"{under}; left: what is gained over the rung above it in orange, lost in grey; right: of a token's time"
    height = len(case.rungs) * ROW_IN * 1.35 + 0.7
    figure, (falls, bars) = sheet(title, under, height, 2, across=True, legend=list(looks), looks=looks)
    _falls(falls, case)
    _bars(bars, case, looks, kinds)
    return figure


def _kinds(case: Case) -> list[str]:
    most: dict[str, float] = {}
    for rung in case.rungs:
        for one in rung.shares:
            most[one.kind] = max(most.get(one.kind, 0.0), one.share)
    ordered = sorted((kind for kind in most if most[kind] >= _LEAST), key=lambda kind: (-most[kind], kind))
    return ordered[:_KINDS]


def _falls(axes: Axes, case: Case) -> None:
    times = {arm.name: arm.token_s.median * 1e3 for arm in measured(case) if arm.token_s}
    ends = list(times.values())
    log = max(ends) / min(ends) > SPAN
    for at, rung in enumerate(case.rungs):
        if rung.name not in times:
            arm = case.arm(rung.name)
            text = short(f"{arm.state}: {arm.reason}" if arm else "absent", 44)
            axes.text(0.01, at, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED, fontsize=7.5)
            continue
        now = times[rung.name]
        was = rung.gain.before_s * 1e3 if rung.gain else now
        if rung.gain:
            axes.barh(at, was - now, 0.62, now, color=ACCENT if now < was else PYTORCH, linewidth=0)
        axes.vlines(now, at - 0.42, at + 0.42, color=INK, linewidth=1.6, zorder=4)
        gained = rung.gain.speedup.value if rung.gain and rung.gain.speedup else was / now
        more = f", {number(gained, 3)}×" if rung.gain else ""
        label(axes, f"{number(now, 3)} ms{more}", (max(was, now), at), (4, 0))
    name_rows(axes, [rung.name for rung in case.rungs])
    ticks(axes, ends, log=log)
    if log:
        axes.set_xlim(min(ends) / 1.25, max(ends) * (max(ends) / min(ends)) ** 0.55)
    else:
        axes.set_xlim(0, max(ends) * 1.55)
    axes.set_xlabel("ms per output token" + (", log scale" if log else ""))
    axes.grid(axis="x")


def _bars(axes: Axes, case: Case, looks: dict[str, Look], kinds: list[str]) -> None:
    for at, rung in enumerate(case.rungs):
        if rung.rest is None:
            axes.text(0.01, at, short(rung.looked, 40), va="center", color=MUTED, fontsize=7.5)
            continue
        found = dict.fromkeys(looks, 0.0)
        for one in rung.shares:
            found[one.kind if one.kind in kinds else _OTHERS] += one.share
        found[_REST] = max(rung.rest, 0.0)
        left = 0.0
        for kind, share in found.items():
            look = looks[kind]
            axes.barh(at, share, 0.72, left, color=look.colour, hatch=look.hatch, edgecolor=PAPER, linewidth=0)
            left += share
        if rung.rest < 0:  # overlapping launches take longer one by one than together
            at_right(axes, at, f"{left:.0%}")
    name_rows(axes, [""] * len(case.rungs))
    axes.set_xlim(0, max(1.0, *(1 - min(rung.rest or 0.0, 0.0) for rung in case.rungs)))
    axes.set_xlabel("share of a token's time, by kind of region")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="x")
