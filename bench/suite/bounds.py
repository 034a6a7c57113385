"""Committed bounds: the speedup that a case must reach on any machine of a kind, and the check of a result against it.

A bound is a ratio to the baseline of the same run, so that it is valid on machines of different speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.catalog.decode import from_toml, read_text
from agentcompile.errors import ExitCode

from ..harness.found import UNDISTURBED
from ..harness.means import with_totals
from ..harness.result import Interval, SuiteResult, read_result, results_in
from ..harness.trial import OURS

BOUNDS = Path(__file__).resolve().parents[1] / "bounds.toml"
SHARE = 0.75
"""A bound as a share of the lower end of the least committed interval: what a shared machine's noise leaves of it."""


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


def bounds_from(results: Path) -> Iterator[str]:
    """Yield the lines of the file: `SHARE` of what the committed suites for CPUs found, the least over machines.

    Cases that none of them has are bounded by older ones, from when prompts ran in PyTorch.
    """
    least = _least(results)
    for key, (speedup, total) in (_least(results / "before-prompt-kernels") | least).items():
        yield from ("[[bound]]", f'case = "{key}"', f'arm = "{OURS}"', f"speedup = {speedup}", f"total = {total}", "")


def _least(folder: Path) -> dict[str, list[float]]:
    """Return the bounds of the time per token and of a whole request, by case."""
    least: dict[str, list[float]] = {}
    for path in results_in(folder, "cpu-suite-*.json"):
        for case in with_totals(read_result(path)).cases:
            arm = case.arm(OURS)
            if arm is None or arm.speedup is None or arm.total_speedup is None:
                continue
            ends = [_lower(arm.speedup), _lower(arm.total_speedup)]
            least[case.key] = [min(pair) for pair in zip(ends, least.get(case.key, ends), strict=True)]
    return least


def _lower(found: Interval) -> float:
    return math.floor(SHARE * found.low * 10) / 10


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
            if found is None:
                if least:
                    text = f"{bound.case}: {bound.arm} has no figure{what}; {least:g}× wanted"
                    yield Breach(code=ExitCode.UNDECIDED, text=text)
            elif found.high < least:
                told = f"{found.value:.2f}× ({found.low:.2f} … {found.high:.2f})"
                text = f"{bound.case}: {bound.arm} is {told}{what}, at least {least:g}× wanted"
                yield Breach(code=ExitCode.PERFORMANCE, text=text)


def worst(found: Sequence[Breach]) -> ExitCode:
    """Return the worst exit code: a wrong output, then a regression, then an undecided bound, else OK."""
    codes = {breach.code for breach in found}
    order = (ExitCode.CORRECTNESS, ExitCode.PERFORMANCE, ExitCode.UNDECIDED)
    return next((code for code in order if code in codes), ExitCode.OK)
