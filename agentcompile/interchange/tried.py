"""A trial on its way out, and what both formats ask of it: when it was told, what was checked, numbers as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from agentcompile.ir.digest import Json
from agentcompile.ir.trial import Impossible, Incorrect, Measured, NumericReport, Trial, Verdict

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial, and when its run acknowledged it."""

    trial: Trial
    at_ms: int
    """Unix time in milliseconds. Of a reused trial it says when it was found again, not when it was measured."""

    @property
    def at(self) -> str:
        """The time in ISO 8601, UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def ms(ns: int) -> float:
    """Nanoseconds as the milliseconds that both formats use; `round(1e6 * ms)` gives them back."""
    return ns / NS_PER_MS


def number(value: float) -> Json:
    """A number that JSON has; for one that it lacks, the text that pydantic writes (`ser_json_inf_nan="strings"`)."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def report_of(verdict: Verdict) -> NumericReport | None:
    """What the correctness suite found; None when a trial has no report, because it did not get there or died."""
    return verdict.report if isinstance(verdict, (Incorrect, Impossible, Measured)) else None


def pretty(value: Json) -> bytes:
    """A JSON file for people; ValueError for a number that JSON lacks."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def lines(values: Iterable[Json]) -> bytes:
    """JSON Lines; ValueError for a number that JSON lacks."""
    return "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n" for value in values).encode()
