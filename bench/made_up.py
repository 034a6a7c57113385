"""Events of a made-up run of any length, to benchmark readers of runs; none of its numbers was measured."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentcompile.events import (
    Advised,
    Event,
    RegionFound,
    RoundsProgress,
    RunStarted,
    SpaceBounded,
    StageStarted,
    TrialFinished,
    TrialStarted,
)
from agentcompile.ir.digest import digest
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Check, Measured, Measurement, NumericReport, Trial

REGIONS = 33
ROUNDS = 8
"""Number of progress events between a trial's start and its end."""
_REGIME = Regime(phase="decode", context=(1, 2048))
_TARGET = Target(kind="cpu", device="made up", arch="x86_64", isa=("avx2",), threads=2, cache_bytes=(1, 2, 3))
_REPORT = NumericReport(
    checks=(Check(name="element", ok=True, measured=0.5, allowed=1.0),), error_ratio=1.0, cases=6, repeats=16
)


def made_up_events(count: int, seed: int = 0) -> Iterator[Event]:
    """Yield `count` events: regions first, then trials that begin, progress and end, spread over the regions."""
    made = _endless(random.Random(seed))
    for _, event in zip(range(count), made, strict=False):
        yield event


def _endless(draw: random.Random) -> Iterator[Event]:
    ids = [digest("made-up/1", number) for number in range(REGIONS)]
    yield RunStarted(model="made-up", target=_TARGET, options="made up", version="0", budget_trials=10_000)
    yield StageStarted(stage="partition")
    for number, id in enumerate(ids):
        kind = f"linear-{number}"
        yield RegionFound(
            region=id, name=f"{kind}@{id[:6]}", region_kind=kind, regime=_REGIME.name, sites=1 + number % 6,
            flops=10**6, bytes=10**6, floor_ns=1000.0 + number, share=1 / REGIONS,
        )  # fmt: skip
        yield SpaceBounded(region=id, templates=2, points=400, rejected=20)
        yield Advised(region=id, adviser="heuristic", head=(f"{kind}/rows(ROWS=4)",), note="a note")
    yield StageStarted(stage="search")
    number = 0
    while True:
        candidate = _candidate(ids[number % REGIONS], number)
        yield TrialStarted(region=candidate.region, candidate=candidate.id, label=candidate.label)
        for done in range(ROUNDS):
            yield RoundsProgress(region=candidate.region, done=done, total=ROUNDS)
        yield TrialFinished(trial=Trial(candidate=candidate, source="s", verdict=_measured(draw)))
        number += 1


def _candidate(region: str, number: int) -> Candidate:
    params = (("ROWS", number // REGIONS), ("AHEAD", 2048))
    return Candidate(
        region=region, regime=_REGIME, template="linear/rows", template_digest="t", params=params, target="made up"
    )


def _measured(draw: random.Random) -> Measured:
    log_ratio = draw.gauss(0.4, 0.2)
    measurement = Measurement(
        median_ns=round(10_000 * (1.0 + draw.random())), p95_ns=24_000, baseline_ns=30_000, baseline="pytorch",
        log_ratio=log_ratio, half_width=0.02, comparison="FASTER", rounds=10, dropped=0, processes=1, batch=16,
        residency="cache", bytes_per_s=1e10,
    )  # fmt: skip
    return Measured(report=_REPORT, measurement=measurement)
