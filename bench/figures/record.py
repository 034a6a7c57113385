"""The published figures with their targets, the rows of the arms' table and the JSON record, from the measurements."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from agentcompile.ir.codec import encode
from agentcompile.ir.target import Target
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import LockChoice
from agentcompile.runs.tables import Table

from ..harness.partial import Progress
from ..harness.rates import VARIES, Round, bandwidth_share, estimate, note_of, same_tokens, speedup
from ..harness.records import nameless
from ..harness.result import Interval
from ..harness.times import Imported, Took
from ..harness.trial import OURS
from ..harness.workload import Workload

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


def figure_table(figures: Sequence[Figure]) -> Table:
    """Return a table of figures: value, interval, target, verdict and note of each."""
    rows = [(figure.model, figure.name, *figure.cells, figure.verdict, figure.note) for figure in figures]
    heads = ("model", "figure", "found", "95 % interval", "target", "verdict", "note")
    return Table(heads=heads, rows=rows)


def arm_table(rows: Sequence[tuple[str, str, float | None, float | None, str]]) -> Table:
    """Return a table with rows (model, arm, tokens/s, TTFT in seconds, note)."""
    heads = ("model", "arm", "tokens/s", "first token, ms", "note")
    cells = [
        (model, arm, "-" if rate is None else f"{rate:.1f}", "-" if first is None else f"{first * 1e3:.1f}", note)
        for model, arm, rate, first, note in rows
    ]
    return Table(heads=heads, rows=cells, right=(2, 3))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if 0 < abs(value) < 1e-2:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}"


class FigurePart(NamedTuple):
    """The measurements of one checkpoint, with what its lock runs by the name of each region of the decode step."""

    workload: Workload
    arms: tuple[str, ...]
    """The arms that were requested."""
    progress: Progress
    choices: dict[str, str]
    """What the lock runs for each region of the decode step, by region name."""


def record(
    parts: Sequence[FigurePart],
    figures: Sequence[Figure],
    imported: Imported,
    target: Target,
    arguments: Sequence[str],
    revision: Mapping[str, Any],
    resumed: int,
) -> dict[str, Any]:
    """Build the JSON record of the whole run."""
    return {
        "format": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["agentcompile", "bench", "figures", *nameless(arguments)]),
        "resumed": resumed,
        **revision,
        "machine": encode(target),
        "python": sys.version.split()[0],
        "import": asdict(imported),
        "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in figures],
        "models": {part.workload.name: _part_record(part) for part in parts},
    }


def import_figure(imported: Imported) -> Figure:
    """Return the figure of what `import agentcompile` costs; it has no value when the import also loads PyTorch."""
    value, note = (None, "PyTorch came along") if imported.with_torch else (imported.median_ms, "without PyTorch")
    return figure("-", "import agentcompile", "<=", IMPORT_MS, value, note, "ms")


def figures_of(part: FigurePart) -> list[Figure]:
    """Return every figure that has a target on this checkpoint, whether or not it was measured."""
    name, rounds, reasons = part.workload.name, part.progress.outcome.rounds, part.progress.outcome.reasons
    figures = []
    share = bandwidth_share(rounds, OURS, part.workload.token_bytes)
    for target in [BANDWIDTH[name]] if name in BANDWIDTH else []:
        figures.append(ratio(name, "share of read bandwidth", target, share, reasons.get(OURS, "")))
    for peer, target in SPEEDUPS[name].items():
        why, found = reasons.get(OURS) or reasons.get(peer) or "", speedup(rounds, OURS, peer)
        figures.append(ratio(name, f"decode vs {peer}", target, found, _beside(rounds, peer, found, why)))
    figures += _device_figures(part)
    for what, most in WAITS_S.get(name, {}).items():
        took = part.progress.times.get(what, Took(seconds=None, reason="not measured"))
        figures.append(figure(name, what, "<=", most, took.seconds, took.reason, "s"))
    figures = [_right(one, part.progress.outcome.agreement) for one in figures]
    if name == "sample":
        figures += accuracy_figures(name, part.progress.accuracy, part.progress.accuracy_reason)
    return figures


def _right(one: Figure, agreement: Mapping[str, str]) -> Figure:
    """Return the figure, without its value when the timed program, ours or the peer's, computes something else."""
    for arm in (OURS, one.name.partition(" vs ")[2]):
        if (wrong := agreement.get(arm)) and one.name not in WAITS_S.get(one.model, {}):
            return replace(one, value=None, low=None, high=None, note=f"{arm} is wrong: {wrong}")
    return one


def _beside(rounds: Sequence[Round], peer: str, found: Interval | None, why: str) -> str:
    varies = found is not None and not same_tokens(rounds, peer)
    return "; ".join(filter(None, (why, f"{peer}: {VARIES}" if varies else "")))


