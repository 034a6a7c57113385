"""What is judged and who judges: jobs, arms that may be timed, and the seam that tests fill with a fake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentcompile.build.binary import Binary
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.template import Candidate, Source, Template
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Death, NumericReport, Verdict

Depth = Literal["search", "accept"]
"""How thoroughly a candidate is validated: enough to time it, or enough to ship it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """A candidate with all that judging it needs."""

    candidate: Candidate
    region: Region
    template: Template
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that built and passed the correctness suite: it may be timed."""

    job: EvaluationJob
    binary: Binary
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What candidates are compared with: the region's own body run by PyTorch."""

    name: str = "pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A whole model that crashed or hung: in which group of walks (-1: before the first), and how."""

    at: int
    verdict: Death


class Evaluator(Protocol):
    """Who turns jobs into verdicts and arms into samples; tests have one that needs no process."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = ...
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        """Build and validate, several at once; results come in any order, one for each job."""

    def build(self, jobs: Iterable[EvaluationJob]) -> Iterator[EvaluationJob]:
        """Build alone, several at once; the jobs whose binaries are in the store now, in any order."""

    def time(
        self,
        region: Region,
        arms: Sequence[Prepared | Baseline],
        *,
        rounds: int,
        residency: Residency,
        seed: int,
        processes: int,
        claim: float = ...,
        seconds: float = ...,
    ) -> Timing | Death:
        """Time `arms` beside one another in each of `processes` fresh processes (1: the one that stays for search).

        After `seconds` (0: any) no process begins a round that an interval does not need.
        """

    def ceiling(self) -> Ceiling:
        """Measure the machine's ceilings now."""

    def close(self) -> None:
        """Stop every process; idempotent."""
