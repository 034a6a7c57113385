"""Candidates as a worker is asked about them."""

from __future__ import annotations

import math
import os

from agentcompile.build.binary import Binary
from agentcompile.evaluation.jobs import Baseline, EvaluationJob, Prepared
from agentcompile.worker import protocol as p


def implementation(job: EvaluationJob, binary: Binary) -> p.Implementation:
    """A built candidate with what its template declares."""
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
    """What is timed."""
    return p.Reference(label=arm.name) if isinstance(arm, Baseline) else implementation(arm.job, arm.binary)


def each_process(seconds: float, processes: int) -> float:
    """Of a timing's wall time, the part of one process; 0: any."""
    return seconds / processes if 0 < seconds < math.inf else 0.0


def physical_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
