"""Makes the parts of requests to a worker from jobs and arms."""

from __future__ import annotations

import math
import os

from agentcompile.build.binary import Binary
from agentcompile.evaluation.jobs import Baseline, EvaluationJob, Prepared
from agentcompile.worker import protocol as p


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


def each_process(seconds: float, processes: int) -> float:
    """Return the wall time in seconds of one process of a timing; 0 means no limit."""
    return seconds / processes if 0 < seconds < math.inf else 0.0


def physical_bytes() -> int:
    """Return the machine's physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
