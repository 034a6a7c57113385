"""A run's state as rows of text for people, and as one JSON value for programs; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.search_events import SearchProgress
from agentcompile.ir.trial import CONTENDED, Choice, Fallback, Kernel, Measured, Measurement, Part, Plan, interval
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.rows import changed
from agentcompile.runs.status import status_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column heads, rows of the same length, and the indices of right-aligned columns."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()


def duration(ns: float) -> str:
    """Return nanoseconds in the unit that reads best: ``812 ns``, ``14.2 µs``, ``3.41 ms``, ``1.2 s``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns"


def amount(count: float, unit: str = "B") -> str:
    """Return a count with a decimal prefix: ``1.19 GB``, ``340 MFLOP``."""
    for prefix, per in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= per:
            value = count / per
            return f"{value:.0f} {prefix}{unit}" if value >= 100 else f"{value:.3g} {prefix}{unit}"
    return f"{count:.0f} {unit}"


def stage_name(stage: str) -> str:
    """Return what a stage is called for people, whom the words of the events tell less."""
    return {"cover": "plan", "admit": "step check", "verify": "check"}.get(stage, stage)


def regions(state: State) -> Table:
    """Return every region with what is known about it, largest share first; a dash where nothing is known."""
    heads = ("region", "count", "share", "roofline", "pytorch", "best", "ratio", "choice")
    return Table(heads=heads, rows=[_region(row) for row in _largest_first(state)], right=(1, 2, 3, 4, 5, 6))


def summary(state: State) -> Table:
    """Return every region with its cost at the roofline, and how many candidates it has."""
    heads = ("region", "count", "FLOP", "bytes", "FLOP/B", "roofline", "share", "templates", "candidates")
    return Table(heads=heads, rows=[_cost(row) for row in _largest_first(state)], right=(1, 2, 3, 4, 5, 6, 7, 8))


def plan(state: State, plan: Plan) -> Table:
    """Return a plan's regions with what was chosen and measured for each, largest share first."""
    heads = ("region", "count", "share", "roofline", "pytorch", "chosen", "ratio", "choice")
    known = [(row, part) for part in plan.parts if (row := state.row(part.region)) is not None]
    known.sort(key=lambda pair: (-_share(*pair), pair[0].name))
    return Table(heads=heads, rows=[_part(state, row, part) for row, part in known], right=(1, 2, 3, 4, 5, 6))


def plan_line(plan: Plan) -> str:
    """Return one line on a plan: the time of its step, or of a prefill chunk, beside the best baseline's.

    It ends with how prompts run through the plan, where that is not as usual.
    """
    return "; ".join((_times_of(plan), *prompt_lines(plan.prompts.chunk, plan.prompts.steps_up_to)))


def prompt_lines(chunk: int, steps_up_to: int) -> list[str]:
    """Return how prompts run through a prefill plan; nothing where they run as usual, with 0 for both numbers."""
    lines = [f"prompts run in chunks of {chunk}"] if chunk else []
    if steps_up_to:
        tokens = "1 token of a prompt runs" if steps_up_to == 1 else f"{steps_up_to} tokens of a prompt run"
        lines.append(f"up to {tokens} in decode steps")
    return lines


def _times_of(plan: Plan) -> str:
    if not plan.step_ns:
        return f"{plan.regime.name}: {len(plan.parts)} regions, not timed"
    unit = f"a chunk of {plan.chunk}" if plan.chunk else "a step"
    step = f"{duration(plan.step_ns)} {unit}, baseline {duration(plan.baseline_ns)}"
    ratio, ends = math.exp(plan.log_ratio), interval(plan.log_ratio, plan.half_width)
    if ends is None:
        about = f"about {rough(ratio, 1)}× by the quickest rounds"
        return f"{plan.regime.name}: {step}: {about}, contended: no interval, and when quiet it may be far less"
    text = f"{plan.regime.name}: {step}: {ratio:.2f}× ({ends[0]:.2f}–{ends[1]:.2f})"
    busy = f"{plan.disturbed:.0%} of the rounds disturbed, and when quiet it may be far less"
    return f"{text}, contended: {busy}" if plan.contended else text


def pace_line(pace: SearchProgress) -> str:
    """Return one line on a search: the time left, candidates, the best step, and what disturbs it."""
    left = f"{pace.eta_s:.0f} s left" if pace.budget_s else f"{pace.elapsed_s:.0f} s"
    parts = [left, f"{pace.candidates} candidates"]
    if pace.step_ns:
        parts.append(f"step {'' if pace.measured else 'about '}{duration(pace.step_ns)}")
    if pace.disturbed > CONTENDED:
        parts.append(f"machine busy: {pace.disturbed:.0%} of the rounds disturbed")
    return ", ".join(parts)