def _device_figures(part: FigurePart) -> Iterator[Figure]:
    name, rounds = part.workload.name, part.progress.outcome.rounds
    if name not in TOKEN_MS:
        return
    kept, reason = _kept(rounds, OURS), part.progress.outcome.reasons.get(OURS, "")
    spent = estimate([math.log(timed.token_s(OURS) * 1e3) for timed in kept])
    yield figure(name, "time a token", "<=", TOKEN_MS[name], spent, reason or ("" if spent else "too few rounds"), "ms")
    for peer in FIRST_TOKEN_PEERS:
        both = [timed for timed in kept if peer in timed.visits]
        logs = [math.log(timed.first_s(peer) / timed.first_s(OURS)) for timed in both]
        why, found = part.progress.outcome.reasons.get(peer, reason), estimate(logs)
        yield ratio(name, f"first token vs {peer}", 1.0, found, _beside(rounds, peer, found, why))
    held = part.progress.outcome.facts.get(OURS, {}).get("memory_bytes")
    least = part.workload.weight_bytes + part.workload.cache_bytes
    times = held / least if isinstance(held, int) else None
    note = "not measured" if times is None else ""
    yield figure(name, "peak memory / weights and cache", "<=", MEMORY, times, note)


def arm_rows(part: FigurePart) -> Iterator[tuple[str, str, float | None, float | None, str]]:
    """Yield (model, arm, tokens/s, TTFT in seconds, note) for every requested arm that has measurements or a note.

    Tokens/s and TTFT are medians over the rounds that count, None when there are none. The note says what is wrong or
    varies.
    """
    outcome = part.progress.outcome
    for arm in part.arms:
        kept = _kept(outcome.rounds, arm)
        disturbed = not kept and any(arm in timed.visits for timed in outcome.rounds)
        lost = "other work on the machine disturbed all of its rounds" if disturbed else ""
        told = outcome.reasons.get(arm) or outcome.agreement.get(arm) or lost
        note = note_of(told, same=same_tokens(outcome.rounds, arm))
        if kept or note:
            rate = median(1 / timed.token_s(arm) for timed in kept) if kept else None
            first = median(visit.first_s for timed in kept for visit in timed.visits[arm]) if kept else None
            yield part.workload.name, arm, rate, first, note


def choices_of(lock: Path) -> dict[str, str]:
    """Return what the decode plans of a lock run, by region name: template and parameters, or why PyTorch runs it."""
    plans = [plan for plan in read_lock(lock).plan if plan.phase == "decode"]
    return {choice.name: _choice(choice) for plan in plans for choice in plan.choices}


def _choice(choice: LockChoice) -> str:
    if choice.use == "fallback":
        return f"PyTorch: {choice.reason}"
    return f"{choice.template}({', '.join(f'{name}={value}' for name, value in choice.params.items())})"


def _kept(rounds: Sequence[Round], arm: str) -> list[Round]:
    return [timed for timed in rounds if arm in timed.visits and not timed.contended]


def _part_record(part: FigurePart) -> dict[str, Any]:
    outcome, workload = part.progress.outcome, part.workload
    arms: dict[str, Any] = {}
    for _, arm, rate, first, note in arm_rows(part):
        kept = _kept(outcome.rounds, arm)
        arms[arm] = {
            "tokens_per_s": rate,
            "tokens_per_s_estimate": _asdict(estimate([-math.log(timed.token_s(arm)) for timed in kept])),
            "first_token_s": first,
            "share_of_read_bandwidth": _asdict(bandwidth_share(outcome.rounds, arm, workload.token_bytes)),
            "load_s": list(outcome.load_s.get(arm, ())),
            "agrees_with_fp32": None if arm not in outcome.agreement else not outcome.agreement[arm],
            "note": note,
            "facts": dict(outcome.facts.get(arm, {})),
        }
    return {
        "prompt_tokens": len(workload.ids),
        "new_tokens": workload.new,
        "parameters": workload.parameters,
        "bytes_read_per_token": workload.token_bytes,
        "read_bytes_per_s": median(timed.read_bytes_per_s for timed in outcome.rounds) if outcome.rounds else None,
        "rounds_dropped": sum(timed.contended for timed in outcome.rounds),
        "arms": arms,
        "times": {name: asdict(took) for name, took in part.progress.times.items()},
        "accuracy": part.progress.accuracy,
        "choices": part.choices,
        "rounds": [_round_record(timed) for timed in outcome.rounds],
    }


def _round_record(timed: Round) -> dict[str, Any]:
    """Return the JSON record of a round, without the times of single generations, which are thousands of numbers."""
    told = asdict(timed)
    for pair in told["visits"].values():
        for visit in pair:
            del visit["firsts_s"], visit["rests_s"]
    return told


def _asdict(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
