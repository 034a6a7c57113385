"""A kernel is right as its manifest says: another manifest's claims were not held against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning import trial_database
from tests.cpu import jobs


def test_a_manifest_that_claims_something_else_has_to_be_held_against_it(tmp_path: Path) -> None:
    notes = Notes(Store(tmp_path))
    job = jobs.job()
    coarse = replace(job, template=replace(job.template, rounds=(("y", "bf16"),)))
    assert not trial_database.accepted(notes, job, jobs.target())
    for now, other in ((job, coarse), (coarse, job)):
        trial_database.note_accepted(notes, now, jobs.target())
        assert trial_database.accepted(notes, now, jobs.target())
        assert not trial_database.accepted(notes, other, jobs.target())
