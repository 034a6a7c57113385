"""Committed bounds: what a case's speed-up must reach on any machine of a kind, and what a result is worth beside them.

A bound is a ratio with the baseline of the same run, so that it holds on machines of different speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.decode import from_toml, read_text
from agentcompile.errors import ExitCode

from .result import SuiteResult

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


def breaches(result: SuiteResult, bounds: Sequence[Bound]) -> tuple[Breach, ...]:
    """Wrong outputs, then speed-ups whose whole interval lies below their bound, then what could not be told.

    A bound of a case that was not run is passed over: a run may be of a part of a suite.
    """
    return (*_wrong(result), *_slow(result, bounds))


def _wrong(result: SuiteResult) -> Iterator[Breach]:
    for case in result.cases:
        for arm in case.arms:
            if arm.state == "wrong" and arm.name == "agentcompile":
                yield Breach(code=ExitCode.CORRECTNESS, text=f"{case.key}: {arm.name}: {arm.reason}")


def _slow(result: SuiteResult, bounds: Sequence[Bound]) -> Iterator[Breach]:
    cases = {case.key: case for case in result.cases}
    for bound in bounds:
        if bound.case not in cases:
            continue
        arm = cases[bound.case].arm(bound.arm)
        if arm is None or arm.state != "measured" or arm.speedup is None:
            why = "is not among the arms" if arm is None else arm.reason or "has too few undisturbed rounds"
            yield Breach(code=ExitCode.PERFORMANCE, text=f"{bound.case}: {bound.arm} {why}; {bound.speedup:g}× wanted")
        elif arm.speedup.high < bound.speedup:
            found = f"{arm.speedup.value:.2f}× ({arm.speedup.low:.2f} … {arm.speedup.high:.2f})"
            yield Breach(
                code=ExitCode.PERFORMANCE,
                text=f"{bound.case}: {bound.arm} is {found}, at least {bound.speedup:g}× wanted",
            )


def worst(found: Sequence[Breach]) -> ExitCode:
    """Wrong output before a regression."""
    codes = {breach.code for breach in found}
    return next((code for code in (ExitCode.CORRECTNESS, ExitCode.PERFORMANCE) if code in codes), ExitCode.OK)
