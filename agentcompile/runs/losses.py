"""Why a candidate lost, told from what was measured: one function for the screen, the command line and reports.

In: a run's state and a trial. Out: one sentence. Nothing is guessed: each clause names a number that a gate, the clock
or the assembler gave. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentcompile.ir.resources import Resources, most_warps, warps_of
from agentcompile.ir.target import Target
from agentcompile.ir.trial import Choice, Fallback, Kernel, Measured, Measurement, Trial, reason
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.rows import trials_in
from agentcompile.runs.tables import duration

FAR_OUT = 2.0
"""Ratio of the 95th percentile to the median from which the slow rounds are named."""
_SAME = 0.01
"""Share by which two implied rates of the same resource may differ."""
_GATES = {
    "rejected": "rejected before it was built",
    "build-failed": "it did not build",
    "incorrect": "its results are wrong",
    "crashed": "it crashed",
    "timed-out": "it took too long",
    "disturbed": "it was ended from outside",
    "cancelled": "cancelled by user",
    "impossible": "its time cannot be true",
}
Reports = Mapping[str, Sequence[Resources]]
"""What the assembler reported, by the digest of a source."""
NO_REPORTS: Reports = {}


def why_lost(state: State, trial: Trial, reports: Reports = NO_REPORTS) -> str:
    """Return why a candidate is not what its region runs, as one sentence; empty for the one that runs, or is best.

    `reports` may hold what the assembler said of sources; without it registers are not named.
    """
    row = state.row(trial.candidate.region)
    verdict = trial.verdict
    if not isinstance(verdict, Measured):
        return f"{_GATES[verdict.kind]}: {reason(verdict)}".rstrip(": ")
    winner = _winner(state, row)
    if row is None or winner is None:
        return ""
    if winner.candidate.id == trial.candidate.id:
        return _unused(state, row)
    assert isinstance(winner.verdict, Measured), "a winner was measured"
    m, best = verdict.measurement, winner.verdict.measurement
    clauses = [_beside(m, best, trial, winner), *_rates(state, row, m)]
    clauses += _occupancy(state.target, reports.get(trial.source, ()), reports.get(winner.source, ()))
    return "; ".join([*clauses, *_doubts(m, trial)])


def _unused(state: State, row: RegionProgress) -> str:
    """Return why a region does not run its best candidate; empty where it does, or nothing is decided."""
    if state.final and not any(part.region == row.region for plan in state.final for part in plan.parts):
        return "the plan covers the operators of this region by other regions"
    runs = _runs(state, row)
    return f"PyTorch runs instead: {runs.reason}" if isinstance(runs, Fallback) else ""


def _runs(state: State, row: RegionProgress) -> Choice | None:
    parts = (part for plan in state.final for part in plan.parts if part.region == row.region)
    return next((part.choice for part in parts), row.choice)


def _winner(state: State, row: RegionProgress | None) -> Trial | None:
    """Return the newest measured trial of what a region runs; of its best candidate where it runs none."""
    if row is None:
        return None
    runs = _runs(state, row)
    id = runs.candidate.id if isinstance(runs, Kernel) else row.best.candidate if row.best is not None else ""
    found: Trial | None = None
    for trial in trials_in(state.trials, row.region):
        if trial.candidate.id == id and isinstance(trial.verdict, Measured):
            found = trial if found is None or trial.fidelity == "confirm" or found.fidelity == "search" else found
    return found


def _beside(m: Measurement, best: Measurement, trial: Trial, winner: Trial) -> str:
    """Return how much slower it is than what won, by their ratios to PyTorch, which each has of its own rounds."""
    log_ratio = best.log_ratio - m.log_ratio
    width = math.hypot(*(one.half_width if one.half_width < 1e3 else 0.0 for one in (m, best)))
    name = winner.candidate.label.partition("/")[2] or winner.candidate.label
    if abs(log_ratio) <= width:
        text = f"no faster than {name} within the interval of ±{width:.1%}"
    elif log_ratio > 0:
        text = f"{math.exp(log_ratio):.2f}× the time of {name}"
    else:
        text = f"faster by itself than {name}"
        text += (
            ", but only in rounds of the search" if trial.fidelity == "search" else ", which the whole step preferred"
        )
    changed = _changed(trial, winner)
    return f"{text} ({changed})" if changed else text


def _changed(trial: Trial, winner: Trial) -> str:
    """Return the parameters in which it differs from a winner of the same template: ``SPLITS 32 for 8``."""
    if trial.candidate.template != winner.candidate.template:
        return ""
    theirs = dict(winner.candidate.params)
    return ", ".join(
        f"{name} {value} for {theirs[name]}"
        for name, value in trial.candidate.params
        if name in theirs and theirs[name] != value
    )


def _rates(state: State, row: RegionProgress, m: Measurement) -> list[str]:
    """Return the share of the roofline that it reaches, by the name of the resource that bounds the region."""
    if not row.floor_ns or not m.median_ns:
        return []
    share = row.floor_ns / m.median_ns
    implied = row.bytes / row.floor_ns
    highest = max((one.bytes / one.floor_ns for one in state.rows if one.floor_ns), default=implied)
    what = "of read bandwidth" if implied >= highest * (1 - _SAME) else "of the multiply-add rate"
    return [f"{share:.0%} {what}" if share < 1 else f"at its roofline of {duration(row.floor_ns)}"]


def _occupancy(target: Target | None, own: Sequence[Resources], best: Sequence[Resources]) -> list[str]:
    """Return what the registers of its largest entry leave of a multiprocessor's warps, and what is spilled."""
    if target is None or not own:
        return []
    clauses = []
    most, registers = most_warps(target.arch), max(one.registers for one in own)
    warps = warps_of(registers, target.arch)
    beside = warps_of(max(one.registers for one in best), target.arch) if best else most
    if warps < beside:
        part = "half" if 2 * warps == beside else f"{warps / beside:.0%}"
        clauses.append(f"{registers} registers leave {warps} of {most} warps, {part} the occupancy")
    if spilled := max(one.spill_bytes for one in own):
        clauses.append(f"{spilled} bytes a thread are spilled")
    return clauses


def _doubts(m: Measurement, trial: Trial) -> list[str]:
    clauses = []
    if m.comparison == "INCONCLUSIVE":
        clauses.append(f"{m.rounds} rounds do not tell it from {m.baseline}")
    elif m.comparison == "SLOWER":
        clauses.append(f"slower than {m.baseline}")
    if m.contended:
        clauses.append(f"other processes disturbed {m.disturbed:.0%} of its rounds")
    elif m.p95_ns > FAR_OUT * m.median_ns:
        clauses.append(f"one round in twenty takes {m.p95_ns / m.median_ns:.1f}× its median")
    if trial.cut:
        clauses.append("time was up before all its rounds")
    return clauses
