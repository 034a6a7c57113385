"""What `diff` says of two locks: equal ones, other choices, other machines, occurrences apart, a lock that is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.cli.differing import diff, differences, differing_facts, step_times
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "bench" / "results" / "sample.lock.toml"
LLAMA = ROOT / "bench" / "results" / "cuda-llama-3.2-1b.lock.toml"


def changed(lock: Lock, *, at: int = 0, **changes: Any) -> Lock:
    """The lock with other fields in one choice of its first plan."""
    first, *rest = lock.plan
    choices = list(first.choices)
    choices[at] = replace(choices[at], **changes)
    return replace(lock, plan=(replace(first, choices=tuple(choices)), *rest))


def test_a_lock_does_not_differ_from_itself() -> None:
    lock = read_lock(SAMPLE)
    assert differences(lock, lock) == ()
    assert list(differing_facts(lock, lock)) == []
    assert all(a == b for _, a, b in step_times(lock, lock))


def test_another_choice_is_named_with_the_times_of_both() -> None:
    lock = read_lock(SAMPLE)
    timed = {one.region for one in lock.evidence.regions}
    at, own = next((at, one) for at, one in enumerate(lock.plan[0].choices) if one.region in timed and one.params)
    (found,) = differences(lock, changed(lock, at=at, use="fallback", template="", params={}))
    assert (found.region, found.b) == (own.name, "pytorch")
    assert found.a.startswith(own.template)
    assert found.a_ns == next(one.median_ns for one in lock.evidence.regions if one.region == own.region)
    (found,) = differences(lock, changed(lock, at=at, params={**own.params, "UNROLL": 3}))
    assert "UNROLL=3" in found.b


def test_a_plan_that_one_lock_has_alone_differs_in_all_its_regions() -> None:
    lock = read_lock(SAMPLE)
    found = differences(lock, replace(lock, plan=lock.plan[1:]))
    assert [one.a for one in found if one.b != "-"] == []
    assert len(found) == len(lock.plan[0].choices)


def test_locks_of_two_machines_say_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff({}, str(SAMPLE), str(LLAMA), screen=Screen.standard("json")) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["same"] is False
    told = {row["what"]: (row["a"], row["b"]) for row in value["made_with"]}
    assert told["device"][1] == "NVIDIA H200"
    assert {"weights", "model's name"} <= told.keys()
    assert diff({}, str(SAMPLE), str(LLAMA), screen=Screen.standard("text")) == 0
    shown = capsys.readouterr().out
    assert "their graphs differ: regions are not compared" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert diff({}, str(SAMPLE), str(SAMPLE), screen=Screen.standard("text")) == 0
    assert capsys.readouterr().out == "the same decisions\n"


def test_what_is_no_lock_and_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="holds no run"):
        diff({}, str(SAMPLE), str(tmp_path / "none.lock.toml"), screen=Screen.standard("text"))
