"""The published figures, their targets, and whether what was measured meets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentcompile.cli.render import columns
from agentcompile.runs.tables import Table

from ..harness.result import Interval

Sense = Literal[">=", "<="]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure. `value` is None when it was not measured, and `note` then says why."""

    model: str
    name: str
    sense: Sense
    target: float
    unit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """The upper end of a two-sided 95 % interval, of which `low` is the lower end; None when there is none."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """The comparison with the target: `PASS`, `short`, or `-` when there is no value."""
        if self.value is None:
            return "-"
        return "PASS" if (self.value >= self.target if self.sense == ">=" else self.value <= self.target) else "short"

    @property
    def cells(self) -> tuple[str, str, str]:
        """The cells of the report's table: the value, its interval and the target."""
        value = "-" if self.value is None else f"{_number(self.value)} {self.unit}".strip()
        span = "" if self.low is None else f"{_number(self.low)} … {_number(self.high)}"
        sign = "≥" if self.sense == ">=" else "≤"
        return value, span, f"{sign} {_number(self.target)} {self.unit}".strip()


SPEEDUPS: Mapping[str, Mapping[str, float]] = {
    "qwen3-0.6b": {"hf-eager": 2.0, "hf-compile": 1.3, "llama.cpp": 1.2},
    "sample": {"hf-eager": 6.0, "max-autotune": 2.0},
    "qwen3-1.7b": {"hf-eager": 12.0, "static-reduce-overhead": 1.5, "static-max-autotune": 1.5},
    "qwen3-4b": {"hf-eager": 8.0, "static-reduce-overhead": 1.5, "static-max-autotune": 1.5},
    "llama-3.2-1b": {"hf-eager": 12.0, "static-reduce-overhead": 1.5, "static-max-autotune": 1.5},
}
"""The least speedup of the decode rate over each peer, by checkpoint."""
TOKEN_MS: Mapping[str, float] = {"qwen3-1.7b": 1.0, "qwen3-4b": 2.2, "llama-3.2-1b": 0.69}
"""The most milliseconds per output token, by checkpoint."""
FIRST_TOKEN_PEERS = ("static-reduce-overhead", "static-max-autotune")
"""The peers whose TTFT ours must not exceed on a GPU."""
MEMORY = 1.1
"""The most peak memory on a GPU, as a multiple of the bytes of weights and KV cache."""
BANDWIDTH: Mapping[str, float] = {"qwen3-0.6b": 0.85}
"""The least share of the measured read bandwidth, by checkpoint."""
WAITS_S: Mapping[str, Mapping[str, float]] = {
    "sample": {"first compile": 180.0, "second compile": 20.0, "replay to first token": 5.0},
    "qwen3-1.7b": {"first compile": 600.0},
}
"""The most seconds that each wait may take, by checkpoint."""
IMPORT_MS = 100.0
KL_RATIO = 1.25
LN_PERPLEXITY = 5e-4


def figure(
    model: str, name: str, sense: Sense, target: float, found: Interval | float | None, note: str = "", unit: str = ""
) -> Figure:
    """Build a figure from a value or an interval; None for `found` gives a figure without a value."""
    value, low, high = (found.value, found.low, found.high) if isinstance(found, Interval) else (found, None, None)
    more = {"value": value, "low": low, "high": high}
    return Figure(model=model, name=name, sense=sense, target=target, unit=unit, note=note, **more)


def ratio(model: str, name: str, target: float, found: Interval | None, note: str = "") -> Figure:
    """Build a figure that must be at least `target`, from an estimate; it has no value when `found` is None."""
    return figure(model, name, ">=", target, found, note if found else note or "too few rounds")


def accuracy_figures(model: str, found: Mapping[str, Any] | None, note: str) -> list[Figure]:
    """Return the figures of KL relative to eager's, and of the farthest end of the log perplexity ratio's interval."""
    kl, far = "KL vs fp32 / eager's", "|ln perplexity ratio|"
    if found is None:
        return [figure(model, kl, "<=", KL_RATIO, None, note), figure(model, far, "<=", LN_PERPLEXITY, None, note)]
    mean, half = found["ln_perplexity_ratio"], found["ln_perplexity_half_width"]
    told = f"farthest end of {mean - half:+.2e} … {mean + half:+.2e}"
    return [
        figure(model, kl, "<=", KL_RATIO, found["kl_ratio"]),
        figure(model, far, "<=", LN_PERPLEXITY, abs(mean) + half, told),
    ]


def figure_table(figures: Sequence[Figure]) -> list[str]:
    """Return the aligned lines of a table of figures: value, interval, target, verdict and note of each."""
    rows = [(figure.model, figure.name, *figure.cells, figure.verdict, figure.note) for figure in figures]
    heads = ("model", "figure", "found", "95 % interval", "target", "verdict", "note")
    return columns(Table(heads=heads, rows=rows))


def arm_table(rows: Sequence[tuple[str, str, float | None, float | None, str]]) -> list[str]:
    """Return the aligned lines of a table with rows (model, arm, tokens/s, TTFT in seconds, note)."""
    heads = ("model", "arm", "tokens/s", "first token, ms", "note")
    cells = [
        (model, arm, "-" if rate is None else f"{rate:.1f}", "-" if first is None else f"{first * 1e3:.1f}", note)
        for model, arm, rate, first, note in rows
    ]
    return columns(Table(heads=heads, rows=cells, right=(2, 3)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}" if 0 < abs(value) < 1e-2 else f"{value:.3g}"
