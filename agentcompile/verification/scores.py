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
from agentcompile.verification.walks import named

KL_GATE = 1.25
"""Mean KL(float32 || compiled) over mean KL(float32 || eager)."""
PERPLEXITY_GATE = 5e-4
"""Of the logarithm of the perplexity ratio."""
TOP = 5
ROUNDING = 1e-5
"""Relative to the spread of a row's logits: what the order of float32 sums may move one of them by. Two-layer models in
float32 are at 5e-7; a deep one with outliers has room."""
SURE = 4.0
"""Standard errors that a mean must be beyond its gate by: logits of neighbouring positions share what rounding did to
the cache that they read, so that they tell less than their number says."""
WORST = 24.0
"""How many times the usual loss, or eager's at the same position, one position may lose. Of the sample in bf16 no row
is above 3.2; a row of another token's logits is at 1,000 and more."""
CAPTURED, CAPTURED_WORST = 0.5, 4.0
"""Of eager's usual loss: what a graph that is captured right may lose in float64 in the mean, and at one position. All
that is rounded there are tables and constants: of a dozen architectures in bf16 and of the sample the mean is 0.035 and
the worst position 0.26 at most; factors of LongRoPE that are of another length, under weights that are hardly anything
but noise, make it 1.3 and 7."""
SAME = 1e-6
"""Nats that two orders of float32 sums differ by at most in any model; another window is a thousand times that."""
FEW = 8
"""Rows that have no mean to speak of."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One position. `floor` is what rounding in float32 may cost it."""

    floor: float
    kl: float
    kl_eager: float | None
    """None where eager was not asked."""
    log_ratio: float | None
    """ln p(float32) - ln p(compiled) of the token that follows; None where none does."""
    log_ratio_eager: float | None
    mismatch: bool
    beyond: bool
    beyond_eager: bool


