"""Committed bounds: the speedup that a case must reach on any machine of a kind, and the check of a result against it.

A bound is a ratio to the baseline of the same run, so that it is valid on machines of different speed.
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
    """The least speedup of one arm in one case."""

    case: str
    """The case's key, ``MODEL/WORKLOAD/MODE``."""
    arm: str
    speedup: float
    """Of the time per token."""
    total: float = 0.0
    """Of a whole request; 0: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The content of the file."""

    bound: tuple[Bound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A failed check in words, and the exit code that it asks for."""

    code: ExitCode
    text: str


def load_bounds(path: Path = BOUNDS) -> tuple[Bound, ...]:
    """Read the file.

    Raises:
        AgentCompileError: it cannot be read or is invalid (usage); the message names file, key and value.
    """
    return from_toml(Bounds, read_text(path), file=path.name).bound


def breaches(result: SuiteResult, bounds: Sequence[Bound] | None) -> tuple[Breach, ...]:
    """Return the failed checks of a result.

    Wrong outputs of our own arm always count. With `bounds`, so do failures of our own arm, outputs of it that were not
    compared with a reference, speedups whose whole interval is below their bound, and bounds that could not be checked.
    A bound of a case that was not run is skipped, since a run may be a part of a suite.
    """
    return (*_wrong(result, unchecked=bounds is not None), *_slow(result, bounds or ()))


def _wrong(result: SuiteResult, *, unchecked: bool) -> Iterator[Breach]:
    """Yield the failed checks of our own arm's output; with `unchecked`, also failures and outputs not compared.

    Failures are crashes, hangs and tokens that vary. Twins of our arm do not count.
    """
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
            continue
        for what, found, least in (("", arm.speedup, bound.speedup), (" per request", arm.total_speedup, bound.total)):
            if found is not None and found.high < least:
                told = f"{found.value:.2f}× ({found.low:.2f} … {found.high:.2f})"
                text = f"{bound.case}: {bound.arm} is {told}{what}, at least {least:g}× wanted"
                yield Breach(code=ExitCode.PERFORMANCE, text=text)


def worst(found: Sequence[Breach]) -> ExitCode:
    """Return the worst exit code: a wrong output, then a regression, then an undecided bound, else OK."""
    codes = {breach.code for breach in found}
    order = (ExitCode.CORRECTNESS, ExitCode.PERFORMANCE, ExitCode.UNDECIDED)
    return next((code for code in order if code in codes), ExitCode.OK)
