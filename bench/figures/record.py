"""The figures, the rows of the arms' table and the committed JSON record, computed from the measurements."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from agentcompile.ir.codec import encode
from agentcompile.ir.target import Target
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import LockChoice

from ..harness.rates import VARIES, Round, bandwidth_share, estimate, first_s, note_of, same_tokens, speedup
from ..harness.records import nameless
from ..harness.result import Interval
from ..harness.times import Imported, Took
from ..harness.trial import OURS, Outcome
from ..harness.workload import Workload
from .report import (
    BANDWIDTH,
    FIRST_TOKEN_PEERS,
    IMPORT_MS,
    MEMORY,
    SPEEDUPS,
    TOKEN_MS,
    WAITS_S,
    Figure,
    accuracy_figures,
    figure,
    ratio,
)


@dataclass(slots=True)
class Part:
    """The measurements of one checkpoint."""

    workload: Workload
    arms: tuple[str, ...]
    """The arms that were requested."""
    outcome: Outcome
    times: dict[str, Took] = field(default_factory=dict)
    accuracy: Mapping[str, Any] | None = None
    accuracy_reason: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    """What the lock runs for each region of the decode step, by region name."""


def record(
    parts: Sequence[Part],
    figures: Sequence[Figure],
    imported: Imported,
    target: Target,
    arguments: Sequence[str],
    revision: Mapping[str, Any],
    resumed: int,
) -> dict[str, Any]:
    """Build the JSON record of the whole run.

    `revision` is the source revision at its start; `resumed` is how often the run was resumed.
    """
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


def figures_of(part: Part) -> list[Figure]:
    """Return every figure that has a target on this checkpoint, whether or not it was measured."""
    name, rounds, reasons = part.workload.name, part.outcome.rounds, part.outcome.reasons
    figures = []
    share = bandwidth_share(rounds, OURS, part.workload.token_bytes)
    for target in [BANDWIDTH[name]] if name in BANDWIDTH else []:
        figures.append(ratio(name, "share of read bandwidth", target, share, reasons.get(OURS, "")))
    for peer, target in SPEEDUPS[name].items():
        why, found = reasons.get(OURS) or reasons.get(peer) or "", speedup(rounds, OURS, peer)
        figures.append(ratio(name, f"decode vs {peer}", target, found, _beside(rounds, peer, found, why)))
    figures += _device_figures(part)
    for what, most in WAITS_S.get(name, {}).items():
        took = part.times.get(what, Took(seconds=None, reason="not measured"))
        figures.append(figure(name, what, "<=", most, took.seconds, took.reason, "s"))
    figures = [_right(one, part.outcome.agreement) for one in figures]
    if name == "sample":
        figures += accuracy_figures(name, part.accuracy, part.accuracy_reason)
    return figures


def _right(one: Figure, agreement: Mapping[str, str]) -> Figure:
    """Return the figure, without its value when the timed program, ours or the peer's, computes something else."""
    for arm in (OURS, one.name.partition(" vs ")[2]):
        if (wrong := agreement.get(arm)) and one.name not in WAITS_S.get(one.model, {}):
            return replace(one, value=None, low=None, high=None, note=f"{arm} is wrong: {wrong}")
    return one


def _beside(rounds: Sequence[Round], peer: str, found: Interval | None, why: str) -> str:
    """Return the note of a figure that compares with a peer: why it is missing, or that the peer's tokens vary."""
    varies = found is not None and not same_tokens(rounds, peer)
    return "; ".join(filter(None, (why, f"{peer}: {VARIES}" if varies else "")))


def _device_figures(part: Part) -> Iterator[Figure]:
    """Yield the figures of a GPU alone: time per output token, TTFT beside compiled peers, and peak memory."""
    name, rounds = part.workload.name, part.outcome.rounds
    if name not in TOKEN_MS:
        return
    kept, reason = _kept(rounds, OURS), part.outcome.reasons.get(OURS, "")
    spent = estimate([math.log(timed.token_s(OURS) * 1e3) for timed in kept])
    yield figure(name, "time a token", "<=", TOKEN_MS[name], spent, reason or ("" if spent else "too few rounds"), "ms")
    for peer in FIRST_TOKEN_PEERS:
        both = [timed for timed in kept if peer in timed.visits]
        logs = [math.log(first_s(timed, peer) / first_s(timed, OURS)) for timed in both]
        why, found = part.outcome.reasons.get(peer, reason), estimate(logs)
        yield ratio(name, f"first token vs {peer}", 1.0, found, _beside(rounds, peer, found, why))
    held = part.outcome.facts.get(OURS, {}).get("memory_bytes")
    least = part.workload.weight_bytes + part.workload.cache_bytes
    times = held / least if isinstance(held, int) else None
    note = "not measured" if times is None else ""
    yield figure(name, "peak memory / weights and cache", "<=", MEMORY, times, note)


def arm_rows(part: Part) -> Iterator[tuple[str, str, float | None, float | None, str]]:
    """Yield (model, arm, tokens/s, TTFT in seconds, note) for every requested arm that has measurements or a note.

    Tokens/s and TTFT are medians over the rounds that count, None when there are none. The note says what is wrong or
    varies.
    """
    outcome = part.outcome
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


def _part_record(part: Part) -> dict[str, Any]:
    """Build the JSON record of one checkpoint: medians and intervals by arm, and every round."""
    outcome, workload = part.outcome, part.workload
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
        "times": {name: asdict(took) for name, took in part.times.items()},
        "accuracy": part.accuracy,
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
