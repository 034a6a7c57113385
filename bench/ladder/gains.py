"""The gain of each region from one rung to the next; pure arithmetic, with times in seconds of one token.

Two rungs may cut a step into different regions, so they are compared by the smallest sets of operators that are whole
regions in both: the gain of a set is its regions' time before minus their time after. Time that no region takes is the
rest. The gains of all sets and of the rest always sum to the whole gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..harness.looks import Looked, PartTime, numbers_in
from ..harness.result import Gain, KindShare, Owner

REST = "between the regions"
"""The name of the time that no region takes: loops, launches, waits and the end of a step."""


def shares(looked: Looked) -> tuple[tuple[KindShare, ...], float]:
    """Return the shares of a token's time by kind of region, largest first, and the share that no region takes."""
    if looked.token_ns <= 0:
        return (), 0.0
    found = []
    for kind in dict.fromkeys(part.kind for part in looked.parts):
        alike = [part for part in looked.parts if part.kind == kind]
        sites, spent = sum(part.sites for part in alike), sum(part.ns for part in alike)
        found.append(KindShare(kind=kind, sites=sites, share=spent / looked.token_ns))
    ordered = tuple(sorted(found, key=lambda one: (-one.share, one.kind)))
    return ordered, 1 - sum(one.share for one in ordered)


def gain(over: str, before_s: float, after_s: float, before: Looked | None, after: Looked | None, change: str) -> Gain:
    """Return the gain of a rung over the one called `over`, by owner, largest first.

    Where one of the two cannot say where its time goes, `change` owns the whole gain.
    """
    if before is None or after is None or not before.parts or not after.parts:
        rest = Owner(name=REST, before_s=0.0, after_s=0.0)
        owners: tuple[Owner, ...] = (Owner(name=change, before_s=before_s, after_s=after_s),)
    else:
        # Scales the parts' times from the generation that was looked at to the rounds' time per token.
        was, now = before_s / before.token_ns, after_s / after.token_ns
        spent: dict[str, tuple[float, float]] = {}
        for name, first, second in _blocks(before.parts, after.parts):
            old, new = spent.get(name, (0.0, 0.0))
            spent[name] = old + first * was, new + second * now
        found = [Owner(name=name, before_s=old, after_s=new) for name, (old, new) in spent.items()]
        owners = tuple(sorted(found, key=lambda one: (-one.gain_s, one.name)))
        left = before_s - sum(one.before_s for one in owners), after_s - sum(one.after_s for one in owners)
        rest = Owner(name=REST, before_s=left[0], after_s=left[1])
    return Gain(over=over, before_s=before_s, after_s=after_s, owners=owners, rest=rest)


def _blocks(before: Sequence[PartTime], after: Sequence[PartTime]) -> Iterator[tuple[str, float, float]]:
    """Yield name, ns before and ns after of every smallest set of operators that is whole parts on both sides."""
    blocks: list[tuple[set[int], list[PartTime], list[PartTime]]] = []
    for side, parts in enumerate((before, after)):
        for part in parts:
            nodes, old, new = set(numbers_in(part.covers)), list[PartTime](), list[PartTime]()
            (old, new)[side].append(part)
            apart = []
            for block in blocks:
                if nodes & block[0]:
                    nodes |= block[0]
                    old, new = block[1] + old, block[2] + new
                else:
                    apart.append(block)
            blocks = [*apart, (nodes, old, new)]
    for _, old, new in blocks:
        yield _named(old, new), sum(part.ns for part in old), sum(part.ns for part in new)


def _named(before: Sequence[PartTime], after: Sequence[PartTime]) -> str:
    """Return the kinds of the side that has fewer, joined by +; of `after` when both have as many."""
    sides = [list(dict.fromkeys(part.kind for part in side)) for side in (after, before) if side]
    names: list[str] = sides[-1] if len(sides[-1]) < len(sides[0]) else sides[0]
    return " + ".join(names)
