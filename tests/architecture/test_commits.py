"""Commit subjects since a floor: `area: what changes`, at most 72 characters, as a list of them is read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FLOOR = "7a44366680affc0062638094de0b12550e41b6ab"
"""The last revision whose history is taken as it is."""
MOST = 72
SUBJECT = re.compile(r"[a-z][a-z0-9/_-]*: [^\s.].*[^\s.]")


def _subjects(repository: Path) -> list[str]:
    """The subjects since the floor, without merges; none without git or the floor, as in a shallow clone."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{FLOOR}..HEAD"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _is_right(subject: str) -> bool:
    return len(subject) <= MOST and SUBJECT.fullmatch(subject) is not None


@pytest.mark.parametrize(
    ("subject", "right"),
    [
        ("cli: show the default of each setting in its help", True),
        ("tests/gpu: x1", True),
        ("Show the defaults", False),
        ("cli: show the default.", False),
        ("cli:show", False),
        (f"cli: {'x' * MOST}", False),
    ],
)
def test_a_subject_has_an_area_and_a_short_sentence(subject: str, right: bool) -> None:
    assert _is_right(subject) == right


def test_the_subjects_of_commits_are_short_and_name_their_area(repository: Path) -> None:
    assert [subject for subject in _subjects(repository) if not _is_right(subject)] == []
