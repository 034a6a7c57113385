"""A template of a prefill, changed or not, through acceptance as a worker makes it for a chunk of any length."""

from __future__ import annotations

from agentcompile.evaluation.chunk import at_length, validated
from agentcompile.ir.trial import NumericReport
from agentcompile.validate import validate
from agentcompile.validate.chunk import AnyChunk
from agentcompile.worker.launch import chunk_in_turn, chunk_runner, facts_of, in_turn, runner
from tests.templates.chunked import TOKENS, Workshop
from tests.templates.shapes import Extents
from tests.templates.suite import CATALOG


def accepted(
    workshop: Workshop, id: str, at: Extents, change: tuple[str, str] | None = None, *, seed: int = 0
) -> NumericReport:
    """The report of a template, one text of which may be changed."""
    built = workshop.build(CATALOG.get(id, at.dtype), at, change=change)
    implementation = built.implementation
    here, executor = at_length(built.region, validated(built.region)), workshop.executor(2)
    assert built.region.longest_chunk == TOKENS
    chunk = AnyChunk(
        region=built.region,
        longest=TOKENS,
        run=chunk_runner(implementation, executor),
        serial=chunk_in_turn(implementation, 2),
    )
    return validate(
        here,
        facts_of(implementation),
        runner(implementation, here, executor),
        seed=seed,
        repeats=2,
        depth="accept",
        serial=in_turn(implementation, here, 2),
        chunk=chunk,
    )


def failures(report: NumericReport) -> list[str]:
    """What failed, and how."""
    return [f"{check.name}: {check.detail} ({check.measured:g})" for check in report.checks if not check.ok]
