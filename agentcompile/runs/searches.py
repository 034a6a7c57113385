"""The search of one region: its best so far, what was proposed from what, and how many candidates each rung kept.

In: a region's trials and what its strategy proposed. Out: values for front ends to draw. Invariant: trials alone say
how fast a candidate is, and what was proposed says only where it comes from, so a run from before `Proposed` still has
its curve. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.events import Proposed
from agentcompile.ir.search_events import Origin, ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Cancelled, Disturbed, Impossible, Measured, Trial

Result = Literal["measured", "failed", "unknown"]
"""unknown: what happened says nothing about the candidate (disturbed, cancelled, or a time that cannot be)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCandidate:
    """A candidate with what is known of it: its newest trial, where a confirming one outranks one of the search."""

    candidate: Candidate
    result: Result
    speedup: float = 0.0
    """Its speed-up over PyTorch; 0 where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The best speed-up so far, by the number of distinct candidates that have a verdict."""

    name: str = ""
    """The strategy, for a curve that is drawn behind another one."""
    best: tuple[float, ...] = ()
    """The highest speed-up over PyTorch after each candidate; 0 before there is one."""
    failed: tuple[int, ...] = ()
    """Indices into `best` of the candidates that failed."""
    unknown: tuple[int, ...] = ()
    """Indices into `best` of the candidates of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchNode:
    """A proposed candidate in the tree of its region."""

    node: ProposalNode
    """How it was proposed first."""
    parent: str = ""
    """The id of its parent; empty for a root."""
    children: tuple[str, ...] = ()
    """Their ids, that with the best subtree first."""
    visits: int = 0
    """Nodes of its subtree, itself included, that were measured or failed."""
    value: float = 0.0
    """The mean speed-up over PyTorch of these, where one that failed counts as 0."""
    best: float = 0.0
    """The highest speed-up over PyTorch in its subtree; 0 where nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The candidates that were proposed for one number of rounds."""

    rounds: int
    """Paired rounds in which each of them is timed."""
    proposed: tuple[str, ...]
    """Their ids, in order."""
    survivors: tuple[str, ...] = ()
    """Those of them that were proposed for more rounds too."""
    failed: int = 0
    """How many of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search of one region as far as it got."""

    strategy: str = ""
    """The strategy that proposed last, with its settings; empty in a run from before `Proposed`."""
    tried: Mapping[str, TriedCandidate] = field(default_factory=dict[str, TriedCandidate])
    """What is known of each candidate that has a verdict, by id, in the order of the first verdicts."""
    curve: Curve = Curve()
    nodes: Mapping[str, SearchNode] = field(default_factory=dict[str, SearchNode])
    """Every proposed candidate by id, in the order in which they were proposed first."""
    roots: tuple[str, ...] = ()
    """The ids of the nodes without a parent, that with the best subtree first."""
    path: tuple[str, ...] = ()
    """The ids from a root to the fastest proposed candidate; empty before one was measured."""
    rungs: tuple[Rung, ...] = ()
    """By their rounds, the fewest first."""
    origins: Mapping[Origin, int] = field(default_factory=dict[Origin, int])
    """How many proposals each origin made; one that is timed again counts again."""

    @property
    def branched(self) -> bool:
        """Whether a candidate was made from another one, so that there is a tree to show."""
        return len(self.roots) < len(self.nodes)


def search_of(trials: Iterable[Trial], proposed: Sequence[Proposed], best: str = "") -> Search:
    """Return the search of a region from its `trials` and what was `proposed` for it, both in order.

    `best` is the id of the candidate that counts as the fastest; by default it is that of the highest speed-up. A
    parent that was not proposed before its child is none, so that no stream of events makes a circle.
    """
    tried = tried_in(trials)
    made = [(event, node) for event in proposed for node in event.nodes]
    nodes: dict[str, ProposalNode] = {}
    parents: dict[str, str] = {}
    for _, node in made:
        if node.candidate not in nodes:
            parents[node.candidate] = node.parent if node.parent in nodes else ""
            nodes[node.candidate] = node
    path = _path(parents, tried, best)
    tree, roots = _tree(nodes, parents, tried, path)
    return Search(
        strategy=proposed[-1].strategy if proposed else "",
        tried=tried,
        curve=curve_of(tried.values()),
        nodes=tree,
        roots=roots,
        path=path,
        rungs=_rungs(proposed, tried),
        origins=Counter(node.origin for _, node in made),
    )


def tried_in(trials: Iterable[Trial]) -> dict[str, TriedCandidate]:
    """Return what `trials` say of each candidate, by id, in the order in which they were first tried."""
    newest: dict[str, Trial] = {}
    for trial in trials:
        id = trial.candidate.id
        old = newest.get(id)
        if old is None or _rank(trial) >= _rank(old):
            newest[id] = trial
    return {id: _tried(trial) for id, trial in newest.items()}


def curve_of(tried: Iterable[TriedCandidate], name: str = "") -> Curve:
    """Return the best speed-up so far over candidates in the order in which they were tried."""
    best = 0.0
    course: list[float] = []
    places: dict[Result, list[int]] = {"failed": [], "unknown": [], "measured": []}
    for at, one in enumerate(tried):
        best = max(best, one.speedup)
        course.append(best)
        places[one.result].append(at)
    return Curve(name=name, best=tuple(course), failed=tuple(places["failed"]), unknown=tuple(places["unknown"]))


def _rank(trial: Trial) -> int:
    """Return how much a trial says: nothing, what the search saw, or what was confirmed."""
    if isinstance(trial.verdict, (Disturbed, Cancelled, Impossible)):
        return 0
    return 2 if trial.fidelity == "confirm" else 1


def _tried(trial: Trial) -> TriedCandidate:
    match trial.verdict:
        case Measured(measurement=measurement):
            return TriedCandidate(candidate=trial.candidate, result="measured", speedup=measurement.speedup)
        case Disturbed() | Cancelled() | Impossible():
            return TriedCandidate(candidate=trial.candidate, result="unknown")
        case _:
            return TriedCandidate(candidate=trial.candidate, result="failed")


def _path(parents: Mapping[str, str], tried: Mapping[str, TriedCandidate], best: str) -> tuple[str, ...]:
    measured = {id: tried[id].speedup for id in parents if id in tried and tried[id].result == "measured"}
    at = best if best in measured else max(measured, key=lambda id: measured[id], default="")
    path: list[str] = []
    while at:
        path.append(at)
        at = parents[at]
    return tuple(reversed(path))


def _tree(
    nodes: Mapping[str, ProposalNode],
    parents: Mapping[str, str],
    tried: Mapping[str, TriedCandidate],
    path: Sequence[str],
) -> tuple[dict[str, SearchNode], tuple[str, ...]]:
    """Return the nodes with the sums of their subtrees, and the roots; a child always follows its parent in `nodes`."""
    visits = dict.fromkeys(nodes, 0)
    total = dict.fromkeys(nodes, 0.0)
    best = dict.fromkeys(nodes, 0.0)
    below: dict[str, list[str]] = {"": []}
    for id in nodes:
        below[id] = []
        below[parents[id]].append(id)
        one = tried.get(id)
        if one is not None and one.result != "unknown":
            visits[id], total[id], best[id] = 1, one.speedup, one.speedup
    for id in reversed(list(nodes)):
        if above := parents[id]:
            visits[above] += visits[id]
            total[above] += total[id]
            best[above] = max(best[above], best[id])
    leading = set(path)

    def ordered(ids: list[str]) -> tuple[str, ...]:
        return tuple(sorted(ids, key=lambda id: (id not in leading, -best[id])) if len(ids) > 1 else ids)

    tree = {
        id: SearchNode(
            node=node,
            parent=parents[id],
            children=ordered(below[id]),
            visits=visits[id],
            value=total[id] / visits[id] if visits[id] else 0.0,
            best=best[id],
        )
        for id, node in nodes.items()
    }
    return tree, ordered(below[""])


def _rungs(proposed: Sequence[Proposed], tried: Mapping[str, TriedCandidate]) -> tuple[Rung, ...]:
    by_rounds: dict[int, dict[str, None]] = {}
    for event in proposed:
        by_rounds.setdefault(event.rounds, {}).update((node.candidate, None) for node in event.nodes)
    rungs: list[Rung] = []
    higher: set[str] = set()
    for rounds in sorted(by_rounds, reverse=True):
        own = by_rounds[rounds]
        failed = sum(id in tried and tried[id].result == "failed" for id in own)
        survivors = tuple(id for id in own if id in higher)
        rungs.append(Rung(rounds=rounds, proposed=tuple(own), survivors=survivors, failed=failed))
        higher |= own.keys()
    return tuple(reversed(rungs))
