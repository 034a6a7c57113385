"""Made-up facts of a run, for the tests of events, the fold, sessions and the command line."""

from __future__ import annotations

from agentcompile.events import (
    Advised,
    ChoiceMade,
    Event,
    GraphCaptured,
    LockWritten,
    ModelChecked,
    PlanAdmitted,
    RegionFound,
    RunFinished,
    RunStarted,
    SpaceBounded,
    StageFinished,
    StageStarted,
    StepsTimed,
    TrialFinished,
    TrialStarted,
    Warned,
)
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import (
    Check,
    Kernel,
    Measured,
    Measurement,
    NumericReport,
    Part,
    Plan,
    Trial,
    Verdict,
)
from agentcompile.ir.whole import ModelCheck, PhaseScore

REGION = "a" * 64
REGIME = Regime(phase="decode", context=(1, 64))
TARGET = Target(kind="cpu", device="a processor", arch="x86_64", isa=("avx2",), threads=2, cache_bytes=(1, 2, 3))
REPORT = NumericReport(
    checks=(Check(name="element", ok=True, measured=0.5, allowed=1.0),), error_ratio=1.1, cases=3, repeats=16
)


CHECK = ModelCheck(
    oracle="transformers",
    seed=0,
    lengths=(1, 2, 17),
    phases=(
        PhaseScore(
            phase="decode",
            positions=80,
            kl=2e-5,
            kl_eager=3e-5,
            kl_worst=9e-5,
            log_perplexity_ratio=1e-4,
            half_width=2e-4,
            mismatches=1,
            beyond_top=0,
        ),
    ),
)
TIMING = Timing(
    arms=("pytorch", "plan"),
    live=(0, 1),
    processes=(
        Samples(
            batch=4,
            clock=Clock(quantum_ns=1, doubling=(2.0, 1.9)),
            rounds=(Round(intervals_ns=((80, 84), (40, 44)), waited_ns=(0, 1)),),
        ),
    ),
    residency="dram",
)


def candidate(rows: int = 4) -> Candidate:
    return Candidate(
        region=REGION, regime=REGIME, template="linear/rows", template_digest="t", params=(("ROWS", rows),), target="x"
    )


def measured(log_ratio: float = 0.5) -> Measured:
    measurement = Measurement(
        median_ns=1_000,
        p95_ns=1_100,
        baseline_ns=1_650,
        baseline="pytorch",
        log_ratio=log_ratio,
        half_width=0.01,
        comparison="FASTER",
        rounds=20,
        dropped=0,
        processes=3,
        batch=16,
        residency="cache",
        bytes_per_s=1e10,
    )
    return Measured(report=REPORT, measurement=measurement)


def trial(rows: int = 4, verdict: Verdict | None = None, **more: object) -> Trial:
    return Trial(candidate=candidate(rows), source="s", verdict=verdict or measured(), **more)  # type: ignore[arg-type]


STARTED = RunStarted(model="sample", target=TARGET, options="o", version="0", budget_trials=10)
FOUND = RegionFound(
    region=REGION,
    name="linear@aaaaaa",
    region_kind="linear",
    regime=REGIME.name,
    sites=7,
    flops=10,
    bytes=20,
    floor_ns=500.0,
    share=0.6,
)
KERNEL = Kernel(candidate=candidate(), source="s", speedup=1.65, half_width=0.01)
PARTS = (Part(region=REGION, choice=KERNEL),)
PLAN = Plan(
    regime=REGIME, parts=PARTS, exact=True, step_ns=100_000, baseline_ns=250_000, log_ratio=0.9, half_width=0.02
)

WHOLE: tuple[Event, ...] = (
    STARTED,
    StageStarted(stage="capture"),
    GraphCaptured(phase="decode", operators=88, digest="d", unknown=("aten.erf.default",)),
    StageFinished(stage="capture", detail="88 operators", seconds=1.5),
    FOUND,
    SpaceBounded(region=REGION, templates=2, points=40, rejected=8),
    Advised(region=REGION, adviser="heuristic", head=("linear/rows(ROWS=4)",)),
    StageStarted(stage="search"),
    TrialStarted(region=REGION, candidate="c", label="linear/rows(ROWS=4)"),
    TrialFinished(trial=trial()),
    TrialFinished(trial=trial(fidelity="confirm")),
    StageFinished(stage="search", detail="2 trials", seconds=3.0),
    ChoiceMade(region=REGION, choice=KERNEL),
    StepsTimed(steps="f" * 64, timing=TIMING),
    PlanAdmitted(plan=PLAN),
    ModelChecked(plans="d" * 64, check=CHECK),
    Warned(text="the machine is busy"),
    LockWritten(path="x.lock.toml", digest="e"),
    RunFinished(seconds=5.0),
)
"""A run from its first event to its last."""
