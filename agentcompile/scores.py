"""Rows of logits beside those of the float32 model: how far they are from it, and whether that is more than rounding.

A row is one position of one sequence. What a right model may lose is what eager PyTorch loses in the model's own dtype;
where that is float32, what another order of float32 sums may cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch

from agentcompile.ir.graph import Phase
from agentcompile.ir.whole import BEYOND, PhaseScore, Walk
from agentcompile.walks import named

KL_GATE = 1.25
"""Mean KL(float32 || compiled) over mean KL(float32 || eager)."""
PERPLEXITY_GATE = 5e-4
"""Of the logarithm of the perplexity ratio."""
TOP = 5
ROUNDING = 1e-4
"""Relative to the spread of a row's logits: what the order of float32 sums may move one of them by, many times over."""
SURE = 4.0
"""Standard errors that a mean must be beyond its gate by: logits of neighbouring positions share what rounding did to
the cache that they read, so that they tell less than their number says."""
WORST = 24.0
"""How many times the usual loss, or eager's at the same position, one position may lose. Over rows of real models in
bf16 the ratio stays below 6; a row of another token's logits is 1,000 and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One position. `floor` is what rounding in float32 may cost it."""

    floor: float
    kl: float
    kl_eager: float
    log_ratio: float | None
    """ln p(float32) - ln p(compiled) of the token that follows; None where none does."""
    log_ratio_eager: float | None
    mismatch: bool
    beyond: bool
    beyond_eager: bool


def row(exact: torch.Tensor, eager: torch.Tensor | None, found: torch.Tensor, following: int | None) -> Row:
    """Compare logits [vocab] of a position; without `eager` its loss is nothing."""
    r, e = _log_probabilities(exact), None if eager is None else _log_probabilities(eager)
    c = _log_probabilities(found)
    finite = exact[exact.isfinite()].double()
    spread = float(finite.std()) if finite.numel() > 1 else 0.0
    mismatch = int(r.argmax()) != int(c.argmax())
    return Row(
        floor=(ROUNDING * spread) ** 2 / 2,
        kl=_divergence(r, c),
        kl_eager=0.0 if e is None else _divergence(r, e),
        log_ratio=_ratio(r, c, following),
        log_ratio_eager=None if e is None else _ratio(r, e, following),
        mismatch=mismatch,
        beyond=mismatch and not mutual(r, c),
        beyond_eager=e is not None and not mutual(r, e),
    )


