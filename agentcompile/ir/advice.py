"""What an adviser is asked and what it may answer: an order, hints and risks over a space that others bounded.

Advice never adds a candidate, passes a check or decides; an empty one costs trials and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Candidate, ParamValue, Template
from agentcompile.ir.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One region with its legal candidates and what is known about the machine."""

    region: Region
    target: Target
    ceiling: Ceiling
    residency: Residency
    templates: tuple[Template, ...]
    candidates: Sequence[Candidate]
    """The space, in its order."""
    history: tuple[Trial, ...] = ()
    """Trials of this region so far."""

    @property
    def floor_ns(self) -> float:
        """The roofline floor of one site at the residency of the step."""
        return self.region.floor_ns(self.ceiling, self.residency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Values of one parameter of a template, the most promising first."""

    template: str
    param: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """What may go wrong with a template here."""

    template: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """An adviser's answer. Candidates that `order` does not name follow in the space's order."""

    label: str
    """Who answered: `heuristic`, `none`, `random:7`, or a model's name."""
    order: tuple[str, ...] = ()
    """Candidate ids, the most promising first."""
    hints: tuple[Hint, ...] = ()
    risks: tuple[Risk, ...] = ()
    rationales: tuple[tuple[str, str], ...] = ()
    """(candidate id, one sentence) for the head of the order."""

    def sorted(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """All of `candidates`, those that the order names first; ids outside the space change nothing."""
        rank = {id: at for at, id in reversed(list(enumerate(self.order)))}
        keyed = [(rank.get(candidate.id, len(self.order)), at) for at, candidate in enumerate(candidates)]
        return tuple(candidates[at] for _, at in sorted(keyed))
