"""A run that waits for review, of made-up facts: three regions with kernels, one in PyTorch, several candidates."""

from __future__ import annotations

from dataclasses import replace

from agentcompile.events import (
    ChoiceMade,
    Event,
    PlanAdmitted,
    RegionFound,
    ReviewOpened,
    StageFinished,
    StageStarted,
    TrialFinished,
)
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Cancelled, Fallback, Incorrect, Kernel, Measured, NumericReport, Part, Plan, Trial
from tests.unit import runs

NAMES = ("linear", "add", "rmsnorm", "softmax")
REGIONS = {name: letter * 64 for name, letter in zip(NAMES, "abcd", strict=True)}


def point(name: str, rows: int = 4) -> Candidate:
    return replace(runs.candidate(rows), region=REGIONS[name], template=f"{name}/rows")


def trial(name: str, rows: int = 4, log_ratio: float = 0.5, **more: object) -> Trial:
    verdict = more.pop("verdict", runs.measured(log_ratio))
    return Trial(candidate=point(name, rows), source=f"s{rows}", verdict=verdict, **more)  # type: ignore[arg-type]


def kernel(name: str, rows: int = 4) -> Kernel:
    return Kernel(candidate=point(name, rows), source=f"s{rows}", speedup=1.65, half_width=0.01)


def found(name: str) -> RegionFound:
    return replace(runs.FOUND, region=REGIONS[name], name=f"{name}@{REGIONS[name][:6]}", region_kind=name)


WRONG = Incorrect(report=NumericReport(checks=(), error_ratio=9.0, cases=1, repeats=1))
UNSURE = replace(runs.measured(0.5), measurement=replace(runs.measured(0.5).measurement, comparison="INCONCLUSIVE"))
assert isinstance(UNSURE, Measured)
PARTS = (
    *(Part(region=REGIONS[name], choice=kernel(name)) for name in NAMES[:3]),
    Part(region=REGIONS["softmax"], choice=Fallback(reason="no kernel is faster")),
)
PLAN = Plan(
    regime=runs.REGIME, parts=PARTS, exact=True, step_ns=10_000, baseline_ns=20_000, log_ratio=0.69, half_width=0.02
)
SEARCHED: tuple[Event, ...] = (
    runs.STARTED,
    *(found(name) for name in NAMES),
    StageStarted(stage="search"),
    *(TrialFinished(trial=trial(name)) for name in NAMES[:3]),
    TrialFinished(trial=trial("linear", 8, 0.3)),
    TrialFinished(trial=trial("linear", 16, verdict=WRONG)),
    TrialFinished(trial=trial("linear", 32, verdict=Cancelled(stage="build"))),
    TrialFinished(trial=trial("softmax", 8, -0.1)),
    *(TrialFinished(trial=trial(name, fidelity="confirm")) for name in NAMES[:2]),
    TrialFinished(trial=trial("rmsnorm", fidelity="confirm", verdict=UNSURE)),
    StageFinished(stage="search"),
)
EVENTS: tuple[Event, ...] = (
    *SEARCHED,
    *(ChoiceMade(region=REGIONS[name], choice=kernel(name)) for name in NAMES[:3]),
    PlanAdmitted(plan=PLAN, layouts=(("w", "packed-rows"),)),
    StageFinished(stage="admit"),
    ReviewOpened(regions=tuple(REGIONS[name] for name in NAMES[:3])),
)
"""`linear` and `add` are safe to approve, `rmsnorm` is not; of `linear` 8 rows are right too, 16 are wrong."""
