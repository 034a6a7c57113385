"""The question to an adviser and its answer: an order, hints and risks over a space that others bounded.

Advice never adds a candidate, passes a check or decides; bad or missing advice costs trials and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.digest import Json
from agentcompile.ir.region import Region
from agentcompile.ir.resources import Resources
from agentcompile.ir.search_events import RecalledPoint, Transformation
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
    """Trials of these candidates so far; the last one of a candidate counts."""
    resources: tuple[tuple[str, tuple[Resources, ...]], ...] = ()
    """Candidate id with the assembler's report on each of its entries, for those of `history` that have one."""

    memories: tuple[RecalledPoint, ...] = ()
    """What earlier runs found about candidates on like regions: what was fast there, then what failed."""

    focus: tuple[str, ...] = ()
    """Ids of the candidate that is to be changed next, its parent in the search, and so on; empty for any.

    Of a question for a `round` they are the fastest candidates so far, the fastest first.
    """
    round: int = 0
    """The round of the search that the answer is for, the second or a later one; 0 where it is for none."""
    tries: int = 0
    """The most candidates that the round tries; 0 where it is not known."""
    processor: tuple[tuple[str, Json], ...] = ()
    """The system's report on a CPU's core, by name: its numbers in CPUID, threads of a core, sharers of its caches."""

    @property
    def floor_ns(self) -> float:
        """The roofline floor of one site at the residency of the step, in nanoseconds."""
        return self.region.floor_ns(self.ceiling, self.residency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Values of one parameter of a template, the most promising first."""

    template: str
    param: str
    values: tuple[ParamValue, ...]
    rationale: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A problem that may occur with a template here."""

    template: str
    text: str


Topic = Literal["semantic", "numerical", "bounds", "resource", "dynamic-shape"]
"""Subject of a claim: the region's meaning, or one of the four kinds of risk."""
Standing = Literal["unverified", "confirmed", "refuted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of an adviser that facts can settle; until then it is unverified."""

    says: str
    """A row of the table of claims: `computes`, `accumulates-in`, …"""
    topic: Topic
    template: str = ""
    """Template that it is about; empty when it is about the region."""
    value: str = ""
    rationale: str = ""
    standing: Standing = "unverified"
    because: str = ""
    """Fact that settled it."""

    @property
    def text(self) -> str:
        """The claim as text for people: ``linear/rows accumulates-in bf16``."""
        return " ".join(word for word in (self.template, self.says, self.value) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerItem:
    """One item of an adviser's answer, and whether it was accepted; a refused one has its reason."""

    what: Literal["diagnosis", "label", "claim", "risk", "rank", "sequence", "hint", "answer"]
    text: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a region in an adviser's words, and how fast it may become."""

    limit: str
    evidence: str
    """The numbers that show it."""
    attainable_us: float | None = None
    """The least time of a launch in microseconds that it expects of any candidate; None where it expects none.

    The scheduler shares the budget of the search out by what regions can still gain, which this lowers.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedSequence:
    """The legal beginning of a sequence of transformations that an adviser proposed; it has at least one step."""

    start: str
    """Id of the candidate that the first step changes."""
    steps: tuple[Transformation, ...]
    points: tuple[str, ...]
    """Id of the candidate after each step; every one is in the space."""
    rationale: str = ""
    stopped: str = ""
    """Why the next step is illegal; empty when all steps are legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCounts:
    """How legal an adviser's sequences were; the counts of several pieces of advice can be added."""

    full: int = 0
    """Sequences of which every step is legal."""
    partial: int = 0
    """Sequences of which only the first steps are legal, which are kept."""
    dropped: int = 0
    """Sequences without a legal first step, and items that are no sequence."""

    @property
    def total(self) -> int:
        """The number of proposed sequences that were read."""
        return self.full + self.partial + self.dropped

    def __add__(self, other: SequenceCounts) -> SequenceCounts:
        return SequenceCounts(
            full=self.full + other.full, partial=self.partial + other.partial, dropped=self.dropped + other.dropped
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources that asking an adviser used."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    microdollars: int = 0
    """Cost at the price that the options name; 0 when they name none."""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """The tokens of prompts and answers together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return self.plus(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self.plus(other, -1)

    def plus(self, other: Usage, times: int) -> Usage:
        """Return the sum of this usage and `times` the other."""
        return Usage(
            calls=self.calls + times * other.calls,
            prompt_tokens=self.prompt_tokens + times * other.prompt_tokens,
            completion_tokens=self.completion_tokens + times * other.completion_tokens,
            microdollars=self.microdollars + times * other.microdollars,
            seconds=self.seconds + times * other.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """An adviser's answer; candidates that `order` does not name follow in the space's order."""

    label: str
    """Name of the adviser: `heuristic`, `none`, `random:7`, or a model's name."""
    order: tuple[str, ...] = ()
    """Candidate ids, the most promising first."""
    hints: tuple[Hint, ...] = ()
    risks: tuple[Risk, ...] = ()
    rationales: tuple[tuple[str, str], ...] = ()
    """(candidate id, one sentence) for the first candidates of the order."""
    meaning: str = ""
    """Region's semantic label in the adviser's words; `claims` say which parts of it were verified."""
    claims: tuple[Claim, ...] = ()
    diagnosis: Diagnosis | None = None
    """What limits the region; None when the adviser did not say."""
    sequences: tuple[AdvisedSequence, ...] = ()
    sequence_counts: SequenceCounts = SequenceCounts()
    proposals: tuple[AnswerItem, ...] = ()
    """Everything that was said about the region, accepted or refused."""

    def sorted(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Return all `candidates`, those that the order names first; ids outside the space have no effect."""
        rank = {id: at for at, id in reversed(list(enumerate(self.order)))}
        keyed = [(rank.get(candidate.id, len(self.order)), at) for at, candidate in enumerate(candidates)]
        return tuple(candidates[at] for _, at in sorted(keyed))