def rows(
    exact: torch.Tensor, eager: torch.Tensor | None, found: torch.Tensor, following: Sequence[int | None]
) -> list[Row]:
    """Compare logits [positions, vocab], some at a time: in float64 those of a large vocabulary are many bytes."""
    made: list[Row] = []
    for first in range(0, len(following), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        made += _rows(exact[some], None if eager is None else eager[some], found[some], following[some])
    return made


def _rows(
    exact: torch.Tensor, eager: torch.Tensor | None, found: torch.Tensor, following: Sequence[int | None]
) -> list[Row]:
    r, c = _log_probabilities(exact), _log_probabilities(found)
    e = None if eager is None else _log_probabilities(eager)
    likeliest = [None if one is None else one.argmax(-1).tolist() for one in (r, c, e)]
    of_r, of_c, of_e = likeliest
    assert of_r is not None
    assert of_c is not None
    kl, kl_eager = _divergence(r, c), None if e is None else _divergence(r, e)
    return [
        Row(
            floor=(ROUNDING * _spread(exact[at])) ** 2 / 2,
            kl=kl[at],
            kl_eager=None if kl_eager is None else kl_eager[at],
            log_ratio=_ratio(r[at], c[at], after),
            log_ratio_eager=None if e is None else _ratio(r[at], e[at], after),
            mismatch=of_r[at] != of_c[at],
            beyond=of_r[at] != of_c[at] and not mutual(r[at], c[at]),
            beyond_eager=e is not None and of_e is not None and of_r[at] != of_e[at] and not mutual(r[at], e[at]),
        )
        for at, after in enumerate(following)
    ]


def _spread(logits: torch.Tensor) -> float:
    """The standard deviation of those that are finite."""
    finite = logits[logits.isfinite()]
    return float(finite.std()) if finite.numel() > 1 else 0.0


def mutual(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each one's likeliest token is among the other's five likeliest."""
    among = min(TOP, a.numel())
    first, second = a.topk(among).indices.tolist(), b.topk(among).indices.tolist()
    return first[0] in second and second[0] in first


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.double(), -1)


def _divergence(r: torch.Tensor, other: torch.Tensor) -> list[float]:
    """KL(r || other) of log-probabilities [positions, vocab]; BEYOND where it is none or infinite."""
    p = r.exp()
    found: list[float] = torch.where(p > 0, p * (r - other), 0.0).sum(-1).tolist()
    return [min(max(kl, 0.0), BEYOND) if math.isfinite(kl) else BEYOND for kl in found]


def _ratio(r: torch.Tensor, other: torch.Tensor, following: int | None) -> float | None:
    if following is None:
        return None
    found = float(r[following] - other[following])
    return found if math.isfinite(found) else None


def summary(phase: Phase, rows: Sequence[Row]) -> PhaseScore:
    """The figures of one phase; divergences in the mean are of positions that eager was asked about too, if any was."""
    ratios = [one.log_ratio for one in rows if one.log_ratio is not None]
    beside = _beside_eager(rows)
    return PhaseScore(
        phase=phase,
        positions=len(rows),
        kl=mean(one.kl for one in beside),
        kl_eager=mean(one.kl_eager or 0.0 for one in beside),
        kl_worst=max(one.kl for one in rows),
        log_perplexity_ratio=mean(ratios) if ratios else 0.0,
        half_width=1.96 * _error(ratios),
        mismatches=sum(one.mismatch for one in rows),
        beyond_top=sum(one.beyond for one in rows),
    )


def _beside_eager(rows: Sequence[Row]) -> Sequence[Row]:
    return [one for one in rows if one.kl_eager is not None] or rows


def usual(rows: Sequence[Row]) -> float:
    """What eager loses at a position, in the mean, or what rounding may cost where that is more."""
    return mean(max(one.kl_eager or 0.0, one.floor) for one in _beside_eager(rows))


def lost(one: Row, usual: float) -> str:
    """Why one position is wrong beyond any rounding; empty when it is not. Where eager itself gives no finite logits
    nothing is asked of it."""
    allowed = WORST * max(one.kl_eager or 0.0, usual)
    if one.kl <= allowed:
        return ""
    figure = "not finite" if one.kl >= BEYOND else f"{one.kl:.3g} nats"
    return f"KL(float32 || compiled) is {figure}, {allowed:.3g} at most"


def drifted(rows: Sequence[Row]) -> str:
    """Why rows are wrong in the mean; empty when they are not, or too few to tell."""
    if len(rows) < FEW:
        return ""
    excess = [one.kl - KL_GATE * max(one.kl_eager or 0.0, one.floor) for one in rows]
    if mean(excess) > SURE * _error(excess):
        figures = f"{mean(one.kl for one in rows):.3g} nats, eager's {mean(one.kl_eager or 0.0 for one in rows):.3g}"
        return f"mean KL(float32 || compiled) is {figures} over {len(rows)} positions"
    ratios = [one.log_ratio for one in rows if one.log_ratio is not None]
    theirs = [one.log_ratio_eager for one in rows if one.log_ratio_eager is not None]
    gate = max(PERPLEXITY_GATE, KL_GATE * abs(mean(theirs)) if theirs else 0.0)
    if len(ratios) >= FEW and abs(mean(ratios)) - SURE * _error(ratios) > gate:
        return f"ln(perplexity compiled / float32) is {mean(ratios):.3g} over {len(ratios)} positions"
    beyond, usually = sum(one.beyond for one in rows), sum(one.beyond_eager for one in rows)
    if beyond > 2 * usually + max(2, len(rows) // 50):
        positions = f"{beyond} of {len(rows)} positions, eager's at {usually}"
        return f"the greedy token is beyond the five likeliest at {positions}"
    return ""


def contradiction(exact: torch.Tensor, own: torch.Tensor) -> float:
    """How far a reference with its own cache is from itself without, in nats at one position, where that is more than
    rounding; 0 where it is not. Logits are [positions, vocab]."""
    found = [one for one in rows(exact, None, own, [None] * len(exact)) if one.kl > max(WORST * one.floor, SAME)]
    return max((one.kl for one in found), default=0.0)


def miscaptured(
    walks: Sequence[Walk],
    exact: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor | None],
    found: Sequence[torch.Tensor | None],
) -> str:
    """Why what was captured is another model, by its logits in float64; empty when it is none, or was not asked."""
    beside = [
        (walk, rows(r, e, own, [None] * len(walk.scored)))
        for walk, r, e, own in zip(walks, exact, eager, found, strict=True)
        if e is not None and own is not None
    ]
    every = [one for _, some in beside for one in some]
    if len(every) < FEW:
        return ""
    least = usual(every)
    wrong = [
        (len(walk.ids), place, f"{named(walk, place)}: KL(float32 || captured) is {one.kl:.3g} nats")
        for walk, some in beside
        for place, one in zip(walk.scored, some, strict=True)
        if one.kl > CAPTURED_WORST * max(one.kl_eager or 0.0, least)
    ]
    if wrong:
        return f"as captured, without any rounding: {min(wrong)[2]}, eager's {least:.3g}"
    excess = [one.kl - CAPTURED * max(one.kl_eager or 0.0, one.floor) for one in every]
    if mean(excess) > SURE * _error(excess):
        found_kl = f"{mean(one.kl for one in every):.3g} nats, eager's {least:.3g}"
        return f"as captured, without any rounding: mean KL(float32 || captured) is {found_kl}"
    return ""


def compared(
    walks: Sequence[Walk], exact: Sequence[torch.Tensor], eager: Sequence[torch.Tensor | None], found: torch.Tensor
) -> list[list[Row]]:
    """The rows of every walk; `found` holds all of them, one walk's after another's, [rows, vocab]."""
    begin, made = 0, list[list[Row]]()
    for walk, r, e in zip(walks, exact, eager, strict=True):
        own = found[begin : begin + len(walk.scored)]
        begin += len(walk.scored)
        after = [*walk.ids[1:], None]
        made.append(rows(r, e, own, [after[place] for place in walk.scored]))
    return made


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
    asked = any(one.kl_eager is not None for some in rows for one in some)

    def beside(some: Sequence[Row]) -> Sequence[Row]:
        return [one for one in some if one.kl_eager is not None or not asked]

    for walk, some in sorted(zip(walks, rows, strict=True), key=lambda pair: len(pair[0].ids)):
        if why := drifted(beside(some)):
            return f"{named(walk, walk.scored[-1])}: {why}"
    pooled = _by_phase(walks, rows).items()
    return next((f"{phase}: {why}" for phase, some in pooled if (why := drifted(beside(some)))), "")


def _by_phase(walks: Sequence[Walk], rows: Sequence[Sequence[Row]]) -> dict[Phase, list[Row]]:
    found: dict[Phase, list[Row]] = {"decode": [], "prefill": []}
    for walk, some in zip(walks, rows, strict=True):
        for place, one in zip(walk.scored, some, strict=True):
            found["prefill" if place < walk.prompt else "decode"].append(one)
    return found


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
