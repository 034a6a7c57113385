"""A ladder as one figure: the time per token on each rung, and the kinds of region that take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..harness.result import ArmResult, Case, Rung
from .cells import number, short
from .sheet import (
    ACCENT,
    GRID,
    HATCHES,
    INK,
    MUTED,
    PALETTE,
    PAPER,
    PYTORCH,
    ROW_IN,
    SPAN,
    Look,
    at_right,
    label,
    name_rows,
    sheet,
)
from .ticks import log_ticks, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REST, _OTHERS = "between the regions", "other kinds"
_KINDS = 11
"""The most kinds of region that get a colour of their own; the table has all."""
_LEAST = 0.02
"""The share of the time per token that a kind must reach on some rung to get a colour of its own."""


def climb(title: str, under: str, case: Case) -> Figure:
    """Draw two panels with a row per rung: the time falling from rung to rung, and bars of shares."""
    kinds = _kinds(case)
    looks = _looks(kinds)
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


def _looks(kinds: list[str]) -> dict[str, Look]:
    found = {}
    for at, kind in enumerate(kinds):
        turn, place = divmod(at, len(PALETTE))
        found[kind] = Look(name=kind, colour=PALETTE[place], hatch=HATCHES[turn % len(HATCHES)])
    return {
        **found,
        _OTHERS: Look(name=_OTHERS, colour=PYTORCH, hatch=""),
        _REST: Look(name=_REST, colour=GRID, hatch=""),
    }


def _measured(case: Case, rung: Rung) -> ArmResult | None:
    arm = case.arm(rung.name)
    return arm if arm is not None and arm.state == "measured" and arm.token_s is not None else None


def _falls(axes: Axes, case: Case) -> None:
    times = {
        rung.name: arm.token_s.median * 1e3 for rung in case.rungs if (arm := _measured(case, rung)) and arm.token_s
    }
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
    if log:
        log_ticks(axes.xaxis, axes.set_xscale, max(ends) / min(ends))
        axes.set_xlim(min(ends) / 1.25, max(ends) * (max(ends) / min(ends)) ** 0.55)
    else:
        plain_ticks(axes.xaxis)
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