def overhead_line(pace: SearchProgress) -> str:
    """Return one line on the part of a search that neither built, validated nor timed; empty where it is unknown."""
    if pace.overhead_s is None or not pace.elapsed_s:
        return ""
    share = pace.overhead_s / pace.elapsed_s
    spent = f"{pace.elapsed_s:.1f} s, {pace.overhead_s:.1f} s of it ({share:.1%}) beside building and timing"
    return f"search and step tuning: {spent}"


def _largest_first(state: State) -> list[RegionProgress]:
    return sorted(state.rows, key=lambda row: (-row.share, row.name))


def _region(row: RegionProgress) -> tuple[str, ...]:
    best = row.best
    times = _times(best.measurement) if best else ("-", "-", "-")
    choice = choice_text(row.choice) if row.choice else _open(row)
    return (row.name, str(row.sites), f"{row.share:.1%}", duration(row.floor_ns), *times, choice)


def _open(row: RegionProgress) -> str:
    if row.points:
        return f"{row.points} candidates"
    return "no template" if row.state != "found" else "found"


def _cost(row: RegionProgress) -> tuple[str, ...]:
    intensity = f"{row.flops / max(row.bytes, 1):.2f}"
    cost = (amount(row.flops, "").strip(), amount(row.bytes), intensity, duration(row.floor_ns), f"{row.share:.1%}")
    return (row.name, str(row.sites), *cost, str(row.templates), str(row.points))


def _share(row: RegionProgress, part: Part) -> float:
    return row.share * (len(part.sites) or row.sites) / max(row.sites, 1)


def _part(state: State, row: RegionProgress, part: Part) -> tuple[str, ...]:
    times = ("-", "-", "-")
    if isinstance(part.choice, Kernel) and (found := measured(state, part.choice)) is not None:
        times = _times(found)
    sites = str(len(part.sites) or row.sites)
    return (row.name, sites, f"{_share(row, part):.1%}", duration(row.floor_ns), *times, choice_text(part.choice))


def measured(state: State, kernel: Kernel) -> Measurement | None:
    """Return the last measurement of a kernel, a confirming one if there is any; None when there is none."""
    last: dict[str, Measurement] = {}
    for trial in state.trials:
        if trial.candidate == kernel.candidate and isinstance(trial.verdict, Measured):
            last[trial.fidelity] = trial.verdict.measurement
    return last.get("confirm") or last.get("search")


def interval_text(log_ratio: float, half_width: float) -> str:
    """Return the interval of a ratio for people: `(1.20–1.35)`, or that there is none."""
    ends = interval(log_ratio, half_width)
    return f"({ends[0]:.2f}–{ends[1]:.2f})" if ends else "(no interval)"


def rough(ratio: float, digits: int) -> str:
    """Return an estimate of a ratio with as many digits as it deserves: 761 as 800 where it is one."""
    return f"{float(f'{ratio:.{digits}g}'):,.10g}"


def estimate(m: Measurement) -> str:
    """Return the ratio of a contended measurement, or of one without an interval; "" where it is no mere estimate."""
    known = interval(m.log_ratio, m.half_width) is not None
    return rough(m.speedup, 2 if known else 1) if m.contended or not known else ""


def ratio_cell(m: Measurement, decimals: int = 2) -> str:
    """Return a ratio as a column shows it: `1.65×`, and `~1.7×` for an estimate, whatever the decimals."""
    about = estimate(m)
    return f"~{about}×" if about else f"{m.speedup:.{decimals}f}×"


def _times(measurement: Measurement) -> tuple[str, str, str]:
    return duration(measurement.baseline_ns), duration(measurement.median_ns), ratio_cell(measurement)


def choice_text(choice: Choice) -> str:
    """Return what a region runs and, for a fallback, why."""
    match choice:
        case Kernel(candidate=candidate):
            return candidate.label
        case Fallback(reason=reason):
            return f"PyTorch: {reason}"


_FIELDS = {"regions": "rows", "plans": "final", "trials": "counts"}
"""Fields of a state that are called otherwise in JSON."""


def state_json(state: State, *, alive: bool = False) -> dict[str, Json]:
    """Return a run for programs: everything but the single trials and what was proposed.

    `alive` says that a process works on it. What never began a run, such as an inspection, is `waiting`.
    """
    names = "model target stages graphs boundaries regions plans lock drift warnings failure trials ui_hz pace"
    found = {name: encode(getattr(state, _FIELDS.get(name, name))) for name in names.split()}
    begun = alive or state.status != "waiting"
    status = status_of(state, alive=alive) if begun else state.status
    return {**found, "status": status, "regions": [encode(changed(row, proposed=())) for row in state.rows]}
