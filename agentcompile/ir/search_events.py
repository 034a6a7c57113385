"""The events that report a search: what it proposed and why, and how far it is. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.cleaning import Clean
from agentcompile.ir.template import ParamValue

Change = Literal["template", "layout", "parameter", "step"]
"""A transformation: another template, another layout of the weights, another value of a parameter, or the next one."""
Origin = Literal["order", "random", "changed", "crossed", "advised", "timed-again"]
"""Where a candidate came from: the advised order, chance, transformations of one candidate, a mix of two, the answer of
a model, or the strategy's wish to time it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformation(Clean):
    """One change of a candidate; replayed on the same candidate it leads to the same one.

    A template fixes the layout of its weights, so that only a candidate that names a layout of its own can change it.
    """

    change: Change
    name: str
    """The parameter that is changed; for a template or a layout, what it is changed from."""
    value: ParamValue
    """The new value, or the id of the new template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalNode(Clean):
    """A candidate that a strategy proposed, and the way to it from one that it had before."""

    candidate: str
    """Its id."""
    origin: Origin
    parent: str = ""
    """The id of the candidate that it was made from; empty where it was made from none."""
    trace: tuple[Transformation, ...] = ()
    """The transformations from the parent to it; empty where there is no parent. Only its end must be legal: where two
    parameters are bound to one another no single change of either is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(Clean):
    """A strategy proposed candidates of a region, to be timed in `rounds` paired rounds each."""

    kind: Literal["proposed"] = "proposed"
    region: str
    strategy: str
    """Its name, with its settings."""
    rounds: int
    nodes: tuple[ProposalNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consulted(Clean):
    """A strategy asked a model what to try next: how to change a candidate, or what a round is to hold."""

    kind: Literal["consulted"] = "consulted"
    region: str
    candidate: str
    """The id of the candidate to change; of a question for a round that of the fastest, empty where none ran."""
    round: int = 0
    """The round that was asked for; 0 where a candidate was to be changed."""
    exchange: str = ""
    """The digest of the exchange; empty where there was no answer."""
    full: int = 0
    """Proposed sequences of which every step is legal."""
    partial: int = 0
    """Those of which the first steps are."""
    dropped: int = 0
    """Those without a legal step."""
    reason: str = ""
    """Why there was no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledPoint(Clean):
    """What an earlier run on this machine found about the same point on a like region."""

    candidate: str
    """The id of the point's candidate here."""
    label: str
    region: str
    """The id of the like region."""
    verdict: str
    """The verdict's kind."""
    speedup: float = 0.0
    """Over PyTorch there; 0 where it has no time."""
    stale: bool = False
    """Whether the template's text changed since, so that the finding may no longer hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(Clean):
    """Findings of earlier runs order the candidates of a region: fast ones come first, failed ones last."""

    kind: Literal["remembered"] = "remembered"
    region: str
    memories: tuple[RecalledPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress(Clean):
    """The progress of search and step tuning; times are wall time of this run's searches."""

    kind: Literal["search-progress"] = "search-progress"
    elapsed_s: float
    budget_s: float = 0.0
    """Seconds that search and step tuning may take together; 0 means no limit."""
    candidates: int = 0
    """Distinct candidates that have a verdict."""
    step_ns: int = 0
    """Time of the best step known: an estimate from its regions, later a measurement; 0 before there is one."""
    measured: bool = False
    """Whether `step_ns` was measured in the step."""
    rounds: int = 0
    """Rounds that were timed so far."""
    disturbed: float = 0.0
    """Share of the rounds that other processes on the machine disturbed."""
    overhead_s: float | None = None
    """Seconds of this process's search and step tuning in which it waited for no build, validation or timing; None in a
    run from before this was measured."""

    @property
    def eta_s(self) -> float:
        """The seconds until the time is used up; 0 when it is, or when there is no limit."""
        return max(self.budget_s - self.elapsed_s, 0.0)
