"""What the evaluator has under way: a candidate's next request, and whom a failed timing is blamed on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentcompile.build.binary import Binary
from agentcompile.evaluation.chunk import any_chunk, at_length, lengths, validated
from agentcompile.evaluation.jobs import EvaluationJob, implementation
from agentcompile.ir.template import Depth
from agentcompile.ir.trial import Cancelled, Death, Incorrect, Stage
from agentcompile.validate.endurance import wanted_launches
from agentcompile.worker import protocol as p


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A request under way for a job; `binary` is None until built, `again` marks the repeat after an outside kill."""

    job: EvaluationJob
    binary: Binary | None
    again: bool = False

    @property
    def stage(self) -> Stage:
        """The stage that the request is of."""
        return "build" if self.binary is None else "validate"


def validation(job: EvaluationJob, binary: Binary, depth: Depth, seed: int, repeats: int) -> p.Validate:
    """Return the request that validates a built job, with `repeats` launches that must agree."""
    region = at_length(job.region, validated(job.region))
    return p.Validate(
        region=region,
        lengths=lengths(job.region) if depth != "search" else (),
        chunk=(replace(job.region, sites=()),) if depth != "search" and any_chunk(job.region) else (),
        implementation=implementation(job, binary),
        seed=seed,
        repeats=repeats,
        depth=depth,
        launches=wanted_launches(region, len(job.region.sites)) if depth != "search" else 0,
    )


_COPIES = 16
"""How many times the bytes of a region its validation may need: inputs, references in float64 and their errors."""


def room_for(job: EvaluationJob, validating: Sequence[Work], memory_bytes: int) -> bool:
    """Return whether `job` may be validated beside those that are, within `memory_bytes`; alone always."""
    beside = sum(work.job.region.cost.bytes for work in validating)
    return not validating or _COPIES * (beside + job.region.cost.bytes) <= memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A failed timing request: the index of the arm that was running, and its verdict."""

    at: int
    verdict: Death | Cancelled | Incorrect


def each_process(seconds: float, processes: int) -> float:
    """Return the wall time of each of `processes` that share `seconds`; 0 means no limit."""
    return seconds / processes if 0 < seconds < math.inf else 0.0
