"""What the gates tell of a written template, as JSON for the next question and for people.

In: a verdict, and the bar that was to be passed. Out: plain values; texts are cleaned and cut, since they come from
compilers and from kernels that a model wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.region import Region
from agentcompile.ir.resources import Resources
from agentcompile.ir.template import Params
from agentcompile.ir.trial import (
    BuildFailed,
    Cancelled,
    Check,
    Crashed,
    Disturbed,
    Finding,
    Impossible,
    Incorrect,
    Measured,
    Measurement,
    NumericReport,
    Rejected,
    TimedOut,
    Verdict,
    reason,
)
from agentcompile.refine.contract import Times

LOG, DETAIL = 4000, 400
"""The most characters of a log, and of one detail."""
_FINDINGS, _POINTS = 12, 8


def told(verdict: Verdict, region: Region, floor_ns: float, times: Times) -> dict[str, Json]:
    """Return what became of a template: the stage that it reached, and what was found there."""
    found: dict[str, Json] = {"verdict": verdict.kind, "reason": clean(reason(verdict), DETAIL)}
    match verdict:
        case Rejected(findings=findings):
            found |= {"stage": "check", "findings": _findings(findings)}
        case BuildFailed(log=log):
            found |= {"stage": "build", "log": shortened(log)}
        case Incorrect(report=report):
            found |= {"stage": "validate", **_report(report)}
        case Crashed(stage=stage, signal=number, detail=detail):
            found |= {"stage": stage, "signal": number, "detail": shortened(detail)}
        case TimedOut(stage=stage, limit_s=limit_s):
            found |= {"stage": stage, "limit_s": limit_s, "detail": "it took longer than the limit; nothing waits here"}
        case Disturbed(stage=stage) | Cancelled(stage=stage):
            found |= {"stage": stage, "detail": "this says nothing about the kernel: it may be judged again"}
        case Impossible(report=report, measurement=measurement) | Measured(report=report, measurement=measurement):
            found |= {"stage": "measure", **_report(report), **_times(measurement, region, floor_ns, times)}
    return found


def shortened(log: str) -> str:
    """Return a log for a question: cleaned, its head and its end where it is long."""
    log = clean(log, 4 * LOG, lines=True)
    if len(log) <= LOG:
        return log
    half = LOG // 2
    return f"{log[:half]}\n... {len(log) - 2 * half} characters left out ...\n{log[-half:]}"


def resources(found: Sequence[Resources]) -> Json:
    """Return the registers, shared memory and spills that the assembler reported, by entry."""
    return [encode(one) for one in found]


def points(found: Sequence[tuple[Params, Verdict]]) -> Json:
    """Return the verdict, and the time where there is one, of each point that was judged."""
    rows: list[Json] = []
    for params, verdict in found[:_POINTS]:
        row: dict[str, Json] = {"params": dict(params), "verdict": verdict.kind}
        if isinstance(verdict, Measured):
            row["us"] = _us(verdict.measurement.median_ns)
        else:
            row["reason"] = clean(reason(verdict), DETAIL)
        rows.append(row)
    return rows


def beside(comparison: str, log_ratio: float, half_width: float, label: str) -> Json:
    """Return how a kernel compares with the incumbent in the same rounds."""
    return {
        "incumbent": clean(label, 200),
        "comparison": comparison,
        "speedup": round(math.exp(log_ratio), 4) if math.isfinite(log_ratio) else None,
        "half_width": round(half_width, 4) if half_width < 1e3 else None,
    }


def _findings(findings: Sequence[Finding]) -> Json:
    return [encode(one) for one in findings[:_FINDINGS]]


def _report(report: NumericReport) -> dict[str, Json]:
    failed = [check for check in report.checks if not check.ok]
    return {
        "failed_checks": [_check(check) for check in failed],
        "passed_checks": [check.name for check in report.checks if check.ok],
        "error_ratio": encode(report.error_ratio),
        "cases": report.cases,
    }


def _check(check: Check) -> Json:
    """Return a failed check; its detail names case, port, element, what was there and what was expected."""
    return {
        "check": check.name,
        "measured": encode(check.measured),
        "allowed": encode(check.allowed),
        "times_allowed": encode(check.measured / check.allowed) if check.allowed else None,
        "where": clean(check.detail, DETAIL),
    }


def _times(m: Measurement, region: Region, floor_ns: float, times: Times) -> dict[str, Json]:
    return {
        "us": _us(m.median_ns),
        "floor_us": _us(floor_ns),
        "times_the_floor": _share(m.median_ns, floor_ns),
        "pytorch_us": _us(m.baseline_ns),
        "incumbent_us": _us(times.incumbent_ns),
        "times_the_incumbent": _share(m.median_ns, times.incumbent_ns),
        "beside_pytorch": m.comparison,
        "gb_per_s": round(m.bytes_per_s / 1e9, 3),
        "gflop_per_s": round(region.cost.flops / max(m.median_ns, 1), 3),
        "weights_lie_in": m.residency,
        "contended": m.contended,
    }


def _us(ns: float) -> float:
    return round(ns / 1e3, 3)


def _share(ns: float, other_ns: float) -> Json:
    return round(ns / other_ns, 4) if other_ns > 0 else None
