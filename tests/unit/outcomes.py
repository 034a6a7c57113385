"""Trials of every verdict, of one region that needs no capture: what exports are made from."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from agentcompile.interchange.trials import ExportedTrial
from agentcompile.ir.region import Region
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import (
    BuildFailed,
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
    Trial,
    Verdict,
)
from agentcompile.materialize import specialise
from tests.unit import fakes

REGION = fakes.linear_region(hidden=64, rows=32)
TARGET = fakes.target(libraries=(("torch", "2.13.0"),))
TEMPLATE = fakes.rows_template()
AT_MS = 1_790_000_000_123


def candidate(rows: int = 4, region: Region = REGION) -> Candidate:
    return Candidate(
        region=region.id,
        regime=region.regime,
        template=TEMPLATE.id,
        template_digest=TEMPLATE.digest,
        params=(("ROWS", rows), ("UNROLL", 1)),
        target=TARGET.digest,
    )


def tried(verdict: Verdict, *, rows: int = 4, region: Region = REGION, **more: object) -> ExportedTrial:
    point = candidate(rows, region)
    source = specialise(TEMPLATE, region, point.params, TARGET).digest
    trial = Trial(candidate=point, source=source, verdict=verdict, **more)  # type: ignore[arg-type]
    return ExportedTrial(trial=trial, at_ms=AT_MS)


def measurement(median_ns: int = 1234, baseline_ns: int = 4321, baseline: str = "pytorch") -> Measurement:
    return Measurement(
        median_ns=median_ns,
        p95_ns=median_ns + 100,
        baseline_ns=baseline_ns,
        baseline=baseline,
        log_ratio=math.log(baseline_ns / median_ns),
        half_width=0.01,
        comparison="FASTER",
        rounds=20,
        dropped=1,
        processes=3,
        batch=16,
        residency="dram",
        bytes_per_s=1.5e10,
    )


RIGHT = NumericReport(
    checks=(Check(name="element", ok=True, measured=0.5, allowed=1.0),), error_ratio=1.1, cases=6, repeats=16
)
WRONG = NumericReport(
    checks=(Check(name="element", ok=False, measured=math.inf, allowed=1.0, detail="y[3] is nan, expected 1"),),
    error_ratio=math.inf,
    cases=1,
    repeats=16,
)
FAILURES: dict[str, Verdict] = {
    "rejected": Rejected(findings=(Finding(rule="shared-memory", severity="error", text="300 KiB of 227"),)),
    "build-failed": BuildFailed(log="kernel.cpp:3: error: no such thing\nstopped"),
    "incorrect": Incorrect(report=WRONG),
    "crashed in build": Crashed(stage="build", signal=9),
    "crashed in validate": Crashed(stage="validate", signal=11, detail="redzone"),
    "crashed in measure": Crashed(stage="measure", signal=0),
    "disturbed": Disturbed(stage="measure", detail="killed by SIGKILL"),
    "timed-out": TimedOut(stage="validate", limit_s=60.0),
    "impossible": Impossible(report=RIGHT, measurement=measurement(median_ns=77), floor_ns=900),
}
"""One of every way to have no time."""

times = st.integers(min_value=1, max_value=10**12)
right = st.builds(
    lambda median, baseline, rival: Measured(
        report=RIGHT, measurement=measurement(median, baseline, "linear/rows" if rival else "pytorch")
    ),
    times,
    times,
    st.booleans(),
)
verdicts: st.SearchStrategy[Verdict] = st.one_of(right, st.sampled_from(list(FAILURES.values())))
"""Any verdict; measured ones with any times."""
trials = st.lists(
    st.builds(
        lambda verdict, rows, fidelity, reused: tried(verdict, rows=rows, fidelity=fidelity, reused=reused),
        verdicts,
        st.sampled_from(TEMPLATE.params[0].domain),
        st.sampled_from(["search", "confirm"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
"""Trials of one region in the order of a run."""
