"""How far two recordings of one space agree: one line, from the points that both have. Pure."""

from __future__ import annotations

import statistics

from agentcompile.errors import AgentCompileError

from .spaces import RecordedSpace


def agreement(first: RecordedSpace, second: RecordedSpace) -> str:
    """Return a sentence with how much times differ, whether the best is the same, and how many near it are.

    A difference is that of the two times over the lesser, in percent.

    Raises:
        AgentCompileError: the files are not of one space, or no point has a time in both (usage).
    """
    if set(first.outcomes) != set(second.outcomes):
        text = f"{second.name} has other points than {first.name}"
        raise AgentCompileError(text, hint="name two recordings of the same region on the same machine")
    one, two = first.times_ns, second.times_ns
    both = [id for id in one if id in two]
    if len(both) < 2:
        raise AgentCompileError(f"{first.name}: fewer than two points have a time in both recordings", hint="record it")
    apart = sorted(100 * (max(one[id], two[id]) / min(one[id], two[id]) - 1) for id in both)
    p95 = statistics.quantiles(apart, n=20, method="inclusive")[-1]
    best, other = (min(times, key=times.__getitem__) for times in (one, two))
    slower = f", {100 * (one[other] / one[best] - 1):.1f} % slower in the first" if other in one else ""
    winner = "the same best" if best == other else f"another best{slower}"
    return (
        f"{first.name}: {len(both):,} points timed in both, {len(one) - len(both)} and {len(two) - len(both)} in one; "
        f"median difference {statistics.median(apart):.1f} %, 95th percentile {p95:.1f} %; {winner}; "
        f"{len(first.near & second.near)} of {len(first.near)} within 5 % of the best in both"
    )
