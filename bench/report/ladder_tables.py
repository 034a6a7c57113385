"""A ladder's rungs and gains as tables; every number comes from the result."""

from __future__ import annotations

from collections.abc import Iterator

from agentcompile.runs.tables import Table

from ..harness.rates import note_of
from ..harness.result import Case, Interval, Owner
from .cells import NOTHING, number

ABOUT_RUNGS = (
    "Each rung is the one above it and one thing more; every rung runs in processes of its own, in rounds beside the "
    "others. Over the rung before: paired by round, with a 95 % interval. Compile: later locks take what earlier ones "
    "built and timed as it is."
)
ABOUT_SHARES = (
    "Of the time from one token to the next, by kind of region, all its sites together; between the regions: loops, "
    "launches, waits, and what ends a step."
)
ABOUT_GAINS = (
    "What a token takes less than on the rung before, by owner: the smallest sets of operators that are whole regions "
    "on both rungs, or the rung's change itself where one of the two cannot say where its time goes. The owners and "
    "what lies between the regions sum to the whole."
)


def rungs_table(case: Case) -> Table:
    """Return the table of rungs with their times and speedups."""
    rows = []
    for rung in case.rungs:
        arm = case.arm(rung.name)
        if arm is None or arm.state != "measured" or arm.token_s is None:
            why = note_of(arm.away, same=arm.same) if arm else "absent"
            rows.append((rung.name, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, why))
            continue
        over = _interval(rung.gain.speedup) if rung.gain else NOTHING
        whole = _interval(arm.speedup) if arm.speedup else NOTHING
        token = number(arm.token_s.median * 1e3)
        lock = rung.lock.removeprefix("sha256:")[:12] or NOTHING
        about = note_of(rung.about, same=arm.same)
        rows.append((rung.name, token, number(arm.tokens_per_s), over, whole, number(arm.compile_s, 3), lock, about))
    heads = (
        "rung",
        "ms a token",
        "tokens/s",
        "over the rung before",
        "over the first",
        "compile, s",
        "lock",
        "what runs",
    )
    return Table(heads=heads, rows=rows, right=(1, 2, 3, 4, 5))


def shares_table(case: Case) -> Table:
    """Return the table of each kind of region's share of the time per token, by rung."""
    looked = [rung for rung in case.rungs if rung.rest is not None]
    kinds = list(dict.fromkeys(one.kind for rung in reversed(looked) for one in rung.shares))
    by_rung = [{one.kind: one for one in rung.shares} for rung in looked]
    rows = [
        (kind, *(f"{found[kind].share:.1%} ({found[kind].sites})" if kind in found else NOTHING for found in by_rung))
        for kind in kinds
    ]
    rows.append(("between the regions", *(f"{rung.rest:.1%}" for rung in looked)))
    rows.append(("how", *(rung.looked for rung in looked)))
    heads = ("kind (sites)", *(rung.name for rung in looked))
    return Table(heads=heads, rows=rows if looked else [], right=tuple(range(1, len(heads))))


def gains_table(case: Case) -> Table:
    """Return the table of every rung's gain, by owner and as a whole."""
    rows: list[tuple[str, ...]] = []
    for rung in case.rungs:
        if rung.gain is None:
            continue
        gain = rung.gain
        whole = Owner(name="the whole", before_s=gain.before_s, after_s=gain.after_s)
        shown = [*gain.owners, gain.rest] if gain.rest.before_s or gain.rest.after_s else list(gain.owners)
        rows += [_owner(f"{rung.name} over {gain.over}", one, whole) for one in [*shown, whole]]
    heads = ("rung", "owner", "before, µs", "after, µs", "gained, µs", "of the gain")
    return Table(heads=heads, rows=rows, right=(2, 3, 4, 5))


def _owner(rung: str, one: Owner, whole: Owner) -> tuple[str, ...]:
    share = f"{one.gain_s / whole.gain_s:.1%}" if abs(whole.gain_s) > 1e-12 else NOTHING
    return (rung, one.name, *_cells(one), share)


def _cells(one: Owner) -> Iterator[str]:
    for seconds in (one.before_s, one.after_s, one.gain_s):
        yield f"{seconds * 1e6:.1f}"


def _interval(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    return f"{number(found.value, 3)}× ({number(found.low, 3)}–{number(found.high, 3)})"
