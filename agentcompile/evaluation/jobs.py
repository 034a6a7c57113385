"""The interface of evaluation: jobs, the arms of a timing, and the protocol that tests implement with a fake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentcompile.build.binary import Binary
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.template import Candidate, Depth, Source, Template
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Death, NumericReport, Verdict
from agentcompile.validate.cases import effort
from agentcompile.worker import protocol as p


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """A candidate with everything that its evaluation needs."""

    candidate: Candidate
    region: Region
    template: Template
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that was built and passed the correctness suite, so that it may be timed."""

    job: EvaluationJob
    binary: Binary
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The baseline of a comparison: the region's own body, run by PyTorch."""


def implementation(job: EvaluationJob, binary: Binary) -> p.Implementation:
    """Return a built candidate with the properties that its template declares."""
    t = job.template
    return p.Implementation(
        label=job.candidate.label,
        source=job.source,
        binary=binary,
        layouts=t.layouts,
        rounds=t.rounds,
        accumulation=t.accumulation,
        deterministic=t.deterministic,
    )


def arm_of(arm: Prepared | Baseline) -> p.Arm:
    """Return an arm of a timing as the worker's protocol has it."""
    return p.Reference() if isinstance(arm, Baseline) else implementation(arm.job, arm.binary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A whole model that crashed or hung: in which group of walks (-1: before the first), and how."""

    at: int
    verdict: Death


def longest_first(jobs: Iterable[EvaluationJob]) -> list[EvaluationJob]:
    """Return jobs in the order in which they are accepted side by side: none is left to run alone at the end."""
    return sorted(jobs, key=lambda job: -effort(job.region))


class Evaluator(Protocol):
    """Turns jobs into verdicts and arms into timings; tests have one that needs no process."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = ...
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        """Build and validate several jobs at once; yield one result for each, in any order."""

    def build(self, jobs: Iterable[EvaluationJob]) -> Iterator[EvaluationJob]:
        """Build several jobs at once without validating; yield those whose binaries are in the store, in any order."""

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
        """Time `arms` beside one another in each of `processes` fresh processes (1: the one kept for the search).

        After `seconds` (0: no limit) no process begins a round that an interval does not need. A failure that no arm
        caused is returned as it is.
        """

    def ceiling(self) -> Ceiling:
        """Measure the machine's ceilings now."""

    def close(self) -> None:
        """Stop every process; idempotent."""
