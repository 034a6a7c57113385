"""A kernel is right as its manifest says: another manifest's claims were not held against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile import past
from agentcompile.notes import Notes
from agentcompile.store import Store
from tests.cpu import jobs


def test_a_manifest_that_claims_something_else_has_to_be_held_against_it(tmp_path: Path) -> None:
    notes = Notes(Store(tmp_path))
    job = jobs.job()
    coarse = replace(job, template=replace(job.template, rounds=(("y", "bf16"),)))
    assert not past.accepted(notes, job, jobs.target())
    for now, other in ((job, coarse), (coarse, job)):
        past.note_accepted(notes, now, jobs.target())
        assert past.accepted(notes, now, jobs.target())
        assert not past.accepted(notes, other, jobs.target())
