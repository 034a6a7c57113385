"""A trial to be exported, and what both formats need of it: its time, its checks, numbers as JSON."""

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
class ExportedTrial:
    """A trial, and when its run recorded it."""

    trial: Trial
    at_ms: int
    """Unix time in milliseconds; of a reused trial, when it was found again, not when it was measured."""

    @property
    def at(self) -> str:
        """The time in ISO 8601, UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def ms(ns: int) -> float:
    """Return nanoseconds as the milliseconds that both formats use; `round(1e6 * ms)` gives them back."""
    return ns / NS_PER_MS


def number(value: float) -> Json:
    """Return a number as JSON; NaN and infinities as the texts that pydantic writes (`ser_json_inf_nan="strings"`)."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def report_of(verdict: Verdict) -> NumericReport | None:
    """Return what the correctness suite found; None for a trial that ended before it."""
    return verdict.report if isinstance(verdict, (Incorrect, Impossible, Measured)) else None


def pretty(value: Json) -> bytes:
    """Return an indented JSON file, for people.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def lines(values: Iterable[Json]) -> bytes:
    """Return JSON Lines.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    return "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n" for value in values).encode()
