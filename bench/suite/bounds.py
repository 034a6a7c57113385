"""Committed bounds: what a case's speed-up must reach on any machine of a kind, and what a result is worth beside them.

A bound is a ratio with the baseline of the same run, so that it holds on machines of different speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.catalog.decode import from_toml, read_text
from agentcompile.errors import ExitCode

from ..harness.found import UNDISTURBED
from ..harness.result import SuiteResult
from ..harness.trial import OURS

BOUNDS = Path(__file__).resolve().parents[1] / "bounds.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least speed-up of one arm in one case."""

    case: str
    """``MODEL/WORKLOAD/MODE``."""
    arm: str
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The file."""

    bound: tuple[Bound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """What is not as it should be; `code` is the exit code it asks for."""

    code: ExitCode
    text: str


def load_bounds(path: Path = BOUNDS) -> tuple[Bound, ...]:
    """Read the file. Raises AgentCompileError with file, key and value."""
    return from_toml(Bounds, read_text(path), file=path.name).bound


def breaches(result: SuiteResult, bounds: Sequence[Bound] | None) -> tuple[Breach, ...]:
    """Wrong outputs; and with bounds, ours that failed or that nothing was held against, speed-ups whose whole interval
    lies below their bound, and what could not be told.

    A bound of a case that was not run is passed over: a run may be of a part of a suite.
    """
    return (*_wrong(result, unchecked=bounds is not None), *_slow(result, bounds or ()))


def _wrong(result: SuiteResult, *, unchecked: bool) -> Iterator[Breach]:
    """Ours under its own name. A crash, a hang and tokens that vary are outputs that nobody can rely on."""
    for case in result.cases:
        arm = case.arm(OURS)
        if arm is None:
            continue
        text = ""
        if arm.state == "wrong":
            text = arm.reason
        elif unchecked and arm.state == "failed" and arm.reason != UNDISTURBED:
            text = arm.away
        elif unchecked and arm.state == "measured" and arm.agrees is None:
            text = f"nothing was held against its output: {case.reference or 'fp32 said nothing'}"
        if text:
            yield Breach(code=ExitCode.CORRECTNESS, text=f"{case.key}: {arm.name}: {text}")


def _slow(result: SuiteResult, bounds: Sequence[Bound]) -> Iterator[Breach]:
    cases = {case.key: case for case in result.cases}
    for bound in bounds:
        if bound.case not in cases:
            continue
        arm = cases[bound.case].arm(bound.arm)
        if arm is None or arm.state != "measured" or arm.speedup is None:
            why = "is not among the arms" if arm is None else arm.reason or "has too few undisturbed rounds"
            yield Breach(code=ExitCode.UNDECIDED, text=f"{bound.case}: {bound.arm} {why}; {bound.speedup:g}× wanted")
        elif arm.speedup.high < bound.speedup:
            found = f"{arm.speedup.value:.2f}× ({arm.speedup.low:.2f} … {arm.speedup.high:.2f})"
            yield Breach(
                code=ExitCode.PERFORMANCE,
                text=f"{bound.case}: {bound.arm} is {found}, at least {bound.speedup:g}× wanted",
            )


def worst(found: Sequence[Breach]) -> ExitCode:
    """Wrong output before a regression, and that before what nobody knows."""
    codes = {breach.code for breach in found}
    order = (ExitCode.CORRECTNESS, ExitCode.PERFORMANCE, ExitCode.UNDECIDED)
    return next((code for code in order if code in codes), ExitCode.OK)
