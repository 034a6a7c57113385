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


def test_what_was_accepted_at_one_of_its_lengths_has_not_passed_the_whole_suite(tmp_path: Path) -> None:
    notes, job, target = Notes(Store(tmp_path)), jobs.job(), jobs.target()
    trial_database.note_accepted(notes, job, target, missing=3, depth="length")
    assert trial_database.accepted(notes, job, target, "length")
    assert trial_database.missing_of(notes, job, target, "length") == 3
    assert not trial_database.accepted(notes, job, target)
    trial_database.note_accepted(notes, job, target)
    assert trial_database.accepted(notes, job, target)


def test_the_whole_suite_counts_for_a_part_of_it(tmp_path: Path) -> None:
    notes, job, target = Notes(Store(tmp_path)), jobs.job(), jobs.target()
    trial_database.note_accepted(notes, job, target)
    assert trial_database.accepted(notes, job, target, "length")
