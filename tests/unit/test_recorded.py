"""What a lock records, as its model shows it: plans to read, and a report for JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.replay.recorded import recorded

RESULTS = Path(__file__).parents[2] / "bench/results"


@pytest.fixture(scope="module")
def lock() -> Lock:
    return read_lock(RESULTS / "sample.lock.toml")


def test_the_plan_has_every_choice_of_every_regime(lock: Lock) -> None:
    plans = recorded(lock).plan
    assert [plan.phase for plan in plans] == sorted(plan.phase for plan in lock.plan)
    made = {(p.phase, p.batch, p.context, c.id, c.template, tuple(c.params.items())) for p in plans for c in p.choices}
    assert made == {
        (p.phase, p.batch, p.context, c.region, c.template, tuple(c.params.items()))
        for p in lock.plan
        for c in p.choices
    }
    assert any(choice.use == "kernel" and choice.params for plan in plans for choice in plan.choices)


def test_the_plan_cannot_be_written_to(lock: Lock) -> None:
    choice = next(choice for plan in recorded(lock).plan for choice in plan.choices if choice.params)
    params: Any = choice.params
    with pytest.raises(TypeError):
        params["VEC"] = 1


def test_the_report_is_json_with_digest_choices_times_and_the_check(lock: Lock) -> None:
    report: Any = json.loads(json.dumps(recorded(lock).report))
    assert report["lock"] == lock.content_hash
    assert report["model"]["weights"] == lock.model.weights
    assert report["target"]["arch"] == lock.target.arch
    measured = {c["id"]: c["measured"] for plan in report["plans"] for c in plan["choices"] if c["measured"]}
    assert {id: row["median_ns"] for id, row in measured.items()} == {
        row.region: row.median_ns for row in lock.evidence.regions
    }
    assert all(row["speedup_low"] <= row["speedup"] <= row["speedup_high"] for row in measured.values())
    assert [row["phase"] for row in report["check"]] == [row.phase for row in lock.evidence.model]
    steps = [plan["step"]["step_ns"] for plan in report["plans"] if plan["step"]]
    assert sorted(steps) == sorted(row.step_ns for row in lock.evidence.steps)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.lock.toml")), ids=lambda path: path.name)
def test_every_committed_lock_has_a_report_for_json(path: Path) -> None:
    json.dumps(recorded(read_lock(path)).report, allow_nan=False)
