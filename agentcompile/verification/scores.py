"""Compares rows of logits with those of the float32 model, and decides whether they differ by more than rounding.

A row is one position of one sequence. A correct model may lose as much as eager PyTorch loses in the model's own dtype;
where that is float32, as much as another order of float32 sums may cost.
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
"""Most mean KL(float32 || compiled), as a multiple of mean KL(float32 || eager)."""
PERPLEXITY_GATE = 5e-4
"""Most absolute logarithm of the perplexity ratio."""
TOP = 5
ROUNDING = 1e-5
"""How far the order of float32 sums may move a logit, relative to the spread of a row's logits.

Two-layer models in float32 are at 5e-7; the limit leaves room for a deep one with outliers.
"""
SURE = 4.0
"""Standard errors by which a mean must be beyond its gate.

Logits of neighbouring positions share the rounding of the cache that they read, so they carry less information than
their number suggests.
"""
WORST = 24.0
"""Most loss of one position, as a multiple of the usual loss or of eager's at that position, whichever is more.

No row of the sample in bf16 is above 3.2; a row with another token's logits is at 1,000 and more.
"""
CAPTURED, CAPTURED_WORST = 0.5, 4.0
"""Most loss of a correctly captured graph in float64, in the mean and at one position, relative to eager's usual loss.

Only tables and constants are rounded there. Of a dozen architectures in bf16 and of the sample, the mean is at most
0.035 and the worst position 0.26. LongRoPE factors for another length, under weights that are almost pure noise, make
it 1.3 and 7.
"""
SAME = 1e-6
"""Most nats between two orders of float32 sums in any model; another window differs a thousand times more."""
FEW = 8
"""Fewest rows for which a mean is tested."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionScore:
    """The comparison at one position; `floor` is the divergence in nats that rounding in float32 may cost."""

    floor: float
    kl: float
    kl_eager: float | None
    """None where eager was not run."""
    log_ratio: float | None
    """ln p(float32) - ln p(compiled) of the next token; None where there is none, or the ratio is not finite."""
    log_ratio_eager: float | None
    mismatch: bool
    beyond: bool
    beyond_eager: bool


