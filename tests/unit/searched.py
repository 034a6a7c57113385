"""Searches of one region, of made-up facts: a tree as MCTS grows it, the rungs of halving, and one unrecorded."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from agentcompile.events import Event, Proposed, TrialFinished
from agentcompile.ir.search_events import ProposalNode, Transformation
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Cancelled, Disturbed, Incorrect, NumericReport, Trial, Verdict
from tests.unit import runs

WRONG = Incorrect(report=NumericReport(checks=(), error_ratio=9.0, cases=1, repeats=1))
DISTURBED = Disturbed(stage="measure", detail="killed")
CANCELLED = Cancelled(stage="build")
UNBUILT = BuildFailed(log="error: no such register")
VALUES = {"ROWS": (1, 2, 4, 8, 16, 32), "VEC": (1, 2, 4, 8), "AHEAD": (0, 512, 1024, 2048, 4096)}


def point(*values: int, template: str = "linear/rows") -> Candidate:
    """A candidate with these values of ROWS, VEC and AHEAD."""
    return replace(runs.candidate(), template=template, params=tuple(zip(VALUES, values, strict=False)))


def node(candidate: Candidate, origin: str = "order", parent: Candidate | None = None, *trace: object) -> ProposalNode:
    return ProposalNode(
        candidate=candidate.id, origin=origin, parent=parent.id if parent is not None else "", trace=trace  # type: ignore[arg-type]
    )  # fmt: skip


def proposed(*nodes: ProposalNode, rounds: int = 5, strategy: str = "mcts:branching=2") -> Proposed:
    return Proposed(region=runs.REGION, strategy=strategy, rounds=rounds, nodes=nodes)


def trial(candidate: Candidate, ratio: float = 1.5, verdict: Verdict | None = None, **more: object) -> Trial:
    """A trial that measured `ratio` times the speed of PyTorch, or that ended with a `verdict`."""
    found = verdict or runs.measured(math.log(ratio))
    return Trial(candidate=candidate, source="s", verdict=found, **more)  # type: ignore[arg-type]


def tried(candidate: Candidate, ratio: float = 1.5, verdict: Verdict | None = None, **more: object) -> Event:
    return TrialFinished(trial=trial(candidate, ratio, verdict, **more))


def ratio_of(candidate: Candidate) -> float:
    """A made-up speed-up that has its best at ROWS=8, VEC=4, AHEAD=2048."""
    rows, vec, ahead = (int(value) for _, value in candidate.params)
    return 2.4 - 0.3 * abs(math.log2(rows) - 3) - 0.2 * abs(math.log2(vec) - 2) - abs(ahead - 2048) / 4000


def verdict_of(candidate: Candidate) -> Verdict | None:
    rows, vec, ahead = (int(value) for _, value in candidate.params)
    if rows * vec > 128:
        return UNBUILT
    return WRONG if (vec, ahead) == (8, 0) else DISTURBED if (rows, vec) == (1, 8) else None


def tree(count: int, seed: int = 0) -> list[Event]:
    """A search that grows a tree of `count` candidates, the newest of which waits, and times the best ones again."""
    rng = random.Random(seed)
    known: dict[Candidate, ProposalNode] = {}
    events: list[Event] = []
    children: dict[str, int] = {}
    for first in (point(4, 2, 1024), point(16, 1, 0), point(2, 4, 4096)):
        known[first] = node(first, "advised" if not known else "random")
    events.append(proposed(*known.values()))
    events += [tried(one, ratio_of(one), verdict_of(one)) for one in known]
    while len(known) < count:
        parents = [one for one in known if children.get(one.id, 0) < 2 and verdict_of(one) is None]
        parent = max(rng.sample(parents, min(4, len(parents))), key=ratio_of)
        name = rng.choice(list(VALUES))
        values = dict(parent.params)
        value = rng.choice([one for one in VALUES[name] if one != values[name]])
        child = point(*(values | {name: value}).values())
        children[parent.id] = children.get(parent.id, 0) + 1
        if child in known:
            continue
        step = Transformation(change="parameter", name=name, value=str(value))
        known[child] = node(child, "changed", parent, step)
        events.append(proposed(known[child]))
        if len(known) < count:
            events.append(tried(child, ratio_of(child), verdict_of(child)))
    best = sorted((one for one in list(known)[:-1] if verdict_of(one) is None), key=ratio_of)[-4:]
    events.append(proposed(*(node(one, "timed-again") for one in best), rounds=10))
    events += [tried(one, ratio_of(one), fidelity="confirm") for one in best]
    return events


def halving() -> list[Event]:
    """A search that halves 24 candidates to 12 and 6, some of which fail."""
    rung = [point(rows, vec, ahead) for rows in VALUES["ROWS"] for vec in (1, 4) for ahead in (0, 2048)]
    events: list[Event] = []
    for rounds in (5, 10, 20):
        origin = "order" if rounds == 5 else "timed-again"
        events.append(proposed(*(node(one, origin) for one in rung), rounds=rounds, strategy="halving"))
        events += [tried(one, ratio_of(one), UNBUILT if dict(one.params)["ROWS"] == 32 else None) for one in rung]
        rung = sorted(rung, key=lambda one: -ratio_of(one) if dict(one.params)["ROWS"] != 32 else 9)[: len(rung) // 2]
    return events


def unrecorded() -> list[Event]:
    """A search of a run from before it was recorded what was proposed."""
    return [event for event in tree(30) if not isinstance(event, Proposed)]


def run(events: list[Event]) -> list[Event]:
    """The events of a run that searches one region."""
    return [runs.STARTED, runs.FOUND, *events]