def mutual(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each one's likeliest token is among the other's five likeliest."""
    among = min(TOP, a.numel())
    first, second = a.topk(among).indices.tolist(), b.topk(among).indices.tolist()
    return first[0] in second and second[0] in first


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.double(), -1)


def _divergence(r: torch.Tensor, other: torch.Tensor) -> float:
    """KL(r || other) of log-probabilities [vocab]; BEYOND where it is none or infinite."""
    p = r.exp()
    kl = float(torch.where(p > 0, p * (r - other), 0.0).sum())
    return min(max(kl, 0.0), BEYOND) if math.isfinite(kl) else BEYOND


def _ratio(r: torch.Tensor, other: torch.Tensor, following: int | None) -> float | None:
    if following is None:
        return None
    found = float(r[following] - other[following])
    return found if math.isfinite(found) else None


def summary(phase: Phase, rows: Sequence[Row]) -> PhaseScore:
    """The figures of one phase."""
    ratios = [one.log_ratio for one in rows if one.log_ratio is not None]
    return PhaseScore(
        phase=phase,
        positions=len(rows),
        kl=mean(one.kl for one in rows),
        kl_eager=mean(one.kl_eager for one in rows),
        kl_worst=max(one.kl for one in rows),
        log_perplexity_ratio=mean(ratios) if ratios else 0.0,
        half_width=1.96 * _error(ratios),
        mismatches=sum(one.mismatch for one in rows),
        beyond_top=sum(one.beyond for one in rows),
    )


def usual(rows: Sequence[Row]) -> float:
    """What eager loses at a position, in the mean, or what rounding may cost where that is more."""
    return mean(max(one.kl_eager, one.floor) for one in rows)


def lost(one: Row, usual: float) -> str:
    """Why one position is wrong beyond any rounding; empty when it is not. Where eager itself gives no finite logits
    nothing is asked of it."""
    allowed = WORST * max(one.kl_eager, usual)
    if one.kl <= allowed:
        return ""
    figure = "not finite" if one.kl >= BEYOND else f"{one.kl:.3g} nats"
    return f"KL(float32 || compiled) is {figure}, {allowed:.3g} at most"


def drifted(rows: Sequence[Row]) -> str:
    """Why rows are wrong in the mean; empty when they are not, or too few to tell."""
    if len(rows) < 8:
        return ""
    excess = [one.kl - KL_GATE * max(one.kl_eager, one.floor) for one in rows]
    if mean(excess) > SURE * _error(excess):
        figures = f"{mean(one.kl for one in rows):.3g} nats, eager's {mean(one.kl_eager for one in rows):.3g}"
        return f"mean KL(float32 || compiled) is {figures} over {len(rows)} positions"
    ratios = [one.log_ratio for one in rows if one.log_ratio is not None]
    theirs = [one.log_ratio_eager for one in rows if one.log_ratio_eager is not None]
    gate = max(PERPLEXITY_GATE, KL_GATE * abs(mean(theirs)) if theirs else 0.0)
    if len(ratios) >= 8 and abs(mean(ratios)) - SURE * _error(ratios) > gate:
        return f"ln(perplexity compiled / float32) is {mean(ratios):.3g} over {len(ratios)} positions"
    beyond, usually = sum(one.beyond for one in rows), sum(one.beyond_eager for one in rows)
    if beyond > 2 * usually + max(2, len(rows) // 50):
        return (
            f"the greedy token is beyond the five likeliest at {beyond} of {len(rows)} positions, eager's at {usually}"
        )
    return ""


def compared(
    walks: Sequence[Walk], exact: Sequence[torch.Tensor], eager: Sequence[torch.Tensor | None], found: torch.Tensor
) -> list[list[Row]]:
    """The rows of every walk; `found` holds all of them, one walk's after another's, [rows, vocab]."""
    begin, rows = 0, list[list[Row]]()
    for walk, r, e in zip(walks, exact, eager, strict=True):
        own = found[begin : begin + len(walk.scored)]
        begin += len(walk.scored)
        after = [*walk.ids[1:], None]
        rows.append(
            [row(r[at], None if e is None else e[at], own[at], after[place]) for at, place in enumerate(walk.scored)]
        )
    return rows


def phases(walks: Sequence[Walk], rows: Sequence[Sequence[Row]]) -> tuple[PhaseScore, ...]:
    """The figures of both phases."""
    return tuple(summary(phase, some) for phase, some in _by_phase(walks, rows).items() if some)


def fault(walks: Sequence[Walk], rows: Sequence[Sequence[Row]]) -> str:
    """What is wrong first: by the shortest sequence and its first position, else by what many rows say; empty when
    nothing is."""
    least = usual([one for some in rows for one in some])
    wrong = [
        (len(walk.ids), place, f"{named(walk, place)}: {why}")
        for walk, some in zip(walks, rows, strict=True)
        for place, one in zip(walk.scored, some, strict=True)
        if (why := lost(one, least))
    ]
    if wrong:
        count = sum(len(some) for some in rows)
        more = f" (and at {len(wrong) - 1} more of {count} positions)" if len(wrong) > 1 else ""
        return min(wrong)[2] + more
    for walk, some in sorted(zip(walks, rows, strict=True), key=lambda pair: len(pair[0].ids)):
        if why := drifted(some):
            return f"{named(walk, walk.scored[-1])}: {why}"
    return next((f"{phase}: {why}" for phase, some in _by_phase(walks, rows).items() if (why := drifted(some))), "")


def _by_phase(walks: Sequence[Walk], rows: Sequence[Sequence[Row]]) -> dict[Phase, list[Row]]:
    found: dict[Phase, list[Row]] = {"decode": [], "prefill": []}
    for walk, some in zip(walks, rows, strict=True):
        for place, one in zip(walk.scored, some, strict=True):
            found["prefill" if place < walk.prompt else "decode"].append(one)
    return found


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