def rows(
    exact: torch.Tensor, eager: torch.Tensor | None, found: torch.Tensor, following: Sequence[int | None]
) -> list[PositionScore]:
    """Compare logits [positions, vocab], a few positions at a time, because float64 takes much memory."""
    made: list[PositionScore] = []
    for first in range(0, len(following), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        made += _rows(exact[some], None if eager is None else eager[some], found[some], following[some])
    return made


def _rows(
    exact: torch.Tensor, eager: torch.Tensor | None, found: torch.Tensor, following: Sequence[int | None]
) -> list[PositionScore]:
    r, c = _log_probabilities(exact), _log_probabilities(found)
    e = None if eager is None else _log_probabilities(eager)
    likeliest = [None if one is None else one.argmax(-1).tolist() for one in (r, c, e)]
    of_r, of_c, of_e = likeliest
    assert of_r is not None
    assert of_c is not None
    kl, kl_eager = _divergence(r, c), None if e is None else _divergence(r, e)
    return [
        PositionScore(
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
    finite = logits[logits.isfinite()]
    return float(finite.std()) if finite.numel() > 1 else 0.0


def mutual(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the likeliest token of each is among the five likeliest of the other."""
    among = min(TOP, a.numel())
    first, second = a.topk(among).indices.tolist(), b.topk(among).indices.tolist()
    return first[0] in second and second[0] in first


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.double(), -1)


def _divergence(r: torch.Tensor, other: torch.Tensor) -> list[float]:
    """Return KL(r || other) of log-probabilities [positions, vocab]; `BEYOND` where it is infinite or undefined."""
    p = r.exp()
    found: list[float] = torch.where(p > 0, p * (r - other), 0.0).sum(-1).tolist()
    return [min(max(kl, 0.0), BEYOND) if math.isfinite(kl) else BEYOND for kl in found]


def _ratio(r: torch.Tensor, other: torch.Tensor, following: int | None) -> float | None:
    if following is None:
        return None
    found = float(r[following] - other[following])
    return found if math.isfinite(found) else None


def summary(phase: Phase, rows: Sequence[PositionScore]) -> PhaseScore:
    """Return the figures of one phase; mean divergences use only positions that eager was run on, if there are any."""
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


def _beside_eager(rows: Sequence[PositionScore]) -> Sequence[PositionScore]:
    return [one for one in rows if one.kl_eager is not None] or rows


def usual(rows: Sequence[PositionScore]) -> float:
    """Return the mean loss of eager at a position, where each counts at least as much as float32 rounding may cost."""
    return mean(max(one.kl_eager or 0.0, one.floor) for one in _beside_eager(rows))


def lost(one: PositionScore, usual: float) -> str:
    """Return why one position is wrong beyond any rounding; empty when it is not, or eager's logits are not finite."""
    allowed = WORST * max(one.kl_eager or 0.0, usual)
    if one.kl <= allowed:
        return ""
    figure = "not finite" if one.kl >= BEYOND else f"{one.kl:.3g} nats"
    return f"KL(float32 || compiled) is {figure}, {allowed:.3g} at most"


def drifted(rows: Sequence[PositionScore]) -> str:
    """Return why rows are wrong in the mean; empty when they are not, or too few to tell."""
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
    """Return how far a reference with its own cache is from itself without, as the largest KL at one position in nats.

    Logits are [positions, vocab]. The result is 0 where the difference is no more than rounding.
    """
    found = [one for one in rows(exact, None, own, [None] * len(exact)) if one.kl > max(WORST * one.floor, SAME)]
    return max((one.kl for one in found), default=0.0)


def miscaptured(
    walks: Sequence[Walk],
    exact: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor | None],
    found: Sequence[torch.Tensor | None],
) -> str:
    """Return why the captured graph is another model, by its float64 logits; empty when it is not, or was not run."""
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
) -> list[list[PositionScore]]:
    """Return the rows of every walk; `found` [rows, vocab] holds the logits of all walks, one after another."""
    begin, made = 0, list[list[PositionScore]]()
    for walk, r, e in zip(walks, exact, eager, strict=True):
        own = found[begin : begin + len(walk.scored)]
        begin += len(walk.scored)
        after = [*walk.ids[1:], None]
        made.append(rows(r, e, own, [after[place] for place in walk.scored]))
    return made


def phases(walks: Sequence[Walk], rows: Sequence[Sequence[PositionScore]]) -> tuple[PhaseScore, ...]:
    """Return the figures of each phase that has rows."""
    return tuple(summary(phase, some) for phase, some in _by_phase(walks, rows).items() if some)


def fault(walks: Sequence[Walk], rows: Sequence[Sequence[PositionScore]]) -> str:
    """Return the first fault: of single positions the first of the shortest sequence, else one of means over many rows.

    The result is empty when nothing is wrong.
    """
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

    def beside(some: Sequence[PositionScore]) -> Sequence[PositionScore]:
        return [one for one in some if one.kl_eager is not None or not asked]

    for walk, some in sorted(zip(walks, rows, strict=True), key=lambda pair: len(pair[0].ids)):
        if why := drifted(beside(some)):
            return f"{named(walk, walk.scored[-1])}: {why}"
    pooled = _by_phase(walks, rows).items()
    return next((f"{phase}: {why}" for phase, some in pooled if (why := drifted(beside(some)))), "")


def _by_phase(walks: Sequence[Walk], rows: Sequence[Sequence[PositionScore]]) -> dict[Phase, list[PositionScore]]:
    found: dict[Phase, list[PositionScore]] = {"decode": [], "prefill": []}
    for walk, some in zip(walks, rows, strict=True):
        for place, one in zip(walk.scored, some, strict=True):
            found["prefill" if place < walk.prompt else "decode"].append(one)
    return found


def _error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
