"""A run that ended on a busy machine, taken up again on a quiet one: its plan is timed anew, and nothing else is."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.measure.clock import Others
from tests.cpu import courses, flows
from tests.cpu.courses import Course

TRIES = 3
"""Of a confirmation, where the machine that the tests run on is not quiet itself."""
QUIET = 0.1
"""Share of the processors' time that others may take where a confirmation must succeed."""


def copied(course: Course, folder: Path, disturbed: float) -> Course:
    """A finished run, its lock not written yet, as it would be had others disturbed so much of its step's timing."""
    run, lock = folder / "run", folder / "a.lock.toml"
    shutil.copytree(course.run, run, ignore=shutil.ignore_patterns("control.sock"))
    asked = run / "options.json"
    assert str(course.lock) in asked.read_text()
    asked.write_text(asked.read_text().replace(str(course.lock), str(lock)))
    records = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    timed = [record["event"] for record in records if record["event"]["kind"] == "plan-admitted"]
    for event in (event for event in timed if event["plan"]["step_ns"]):
        event["plan"] |= {"disturbed": disturbed, "comparison": "INCONCLUSIVE" if disturbed else "FASTER"}
    (run / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return replace(course, run=run, lock=lock)


@pytest.fixture
def contended(compiled: Course, tmp_path: Path) -> Course:
    """A run whose lock says that others disturbed the timing of its step."""
    made, found = copied(compiled, tmp_path, 0.9), read_lock(compiled.lock)
    steps = tuple(replace(step, contended=True, disturbed="0.900") for step in found.evidence.steps)
    assert steps
    flows.rewrite(found, made.lock, evidence=replace(found.evidence, steps=steps))
    return made


def others() -> float:
    """What others take of the processors' time while we take none."""
    seen = Others()
    time.sleep(1.0)
    return seen.share()


SEARCHING = {"trial-started", "trial-finished", "choice-made"}


def resumed(course: Course) -> tuple[flows.Ended, list[dict[str, Any]]]:
    """Go on with a run: how that ended, and its new events."""
    known = len(courses.lines(course.run))
    done = flows.verb(course.home, "compile", "--resume", "--run-dir", course.run)
    assert done.code == 0, done.err
    return done, courses.lines(course.run)[known:]


def kinds(events: list[dict[str, Any]]) -> set[str]:
    return {event["kind"] for event in events}


def choices(lock: Lock) -> list[tuple[str, str, str]]:
    return [(choice.region, choice.use, choice.source) for plan in lock.plan for choice in plan.choices]


def test_a_resumed_run_times_its_contended_plan_again_and_its_lock_loses_the_label(contended: Course) -> None:
    before = read_lock(contended.lock)
    for _ in range(TRIES):
        done, new = resumed(contended)
        assert kinds(new).isdisjoint(SEARCHING), kinds(new)
        assert {"steps-timed", "plan-admitted", "lock-written"} <= kinds(new)
        after = read_lock(contended.lock)
        if not any(step.contended for step in after.evidence.steps):
            break
        assert "contended: " in done.out + done.err
    else:
        if (share := others()) > QUIET:
            pytest.skip(f"other processes take {share:.0%} of this machine: nothing can be confirmed on it")
    assert [step.contended for step in after.evidence.steps] == [False] * len(before.evidence.steps)
    assert "contended: " not in done.out + done.err
    assert [step.step_ns for step in after.evidence.steps] != [step.step_ns for step in before.evidence.steps]
    if all(event["plan"]["comparison"] == "FASTER" for event in new if event["kind"] == "plan-admitted"):
        assert choices(after) == choices(before)
    # Once more there is nothing to confirm, and what was confirmed stays.
    _, again = resumed(contended)
    assert kinds(again).isdisjoint({*SEARCHING, "steps-timed", "plan-admitted"}), kinds(again)
    assert read_lock(contended.lock).evidence.steps == after.evidence.steps


def test_a_resumed_run_whose_plan_was_not_contended_times_nothing(compiled: Course, tmp_path: Path) -> None:
    made = copied(compiled, tmp_path, 0.0)
    _, new = resumed(made)
    assert kinds(new).isdisjoint({*SEARCHING, "steps-timed", "plan-admitted"}), kinds(new)
    assert read_lock(made.lock)
