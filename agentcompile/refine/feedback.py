"""What the gates tell of a written template, as JSON for the next question and for people.

In: a verdict, and the bar that was to be passed. Out: plain values; texts are cleaned and cut, since they come from
compilers and from kernels that a model wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.region import Region
from agentcompile.ir.resources import Resources, most_warps, warps_of
from agentcompile.ir.template import Params
from agentcompile.ir.trial import (
    BuildFailed,
    Cancelled,
    Check,
    Comparison,
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
    interval,
    reason,
)

PYTORCH = "pytorch"
"""The arm of the captured operators, or of a task's model as it is."""
LOG, DETAIL = 4000, 400
"""The most characters of a log, and of one detail."""
_FINDINGS, _POINTS = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IncumbentComparison:
    """How a kernel compares with the incumbent in the same rounds."""

    label: str
    comparison: Comparison
    log_ratio: float
    """Mean of ln(incumbent / kernel): above 0 the kernel is faster."""
    half_width: float
    """Half the confidence interval of `log_ratio`; `NO_INTERVAL` or more where there is none."""
    incumbent_ns: float
    """The incumbent's time in these rounds."""

    @property
    def told(self) -> dict[str, Json]:
        """The comparison as a question shows it: the speedup, and its confidence interval."""
        known = math.isfinite(self.log_ratio)
        ends = interval(self.log_ratio, self.half_width)
        return {
            "incumbent": clean(self.label, 200),
            "comparison": self.comparison,
            "speedup": round(math.exp(self.log_ratio), 4) if known else None,
            "interval": [round(end, 4) for end in ends] if ends else None,
        }


def told(
    verdict: Verdict, region: Region, floor_ns: float, beside: IncumbentComparison | None = None
) -> dict[str, Json]:
    """Return what became of a template: the stage that it reached, and what was found there.

    `beside` compares it with the incumbent, in the rounds that gave its time.
    """
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
            found |= {"stage": stage, "detail": "this says nothing about the kernel: it may be evaluated again"}
        case Impossible(report=report, measurement=measurement) | Measured(report=report, measurement=measurement):
            found |= {"stage": "measure", **_report(report), **_times(measurement, region, floor_ns)}
    if beside is not None:
        found |= {"incumbent_us": _us(beside.incumbent_ns), "beside_incumbent": beside.told}
    return found


def shortened(log: str) -> str:
    """Return a log for a question: cleaned, its head and its end where it is long."""
    log = clean(log, 4 * LOG, lines=True)
    if len(log) <= LOG:
        return log
    half = LOG // 2
    return f"{log[:half]}\n... {len(log) - 2 * half} characters left out ...\n{log[-half:]}"


def resources(found: Sequence[Resources], arch: str) -> Json:
    """Return what the assembler reported of each entry, and how many warps its registers leave on a multiprocessor.

    Blocks and shared memory may leave fewer: they are a matter of launches, which the assembler does not know.
    """
    return [
        {**asdict(one), "warps_by_registers": warps_of(one.registers, arch), "most_warps": most_warps(arch)}
        for one in found
    ]


def points(found: Sequence[tuple[Params, Verdict]]) -> Json:
    """Return the verdict, and the time where there is one, of each point that was evaluated."""
    rows: list[Json] = []
    for params, verdict in found[:_POINTS]:
        row: dict[str, Json] = {"params": dict(params), "verdict": verdict.kind}
        if isinstance(verdict, Measured):
            row["us"] = _us(verdict.measurement.median_ns)
        else:
            row["reason"] = clean(reason(verdict), DETAIL)
        rows.append(row)
    return rows


def _findings(findings: Sequence[Finding]) -> Json:
    return [encode(one) for one in findings[:_FINDINGS]]


def _report(report: NumericReport) -> dict[str, Json]:
    failed = [check for check in report.checks if not check.ok]
    return {
        "failed_checks": [_check(check) for check in failed],
        "passed_checks": [check.name for check in report.checks if check.ok],
        **_error_ratio(report),
        "cases": report.cases,
    }


def _error_ratio(report: NumericReport) -> dict[str, Json]:
    """Return the pooled error in units of PyTorch's own, beside what is allowed; the worst one where none is pooled."""
    pooled = next((check for check in report.checks if check.name in _POOLED), None)
    if pooled is None:
        return {"error_ratio": encode(report.error_ratio)}
    return {"error_ratio": encode(pooled.measured), "error_ratio_allowed": encode(pooled.allowed)}


_POOLED = ("error-ratio", "error ratio")
"""The check of the pooled error of a region's outputs, and of a task's."""


def _check(check: Check) -> Json:
    """Return a failed check; its detail names case, port, element, what was there and what was expected."""
    return {
        "check": check.name,
        "measured": encode(check.measured),
        "allowed": encode(check.allowed),
        "times_allowed": encode(check.measured / check.allowed) if check.allowed else None,
        "where": clean(check.detail, DETAIL),
    }


def _times(m: Measurement, region: Region, floor_ns: float) -> dict[str, Json]:
    flops = region.cost.flops
    beside: dict[str, Json] = {"pytorch_us": _us(m.baseline_ns), "beside_pytorch": m.comparison}
    return {
        "us": _us(m.median_ns),
        "floor_us": _us(floor_ns) or None,  # not known where the machine's rates were measured beside others
        "times_the_floor": _share(m.median_ns, floor_ns),
        **(beside if m.baseline == PYTORCH else {}),
        "gb_per_s": round(m.bytes_per_s / 1e9, 3),
        "gflop_per_s": round(flops / max(m.median_ns, 1), 3) if flops else None,  # where only products are counted
        "contended": m.contended,
    }


def _us(ns: float) -> float:
    return round(ns / 1e3, 3)


def _share(ns: float, other_ns: float) -> Json:
    return round(ns / other_ns, 4) if other_ns > 0 else None
